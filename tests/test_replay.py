"""A run that is resumed with other code: what it noises is charged, or the run is refused."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import CLASSES, FEATURES, prepared, small_recipe
from torch import Tensor, nn

import tacit
from tacit.assemble import Facts, assemble
from tacit.data.batches import TensorRecords
from tacit.errors import BudgetError, ReplayError, RunError
from tacit.losses import cross_entropy
from tacit.methods import class_sums
from tacit.methods.dpsgd import DpSgd
from tacit.models import SanitizationLayer
from tacit.noise.correlated import BandedStream, CorrelatedNoise
from tacit.noise.gaussian import GaussianNoise
from tacit.privacy import events, ledger
from tacit.rundir import RunDir
from tacit.steps import Steps

STEPS, LOST = 20, 4
SELECTIVE: dict[str, Any] = {"method": "dpsur", "validation_batch_size": 30}
SELECTIVE |= {"validation_clip": 100.0}
DECAYING = {**SELECTIVE, "method": "dpsgd-br", "beta": 0.0, "slow": 0.999, "fast": 0.999}
DECAYING |= {"feedback_batch_size": 30, "feedback_noise": 9.0}
JOINT: dict[str, Any] = {"method": "sanitization", "guarantee": "joint"}
ONE_TIME: dict[str, Any] = {"method": "sanitization", "guarantee": "one-time"}
SUMS: dict[str, Any] = {"method": "sanitization", "guarantee": "class-sums", "head": "prototypes"}
MINI_SETS: dict[str, Any] = {"method": "batch-clipping", "mini_sets": 3}
MOMENTS: dict[str, Any] = {**MINI_SETS, "batch_norm": "noisy"}


class Gained(nn.Module):
    """A layer whose printed form does not tell what it computes."""

    def __init__(self, gain: float, in_evaluation: float | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 8)
        self._gain, self._in_evaluation = gain, gain if in_evaluation is None else in_evaluation

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.linear(x) * (self._gain if self.training else self._in_evaluation)
        return hidden


def network(method: dict[str, Any], gain: float, in_evaluation: float | None = None) -> nn.Module:
    """A network as the method needs it; equal in print whatever it computes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        middle: nn.Module = nn.Tanh()
        if method.get("method") == "sanitization":
            middle = SanitizationLayer()
        if "batch_norm" in method:
            middle = nn.BatchNorm1d(8)
        return nn.Sequential(Gained(gain, in_evaluation), middle, nn.Linear(8, CLASSES))


