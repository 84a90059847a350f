"""What a loss function uses beside model and batch must stay as it was.

A check of independence takes such values for constants. In a loop of the user's own they may have
been computed from a batch: then every record influences the loss of all others.
"""

from __future__ import annotations

from contextlib import suppress
from types import CodeType, MethodType

from tacit.clipping.contract import LossFunction
from tacit.errors import MixedRecordsError


class LossConstants:
    """Remembers, for the code of every loss, the objects that it refers to.

    >>> constants = LossConstants()
    >>> def made_around(mean):
    ...     return lambda model, batch: model(batch[0] - mean).sum(1)
    >>> constants.check(made_around(0.5))
    >>> constants.check(made_around(0.75))
    Traceback (most recent call last):
    tacit.errors.MixedRecordsError: the loss function uses another 'mean' than before: ...
    """

    def __init__(self) -> None:
        self._held: dict[object, dict[str, object]] = {}

    def check(self, loss: LossFunction) -> None:
        """Raise MixedRecordsError where the loss, or one made by the same code, refers to another
        object than it did: in its closure, defaults, globals or attributes."""
        code, held = _held_by(loss)
        before = self._held.setdefault(code, held)
        for name, value in held.items():
            if name in before and before[name] is not value:
                raise MixedRecordsError(
                    f"the loss function uses another {name!r} than before: if that comes from a"
                    " batch, records influence each other. Compute all that a record's loss needs"
                    " from that record, and keep what the loss function refers to as it is; or, if"
                    " you know that records are independent, set assume_independent=True, which the"
                    " certificate will say"
                )


def _held_by(loss: LossFunction) -> tuple[object, dict[str, object]]:
    """What identifies the code of a loss, and what it refers to by name."""
    held: dict[str, object] = {}
    target: object = loss
    if isinstance(target, MethodType):
        held |= getattr(target.__self__, "__dict__", {})
        target = target.__func__
    code = getattr(target, "__code__", None)
    if not isinstance(code, CodeType):
        return type(target), held | getattr(target, "__dict__", {})
    known = getattr(target, "__globals__", {})
    held |= {name: known[name] for name in code.co_names if name in known}
    cells = getattr(target, "__closure__", None) or ()
    for name, cell in zip(code.co_freevars, cells, strict=True):
        with suppress(ValueError):  # a name that is not bound yet
            held[name] = cell.cell_contents
    defaults = getattr(target, "__defaults__", None) or ()
    held |= {f"default {number}": value for number, value in enumerate(defaults)}
    return code, held
