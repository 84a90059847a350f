"""Features of records: one record at a time, normalised within it, kept where that is allowed."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tacit import config
from tacit.data import features
from tacit.data.features import ScatteringFeatures, with_features
from tacit.data.generated import GeneratedImages
from tacit.data.loaded import Data, Split
from tacit.data.published import DATASETS
from tacit.errors import ArgumentError
from tacit.train import train

SMALL = {"name": "scattering", "scale": 1, "angles": 4, "groups": 5}


def images(count: int, channels: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, channels, 8, 8), generator=generator, dtype=torch.uint8)


def function(
    groups: int = 5,
    mirrored: bool = False,
    centred: bool = False,
    upright: bool = False,
    whitened: float = 0.0,
) -> ScatteringFeatures:
    return ScatteringFeatures((1, 8, 8), 1, 4, groups, mirrored, centred, upright, whitened)


def data(name: str, count: int = 70, own: bool = False) -> Data:
    split = Split(images(count), torch.zeros(count, dtype=torch.int64))
    given = Data(name, split, None, ("a", "b"), "image", (0.5,), (0.5,), ("pixels",), "made up")
    return replace(given, published=name in DATASETS and not own)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tacit" / "features"


@pytest.mark.parametrize(
    "given",
    [{}, {"mirrored": True}, {"centred": True}, {"upright": True}, {"whitened": 0.5}],
    ids=lambda given: next(iter(given), "plain"),
)
def test_a_changed_record_changes_its_own_features_and_no_others(given: dict[str, Any]) -> None:
    before, after = images(20), images(20)
    after[7] = 255 - after[7]
    one, two = (function(**given).compute(x) for x in (before, after))
    changed = (one != two).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == [7]


def test_every_group_of_every_record_is_normalised() -> None:
    found = function().compute(images(6)).view(6, 5, -1)
    torch.testing.assert_close(found.mean(2), torch.zeros(6, 5), atol=1e-5, rtol=0)
    spread = found.square().mean(2)
    assert spread.max() <= 1.0001 and spread.min() > 0.9
    flat = function().compute(torch.full((1, 1, 8, 8), 9, dtype=torch.uint8))
    assert flat.abs().max() < 0.01


def test_an_image_and_its_mirror_image_have_the_same_mirrored_features() -> None:
    x = images(4)
    found = function(mirrored=True).compute(x)
    assert found.shape == (4, 5, 4, 2)
    torch.testing.assert_close(function(mirrored=True).compute(x.flip(3)), found)
    assert not torch.allclose(function().compute(x.flip(3)), function().compute(x), atol=0.1)


def test_the_centre_comes_from_generated_images_alone() -> None:
    apart = function().compute(images(6)) - function(centred=True).compute(images(6))
    torch.testing.assert_close(apart, apart[:1].expand_as(apart), atol=1e-5, rtol=0)
    drawn = GeneratedImages.draw(features._GENERATED, (1, 8, 8), features._SEED).pixels
    torch.testing.assert_close(apart[0], function().compute(drawn).mean(0), atol=1e-5, rtol=0)
    assert apart.abs().max() > 0.1


def test_a_watcher_sees_how_far_features_are_unless_they_are_kept(cache: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = data("digits", 130)
    with_features(made, function(), lambda done, rows: seen.append((done, rows)))
    assert seen == [(64, 130), (128, 130), (130, 130)]
    with_features(made, function(), lambda done, rows: seen.append((done, rows)))
    assert len(seen) == 3


def test_features_of_published_data_are_computed_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = with_features(data("digits"), function())
    expected = function().compute(data("digits").train.features).half()
    assert first.train.features.dtype == torch.float16
    assert torch.equal(first.train.features, expected)
    assert first.mean == () and "fixed function of one record" in first.treated_as_public[-1]

    def refuse(self: object, rows: Tensor) -> Tensor:
        raise AssertionError("computed again")

    with monkeypatch.context() as patched:
        patched.setattr(ScatteringFeatures, "compute", refuse)
        again = with_features(data("digits"), function())
    assert torch.equal(again.train.features, expected)
    assert [path.suffix for path in cache.iterdir()] == [".npy"]
    with_features(data("digits"), function(groups=1))
    with_features(data("digits", 71), function())
    assert len(list(cache.iterdir())) == 3


def test_runs_that_start_together_compute_features_once(cache: Path) -> None:
    seen: list[int] = []
    both = threading.Barrier(2)

    def watch(done: int, rows: int) -> None:
        seen.append(done)
        time.sleep(0.05)

    def start() -> Tensor:
        made = data("digits", 130)
        both.wait()
        return with_features(made, function(), watch).train.features

    with ThreadPoolExecutor(2) as pool:
        one, other = (future.result() for future in [pool.submit(start) for _ in range(2)])
    assert seen == [64, 128, 130]
    assert torch.equal(one, other)
    assert [path.suffix for path in cache.iterdir()] == [".npy"]


def test_a_file_cut_short_is_computed_again(cache: Path) -> None:
    whole = with_features(data("digits"), function()).train.features.clone()
    (path,) = cache.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    assert torch.equal(with_features(data("digits"), function()).train.features, whole)


def test_an_interrupted_computation_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ScatteringFeatures.compute

    def stops(self: ScatteringFeatures, rows: Tensor) -> Tensor:
        if len(rows) < features._ROWS and len(rows) > 1:
            raise KeyboardInterrupt
        return real(self, rows)

    monkeypatch.setattr(ScatteringFeatures, "compute", stops)
    with pytest.raises(KeyboardInterrupt):
        with_features(data("digits"), function())
    assert list(cache.iterdir()) == []


def test_features_of_own_records_are_never_written_to_the_cache(cache: Path) -> None:
    found = with_features(data("/home/me/private.npz"), function())
    assert found.train.features.shape == (70, 5, 4, 4)
    assert not cache.exists()


def test_what_cannot_be_transformed_is_refused() -> None:
    with pytest.raises(ArgumentError, match="needs images"):
        ScatteringFeatures((12,), 2, 8, 27, False)
    with pytest.raises(ArgumentError, match="groups is 4, which does not divide the 5 channels"):
        function(groups=4)
    with pytest.raises(ArgumentError, match="augment changes images"):
        config.from_values({"features": SMALL, "training": {"augment": ["flip"]}})
    with pytest.raises(ArgumentError, match="did you mean 'groups'"):
        config.from_values({"features": {"name": "scattering", "group": 3}})


def test_a_recipe_with_features_names_them_in_its_certificate(cache: Path, tmp_path: Path) -> None:
    values = {
        "data": {"name": "digits"},
        "features": SMALL,
        "model": {"name": "linear"},
        "training": {"epochs": 5, "batch_size": 300, "learning_rate": 0.1, "momentum": 0.9},
        "run": {"seed": 1},
    }
    recipe = config.from_values(values)
    result = train(recipe, out=tmp_path / "run")
    public = result.certificate["treated_as_public"]
    assert any("scattering transform of each image" in sentence for sentence in public)
    assert result.accuracy is not None and result.accuracy > 0.8
    assert config.load(str(tmp_path / "run" / "recipe.toml")) == recipe
    assert recipe.digest() != recipe.with_settings(features="scattering").digest()


def test_own_records_in_a_file_named_like_a_published_dataset_are_not_kept(cache: Path) -> None:
    with_features(data("mnist", own=True), function())
    assert not cache.exists()
    with_features(data("mnist"), function())
    assert len(list(cache.iterdir())) == 1