class Noised:
    """All that came out with noise on it, step by step, wherever in the library it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, ...]] = []
        self._now: list[str] = []
        for where, name, vector in (
            (GaussianNoise, "privatise", lambda made: made.vector),
            (CorrelatedNoise, "privatise", lambda made: made.vector),
            (SanitizationLayer, "noised", lambda made: made.detach()),
            (class_sums, "noised", lambda made: made),
        ):
            monkeypatch.setattr(where, name, self._watched(getattr(where, name), vector))
        monkeypatch.setattr(Steps, "_take", self._each(Steps._take))

    def _watched(self, make: Callable[..., Any], vector: Callable[[Any], Tensor]) -> Any:
        def watched(*given: Any, **more: Any) -> Any:
            made = make(*given, **more)
            self._now.append(hashlib.sha256(vector(made).numpy().tobytes()).hexdigest())
            return made

        return watched

    def _each(self, take: Callable[..., None]) -> Any:
        def taken(*given: Any) -> None:
            self._now = []
            try:
                take(*given)
            finally:
                self.steps.append(tuple(self._now))

        return taken

    @property
    def distinct(self) -> int:
        """Different steps; one that was cut short counts with the one that begins like it."""
        different = {step for step in self.steps if step}
        return sum(
            not any(other != step and other[: len(step)] == step for other in different)
            for step in different
        )


@pytest.fixture
def noised(monkeypatch: pytest.MonkeyPatch, without_figures: None) -> Noised:
    return Noised(monkeypatch)


def charges(out: Path) -> int:
    return sum(entry.kind == "charge" for entry in ledger.read(out / "ledger.jsonl"))


def interrupted(
    out: Path, records: TensorRecords, model: nn.Module, method: dict[str, Any], lost: int
) -> None:
    """A run that is cut off after `lost` steps, none of which was saved."""
    steps = prepared(out, records, small_recipe(**method), model)
    for _ in range(lost):
        steps.advance(cross_entropy)


@pytest.mark.parametrize("in_evaluation", [0.5, 1.0])
@pytest.mark.parametrize(
    "method",
    [{}, {"clipping": "layerwise"}, MINI_SETS, MOMENTS, SELECTIVE, DECAYING, JOINT],
    ids=["dpsgd", "layerwise", "batches", "moments", "dpsur", "dpsgd-br", "joint"],
)
def test_with_another_forward_after_a_crash_every_noised_sum_is_charged(
    tmp_path: Path,
    records: TensorRecords,
    noised: Noised,
    method: dict[str, Any],
    in_evaluation: float,
) -> None:
    out = tmp_path / "run"
    interrupted(out, records, network(method, 1.0), method, LOST)
    changed = network(method, 0.5, in_evaluation)
    tacit.fit(changed, records, recipe=small_recipe(**method), out=out, resume=True)
    assert noised.distinct > LOST
    assert charges(out) >= noised.distinct
    lines = [e.body for e in ledger.read(out / "ledger.jsonl") if e.kind == "resume"]
    assert [(line["generation"], line["replay"]) for line in lines] == [(0, True), (1, False)]


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (MOMENTS, STEPS + 1),
        (SELECTIVE, LOST),
        (ONE_TIME, 1),
        (SUMS, 1),
        (SUMS | {"head": "ridge"}, 1),
    ],
    ids=["moments", "dpsur", "one-time", "class-sums", "ridge"],
)
def test_a_forward_that_differs_in_evaluation_only_is_found(
    tmp_path: Path, records: TensorRecords, noised: Noised, method: dict[str, Any], steps: int
) -> None:
    """Moments, loss tests and one-time releases see the model in evaluation mode."""
    out = tmp_path / "run"
    interrupted(out, records, network(method, 1.0), method, steps)
    before = noised.distinct
    changed = prepared_again(out, records, network(method, 1.0, 0.5), method)
    with pytest.raises(ReplayError, match="was noised before"):
        for _ in range(steps):
            changed.advance(cross_entropy)
    assert noised.distinct == before <= charges(out)


def prepared_again(
    out: Path, records: TensorRecords, model: nn.Module, method: dict[str, Any]
) -> Steps:
    run = RunDir.open(out)
    return assemble(model, records, small_recipe(**method), run, Facts(), resume=True)


@pytest.mark.parametrize("method", [ONE_TIME, SUMS], ids=["one-time", "class-sums"])
def test_a_one_time_release_is_not_made_again(
    tmp_path: Path, records: TensorRecords, noised: Noised, method: dict[str, Any]
) -> None:
    out, recipe = tmp_path / "run", small_recipe(**method)
    interrupted(out, records, network(method, 1.0), method, 1)
    with pytest.raises(BudgetError, match="start a new run"):
        tacit.fit(network(method, 0.5), records, recipe=recipe, out=out, resume=True)
    assert noised.distinct == 1 == charges(out)


@pytest.mark.parametrize("mechanism", ["tree", "banded"])
def test_correlated_noise_is_not_given_to_another_sum(
    tmp_path: Path, records: TensorRecords, noised: Noised, mechanism: str
) -> None:
    method = {"method": "dpftrl", "mechanism": mechanism}
    out, recipe = tmp_path / "run", small_recipe(**method)
    interrupted(out, records, network(method, 1.0), method, LOST)
    with pytest.raises(RunError, match=r"noise is correlated .* bit for bit"):
        tacit.fit(network(method, 0.5), records, recipe=recipe, out=out, resume=True)
    assert noised.distinct == LOST == charges(out)
    tacit.fit(network(method, 1.0), records, recipe=recipe, out=out, resume=True)
    assert noised.distinct == STEPS == charges(out)


def test_correlated_noise_that_comes_out_differently_is_not_used(
    tmp_path: Path, records: TensorRecords, noised: Noised, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"method": "dpftrl", "mechanism": "banded"}
    out, recipe = tmp_path / "run", small_recipe(**method)
    interrupted(out, records, network(method, 1.0), method, LOST)
    release = BandedStream.release
    moved = lambda stream, step, sums: release(stream, step, sums + 2**-24)  # noqa: E731
    monkeypatch.setattr(BandedStream, "release", moved)
    with pytest.raises(RunError, match="bit for bit"):
        tacit.fit(network(method, 1.0), records, recipe=recipe, out=out, resume=True)
    assert noised.distinct == LOST


def test_a_step_charged_as_another_release_is_charged_again(
    tmp_path: Path, records: TensorRecords, noised: Noised, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    interrupted(out, records, network({}, 1.0), {}, LOST)
    other = events.poisson(0.2, events.gaussian(1.0))
    monkeypatch.setattr(DpSgd, "charge", lambda *_: other)
    tacit.fit(network({}, 1.0), records, recipe=small_recipe(), out=out, resume=True)
    found = [e.body for e in ledger.read(out / "ledger.jsonl") if e.kind == "charge"][LOST:]
    assert [(c["generation"], c["step"]) for c in found] == [(1, i) for i in range(STEPS - LOST)]
    assert all(c["event"] == events.to_json(other) for c in found)


def test_unchanged_the_run_repeats_what_it_lost_and_charges_nothing_twice(
    tmp_path: Path, records: TensorRecords, noised: Noised
) -> None:
    out = tmp_path / "run"
    interrupted(out, records, network({}, 1.0), {}, LOST)
    tacit.fit(network({}, 1.0), records, recipe=small_recipe(), out=out, resume=True)
    assert len(noised.steps) == STEPS + LOST
    assert noised.distinct == STEPS == charges(out)


def test_another_number_of_threads_is_known_beforehand_to_change_bits(
    tmp_path: Path, records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path / "run", records, network({}, 1.0), {}, LOST)
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    again = prepared_again(tmp_path / "run", records, network({}, 1.0), {})
    assert again.ledger.entries[-1].body["replay"] is False
    assert again.remaining == STEPS - LOST
