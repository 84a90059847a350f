"""Backward passes through a recorded graph: one that measures, and some that only look."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from tacit.clipping.layers.recording import Recording
from tacit.clipping.layers.uses import Stage


def recorded_backward(
    losses: Tensor, seeds: Tensor, recording: Recording, retain: bool
) -> list[str]:
    """One recorded backward pass; the names of parameters with an ordinary autograd edge."""
    recording.stage = Stage.RECORD
    parameters = recording.slots.parameters
    leaves = [leaf for _, leaf in recording.leaves]
    # The engine itself: what `torch.autograd.grad` asks of tensors first, interception would see.
    _, *gradients = _engine_run_backward(
        (losses,),
        (seeds,),
        retain,
        False,
        (recording.anchor, *parameters.values(), *leaves),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    raw, written_out = gradients[: len(parameters)], gradients[len(parameters) :]
    escaped = [name for name, g in zip(parameters, raw, strict=True) if g is not None]
    if not escaped and not recording.unverified:
        recording.add_leaves({i: g for i, g in enumerate(written_out) if g is not None})
    return escaped


def probe(losses: Tensor, recording: Recording) -> None:
    """Find where records lie in each layer, from gradients of some records' losses alone.

    Two complementary halves tell apart all but contrived cases; where they do not, one pair of
    halves for each binary digit of the record's number does.
    """
    recording.restart()
    recording.stage = Stage.PROBE
    records, views = recording.rows.records, recording.rows.views
    numbers = torch.arange(records, device=losses.device)
    generator = torch.Generator().manual_seed(records)
    halves = [torch.randperm(records, generator=generator).to(losses.device) < (records + 1) // 2]
    halves += [(numbers >> bit) % 2 == 1 for bit in range((records - 1).bit_length())]
    for i, half in enumerate(halves):
        if i and not any(use.ambiguous for use in recording.uses):
            break
        for selected in (half, ~half):
            recording.selected = selected
            torch.autograd.grad(
                losses,
                [recording.anchor, *(leaf for _, leaf in recording.leaves)],
                selected.repeat_interleave(views).to(losses.dtype),
                retain_graph=True,
                allow_unused=True,
            )
    for use in recording.uses:
        use.settle()
