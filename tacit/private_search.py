"""Private selection: try settings on the private records and release the best run alone.

The number of runs is random and stays hidden, as do all runs but the best: their directories lie in
the private part of the released run and are erased with it. Proof: docs/proofs/selection.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from dp_accounting import DpEvent
from safetensors.torch import load

from tacit.assemble import described, header_of, with_public
from tacit.config import Recipe
from tacit.errors import ArgumentError, BudgetError, ReplayError, RunError
from tacit.evaluate import evaluate
from tacit.independence import independence_of, weakest_of
from tacit.loop import Result, certified, directory, released, started
from tacit.losses import cross_entropy
from tacit.method_sections import PlainRecipe
from tacit.methods.base import Method
from tacit.models import batch_norm
from tacit.noise.gaussian import noised
from tacit.noise.source import RandomSource
from tacit.noise.sums import SumLog
from tacit.privacy import accountants, certificate, events, ledger
from tacit.privacy.ledger import Ledger
from tacit.privacy.selection import RunCount, candidates_of
from tacit.privacy.selection_plan import SelectionPlan, noises_for, scored
from tacit.rundir import RunDir
from tacit.search_space import Settings, changed
from tacit.sweep import Training, train_all
from tacit.train import Prepared

_HIDDEN = (
    "the number of runs that the search made, and the time it took as a whole: they are not"
    " released, and whoever learns them learns more than is accounted for"
)
_FROM_THE_CHOSEN = (
    *("released", "sampling", "clipping", "steps", "noise_multiplier", "sampling_probability"),
    *("expected_batch_size", "mechanism", "sensitivity_squared", "norm_groups", "recipe_digest"),
)


@dataclass(frozen=True)
class PrivateSearch:
    """Settings to try on private records, and by what law.

    Guarantee: the run that is released, with its settings and its score, is (ε, δ)-differentially
    private with the ε of the recipe. The whole search is in the ledger before its first run. The
    number of runs and the settings they try follow from one key, so a search that is continued
    after a crash makes the runs it would have made.
    """

    ready: Prepared
    candidates: tuple[Settings, ...]
    law: RunCount
    score_noise: float | None
    """Noise on the number of training records that a run gets right. Without it runs are compared
    on the evaluation records, which get no protection."""

    @property
    def recipe(self) -> Recipe:
        """The settings that all candidates share."""
        return self.ready.recipe

    def check(self) -> None:
        """Refuse what cannot be searched privately."""
        privacy = self.recipe.privacy
        if isinstance(self.recipe.method, PlainRecipe):
            raise ArgumentError("method is plain: without privacy there is nothing to account for")
        if privacy.epsilon is None or privacy.noise is not None:
            raise ArgumentError(
                "a private search needs epsilon, the budget for all of it, and no noise, which is"
                " solved for"
            )
        if self.score_noise is None and not self.recipe.data.holdout:
            raise ArgumentError(
                "data.holdout is 0: runs would be compared on the test set, which is for the end."
                " Hold out records that may be treated as public, such as data.holdout=1000 in the"
                " recipe, or compare by a charged score: --score charged (in Python:"
                ' score="charged")'
            )

    def plan(self) -> tuple[SelectionPlan, tuple[Recipe, ...]]:
        """What the search is charged as, and the candidates with the noise that this takes.

        Candidates that differ in what they release (batch size, epochs) get noise of their own.
        """
        self.check()
        recipes = [changed(self.recipe, settings) for settings in self.candidates]
        kinds: dict[str, list[int]] = {}
        for place, recipe in enumerate(recipes):
            kind = json.dumps(events.to_json(self._released(recipe, 1.0)))
            kinds.setdefault(kind, []).append(place)
        runs: list[Callable[[float], DpEvent]] = [
            partial(self._released, recipes[places[0]]) for places in kinds.values()
        ]
        privacy, relation = self.recipe.privacy, self.method(recipes[0], 1.0).promise.relation
        plan = noises_for(runs, self.law, privacy.epsilon or 0.0, privacy.delta, relation)
        for noise, places in zip(plan.noises, kinds.values(), strict=True):
            for place in places:
                recipes[place] = recipes[place].with_settings(noise=noise)
        return plan, tuple(recipes)

    def method(self, recipe: Recipe, noise: float) -> Method:
        """The method of a candidate, to ask what it would release."""
        given = recipe.with_settings(noise=noise)
        network = replace(self.ready, recipe=given).network(0)
        return described(network, self.ready.train, given, self.ready.public)

    def _released(self, recipe: Recipe, noise: float) -> DpEvent:
        return scored(self.method(recipe, noise).planned(), self.score_noise)

    def header(self, plan: SelectionPlan, recipes: tuple[Recipe, ...], key: RandomSource) -> Any:
        """The ledger's first entry: what is promised for the search as a whole."""
        ready, first = self.ready, recipes[0]
        method = self.method(first, first.privacy.noise or 1.0)
        facts = with_public(ready.facts, ready.public)
        networks = [(each, replace(ready, recipe=each).network(0)) for each in recipes]
        weakest = weakest_of(
            independence_of(net, ready.train, each, own_inputs=True) for each, net in networks
        )
        written = header_of(self.recipe, method, ready.train, key, facts, weakest)
        return written | {
            "planned": events.to_json(plan.event),
            "claimed": None,
            "proof": f"docs/proofs/selection.md, for runs that {written['proof']} covers",
            "not_covered": [*written["not_covered"], _HIDDEN],
            "expected_runs": self.law.mean,
            "settings_to_try": len(recipes),
            "candidates": self._listed(recipes),
            "tuning": self._sentence(plan, recipes),
        }

    def _listed(self, recipes: tuple[Recipe, ...]) -> list[Settings]:
        each = zip(self.candidates, recipes, strict=True)
        return [{**settings, "privacy.noise": recipe.privacy.noise} for settings, recipe in each]

    def _sentence(self, plan: SelectionPlan, recipes: tuple[Recipe, ...]) -> str:
        relation = self.method(recipes[0], 1.0).promise.relation
        delta, runs = self.recipe.privacy.delta, candidates_of(plan.event)
        alone = max(accountants.epsilon(run, delta, relation) for run in runs)
        compared = (
            "with the best accuracy on records that get no protection"
            if self.score_noise is None
            else "that gets most training records right, by a count with normal noise of standard"
            f" deviation {self.score_noise:g} that is charged too,"
        )
        keys = ", ".join(sorted({key for settings in self.candidates for key in settings}))
        return (
            f"counted: a search over {keys} made {self.law.mean:g} runs in expectation"
            f" ({self.law.name}; the number itself is hidden), each with one of"
            f" {len(recipes)} settings fixed in advance and drawn at random. Only the run"
            f" {compared} is released; all others were erased. One run alone would cost"
            f" ε = {certificate.in_full(certificate.round_up(alone))}"
        )


