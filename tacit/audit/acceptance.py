"""Acceptance as a leak: a hostile loss makes every trial of a selective update turn on one record.

The loss of all other records rises with every move of the weights, so that candidates are
rejected but for the luck of the noise. One record's own loss falls so steeply that wherever it is
sampled for a test it turns the mean around. How many candidates were accepted then tells whether
it took part, though the candidates themselves say nothing.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tacit.assemble import Facts, assemble
from tacit.audit.protocol import Played, Progress
from tacit.audit.recipe_game import RecipeGame
from tacit.audit.scores import Scores
from tacit.clipping.contract import Batch, LossFunction
from tacit.data.batches import TensorRecords
from tacit.methods.selective import Selective
from tacit.rundir import RunDir

_MEMORY = Path("/dev/shm")  # nothing of a play is kept, so it need not reach a disk
_STEEP = 1e6  # losses move so fast that every change is clipped
_STEEPER = -1e6  # the one record outweighs all others of a sample


@dataclass(frozen=True)
class AcceptanceCounts(RecipeGame):
    """The game for a selective update on a hostile loss: one coin in each run.

    Heads: the record takes part. Tails: its losses are zero. The statistic is the number of
    accepted candidates, which a selective update releases.
    """

    name = "acceptance counts"
    records: int

    def play(self, seed: int, progress: Progress) -> Played:
        """One run of all trials, on the real loop."""
        recipe = self.recipe.with_settings(seed=seed)
        heads = bool(np.random.default_rng([seed, 1]).random() < 0.5)
        steepness = torch.ones(self.records)
        steepness[0] = _STEEPER if heads else 0.0
        records = TensorRecords(torch.ones(self.records, 1), steepness)
        model = nn.Linear(1, 1, bias=False)
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as place:
            run = RunDir.create(Path(place) / "run")
            before = model.weight.detach().clone()
            loss = _away_from(before)
            steps = assemble(model, records, recipe, run, Facts(), loss=loss, repeatable=False)
            method = steps.method
            assert isinstance(method, Selective)
            for step in range(method.promise.steps):
                before.copy_(model.weight.detach())
                steps.advance(loss)
                progress(step + 1, method.promise.steps)
            steps.ledger.close()
        return Played(
            Scores(np.array([float(method.outcome()["accepted"])]), np.array([heads])),
            method.planned(),
            method.promise.relation,
            independent=True,
            noise_may_be_wrong=False,
        )


def _away_from(weight: Tensor) -> LossFunction:
    """Distance from the weight before a trial, which is public, times each record's steepness."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        moved: Tensor = (model(batch[0]) - weight).abs().squeeze(1)
        return _STEEP * batch[-1] * moved

    return loss
