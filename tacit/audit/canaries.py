"""Canaries in gradient space: the training procedure attacked from inside.

A recipe's method runs on the real loop, with its sampler, clipping, noise and ledger, on records
that are all canaries: each one's gradient points along a coordinate of its own and is far longer
than the clipping norm, so it moves the sum as far as any record can. A fair coin for each canary
says whether it takes part. The attacker sees the weights after every step, which is what the
method releases (Nasr et al. 2023). Coordinates do not touch each other, so one run plays
thousands of independent coins.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tacit.assemble import Facts, assemble
from tacit.audit.attackers import attacker_for
from tacit.audit.protocol import Played, Progress
from tacit.audit.recipe_game import RecipeGame
from tacit.audit.scores import Scores
from tacit.clipping.contract import Batch
from tacit.config import Recipe
from tacit.data.batches import TensorRecords
from tacit.errors import NoProofError
from tacit.method_sections import BatchClippingRecipe, ClippedRecipe, SelectiveRecipe
from tacit.methods.clipped import ClippedMethod
from tacit.privacy import events, ledger
from tacit.privacy.relations import Relation
from tacit.rundir import RunDir
from tacit.steps import Steps

DEFAULT_CANARIES = 20_000
_MOST_SEEN = 80_000_000  # values kept in memory: steps × canaries
_TOO_LONG = 10.0  # times the clipping norm and the batch is how long a canary's gradient is
_CANARIES_PER_SET = 0.2
_REPLACED = (Relation.REPLACE_ONE, Relation.REPLACE_FEATURES)


@dataclass(frozen=True)
class GradientCanaries(RecipeGame):
    """The game for a recipe whose method clips each record's gradient.

    How weights are updated from private gradients costs no privacy, so plain steps are taken,
    from which the gradients can be read off.
    """

    name = "gradient canaries"
    records: int
    canaries: int
    """How many of the records are canaries; the others contribute nothing."""

    def play(self, seed: int, progress: Progress) -> Played:
        """One run of the training procedure."""
        recipe = self.recipe.with_settings(seed=seed)
        replaced = _relation(recipe) in _REPLACED
        generator = np.random.default_rng([seed, 1])
        heads = np.asarray(generator.random(self.records) < 0.5)
        places = np.sort(generator.permutation(self.records)[: self.canaries])
        rows = np.zeros(self.records, dtype=np.int64)
        rows[places] = np.arange(1, self.canaries + 1)
        strength = np.where(heads, 1.0, -1.0 if replaced else 0.0) * (rows > 0)
        records = TensorRecords(torch.from_numpy(rows), torch.from_numpy(strength).float())
        model = _Table(self.canaries + 1)
        with tempfile.TemporaryDirectory() as place:
            run = RunDir.create(Path(place) / "run")
            steps = assemble(model, records, recipe, run, Facts(), repeatable=False)
            attacker = attacker_for(steps.method, places, replaced)
            watched = torch.from_numpy(rows[attacker.canaries])
            seen = _watched(steps, model, watched, recipe, progress)
            entries = list(steps.ledger.entries)
            steps.ledger.close()
        relation, claim = steps.method.promise.relation, steps.method.claim(self.delta)
        return Played(
            Scores(attacker.score(seen.numpy()), heads[attacker.canaries]),
            events.counted(events.leaves(ledger.spent(entries))),
            relation,
            independent=attacker.independent,
            claimed=claim.epsilon if claim and claim.speaks_of(relation) else None,
        )


def gradient_canaries(
    recipe: Recipe, records: int, canaries: int = DEFAULT_CANARIES
) -> GradientCanaries:
    """The game for a recipe on so many records, with the recipe's rate and number of steps.

    Where there are fewer canaries than records, batches shrink by the same share; the noise is
    the recipe's, or solved for the recipe's ε. All canaries lie in one tensor, so it is clipped
    as a whole: how groups of layers share the noise is not audited. Where mini-sets are clipped,
    canaries must not meet in one, so only few records are canaries. Noise that decays with the
    accuracy of a network is kept as it begins.
    """
    from tacit.methods.parts import step_count

    if not isinstance(recipe.method, ClippedRecipe):
        raise NoProofError(
            f"method is {recipe.method.name!r}: gradient canaries are for methods that clip each"
            " record's gradient and release noised sums; use attacks on the trained model"
        )
    method, steps, size = recipe.method, step_count(recipe, records), recipe.training.batch_size
    wanted = min(records, canaries, max(100, _MOST_SEEN // steps))
    if isinstance(method, BatchClippingRecipe):
        sets = records * method.mini_sets / size
        few = max(8, min(wanted, round(_CANARIES_PER_SET * sets)))
        return GradientCanaries(_plain_steps(recipe), records, min(few, records))
    if method.in_order:
        batches = -(-records // size)
        size = max(1, wanted // batches)
        wanted = batches * size
        epochs = steps / batches
    else:
        size = max(1, round(size * wanted / records))
        epochs = steps * size / wanted
    changed = {"batch_size": size, "epochs": epochs}
    if isinstance(method, SelectiveRecipe):
        tested = max(1, round(method.validation_batch_size * wanted / records))
        changed |= {"validation_batch_size": tested, "decay": False}
    return GradientCanaries(_plain_steps(recipe).with_settings(**changed), wanted, wanted)


def _plain_steps(recipe: Recipe) -> Recipe:
    assert isinstance(recipe.method, ClippedRecipe)
    clipping = "automatic" if recipe.method.clipping == "automatic" else "flat"
    return recipe.with_settings(
        **{"clipping": clipping, "clip_decay": 1.0, "groups": "layers"},
        **{"thresholds": (), "noise_weights": (), "micro_batch": 8192},
        **{"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0, "weight_decay": 0.0},
        **{"schedule": "constant", "warmup": 0.0, "average": 0.0, "views": 1, "augment": ()},
    )


def _relation(recipe: Recipe) -> Relation | None:
    if recipe.privacy.relation is None and isinstance(recipe.method, BatchClippingRecipe):
        return Relation.REPLACE_ONE
    return recipe.privacy.relation


class _Table(nn.Module):
    """One weight for each canary."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(count, 1)
        nn.init.zeros_(self.rows.weight)

    def forward(self, numbers: Tensor) -> Tensor:
        found: Tensor = self.rows(numbers)
        return found


def _watched(
    steps: Steps, model: _Table, canaries: Tensor, recipe: Recipe, progress: Progress
) -> Tensor:
    """Train to the end; what each canary's coordinate showed at each step, in clipping norms."""
    method, chosen = steps.method, recipe.method
    assert isinstance(method, ClippedMethod) and isinstance(chosen, ClippedRecipe)
    length = _TOO_LONG * chosen.clip * recipe.training.batch_size

    def loss(table: nn.Module, batch: Batch) -> Tensor:
        rows: Tensor = table(batch[0])
        return -length * batch[-1] * rows.squeeze(1)

    count, weights = method.promise.steps, model.rows.weight
    seen = torch.empty(count, len(canaries))
    before = weights.detach()[canaries, 0].clone()
    for step in range(count):
        steps.advance(loss)
        after = weights.detach()[canaries, 0].clone()
        seen[step] = (after - before) * (method.denominator / chosen.clip)
        before = after
        progress(step + 1, count)
    return seen
