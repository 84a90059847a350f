"""The state of a training run: everything that a resumed or rolled-back run needs, as tensors.

Random numbers are functions of the key and the step (see noise/source.py), so no generator state
belongs here. Stored with safetensors: loading cannot run code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from tacit.errors import RunError
from tacit.optim import PrivateOptimizer, WeightAverage

Json = dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """A copy of the state that later updates do not touch."""

    tensors: dict[str, Tensor]
    values: Json

    def as_bytes(self) -> bytes:
        """One safetensors file; plain values travel in its header."""
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        return save(tensors, {"tacit": json.dumps(self.values)})

    @classmethod
    def read(cls, path: Path) -> Snapshot:
        """What `as_bytes` wrote; a damaged file is an error."""
        try:
            with safe_open(str(path), framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                values = json.loads((file.metadata() or {})["tacit"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise RunError(f"{path}: not a readable checkpoint ({error})") from error
        return cls(tensors, values)


@dataclass
class TrainingState:
    """Weights, optimizer, average and position of a run."""

    model: nn.Module
    optimizer: PrivateOptimizer
    average: WeightAverage | None = None
    step: int = 0
    history: Json = field(default_factory=dict)
    """Values gathered on the way: evaluations, which are public, and exact times, which are not."""
    memory: dict[str, Tensor] = field(default_factory=dict)
    """What the method remembers between steps, such as noise in use; private."""

    def snapshot(self) -> Snapshot:
        """The state now; `restore` brings it back bit for bit."""
        tensors = {f"model.{k}": v.detach().clone() for k, v in self.model.state_dict().items()}
        scalars: Json = {}
        for index, slots in self.optimizer.inner.state_dict()["state"].items():
            for key, value in slots.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{key}"] = value.detach().clone()
                else:
                    scalars[f"{index}.{key}"] = value
        if self.average is not None:
            tensors |= {f"average.{k}": v.clone() for k, v in self.average.values.items()}
        tensors |= {f"memory.{k}": v.clone() for k, v in self.memory.items()}
        history = json.loads(json.dumps(self.history))
        return Snapshot(tensors, {"step": self.step, "optimizer": scalars, "history": history})

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of the same model and optimizer."""
        parts: dict[str, dict[str, Tensor]] = {
            kind: {} for kind in ("model", "optimizer", "average", "memory")
        }
        for name, tensor in snapshot.tensors.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = tensor
        try:
            self.model.load_state_dict(parts["model"])
        except RuntimeError as error:
            raise RunError(f"the checkpoint is of another model: {error}") from error
        slots: dict[int, Json] = {}
        for name, value in {**parts["optimizer"], **snapshot.values["optimizer"]}.items():
            index, _, key = name.partition(".")
            copied = value.clone() if isinstance(value, Tensor) else value
            slots.setdefault(int(index), {})[key] = copied
        groups = self.optimizer.inner.state_dict()["param_groups"]
        self.optimizer.inner.load_state_dict({"state": slots, "param_groups": groups})
        if self.average is not None:
            self.average.values = {k: v.clone() for k, v in parts["average"].items()}
        self.memory.clear()
        self.memory.update({k: v.clone() for k, v in parts["memory"].items()})
        self.step = int(snapshot.values["step"])
        self.history = json.loads(json.dumps(snapshot.values["history"]))

    def released_weights(self) -> dict[str, Tensor]:
        """What goes out: the model's state with averaged weights where an average is kept."""
        weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        if self.average is not None:
            weights |= {k: v.clone() for k, v in self.average.values.items() if k in weights}
        return {name: torch.as_tensor(value).contiguous() for name, value in weights.items()}
