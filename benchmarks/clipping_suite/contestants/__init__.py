"""Everyone who takes part, by name; a module is imported only in the process that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import cast

from clipping_suite.contestants.base import Builder


@dataclass(frozen=True)
class Entry:
    """How to start a contestant.

    `place` is "module:function" with an optional argument after another colon. A `peer` may live
    in another Python environment; `fixed` means that only the default setting is tried.
    `memory_aim` is how many times the memory of plain SGD it is to do with.
    """

    name: str
    title: str
    family: str
    place: str
    peer: bool = False
    clips: bool = True
    fixed: bool = False
    tuned: bool = True
    native: bool = False
    memory_aim: float | None = None

    def builder(self) -> Builder:
        """The function that makes the contestant, with its libraries imported."""
        module, function, *argument = self.place.split(":")
        found = getattr(import_module(f"clipping_suite.contestants.{module}"), function)
        return cast(Builder, found(*argument) if argument else found)


_ALL = (
    Entry(
        "plain-default",
        "plain SGD, default",
        "plain",
        "plain:build",
        clips=False,
        fixed=True,
        tuned=False,
    ),
    Entry("plain", "plain SGD, tuned", "plain", "plain:build", clips=False),
    Entry("ours-torch", "tacit, torch only", "ours", "ours:build", memory_aim=2.3),
    Entry("ours-native", "tacit, native", "ours", "ours:build_native", native=True, memory_aim=1.6),
    *(
        Entry(f"opacus-{mode}", f"Opacus {mode}", "Opacus", f"opacus_modes:mode:{mode}", peer=True)
        for mode in ("hooks", "functorch", "ew", "ghost")
    ),
    Entry("torch-func", "torch.func", "torch.func", "functional:build", peer=True),
    Entry("jax", "JAX vmap + jit", "JAX", "jax_vmap:build", peer=True),
    Entry("jax-privacy", "jax_privacy", "jax_privacy", "jax_privacy_clipped:build", peer=True),
    *(
        Entry(
            f"fastdp-{mode.lower()}",
            f"fastDP {mode}",
            "fastDP",
            f"fastdp_modes:mode:{mode}",
            peer=True,
        )
        for mode in ("ghost", "MixGhostClip", "MixOpt")
    ),
)
CONTESTANTS = {entry.name: entry for entry in _ALL}
FAMILIES = tuple(dict.fromkeys(entry.family for entry in _ALL))
