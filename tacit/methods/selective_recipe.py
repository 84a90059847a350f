"""From a recipe to selective update: the schedule, what is promised, where accuracy comes from."""

from __future__ import annotations

import torch

from tacit.config import Recipe
from tacit.data.batches import Gatherer
from tacit.data.sampling import PoissonSampler
from tacit.errors import ArgumentError
from tacit.method_sections import SelectiveRecipe
from tacit.methods.base import Promise
from tacit.methods.loss_test import NoisyLossChange
from tacit.methods.parts import Parts, check_budget, step_count
from tacit.methods.phases import ChargedFeedback, Feedback, PublicFeedback
from tacit.methods.selective import Decay, Selective
from tacit.privacy import claims
from tacit.privacy.filter import RdpFilter, check_relation
from tacit.privacy.relations import Relation
from tacit.privacy.selective import LossTest, SelectiveSchedule, noise_for
from tacit.state import TrainingState

_RELEASED = (
    "the weights after every trial",
    "which trials were accepted, and which led to an update",
    "the number of trials",
    "the time it took",
)


def from_recipe(parts: Parts, chosen: SelectiveRecipe) -> Selective:
    """The method of a recipe; its noise is solved for where only ε is given and nothing decays."""
    recipe, count, source = parts.recipe, len(parts.records), parts.source
    relation = recipe.privacy.relation or Relation.ADD_OR_REMOVE_ONE
    _check(parts, chosen, relation)
    plain = Gatherer(parts.records, recipe.training.micro_batch, 1, ())
    start = _start(recipe, chosen, count)
    decay = None
    if chosen.decay:
        decay = Decay(_feedback(parts, chosen, plain), _filter(recipe, start))
    schedule = start if decay else _constant(recipe, start, relation)
    _check_claim(chosen, schedule, recipe.privacy.delta)
    tested = PoissonSampler(count, chosen.validation_batch_size, source, "validation sampling")
    return Selective(
        _promise(chosen, schedule, relation, decay),
        schedule,
        PoissonSampler(count, recipe.training.batch_size, source),
        NoisyLossChange(parts.model, tested, plain, source, chosen.validation_clip),
        parts.equipment(chosen),
        TrainingState(parts.model, parts.optimizer),
        parts.memory,
        chosen,
        recipe.privacy.delta,
        decay,
    )


def _check(parts: Parts, chosen: SelectiveRecipe, relation: Relation) -> None:
    if chosen.validation_batch_size > len(parts.records):
        raise ArgumentError(
            f"validation_batch_size is {chosen.validation_batch_size}, larger than the"
            f" {len(parts.records)} training records; choose a smaller one"
        )
    if chosen.validation_unit == "literal" and chosen.statistic != "clipped-mean":
        raise ArgumentError("validation_unit 'literal' is for statistic 'clipped-mean' only")
    if not chosen.decay:
        return
    labels = parts.records.labels
    if labels.is_floating_point() or labels.dim() != 1:
        raise ArgumentError(
            "decay follows the accuracy, but labels are not class numbers; set decay to false"
        )
    _check_answers(parts)
    if parts.recipe.privacy.noise is None:
        raise ArgumentError(
            "noise is missing: with decay it cannot be solved for, as it is only the first one;"
            " give noise beside epsilon, or set decay to false"
        )
    check_relation(relation)


def _check_claim(chosen: SelectiveRecipe, start: SelectiveSchedule, delta: float) -> None:
    """Refuse an end that comes before the first update."""
    rates = start.probability, start.test_probability
    one = claims.selective_update(rates[0], start.noise, rates[1], chosen.validation_noise)
    found = claims.selective(one, delta).epsilon
    if chosen.stop_at_claimed is not None and found > chosen.stop_at_claimed:
        raise ArgumentError(
            f"stop_at_claimed is {chosen.stop_at_claimed:g}, but paper 001 would charge"
            f" {found:.4g} for a single update; ask for more, or use more noise"
        )


