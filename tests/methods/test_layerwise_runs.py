"""Layerwise, grouped and multiplied clipping in whole runs of every method."""

import math
from pathlib import Path

import pytest
import torch
from small_runs import FEATURES, flat, prepared, save, small_model, small_recipe
from torch import Tensor, nn

from tacit.assemble import Facts, assemble
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError
from tacit.loop import fit
from tacit.losses import cross_entropy
from tacit.privacy import ledger
from tacit.rundir import RunDir

ADAPTIVE = {"clipping": "adaptive-layerwise", "clip": 0.3}
MULTIPLIED = {"clipping": "multiplied", "clip": 0.3}
GROUPED = {"clipping": "multiplied", "clip": 0.3, "groups": 1, "clip_decay": 0.9}
GIVEN = {"clipping": "layerwise", "thresholds": [0.2, 0.1], "noise_weights": [1.0, 2.0]}
KINDS = {"adaptive": ADAPTIVE, "multiplied": MULTIPLIED, "grouped": GROUPED, "given": GIVEN}


def public() -> TensorRecords:
    x = torch.randn(40, FEATURES, generator=torch.Generator().manual_seed(9))
    return TensorRecords(x, x[:, :3].argmax(1))


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("method", ["dpsgd", "dpftrl"])
def test_fast_and_reference_engine_train_the_same_weights(
    tmp_path: Path, records: TensorRecords, kind: str, method: str
) -> None:
    found = []
    for engine in ("fast", "reference"):
        recipe = small_recipe(method=method, engine=engine, noise=1e-5, **KINDS[kind])
        model = small_model()
        steps = prepared(tmp_path / engine, records, recipe, model, public=public())
        for _ in range(4):
            steps.advance(cross_entropy)
        found.append(flat(model))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert not torch.equal(found[0], flat(small_model()))


def test_without_gradient_every_layer_gets_the_noise_of_its_threshold(
    tmp_path: Path, records: TensorRecords
) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(FEATURES, 4000), nn.Linear(4000, 6)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x))
            return out

    recipe = small_recipe(noise=2.0, learning_rate=1.0, **GIVEN)
    model = Wide()
    before = [flat(part) for part in (model.first, model.second)]
    steps = prepared(tmp_path / "run", records, recipe, model)
    steps.advance(lambda net, batch: 0.0 * net(batch[0]).sum(1))
    shares = (0.2, 0.8)
    for part, old, clip, share in zip(
        (model.first, model.second), before, (0.2, 0.1), shares, strict=True
    ):
        expected = 2.0 * clip / math.sqrt(share) / 30
        assert float((flat(part) - old).std()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("every", "steps_between"), [(1.0, 10), (0.5, 5), (0, 1)])
def test_thresholds_follow_the_weights_from_epoch_to_epoch_or_step_to_step(
    tmp_path: Path, records: TensorRecords, every: float, steps_between: int
) -> None:
    recipe = small_recipe(noise=0.1, learning_rate=2.0, estimate_every=every, **ADAPTIVE)
    steps = prepared(tmp_path / "run", records, recipe, public=public())
    seen = []
    for _ in range(12):
        steps.advance(cross_entropy)
        seen.append(tuple(steps.state.memory["clipping.norms"].tolist()))
    changed = [step for step in range(1, 12) if seen[step] != seen[step - 1]]
    assert changed == list(range(steps_between, 12, steps_between))


@pytest.mark.parametrize("kind", ["adaptive", "grouped"])
def test_a_resumed_run_goes_on_with_its_thresholds_and_groups(
    tmp_path: Path, records: TensorRecords, kind: str
) -> None:
    recipe = small_recipe(**KINDS[kind], momentum=0.5)
    whole = prepared(tmp_path / "whole", records, recipe, public=public())
    for _ in range(14):
        whole.advance(cross_entropy)
    cut = prepared(tmp_path / "cut", records, recipe, public=public())
    for _ in range(5):
        cut.advance(cross_entropy)
    save(cut, RunDir.open(tmp_path / "cut"))
    cut.ledger.close()
    other = small_model()
    with torch.no_grad():
        other[0].weight.mul_(50)
    run = RunDir.continued(tmp_path / "cut")
    resumed = assemble(other, records, recipe, run, Facts(), public=public(), resume=True)
    for _ in range(9):
        resumed.advance(cross_entropy)
    assert torch.equal(flat(resumed.state.model), flat(whole.state.model))


def test_the_certificate_names_groups_and_public_records(
    tmp_path: Path, records: TensorRecords
) -> None:
    recipe = small_recipe(**ADAPTIVE, rate_decay=0.5)
    result = fit(small_model(), records, public=public(), recipe=recipe, out=tmp_path / "run")
    certificate = result.certificate
    assert certificate["norm_groups"] == 2
    assert "public" in certificate["clipping"] and "group by group" in certificate["clipping"]
    assert any("40 records" in line for line in certificate["not_covered"])
    promise = ledger.read(result.path / "ledger.jsonl")[0].body
    assert promise["groups"] == [["0.weight", "0.bias"], ["2.weight", "2.bias"]]


def test_groups_by_norm_need_public_records(tmp_path: Path, records: TensorRecords) -> None:
    with pytest.raises(ArgumentError, match="public"):
        prepared(tmp_path / "run", records, small_recipe(**GROUPED))
