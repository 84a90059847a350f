"""The tier that a certificate states is what was done before every step."""

from pathlib import Path

import pytest
import torch
from mixing_models import (
    Causal,
    FaintMean,
    FixedLength,
    RareGate,
    TrimsToLongest,
    hardest_only,
    rows,
    texts,
    vectors,
)
from torch import Tensor, nn

import tacit
from tacit.clipping.contract import Batch, LossFunction
from tacit.config import Recipe
from tacit.data.batches import as_records
from tacit.errors import ArgumentError, LedgerError, MixedRecordsError, ModelError, RunError
from tacit.independence import (
    IndependenceGuard,
    Tier,
    check_resumed,
    independence_of,
    weakest_of,
)
from tacit.independence.replacements import REPLACEMENTS
from tacit.independence.rerun import LAST
from tacit.independence.tiers import CHECK_EVERY
from tacit.models import build
from tacit.privacy import certificate, ledger
from tacit.privacy.certificate_text import as_text

_SETTINGS = {"epsilon": 2.0, "epochs": 1, "batch_size": 50, "seed": 3}


def _kinds(run: Path) -> list[str]:
    return [entry.kind for entry in ledger.read(run / "ledger.jsonl")]


def _draw_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        module.reset_parameters()


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("model", "data"),
    [(TrimsToLongest(), texts(200)), (RareGate(), vectors(200)), (FaintMean(), vectors(200))],
    ids=lambda value: type(value).__name__,
)
def test_mixing_models_are_refused_before_anything_is_charged(
    model: nn.Module, data: Batch, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model.apply(_draw_weights)
    with pytest.raises(MixedRecordsError):
        tacit.fit(model, data, out=tmp_path / "fit", **_SETTINGS)
    steps = tacit.PrivateSteps(model, data, out=tmp_path / "own", **_SETTINGS)
    next(iter(steps))
    with pytest.raises(MixedRecordsError):
        steps.step(tacit.cross_entropy)
    assert _kinds(tmp_path / "fit") == _kinds(tmp_path / "own") == ["promise"]


def test_mixing_along_the_batch_is_found_where_all_records_are_equally_empty(
    tmp_path: Path,
) -> None:
    """The first record sees nobody, so it must not be the only one that is looked at."""
    x = torch.eye(6)[torch.arange(200) % 6]
    with pytest.raises(MixedRecordsError):
        tacit.fit(Causal(), (x, vectors(200)[1]), out=tmp_path / "run", **_SETTINGS)
    assert _kinds(tmp_path / "run") == ["promise"]


def test_a_record_that_opens_the_gate_stops_the_run_before_it_is_charged(tmp_path: Path) -> None:
    x, y = vectors(200)
    x[:, 0] = 50.0
    with pytest.raises(MixedRecordsError):
        tacit.fit(RareGate(), (x, y), out=tmp_path / "run", **_SETTINGS)
    assert _kinds(tmp_path / "run") == ["promise"]


@pytest.mark.parametrize(
    ("model", "settings", "tier"),
    [
        (_network(), {}, "by construction"),
        (
            RareGate(),
            {"engine": "loop"},
            "checked: the gradient of every record is computed in a call",
        ),
        (_network(), {"engine": "loop"}, "by construction"),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), {"method": "batch-clipping"}, "by con"),
        (_network(), {"assume_independent": True}, "assumed: NOT CHECKED"),
        (RareGate(), {"assume_independent": True, "engine": "loop"}, "assumed: NOT CHECKED"),
    ],
)
def test_the_certificate_states_the_tier(
    model: nn.Module, settings: dict[str, object], tier: str, tmp_path: Path
) -> None:
    result = tacit.fit(model, vectors(200), out=tmp_path / "run", **(_SETTINGS | settings))
    assert result.certificate["independence"].startswith(tier)
    page = (result.path / "certificate.txt").read_text("utf-8")
    top = page.index("Independence of records")
    assert top < min(page.index(h) for h in ("What is released", "Warnings", "Clipping"))
    assert any("NOT CHECKED" in each for each in result.certificate["warnings"]) == (
        "assume_independent" in settings
    )


