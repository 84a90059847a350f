"""Snapshots bring everything back, so that a rejected update leaves no trace."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from tacit.errors import RunError
from tacit.losses import cross_entropy
from tacit.state import Snapshot
from tacit.steps import Steps


def everything(steps: Steps) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in steps.state.snapshot().tensors.items()}


def test_rolling_back_restores_weights_and_optimizer_bit_for_bit(steps: Steps) -> None:
    steps.advance(cross_entropy)
    kept, before = steps.state.snapshot(), everything(steps)
    for _ in range(3):
        steps.advance(cross_entropy)
    assert not torch.equal(everything(steps)["model.0.weight"], before["model.0.weight"])
    steps.state.restore(kept)
    after = everything(steps)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert steps.state.step == 1
    assert len([e for e in steps.ledger.entries if e.kind == "charge"]) == 4


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_any_torch_optimizer_is_restored(steps: Steps, optimizer: type) -> None:
    state = steps.state
    state.optimizer.inner = optimizer(state.model.parameters(), lr=0.1)
    steps.advance(cross_entropy)
    kept = Snapshot(**copy.deepcopy(state.snapshot().__dict__))
    steps.advance(cross_entropy)
    once = everything(steps)
    state.restore(kept)
    steps.method.step(1, cross_entropy, steps.method.draw(1))
    assert all(torch.equal(everything(steps)[name], once[name]) for name in once)


def test_files_hold_the_same_state_and_damage_is_an_error(steps: Steps, tmp_path: Path) -> None:
    steps.advance(cross_entropy)
    snapshot = steps.state.snapshot()
    path = tmp_path / "s.safetensors"
    path.write_bytes(snapshot.as_bytes())
    again = Snapshot.read(path)
    assert again.values == snapshot.values
    assert all(torch.equal(again.tensors[n], t) for n, t in snapshot.tensors.items())
    for damage in (b"", path.read_bytes()[:-5], b"\x80\x04pickle"):
        path.write_bytes(damage)
        with pytest.raises(RunError, match="checkpoint"):
            Snapshot.read(path)


def test_a_snapshot_of_another_model_is_refused(steps: Steps) -> None:
    kept = steps.state.snapshot()
    steps.state.model = nn.Linear(2, 2)
    with pytest.raises(RunError, match="another model"):
        steps.state.restore(kept)