def _check_answers(parts: Parts) -> None:
    """The accuracy is that of the largest of several outputs, asked with a blank record."""
    blank = torch.zeros_like(parts.records.batch(torch.tensor([0]))[0])
    training = parts.model.training
    parts.model.eval()
    try:
        with torch.no_grad():
            shape = tuple(parts.model(blank).shape)
    finally:
        parts.model.train(training)
    if len(shape) != 2 or shape[1] < 2:
        raise ArgumentError(
            f"decay follows the accuracy, but the model answers one record with shape {shape};"
            " it needs one output for each of at least two classes. Set decay to false"
        )


def _start(recipe: Recipe, chosen: SelectiveRecipe, records: int) -> SelectiveSchedule:
    """The trials as they begin, every one charged."""
    noise = chosen.validation_noise
    if chosen.validation_unit == "literal":
        noise /= 2 * chosen.validation_clip
    test = LossTest(
        chosen.validation_batch_size, noise, chosen.beta, chosen.statistic, chosen.reach
    )
    return SelectiveSchedule(
        records,
        recipe.training.batch_size,
        step_count(recipe, records),
        recipe.privacy.noise or 1.0,
        test,
        chosen.compares,
    )


def _constant(recipe: Recipe, start: SelectiveSchedule, relation: Relation) -> SelectiveSchedule:
    privacy = recipe.privacy
    if privacy.noise is None:
        return noise_for(start, privacy.epsilon or 0.0, privacy.delta, relation)
    schedule = start.cheapest(privacy.delta)
    check_budget(schedule.proven(privacy.delta, relation), recipe)
    return schedule


def _filter(recipe: Recipe, start: SelectiveSchedule) -> RdpFilter:
    privacy = recipe.privacy
    if privacy.epsilon is None:
        return RdpFilter.for_trials(start, privacy.delta)
    return RdpFilter.for_budget(start, privacy.epsilon, privacy.delta)


def _feedback(parts: Parts, chosen: SelectiveRecipe, gatherer: Gatherer) -> Feedback:
    if chosen.feedback == "public":
        if parts.public is None:
            raise ArgumentError(
                "feedback is 'public', but there are no public records; set data.public, give them"
                " as public, or set feedback to 'charged'"
            )
        return PublicFeedback(parts.public)
    count = len(parts.records)
    size = min(chosen.feedback_batch_size, count)
    sampler = PoissonSampler(count, size, parts.source, "feedback sampling")
    return ChargedFeedback(sampler, gatherer, parts.source, chosen.feedback_noise)


def _promise(
    chosen: SelectiveRecipe, schedule: SelectiveSchedule, relation: Relation, decay: Decay | None
) -> Promise:
    in_full = schedule.compares or (decay is None and schedule.coin is None)
    least, most = schedule.acceptance.bounds
    details = {
        "noise_multiplier": schedule.noise,
        "sampling_probability": schedule.probability,
        "expected_batch_size": schedule.batch_size,
        "records": schedule.records,
        "accounting": _accounting(schedule, decay),
        "test": (
            f"{schedule.test.statistic.replace('-', ' ')} of changes of loss on a Poisson sample of"
            f" its own, rate {schedule.test_probability:.8g}, noise {schedule.test.noise:g} times"
            f" its sensitivity; a candidate is accepted with probability {least:.4f} to {most:.4f}"
        ),
    }
    if decay is not None:
        details["feedback"] = decay.feedback.sentence
    return Promise(
        method=getattr(chosen, "name", "selective"),
        relation=relation,
        steps=schedule.steps,
        released=(*_RELEASED, "the noisy result of every test") if in_full else _RELEASED,
        sampling=(
            "Poisson, for gradients and tests independently: every record with probability"
            f" {schedule.probability:.8g} and {schedule.test_probability:.8g} at every trial"
        ),
        proof="docs/proofs/selective.md",
        details=details,
    )


def _accounting(schedule: SelectiveSchedule, decay: Decay | None) -> str:
    if decay is not None:
        return (
            "every trial before its outcome, its noise depending on earlier results: an RDP filter"
            f" at order {decay.budget.order:g}, fixed in advance, up to {decay.budget.limit:.6g}"
        )
    if schedule.coin is None:
        return "every trial in full, gradient and test, accepted or not"
    return (
        "by thinning, every trial before its outcome: a candidate or nothing,"
        f" a* = {schedule.coin:g}"
    )
