"""A model's structure is read again whenever a module or parameter is another."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tacit.structure import Structure


def nested() -> nn.Sequential:
    inner = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    return nn.Sequential(nn.Linear(2, 2), inner, nn.ModuleList([nn.Linear(2, 2)]))


def replaced_parameter(model: nn.Sequential) -> None:
    model[1]["b"].weight = nn.Parameter(torch.zeros(2, 2))


def removed_parameter(model: nn.Sequential) -> None:
    model[1]["b"].bias = None


def added_parameter(model: nn.Sequential) -> None:
    model[1].register_parameter("more", nn.Parameter(torch.zeros(1)))


def replaced_module(model: nn.Sequential) -> None:
    model[1]["a"] = nn.BatchNorm1d(2)


def added_module(model: nn.Sequential) -> None:
    model[2].append(nn.BatchNorm1d(2))


def removed_module(model: nn.Sequential) -> None:
    del model[1]["a"]


@pytest.mark.parametrize(
    "change",
    [
        *(replaced_parameter, removed_parameter, added_parameter),
        *(replaced_module, added_module, removed_module),
    ],
)
def test_every_change_is_noticed_once(change: Callable[[nn.Sequential], None]) -> None:
    model = nested()
    structure = Structure(model)
    assert not structure.renewed()
    change(model)
    assert structure.renewed()
    assert structure.modules == tuple(model.modules())
    assert structure.parameters == dict(model.named_parameters())
    assert not structure.renewed()


def test_values_settings_and_gradients_are_not_structure() -> None:
    model = nested()
    structure = Structure(model)
    with torch.no_grad():
        model[0].weight.add_(1)
    model[0].weight.grad = torch.zeros(2, 2)
    model.eval()
    assert not structure.renewed()