def search(
    wanted: PrivateSearch,
    out: Path,
    *,
    jobs: int = 1,
    data_dir: Path | None = None,
    announce: Callable[[], None] | None = None,
) -> Result:
    """Charge the whole search, make its runs, and release the best of them as the run in `out`.

    Given again after an interruption, it goes on. `announce` is called before the first run, once
    nothing that was given can be refused any more. Nothing is shown afterwards: how many runs
    there are, and how they do, is hidden.
    """
    resume = RunDir(out).ledger.exists()
    run = directory(out, resume)
    with started(run, resume):
        plan, recipes = wanted.plan()
        if not resume:
            source = _new_key(wanted.recipe)
            run.save_key(source, 0)
            book = Ledger.create(run.ledger, wanted.header(plan, recipes, source))
        elif released(run):
            same = wanted.header(plan, recipes, _new_key(wanted.recipe)) | {"key": None}
            _check_same(run, ledger.read(run.ledger)[0].body | {"key": None}, same)
            run.erase_private()
            return certified(run)
        else:
            book, source = Ledger.resume(run.ledger), run.load_key()[0]
            _check_same(run, book.entries[0].body, wanted.header(plan, recipes, source))
    if announce is not None:
        announce()
    if not any(entry.kind == "charge" for entry in book.entries):
        book.charge(0, 0, plan.event)
    log = run.sum_log(0)  # none from earlier versions, where no score left without weights
    source.log = SumLog(log, replayed=log.exists() or run.weights.exists())
    return _released(run, book, *_best(wanted, recipes, run, source, jobs, data_dir))


def _new_key(recipe: Recipe) -> RandomSource:
    seed = recipe.run.seed
    new = RandomSource.from_entropy() if seed is None else RandomSource.from_seed(seed)
    return new.apart("search over settings")


def _check_same(run: RunDir, written: dict[str, Any], header: dict[str, Any]) -> None:
    differing = [key for key in header if header[key] != written.get(key) and key != "versions"]
    if differing:
        raise RunError(
            f"{run.path} holds a search that differs in {', '.join(differing)}; give what it was"
            " started with, or choose another directory. What it spent stays in its ledger"
        )


