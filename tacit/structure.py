"""The modules and parameters of a model, looked up again only when one was replaced."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Structure:
    """A model's modules, and its parameters by name, as they were when this was made.

    torch walks the whole tree of modules at every question. That is a tenth of the time of a
    small model's step, so here the tree is only compared with what it was.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> structure = Structure(model)
    >>> structure.current() is structure
    True
    >>> model[0] = nn.Linear(2, 3)
    >>> structure.current().parameters["0.weight"].shape
    torch.Size([3, 2])
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.modules = tuple(model.modules())
        self.parameters = dict(model.named_parameters())
        devices = {p.device for p in self.parameters.values()}
        self.accelerators: set[torch.device] = {d for d in devices if d.type != "cpu"}
        self._known = [(m, type(m), _held(m._modules), _held(m._parameters)) for m in self.modules]

    def buffers(self) -> list[Tensor]:
        """The buffers as they are now: unlike parameters, they may be replaced at any step."""
        return [b for m in self.modules for b in m._buffers.values() if b is not None]

    def current(self) -> Structure:
        """This, or a new one if a module or parameter was replaced, added, removed or renamed, or
        became one of another type."""
        for module, kind, modules, parameters in self._known:
            if (
                type(module) is not kind
                or ((module._modules or modules) and _held(module._modules) != modules)
                or ((module._parameters or parameters) and _held(module._parameters) != parameters)
            ):
                return Structure(self._model)
        return self


def _held(mapping: Mapping[str, object]) -> tuple[list[str], list[int]] | None:
    """The names of a mapping and the identities of what they stand for, None for an empty one.

    Identities stay taken for as long as `Structure` holds the modules and parameters themselves.
    """
    if not isinstance(mapping, dict):
        mapping = dict(mapping.items())  # TorchScript has a mapping of its own
    return ([*mapping], [*map(id, mapping.values())]) if mapping else None
