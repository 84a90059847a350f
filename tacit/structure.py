"""The modules and parameters of a model, looked up again only when one was replaced."""

from __future__ import annotations

from torch import nn


class Structure:
    """A model's modules, and its parameters by name.

    torch walks the whole tree of modules at every question. That is a tenth of the time of a
    small model's step, so here the tree is only compared with what it was.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> structure = Structure(model)
    >>> structure.renewed()
    False
    >>> model[0] = nn.Linear(2, 3)
    >>> structure.renewed(), structure.parameters["0.weight"].shape
    (True, torch.Size([3, 2]))
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._read()

    def renewed(self) -> bool:
        """Whether a module or parameter was replaced, added or removed; all are then read anew."""
        for known, now in self._known:
            if len(known) != len(now) or any(
                a is not b for a, b in zip(known, now.values(), strict=True)
            ):
                self._read()
                return True
        return False

    def _read(self) -> None:
        self.modules = tuple(self._model.modules())
        self.parameters = dict(self._model.named_parameters())
        held = [d for m in self.modules for d in (m._modules, m._parameters)]
        self._known = [(tuple(d.values()), d) for d in held]
