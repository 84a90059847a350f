"""Train a recipe: find the data, build the network, and hand both to `fit`."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tacit import config, models, pretraining
from tacit.assemble import Facts
from tacit.config import Recipe
from tacit.data import datasets
from tacit.data.batches import TensorRecords
from tacit.data.datasets import SPLIT_SEED, Data, DataOptions, Split
from tacit.data.features import RecordFeatures, ScatteringFeatures, with_features
from tacit.data.patches import WhitenedPatchFeatures
from tacit.data.published import DATASETS
from tacit.data.released import Release
from tacit.errors import ArgumentError, RunError
from tacit.loop import Result, fit, new_run_path
from tacit.method_sections import SanitizationRecipe
from tacit.progress import Moment, Silent, Watcher
from tacit.recipe_sections import FeaturesRecipe, PatchesRecipe
from tacit.rundir import RunDir

_MODEL_FOR = {"image": "convnet", "table": "mlp", "text": "text-mean"}


def recipe_for(what: str, overrides: dict[str, str] | None = None) -> Recipe:
    """The recipe of a TOML file, a built-in recipe, a named dataset, or the user's own data.

    >>> recipe_for("digits").data.name
    'digits'
    """
    if what in config.builtin_names() or what.endswith(".toml"):
        return config.load(what, overrides)
    if what in DATASETS or Path(what).exists():
        return config.from_values({"data": {"name": what}}, overrides)
    near = get_close_matches(what, [*DATASETS, *config.builtin_names()], 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(
        f"{what!r} is neither a dataset ({', '.join(DATASETS)}), nor a file or folder, nor a"
        f" built-in recipe{hint} (`tacit papers` lists the recipes of the papers)"
    )


def stored_recipe(out: Path) -> Recipe:
    """The recipe that a run was started with."""
    run = RunDir.open(out)
    if not run.recipe.is_file():
        raise RunError(f"{out} has no recipe.toml; start the run again elsewhere")
    return config.load(str(run.recipe))


def train(
    recipe: Recipe,
    *,
    data_dir: Path | None = None,
    out: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
) -> Result:
    """Run a recipe from data to certificate and report."""
    watcher = watcher or Silent()
    with watcher:
        ready = prepare(recipe, data_dir, watcher)
    recipe = ready.recipe
    label = f"{Path(recipe.data.name).stem}-{recipe.method.name}"
    return fit(
        ready.network(secrets.randbits(63) if recipe.run.seed is None else recipe.run.seed),
        ready.train,
        test=ready.tested,
        public=ready.public,
        recipe=recipe,
        out=out or new_run_path(label),
        resume=resume,
        watcher=watcher,
        facts=ready.facts,
    )


@dataclass(frozen=True)
class Prepared:
    """What a recipe trains on and with, ready to be handed to `fit`."""

    recipe: Recipe
    data: Data
    train: TensorRecords
    tested: TensorRecords | None
    public: TensorRecords | None
    facts: Facts

    def network(self, seed: int) -> nn.Module:
        """The recipe's network with weights drawn from this seed."""
        chosen, data = self.recipe.model, self.data
        model = models.build(
            chosen.name,
            data.input_shape,
            data.classes,
            tokens=data.token_ids,
            seed=seed,
            initial=chosen.initial,
            width=chosen.width,
        )
        model = models.mended(model) if chosen.mend else model
        method, encoder = self.recipe.method, "given"
        if isinstance(method, SanitizationRecipe):
            model, encoder = models.with_sanitization(model), method.encoder
        pretraining.prepare(model, encoder, data.input_shape, seed, data.mean, data.std)
        return model


def prepare(
    recipe: Recipe, data_dir: Path | None = None, watcher: Watcher | None = None
) -> Prepared:
    """Find the data of a recipe, split it, and choose the network."""
    if recipe.model.name != "auto":
        models.check_name(recipe.model.name)
    data = datasets.load(recipe.data.name, data_dir=data_dir, options=options_of(recipe))
    if recipe.features is not None:
        progress = _FeaturesWatched(watcher or Silent())
        data = with_features(data, _function(recipe.features, data), progress)
    return _prepared(_resolved(recipe, data), data)


class _FeaturesWatched:
    """Shows how far features are; those that come from the cache are not computed."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._begun = time.monotonic()

    def __call__(self, done: int, rows: int) -> None:
        taken = time.monotonic() - self._begun
        left = taken * (rows - done) / done
        self._watcher.show(Moment.bare(done, rows, left, "features"))
        if done == rows:
            self._begun = time.monotonic()


def _function(chosen: FeaturesRecipe, data: Data) -> RecordFeatures:
    if isinstance(chosen, PatchesRecipe):
        return WhitenedPatchFeatures(
            data.input_shape,
            chosen.count,
            chosen.size,
            chosen.grid,
            chosen.width,
            chosen.mirrored,
        )
    return ScatteringFeatures(
        data.input_shape,
        chosen.scale,
        chosen.angles,
        chosen.groups,
        chosen.mirrored,
        chosen.centred,
        chosen.upright,
        chosen.whitened,
        chosen.pictures,
    )


def options_of(recipe: Recipe) -> DataOptions:
    """How a recipe says that its data is to be read."""
    try:
        return DataOptions(**recipe.data.options)
    except TypeError:
        known = ", ".join(DataOptions.__dataclass_fields__)
        raise ArgumentError(
            f"data.options is {recipe.data.options}; known options: {known}"
        ) from None


def _resolved(recipe: Recipe, data: Data) -> Recipe:
    if recipe.model.name != "auto":
        return recipe
    return recipe.with_settings(
        model=_MODEL_FOR[data.kind], mend=recipe.model.mend, initial=recipe.model.initial
    )


def _prepared(recipe: Recipe, data: Data) -> Prepared:
    """Training records, records for evaluation, and what the certificate must say of them."""
    held = recipe.data.holdout
    train, evaluation = data.train, data.test
    where = "the test set, treated as public"
    not_covered = ["the test records, on which the model is evaluated"] if data.test else []
    if held:
        train, evaluation = _split(train, held)
        where = "records held out of the training set"
        not_covered = ["the held-out records, on which the model is evaluated"]
    facts = Facts(
        treated_as_public=data.treated_as_public,
        not_covered=tuple(not_covered),
        evaluated_on=f"{len(evaluation):,} records: {where}" if evaluation else "",
        class_names=data.class_names,
    )
    known: Split | None = None
    if recipe.data.public:
        train, known = _split(train, recipe.data.public, "data.public")
    tested, public = (_records(part, data) if part else None for part in (evaluation, known))
    private = _records(train, data, data.release)
    return Prepared(recipe, data, private, tested, public, facts)


def _split(train: Split, held: int, key: str = "data.holdout") -> tuple[Split, Split]:
    """Take out `held` records at places drawn once and for all, whatever the records are.

    Not at even distances: every twelfth record of MNIST is harder than its neighbours.
    """
    if held >= len(train):
        raise ArgumentError(f"{key} is {held}, but there are only {len(train)} training records")
    chosen = torch.zeros(len(train), dtype=torch.bool)
    places = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(train))[:held]
    chosen[torch.from_numpy(places)] = True
    return (
        Split(train.features[~chosen], train.labels[~chosen]),
        Split(train.features[chosen], train.labels[chosen]),
    )


def _records(split: Split, data: Data, release: Release | None = None) -> TensorRecords:
    return TensorRecords(split.features, split.labels, data.mean, data.std, release)
