"""Canaries in input space: records with a wrong label, of which a coin chooses one of two.

The model is trained as the recipe says; the attacker sees the released model only and compares
its loss under both labels. One run plays as many coins as there are canaries (Steinke et al.
2023).
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.audit.protocol import Played, Progress
from tacit.audit.recipe_game import RecipeGame, outcome
from tacit.audit.scores import Scores
from tacit.audit.watching import Passed
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError
from tacit.loop import fit
from tacit.privacy.relations import Relation
from tacit.train import prepare

_MOST_SHARE = 0.5  # of the training records; the others keep their labels
_BATCH = 512


@dataclass(frozen=True)
class InputCanaries(RecipeGame):
    """The game for any recipe with at least three classes, or two with one of them wrong."""

    name = "input canaries"
    canaries: int
    data_dir: Path | None = None

    def play(self, seed: int, progress: Progress) -> Played:
        """One training."""
        ready = prepare(self.recipe, self.data_dir)
        generator = np.random.default_rng([seed, 7])
        count = min(self.canaries, int(_MOST_SHARE * len(ready.train)))
        if ready.data.classes < 2 or count < 8:
            raise ArgumentError(
                f"{count} canaries in {ready.data.classes} classes are too few; give more records"
            )
        places = torch.from_numpy(generator.permutation(len(ready.train))[:count])
        pairs = _two_labels(generator, count, ready.data.classes)
        heads = generator.random(count) < 0.5
        labels = ready.train.labels.clone()
        labels[places] = torch.from_numpy(np.where(heads, pairs[0], pairs[1])).to(labels)
        data = ready.data
        train = TensorRecords(ready.train.features, labels, tuple(data.mean), tuple(data.std))
        model = ready.network(seed)
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "run"
            recipe = ready.recipe.with_settings(seed=seed)
            fit(model, train, recipe=recipe, out=out, public=ready.public, watcher=Passed(progress))
            scores = Scores(_preference(model, train, places, pairs), heads)
            return outcome(out, scores, Relation.REPLACE_ONE)


def _two_labels(
    generator: np.random.Generator, count: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Two different labels for each canary, at random."""
    first = generator.integers(classes, size=count)
    second = (first + generator.integers(1, classes, size=count)) % classes
    return first, second


def _preference(
    model: nn.Module, train: TensorRecords, places: Tensor, pairs: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """How much more likely the model finds the first label."""
    model.eval()
    found = []
    with torch.no_grad():
        for start in range(0, len(places), _BATCH):
            here = places[start : start + _BATCH]
            logs = F.log_softmax(model(train.batch(here)[0]).double(), dim=1)
            rows = torch.arange(len(here))
            one, other = (torch.from_numpy(p[start : start + _BATCH]) for p in pairs)
            found.append(logs[rows, one] - logs[rows, other])
    return torch.cat(found).numpy()
