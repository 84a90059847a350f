"""What a model was, compared with what it is: whoever keeps a structure notices every change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import Flat
from tacit.errors import ModelError
from tacit.structure import Structure


def nested() -> nn.Sequential:
    inner = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Linear(3, 3))
    return nn.Sequential(nn.Linear(2, 3), inner, nn.ModuleList([nn.Identity()]))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(model, nn.Sequential)
    out: Tensor = model[1](model[0](batch[0]))
    return out.square().sum(1)


def another_parameter(model: nn.Sequential) -> None:
    model[1][0].weight = nn.Parameter(torch.randn(3, 3))


def registered(model: nn.Sequential) -> None:
    model[1][1].register_parameter("extra", nn.Parameter(torch.randn(3)))


def removed(model: nn.Sequential) -> None:
    model[1][0].bias = None


def longer_list(model: nn.Sequential) -> None:
    model[2].append(nn.Identity())


def replaced_module(model: nn.Sequential) -> None:
    model[1][1] = nn.BatchNorm1d(3)


def removed_module(model: nn.Sequential) -> None:
    del model[1][2]


def renamed(model: nn.Sequential) -> None:
    inner = model[1]
    first, last = inner[0], inner[2]
    del inner._modules["0"], inner._modules["1"], inner._modules["2"]
    inner._modules.update({"2": first, "1": nn.Identity(), "0": last})


def parametrized(model: nn.Sequential) -> None:
    parametrize.register_parametrization(model[1][2], "weight", nn.Identity())


def other_type(model: nn.Sequential) -> None:
    other = nn.BatchNorm1d(3)
    model[1][1].__dict__.update(other.__dict__)
    model[1][1].__class__ = nn.BatchNorm1d


def state_set(model: nn.Sequential) -> None:
    model[1].__setstate__(nested()[1].__dict__)


@pytest.mark.parametrize(
    "change",
    [
        *(another_parameter, registered, removed, longer_list, replaced_module),
        *(removed_module, renamed, parametrized, other_type, state_set),
    ],
)
def test_every_change_is_noticed_once(change: Callable[[nn.Sequential], None]) -> None:
    model = nested()
    structure = Structure(model)
    assert structure.current() is structure
    change(model)
    now = structure.current()
    assert now is not structure and now.current() is now
    assert now.modules == tuple(model.modules())
    assert now.parameters.keys() == dict(model.named_parameters()).keys()
    assert all(now.parameters[name] is p for name, p in model.named_parameters())


def test_values_and_modes_are_no_change() -> None:
    model = nested()
    structure = Structure(model)
    model[0].weight.data = torch.zeros(3, 2)
    model[0].weight.grad = torch.zeros(3, 2)
    model.eval().requires_grad_(False)
    assert structure.current() is structure


@pytest.mark.parametrize("place", ["1.1", "1.2", "0"])
def test_batch_norm_that_takes_a_place_is_refused(place: str) -> None:
    model = nested()
    engine, x = FastEngine(model, Flat(1.0)), torch.randn(4, 2)
    engine.clipped_sum(loss, [(x,)], 1)
    parent, _, name = place.rpartition(".")
    before = model.get_submodule(place)
    mixer = nn.BatchNorm1d(3, affine=False)
    setattr(model.get_submodule(parent), name, nn.Sequential(before, mixer))
    for _ in range(2):
        with pytest.raises(ModelError):
            engine.clipped_sum(loss, [(x,)], 1)


class FromMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_a_layer_that_mixes_records_is_refused_also_at_a_later_step() -> None:
    model = nested()
    engine, x = FastEngine(model, Flat(1.0)), torch.randn(4, 2)
    engine.clipped_sum(loss, [(x,)], 1)
    model[1][1] = FromMean()
    with pytest.raises(ModelError, match="record"):
        engine.clipped_sum(loss, [(x,)], 1)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_of_another_shape_are_refused_again_and_again(width: int, bias: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
    engine, x = FastEngine(model, Flat(1.0)), torch.randn(4, 2)
    vector = engine.clipped_sum(lambda m, b: m(b[0]).sum(1), [(x,)], 1).vector
    assert vector.numel() == 21
    model[1] = nn.Linear(3, width, bias=bias)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"'1\.weight' has gone, or has another shape"):
            engine.clipped_sum(lambda m, b: m(b[0]).sum(1), [(x,)], 1)