def test_models_and_losses_of_ones_own_are_checked(tmp_path: Path) -> None:
    model = tacit.fit(FixedLength(), texts(200), out=tmp_path / "model", **_SETTINGS)
    loss = tacit.fit(_network(), vectors(200), loss=rows, out=tmp_path / "loss", **_SETTINGS)
    for result in (model, loss):
        assert result.certificate["independence"].startswith("checked: it is assumed")
        assert "Independence of records" in as_text(result.certificate)


def test_a_method_without_a_guarantee_states_no_tier(tmp_path: Path) -> None:
    result = tacit.fit(
        FaintMean(), vectors(200), method="plain", out=tmp_path / "run", epochs=1, batch_size=50
    )
    assert result.certificate["independence"] is None


def test_every_loss_function_is_checked_before_its_first_use(tmp_path: Path) -> None:
    steps = tacit.PrivateSteps(_network(), vectors(200), out=tmp_path / "run", **_SETTINGS)
    drawn = iter(steps)
    next(drawn)
    steps.step(rows)
    next(drawn)
    with pytest.raises(MixedRecordsError):
        steps.step(hardest_only)
    assert _kinds(tmp_path / "run") == ["promise", "charge", "mixed"]


class _TurnsOff(nn.Module):
    """Begins to mix records after some time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.mixes = False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x - x.mean(0) if self.mixes else x)
        return out


def test_a_run_that_was_seen_to_mix_is_never_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.independence.guard.CHECK_EVERY", 2)
    model = _TurnsOff()
    steps = tacit.PrivateSteps(model, vectors(200), out=tmp_path / "run", **_SETTINGS)
    drawn = iter(steps)
    next(drawn)
    steps.step(tacit.cross_entropy)
    steps.checkpoint()
    model.mixes = True
    next(drawn)
    steps.step(tacit.cross_entropy)
    next(drawn)
    with pytest.raises(MixedRecordsError, match="'linear'"):
        steps.step(tacit.cross_entropy)
    assert _kinds(tmp_path / "run") == ["promise", "charge", "charge", "mixed"]
    with pytest.raises(ArgumentError):
        steps.finish()
    with pytest.raises(RunError):
        steps._steps.advance(tacit.cross_entropy)
    with pytest.raises(LedgerError, match="no certificate"):
        certificate.issue(ledger.read(tmp_path / "run" / "ledger.jsonl"))
    steps._run._held.close()
    with pytest.raises(RunError, match="cannot be certified"):
        tacit.PrivateSteps(
            _TurnsOff(), vectors(200), out=tmp_path / "run", resume=True, **_SETTINGS
        )


def test_a_model_known_by_its_layers_must_keep_them(tmp_path: Path) -> None:
    model = _network()
    records = as_records(vectors(200))
    recipe = Recipe().with_settings(**_SETTINGS)
    found = independence_of(model, records, recipe, own_inputs=True)
    assert found is not None and found.tier is Tier.CONSTRUCTION
    guard = IndependenceGuard(model, records, recipe, found)
    guard(tacit.cross_entropy, 0, lambda: ())
    with pytest.raises(ModelError, match="the loss is not"):
        guard(rows, 1, lambda: ())
    model[1] = _TurnsOff()
    with pytest.raises(ModelError, match="by construction when the run began"):
        guard(tacit.cross_entropy, 2, lambda: ())


class _Counting(IndependenceGuard):
    """Notes what is compared instead of comparing it."""

    def __init__(self, model: nn.Module) -> None:
        recipe = Recipe().with_settings(**_SETTINGS)
        records = as_records(vectors(200))
        super().__init__(
            model, records, recipe, independence_of(model, records, recipe, own_inputs=False)
        )
        self.compared: list[tuple[int, int, int]] = []
        self._rerun.compare = self._note  # type: ignore[method-assign]

    def _note(self, loss: LossFunction, batch: Batch, kinds: list[object], turn: int) -> None:
        self.compared.append((turn, len(kinds), len(batch[0])))


def test_the_schedule_depends_on_the_number_of_the_step_alone() -> None:
    batches = [vectors(n) for n in (0, 1, 2, 30)]
    for drawn in ([batches[3]], [batches[1], batches[2]], [batches[0]], []):
        guard = _Counting(_network())
        for step in range(3 * CHECK_EVERY):
            guard(tacit.cross_entropy, step, lambda drawn=drawn: drawn)  # type: ignore[misc]
        assert [(turn, kinds) for turn, kinds, _ in guard.compared] == [
            (0, len(REPLACEMENTS)),
            (LAST, 2),
            (1, 1),
            (2, 1),
        ]
        assert all(count > 1 for _, _, count in guard.compared)


def test_bound_methods_and_repeated_losses_are_checked_once() -> None:
    class Task:
        def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            return rows(model, batch)

    task, guard = Task(), _Counting(_network())
    for step in range(1, 5):
        guard(task.loss, step, lambda: [vectors(30)])
        guard(rows, step, lambda: [vectors(30)])
    assert len(guard.compared) == 2 * 2  # the emptiest record, and the last
    guard(Task().loss, 5, lambda: [vectors(30)])
    assert len(guard.compared) == 3 * 2


def test_batches_changed_outside_the_library_are_refused(tmp_path: Path) -> None:
    def trimmed(batch: Batch) -> Batch:
        longest = int((batch[0] != 0).sum(1).max())
        return batch[0][:, : longest - 1], batch[1]

    data = texts(200)
    steps = tacit.PrivateSteps(FixedLength(), data, out=tmp_path / "run", **_SETTINGS)
    for batch in steps:
        if not batch:
            continue
        with pytest.raises(ArgumentError, match="inside the loss function"):
            steps.step(tacit.cross_entropy, trimmed(batch))
        break
    again = iter(steps)
    steps.step(tacit.cross_entropy, tuple(part.clone() for part in next(again)))
    assert _kinds(tmp_path / "run") == ["promise", "charge"]


def test_trimming_inside_the_loss_is_found(tmp_path: Path) -> None:
    def trimming(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        longest = int((batch[0] != 0).sum(1).max().clamp_min(1))
        return rows(model, (batch[0][:, :longest], batch[1]))

    with pytest.raises(MixedRecordsError):
        tacit.fit(FixedLength(), texts(200), loss=trimming, out=tmp_path / "run", **_SETTINGS)


def test_a_run_cannot_be_resumed_on_another_tier(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tacit.fit(_network(), vectors(200), out=run, **_SETTINGS)
    text = (run / "ledger.jsonl").read_text("utf-8")
    assert '"independence":"by construction: the model is made of layers' in text
    entries = ledger.read(run / "ledger.jsonl")
    checked = independence_of(
        _network(), as_records(vectors(200)), Recipe().with_settings(**_SETTINGS), own_inputs=False
    )
    with pytest.raises(RunError, match="by construction"):
        check_resumed(run, entries, checked)


def test_the_weakest_tier_holds_for_several_runs() -> None:
    records = as_records(vectors(200))
    recipe = Recipe().with_settings(**_SETTINGS)
    known = independence_of(build("linear", (6,), 3), records, recipe, own_inputs=True)
    checked = independence_of(RareGate(), records, recipe, own_inputs=True)
    assert weakest_of([known, known]) is known
    assert weakest_of([known, checked, known]) is checked
    assert weakest_of([known, None]) is None and weakest_of([]) is None


def test_a_single_record_cannot_be_checked(tmp_path: Path) -> None:
    steps = tacit.PrivateSteps(
        RareGate(), vectors(1), out=tmp_path / "run", noise=1.0, batch_size=1, epochs=1
    )
    next(iter(steps))
    with pytest.raises(ModelError, match="a single record"):
        steps.step(tacit.cross_entropy)


def test_items_of_a_dataset_are_the_records() -> None:
    class Items(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return vectors(20)[0][index], vectors(20)[1][index]

    found = independence_of(
        _network(), as_records(Items()), Recipe().with_settings(**_SETTINGS), own_inputs=True
    )
    assert "what the Dataset returns" in str(found)


class _Remembers(nn.Module):
    """Divides by something of all records it has seen, kept in a plain attribute."""

    def __init__(self, how: str, normalised: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6) if normalised else nn.Identity()
        self.how, self.seen = how, torch.ones(())

    def forward(self, x: Tensor) -> Tensor:
        found = x.detach().abs().max().clamp_max(1e4)
        largest = torch.where(found > 100, found, 1.0)
        if self.how == "largest":
            self.seen = torch.maximum(self.seen, largest)
        elif self.how == "running mean":
            self.seen = 0.9 * self.seen + 0.1 * largest
        out: Tensor = self.linear(self.norm(x) / self.seen)
        return out


_ALONE = [
    ({"engine": "loop"}, False),
    ({"engine": "reference"}, False),
    ({"method": "batch-clipping", "mini_sets": 1}, True),
    ({"method": "batch-clipping", "mini_sets": 5}, True),
]


@pytest.mark.parametrize(("settings", "normalised"), _ALONE)
@pytest.mark.parametrize("how", ["largest", "running mean"])
def test_what_is_remembered_from_one_call_to_another_is_found(
    settings: dict[str, object], normalised: bool, how: str, tmp_path: Path
) -> None:
    """Records, or mini-sets, in calls of their own are not independent if the model remembers."""
    with pytest.raises(ModelError, match=r"keep something of one call|vmap|inplace|BatchedTensor"):
        tacit.fit(_Remembers(how, normalised), vectors(200), out=tmp_path, **(_SETTINGS | settings))
    assert not (tmp_path / "weights.safetensors").exists()


@pytest.mark.parametrize(("settings", "normalised"), _ALONE)
def test_units_in_calls_of_their_own_pass_if_nothing_is_remembered(
    settings: dict[str, object], normalised: bool, tmp_path: Path
) -> None:
    result = tacit.fit(
        _Remembers("nothing", normalised),
        vectors(200),
        out=tmp_path / "run",
        **(_SETTINGS | settings),
    )
    assert result.certificate["independence"].startswith("checked: the gradient of every")


def test_a_loss_that_remembers_is_found(tmp_path: Path) -> None:
    largest = [1.0]

    def scaled(model: nn.Module, batch: Batch) -> Tensor:
        losses = rows(model, batch)
        largest[0] = max(largest[0], float(losses.detach().max()))
        return losses / largest[0]

    with pytest.raises(MixedRecordsError, match="keep something of one call"):
        tacit.fit(_network(), vectors(200), loss=scaled, engine="loop", out=tmp_path, **_SETTINGS)


@pytest.mark.parametrize("where", ["closure", "global"])
def test_a_loss_around_statistics_of_the_batch_stops_a_loop_of_ones_own(
    where: str, tmp_path: Path
) -> None:
    steps = tacit.PrivateSteps(_network(), vectors(200), out=tmp_path / "run", **_SETTINGS)
    namespace: dict[str, object] = {"rows": rows}
    if where == "global":
        exec(
            "def centred(model, batch): return rows(model, (batch[0] - mean, batch[1]))", namespace
        )
    with pytest.raises(MixedRecordsError, match="uses another 'mean'"):
        for batch in steps:
            mean = batch[0].mean(0)
            namespace["mean"] = mean
            loss = namespace.get("centred") or (
                lambda model, b: rows(model, (b[0] - mean, b[1]))  # noqa: B023
            )
            steps.step(loss)  # type: ignore[arg-type]
    assert _kinds(tmp_path / "run") == ["promise", "charge", "mixed"]


def test_mixing_that_is_seen_within_a_step_is_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = tacit.PrivateSteps(_network(), vectors(200), out=tmp_path / "run", **_SETTINGS)
    next(iter(steps))

    def seen(*_: object) -> None:
        raise MixedRecordsError("seen")

    monkeypatch.setattr(steps._steps.method, "step", seen)
    with pytest.raises(MixedRecordsError):
        steps.step(rows)
    assert _kinds(tmp_path / "run") == ["promise", "charge", "mixed"]
    with pytest.raises(LedgerError, match="influence each other"):
        certificate.issue(ledger.read(tmp_path / "run" / "ledger.jsonl"))
