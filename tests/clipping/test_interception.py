"""What interception changes is put back, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tacit.clipping.contract import Batch
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers.interception import Interception
from tacit.clipping.layers.recording import Recording
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Flat


class Steps:
    """A replacement that tells of its coming and going, and may fail at either."""

    def __init__(self, name: str, log: list[str], fails_at: str = "") -> None:
        self._name, self._log, self._fails_at = name, log, fails_at

    def _note(self, what: str) -> None:
        self._log.append(f"{what} {self._name}")
        if what == self._fails_at:
            raise RuntimeError(self._name)

    def begin(self, recording: Recording) -> Callable[[], None]:
        self._note("begin")
        return lambda: self._note("end")


def opened(replacements: list[Steps]) -> None:
    with Interception(cast(Recording, None), replacements, {}, {}, {}):
        raise KeyError("within")


@pytest.mark.parametrize("failing", range(3))
def test_all_replacements_are_taken_back_although_one_cannot_be(failing: int) -> None:
    log: list[str] = []
    steps = [Steps("abc"[i], log, "end" if i == failing else "") for i in range(3)]
    with pytest.raises(RuntimeError):
        opened(steps)
    assert log[3:] == ["end c", "end b", "end a"]
    assert torch._C._len_torch_function_stack() == 0


def test_those_that_had_begun_are_taken_back_where_another_cannot_begin() -> None:
    log: list[str] = []
    with pytest.raises(RuntimeError):
        opened([Steps("a", log), Steps("b", log, "begin"), Steps("c", log)])
    assert log == ["begin a", "begin b", "end a"]
    assert torch._C._len_torch_function_stack() == 0


class Odd(nn.Module):
    """No rule covers it; it may patch its own `forward` and take that back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6))
        self.patches = False

    def forward(self, x: Tensor) -> Any:
        if self.patches:
            self.__dict__["forward"] = torch.neg
            del self.__dict__["forward"]
        return x * self.weight.cumsum(0).sin()


@pytest.mark.parametrize("patching", range(3))
@pytest.mark.filterwarnings("ignore:Odd:UserWarning")
def test_modules_that_patch_themselves_are_left_as_they_were(patching: int) -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(Odd(), Odd(), Odd()), (torch.randn(5, 6),)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0]).square().sum(1)

    expected = ReferenceEngine(model, Flat(1.0)).clipped_sum(loss, [batch], 1).vector
    engine = FastEngine(model, Flat(1.0))
    for step in range(3):
        cast(Odd, model[patching]).patches = step == 1
        found = engine.clipped_sum(loss, [batch], 1).vector
        torch.testing.assert_close(found, expected)
        assert not any("forward" in module.__dict__ for module in model.modules())