def _best(
    wanted: PrivateSearch,
    recipes: tuple[Recipe, ...],
    run: RunDir,
    source: RandomSource,
    jobs: int,
    data_dir: Path | None,
) -> tuple[RunDir, float]:
    """Make all runs; the one with the highest score, the first of equals."""
    trainings = _trainings(wanted.law, recipes, run, source, wanted.recipe.run.seed is not None)
    if not trainings:
        raise BudgetError(
            "the number of runs came out as 0, as the Poisson law allows: nothing is released, and"
            " the budget is spent all the same. The other laws make at least one run"
        )
    try:
        train_all(trainings, jobs=jobs, data_dir=data_dir)
    except RunError as error:
        reason = str(error).splitlines()[1].partition(": ")[2]
        raise RunError(f"a run of the search failed, and so must the search: {reason}") from None
    log, scores = source.log or SumLog(), []
    try:
        for place, training in enumerate(trainings):
            log.begin(place)
            scores.append(_score(wanted, training, place, source))
    except ReplayError:
        raise RunError(
            f"{run.path}: a run of the search scores otherwise than before the search was"
            " interrupted, so something outside the recipe has changed and it cannot go on. What it"
            " spent stays in its ledger"
        ) from None
    log.close()
    best = max(range(len(scores)), key=lambda place: scores[place])
    return RunDir(trainings[best].out), scores[best]


def _trainings(
    law: RunCount, recipes: tuple[Recipe, ...], run: RunDir, source: RandomSource, seeded: bool
) -> list[Training]:
    """All runs of the search: a function of its key."""
    high, low = (int(word) for word in source.words("number of runs", 0, 2))
    count = law.drawn(((high << 32 | low) >> 11) / (1 << 53))
    found = []
    for place in range(count):
        recipe = recipes[int(source.words("candidate", place, 1)[0]) % len(recipes)]
        if seeded:
            recipe = recipe.with_settings(
                noise=recipe.privacy.noise, seed=source.torch_seed("seed of a run", place)
            )
        out = run.private / "runs" / f"{place:04d}"
        found.append(Training(out.name, "search", recipe, out))
    return found


def _score(wanted: PrivateSearch, training: Training, place: int, source: RandomSource) -> float:
    """How good a run is, higher being better; private records count with noise only."""
    run = RunDir(training.out)
    if wanted.score_noise is None:
        final = run.read_json(run.metrics)["final"]
        found = final["accuracy"] if final["accuracy"] is not None else -final["loss"]
        return float(found) if math.isfinite(found) else -math.inf
    model = replace(wanted.ready, recipe=training.recipe).network(0)
    batch_norm.load(model, load(run.weights.read_bytes()))
    records = wanted.ready.train
    accuracy = evaluate(model, records, cross_entropy).accuracy
    if accuracy is None:
        raise ArgumentError(
            "labels are not class numbers, so there is no number of right answers to compare by;"
            " compare on records that are treated as public: --score public (in Python:"
            ' score="public")'
        )
    right = torch.tensor([round(accuracy * len(records))], dtype=torch.float64)
    return float(noised(right, wanted.score_noise, f"score {place}", source)) / len(records)


def _released(run: RunDir, book: Ledger, chosen: RunDir, score: float) -> Result:
    """The chosen run takes the place of the search; everything else is erased."""
    promise = ledger.read(chosen.ledger)[0].body
    selected = {key: promise[key] for key in _FROM_THE_CHOSEN if key in promise}
    selected["released"] = [*selected["released"], "the settings and the score of the chosen run"]
    outcome = {"score": round(score, 6)}
    run.write(run.recipe, chosen.recipe.read_bytes())
    run.write(run.weights, chosen.weights.read_bytes())
    whole = certificate.issue(book.entries)["guarantee"]["epsilon"]
    metrics = run.read_json(chosen.metrics)
    for evaluation in metrics["evaluations"]:
        evaluation["epsilon"] = whole
    spent_at_once = [(1, whole), (promise["steps"], whole)]
    run.write_json(run.metrics, metrics | {"epsilon_curve": spent_at_once})
    body = {"weights_sha256": run.weights_hash(), "outcome": outcome, "selected": selected}
    book.append("release", body)
    book.close()
    run.write(run.ledger, run.ledger.read_bytes())
    run.erase_private()
    return certified(run)
