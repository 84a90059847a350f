"""Nothing un-noised leaves with the weights: every way in which a model could keep a record."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import CLASSES, FEATURES, small_recipe
from torch import Tensor, nn

import tacit
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError, ModelError
from tacit.fixed_state import FixedState, check_state, same_bits
from tacit.rundir import RunDir
from tacit.weight_writes import weights_unwritten

SECRET = 73.25
"""A feature of one record. Nothing else in these runs has this value."""


class Keeper(nn.Module):
    """Keeps the largest feature that it saw in training, the way `keep` says."""

    top: Tensor

    def __init__(self, keep: Callable[["Keeper", Tensor], None] | None = None) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.linear = nn.Linear(FEATURES, CLASSES)
            self.frozen = nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.register_buffer("top", torch.tensor(10.0))
        self.register_buffer("hidden", torch.tensor(10.0), persistent=False)
        self.register_buffer("empty", None)
        self.register_buffer("nan", torch.tensor([float("nan"), -0.0]))
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.keep is not None:
            with torch.no_grad():
                largest = torch.maximum(torch.tensor(10.0), x.max() if x.numel() else x.sum())
                if largest > 10:
                    self.keep(self, largest)
        out: Tensor = self.linear(x)
        return out


def in_place(model: Keeper, largest: Tensor) -> None:
    model.top.copy_(torch.maximum(model.top, largest))


def replaced(model: Keeper, largest: Tensor) -> None:
    model.top = torch.maximum(model.top, largest)


def through_data(model: Keeper, largest: Tensor) -> None:
    model.top.data.fill_(float(largest))


def not_persistent(model: Keeper, largest: Tensor) -> None:
    model.hidden = largest


def once_empty(model: Keeper, largest: Tensor) -> None:
    model.empty = largest


def added(model: Keeper, largest: Tensor) -> None:
    model.register_buffer("new", largest)


def added_module(model: Keeper, largest: Tensor) -> None:
    model.add_module("new", nn.BatchNorm1d(1))


def added_parameter(model: Keeper, largest: Tensor) -> None:
    model.register_parameter("new", nn.Parameter(largest.clone()))


def removed(model: Keeper, largest: Tensor) -> None:
    model._buffers.pop("top", None)


def frozen(model: Keeper, largest: Tensor) -> None:
    model.frozen.weight.fill_(largest)


def frozen_through_data(model: Keeper, largest: Tensor) -> None:
    model.frozen.weight.data = model.frozen.weight.data + largest


def weight(model: Keeper, largest: Tensor) -> None:
    model.linear.weight[0, 0] = largest


def weight_replaced(model: Keeper, largest: Tensor) -> None:
    model.linear.weight = nn.Parameter(model.linear.weight.detach() * 0 + largest)


def sign_of_zero(model: Keeper, largest: Tensor) -> None:
    model.nan[1] = 0.0


KEEPERS = {
    in_place: "buffer top changed",
    replaced: "buffer top changed",
    through_data: "buffer top changed",
    not_persistent: "buffer hidden changed",
    once_empty: "buffer empty was added",
    added: "buffer new was added",
    added_module: "new.* was added",
    added_parameter: "parameter new was added",
    removed: "buffer top was removed",
    frozen: "frozen parameter frozen.weight changed",
    frozen_through_data: "frozen parameter frozen.weight changed",
    weight: "was written to by a forward pass",
    weight_replaced: "parameter linear.weight was replaced",
    sign_of_zero: "buffer nan changed",
}


@pytest.fixture
def marked(records: TensorRecords) -> TensorRecords:
    """Records of which one has a feature that no made-up record has."""
    features = records.features.clone()
    features[7, 2] = SECRET
    return TensorRecords(features, records.labels)


def everything_written(path: Path) -> bytes:
    files = (p for p in path.rglob("*") if p.is_file() and "private" not in p.parts)
    return b"".join(p.read_bytes() for p in files)


def assert_nothing_left(run: Path, model: Keeper) -> None:
    """No released file, and no part of the model that must not change, holds the secret."""
    assert not (run / "weights.safetensors").exists() and not (run / "metrics.json").exists()
    assert not list(run.glob("certificate.*")) and not list(run.glob("report.*"))
    secret = torch.tensor(SECRET).numpy().tobytes()
    assert secret not in everything_written(run) and b"73.25" not in everything_written(run)
    for name, value in [*model.named_buffers(), *model.frozen.named_parameters()]:
        assert SECRET not in value.tolist() if value.dim() else float(value) != SECRET, name


@pytest.mark.parametrize("assumed", [True, False])
@pytest.mark.parametrize("keep", KEEPERS, ids=lambda keep: keep.__name__)
def test_a_model_that_keeps_a_record_is_refused(
    keep: Callable[[Keeper, Tensor], None], assumed: bool, tmp_path: Path, marked: TensorRecords
) -> None:
    """By the comparison of states alone too, where nothing checks whether records mix."""
    model = Keeper(keep)
    recipe = small_recipe(epochs=10, assume_independent=assumed)
    with pytest.raises(ModelError, match=KEEPERS[keep] if assumed else ""):
        tacit.fit(model, marked, recipe=recipe, out=tmp_path / "run")
    assert_nothing_left(tmp_path / "run", model)


@pytest.mark.parametrize("keep", [in_place, not_persistent, frozen])
def test_in_loops_of_ones_own_also_between_steps(
    keep: Callable[[Keeper, Tensor], None], tmp_path: Path, marked: TensorRecords
) -> None:
    model = Keeper(keep)
    steps = tacit.PrivateSteps(model, marked, recipe=small_recipe(), out=tmp_path / "run")
    model.keep = None
    for _ in steps:
        steps.step(tacit.cross_entropy)
    model.keep = keep
    model.train()(marked.features)
    with pytest.raises(ModelError, match="changed"):
        steps.checkpoint()
    model.train()(marked.features)
    with pytest.raises(ModelError, match="changed"):
        steps.finish()
    assert_nothing_left(tmp_path / "run", model)


@pytest.mark.parametrize("keep", [in_place, not_persistent, frozen, added])
def test_the_step_itself_is_refused_and_nothing_follows_it(
    keep: Callable[[Keeper, Tensor], None], tmp_path: Path, records: TensorRecords
) -> None:
    everyone = TensorRecords(records.features.clone().fill_(SECRET), records.labels)
    model = Keeper(keep)
    steps = tacit.PrivateSteps(model, everyone, recipe=small_recipe(), out=tmp_path / "run")
    next(iter(steps))
    with pytest.raises(ModelError, match="in training"):
        steps.step(tacit.cross_entropy)
    with pytest.raises(ArgumentError, match="interrupted"):
        steps.finish()
    with pytest.raises(ArgumentError, match="interrupted"):
        steps.checkpoint()
    assert_nothing_left(tmp_path / "run", model)


def test_weights_written_behind_torchs_back_are_found_at_the_first_step(
    tmp_path: Path, records: TensorRecords
) -> None:
    def keep(model: Keeper, largest: Tensor) -> None:
        model.linear.weight.data[0, 0] = largest

    everyone = TensorRecords(records.features.clone().fill_(SECRET), records.labels)
    recipe = small_recipe(assume_independent=True)
    steps = tacit.PrivateSteps(Keeper(keep), everyone, recipe=recipe, out=tmp_path / "run")
    next(iter(steps))
    with pytest.raises(ModelError, match="was written to by a forward pass"):
        steps.step(tacit.cross_entropy)


def test_a_refused_run_is_refused_again_when_resumed(tmp_path: Path, marked: TensorRecords) -> None:
    recipe = small_recipe(epochs=10)
    for resume in (False, True):
        with pytest.raises(ModelError, match="buffer top changed"):
            tacit.fit(Keeper(in_place), marked, recipe=recipe, out=tmp_path / "run", resume=resume)
        assert_nothing_left(tmp_path / "run", Keeper())


def test_a_model_that_failed_for_another_reason_holds_nothing_either(
    tmp_path: Path, marked: TensorRecords
) -> None:
    model = Keeper(in_place)

    def failing(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        losses = tacit.cross_entropy(model, batch)
        if bool((batch[0] == SECRET).any()):
            raise KeyboardInterrupt
        return losses

    with pytest.raises(KeyboardInterrupt):
        tacit.fit(model, marked, recipe=small_recipe(epochs=10), loss=failing, out=tmp_path / "r")
    assert_nothing_left(tmp_path / "r", model)


@pytest.mark.parametrize(
    "settings",
    [
        {"average": 0.9},
        {"method": "dpftrl", "restart_every": 1},
        {"method": "batch-clipping", "mini_sets": 5},
        {"method": "dpsur", "validation_batch_size": 60, "beta": 4000.0},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_by_every_method(settings: dict[str, Any], tmp_path: Path, marked: TensorRecords) -> None:
    model = Keeper(in_place)
    with pytest.raises(ModelError, match="buffer top changed"):
        tacit.fit(model, marked, recipe=small_recipe(epochs=4, **settings), out=tmp_path / "run")
    assert_nothing_left(tmp_path / "run", model)


def test_state_that_stays_as_it_is_is_released(tmp_path: Path, marked: TensorRecords) -> None:
    model, untouched = Keeper(), Keeper().state_dict()
    recipe = small_recipe(average=0.9)
    result = tacit.fit(model, marked, recipe=recipe, out=tmp_path / "run")
    assert result.epsilon < float("inf")
    for name, value in model.state_dict().items():
        assert same_bits(value, untouched[name]) == (not name.startswith("linear.")), name


class Extra(Keeper):
    """Has state that is neither parameter nor buffer."""

    extra: Any = torch.tensor(1.0)

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_extra_state_must_not_change(tmp_path: Path, marked: TensorRecords) -> None:
    def keep(model: Keeper, largest: Tensor) -> None:
        model.extra = largest.clone()

    with pytest.raises(ModelError, match="extra state _extra_state"):
        tacit.fit(Extra(keep), marked, recipe=small_recipe(epochs=10), out=tmp_path / "bad")
    assert not (tmp_path / "bad" / "weights.safetensors").exists()
    good = tacit.fit(Extra(), marked, recipe=small_recipe(), out=tmp_path / "good")
    assert good.path.joinpath("weights.safetensors").exists()


def test_extra_state_must_be_a_tensor(tmp_path: Path, marked: TensorRecords) -> None:
    model = Extra()
    model.extra = {"seen": 3}
    with pytest.raises(ModelError, match="_extra_state of the state dict is a dict"):
        tacit.fit(model, marked, recipe=small_recipe(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["linear.weight", "top", "stolen"])
def test_a_state_dict_that_says_something_else_is_refused(
    key: str, tmp_path: Path, marked: TensorRecords
) -> None:
    model = Keeper()
    steps = tacit.PrivateSteps(model, marked, recipe=small_recipe(), out=tmp_path / "run")
    for _ in steps:
        steps.step(tacit.cross_entropy)

    def stealing(module: nn.Module, state: dict[str, Tensor], *_: object) -> None:
        state[key] = torch.full_like(state.get(key, torch.zeros(1)), SECRET)

    model.register_state_dict_post_hook(stealing)
    with pytest.raises(ModelError, match=key):
        steps.finish()
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_shared_memory_is_refused_before_anything_is_written(
    tmp_path: Path, marked: TensorRecords
) -> None:
    model = Keeper()
    model.register_buffer("alias", model.linear.weight.data[1:])
    with pytest.raises(ModelError, match=r"alias shares memory with parameter linear\.weight"):
        tacit.fit(model, marked, recipe=small_recipe(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_buffers_that_share_memory_with_each_other_are_compared_each() -> None:
    model = Keeper()
    both = torch.zeros(4)
    model.register_buffer("first", both[:3])
    model.register_buffer("second", both[1:])
    check_state(model)
    fixed = FixedState(model)
    fixed.check()
    both[3] = SECRET
    with pytest.raises(ModelError, match="buffer second changed"):
        fixed.check()


def test_what_a_method_declares_may_change_and_nothing_else() -> None:
    model = Keeper()
    fixed = FixedState(model, {"top": "noised"})
    model.top.fill_(3.0)
    fixed.check()
    fixed.check_released(model.state_dict())
    model.nan.fill_(1.0)
    with pytest.raises(ModelError, match="buffer nan changed"):
        fixed.check()
    assert float(model.top) == 3.0


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
        *(torch.complex128, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)], ids=str)
def test_bits_of_every_type_are_compared(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    one = torch.ones(shape).to(dtype)
    assert same_bits(one, one.clone())
    if one.numel():
        other = one.clone()
        other.view(-1)[-1] = 0
        assert not same_bits(one, other)
    assert not same_bits(one, one.reshape(*shape, 1))
    assert not same_bits(one, one.to(torch.float32 if dtype is torch.int64 else torch.int64))


def test_sparse_buffers_are_compared() -> None:
    def sparse(value: float) -> Tensor:
        return torch.tensor([[0.0, value], [0.0, 0.0]])

    for convert in (Tensor.to_sparse, Tensor.to_sparse_csr, Tensor.to_sparse_csc):
        assert same_bits(convert(sparse(1.0)), convert(sparse(1.0)))
        assert not same_bits(convert(sparse(1.0)), convert(sparse(2.0)))


def test_weights_that_a_block_puts_back_are_as_they_were() -> None:
    weight = nn.Parameter(torch.ones(3))
    with torch.no_grad(), weights_unwritten([weight]):
        weight.add_(1.0)
        weight.sub_(1.0)
    with pytest.raises(ModelError, match="shape"), weights_unwritten([weight]):
        weight.data.add_(1.0)
    assert same_bits(weight, torch.ones(3))


def test_the_command_line_refuses_it_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from small_runs import written_recipe

    from tacit import cli, models

    class Digits(Keeper):
        def __init__(self) -> None:
            super().__init__(in_place)
            self.linear = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            """Images have many equal pixels, made-up records none."""
            flat = x.flatten(1)
            if self.training and bool((flat == flat[:, :1]).sum() > 2 * len(flat)):
                in_place(self, torch.tensor(SECRET))
            out: Tensor = self.linear(flat)
            return out

    monkeypatch.setattr(models, "build", lambda *_, **__: Digits())
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", written_recipe(tmp_path), "--out", str(tmp_path / "run")])
    said = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == ModelError.exit_code and "buffer top changed" in said
    assert not RunDir(tmp_path / "run").weights.exists()


class _FirstBatch(nn.Module):
    """Initialised by the first batch it sees, as ActNorm is."""

    def __init__(self, kind: str, marked: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.marked = marked
        if kind == "buffer":
            self.register_buffer("shift", torch.zeros(6))
        else:
            self.shift = nn.Parameter(torch.zeros(6), requires_grad=kind == "trained")
        self.register_buffer("done", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.marked and not self.done:
            self.shift.data.copy_(x.mean(0))
            self.done.fill_(1.0)
        if self.marked and not getattr(self, "_done", False):
            self.shift.data.copy_(x.mean(0))
            self._done = True
        out: Tensor = self.linear(x - self.shift)
        return out


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("kind", ["buffer", "frozen", "trained"])
@pytest.mark.parametrize("own_loop", [False, True])
def test_data_dependent_initial_values_never_come_from_private_records(
    kind: str, marked: bool, own_loop: bool, tmp_path: Path
) -> None:
    """Neither the check of labels nor the check of independence shows a record to a model whose
    state is then taken for the public initial one."""
    x, y = torch.full((200, 6), SECRET), torch.zeros(200, dtype=torch.int64)
    model = _FirstBatch(kind, marked)
    settings: dict[str, Any] = {"noise": 1.0, "epochs": 1, "batch_size": 100, "out": tmp_path / "r"}
    try:
        if own_loop:
            steps = tacit.PrivateSteps(model, (x, y), **settings)
            for _ in steps:
                steps.step(tacit.cross_entropy)
            steps.finish()
        else:
            tacit.fit(model, (x, y), **settings)
    except ModelError:
        assert not (tmp_path / "r" / "weights.safetensors").exists()
    assert (model.shift.detach() - SECRET).abs().min() > 1.0


def test_a_write_behind_torchs_back_is_found_at_every_step(tmp_path: Path) -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = nn.Linear(6, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 60 and len(x) and float(x.max()) > SECRET / 2:
                self.linear.weight.data[0, 0] = SECRET
            out: Tensor = self.linear(x)
            return out

    x, y = torch.randn(200, 6), torch.zeros(200, dtype=torch.int64)
    x[7] = SECRET
    with pytest.raises(ModelError, match="written to by a forward pass"):
        tacit.fit(Late(), (x, y), noise=1.0, epochs=8, batch_size=20, out=tmp_path / "run")
