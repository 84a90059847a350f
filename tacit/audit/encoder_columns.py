"""The encoder's columns: a record that alone has a feature alone moves the weights behind it.

Where gradients below a sanitization layer are not noised (paper 000), the column of the first
layer's weights that belongs to a feature moves like every other dead column, unless a record that
has the feature took part. Some features are made the same in all records; each canary is a real
record that differs in one of them, or not, as its coin says. Labels stay as they are, so what the
coins show is bounded by ε under replace-features.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.audit.protocol import Played, Progress
from tacit.audit.recipe_game import RecipeGame, outcome
from tacit.audit.scores import Array, Coins, Scores
from tacit.audit.watching import Passed
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError
from tacit.loop import fit
from tacit.privacy.relations import Relation
from tacit.train import Prepared, prepare

_MOST = 400
_LOOKED_AT = 5000  # records from which the least telling features are chosen
_FEWEST = 8
_GENTLE = {"optimizer": "sgd", "learning_rate": 0.002, "momentum": 0.0, "weight_decay": 0.0}


@dataclass(frozen=True)
class EncoderColumns(RecipeGame):
    """The game for a recipe whose network begins with a linear layer on the features.

    No guarantee depends on how the weights are updated, so small plain steps are taken: large
    ones drive activations out of their range, where nothing passes back to the encoder.
    """

    name = "encoder columns"
    canaries: int
    data_dir: Path | None = None

    def play(self, seed: int, progress: Progress) -> Played:
        """One training."""
        ready = prepare(self.recipe, self.data_dir)
        model = ready.network(seed)
        first = _first_layer(model, ready.train.features[0].numel())
        marks, reference = _features(ready, self.canaries)
        generator = np.random.default_rng([seed, 8])
        heads = np.asarray(generator.random(len(marks)) < 0.5)
        owners = torch.from_numpy(generator.permutation(len(ready.train))[: len(marks)])
        before = first.weight.detach().clone()
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "run"
            fit(
                model,
                _marked(ready, marks, reference, owners, heads),
                public=ready.public,
                recipe=ready.recipe.with_settings(seed=seed, **_GENTLE),
                out=out,
                watcher=Passed(progress),
            )
            moved = first.weight.detach() - before
            scores = Scores(_scores(moved, marks, reference), heads)
            return outcome(out, scores, Relation.REPLACE_FEATURES)


def _first_layer(model: nn.Module, features: int) -> nn.Linear:
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.in_features == features:
            return module
        if any(True for _ in module.parameters(recurse=False)):
            break
    raise ArgumentError(
        "the network does not begin with a linear layer on the features, so no column of weights"
        " belongs to one of them; audit a recipe of this method with model.name=mlp, or take the"
        " attack loss-threshold"
    )


def _features(ready: Prepared, wanted: int) -> tuple[NDArray[np.int64], int]:
    """Features that vary least, of one channel, and one more that no canary has."""
    some = ready.train.features[:_LOOKED_AT]
    flat = some.flatten(2)[:, 0] if some.dim() > 2 else some
    order = torch.argsort(flat.float().var(dim=0), stable=True).numpy()
    count = min(wanted, _MOST, len(order) // 2, len(ready.train) // 2)
    if count < _FEWEST:
        raise ArgumentError(
            f"records have {len(order)} features, and {count} canaries are too few; this attack"
            f" needs {_FEWEST} of them"
        )
    return order[:count], int(order[count])


def _marked(
    ready: Prepared, marks: NDArray[np.int64], reference: int, owners: Tensor, heads: Coins
) -> TensorRecords:
    """The records with the chosen features emptied, and those of heads marked again."""
    features = ready.train.features.clone()
    flat = features.view(len(features), -1)
    flat[:, torch.from_numpy(np.append(marks, reference))] = 0
    full = 255.0 if features.dtype == torch.uint8 else float(features.abs().max())
    here = torch.from_numpy(heads)
    flat[owners[here], torch.from_numpy(marks)[here]] = full
    data = ready.data
    return TensorRecords(features, ready.train.labels, tuple(data.mean), tuple(data.std))


def _scores(moved: Tensor, marks: NDArray[np.int64], reference: int) -> Array:
    """How differently from an empty feature's column a canary's column moved."""
    apart = moved[:, torch.from_numpy(marks)] - moved[:, reference : reference + 1]
    return np.asarray(apart.double().norm(dim=0).numpy(), dtype=np.float64)
