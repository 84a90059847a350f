"""Private features, public labels (000): the paper's algorithm by name, and three that are sound.

Proofs and counter-examples: docs/proofs/sanitization.md.
"""

from __future__ import annotations

from typing import Any

from tacit.clipping.rules import Flat
from tacit.data.sampling import PoissonSampler, ShuffledSampler
from tacit.errors import ArgumentError, NoProofError
from tacit.losses import blank_record
from tacit.method_sections import Head, SanitizationRecipe
from tacit.methods.base import Method, Promise
from tacit.methods.class_sums import ClassSums
from tacit.methods.heads import Prototypes, linear_head
from tacit.methods.parts import Parts, check_budget, step_count
from tacit.methods.sanitized_joint import Below, JointTraining, Samplers
from tacit.methods.sanitized_once import OneTimeRelease
from tacit.methods.sanitized_paper import PaperSanitization
from tacit.methods.sanitized_watch import Watch
from tacit.methods.stopping import SlopeRule, TrendRule
from tacit.models.sanitization import Split
from tacit.privacy.certificate import round_up
from tacit.privacy.relations import PUBLIC_LABELS, Relation
from tacit.privacy.sanitized import SanitizedSchedule, Sanitizer, noise_for

_PROOF = "docs/proofs/sanitization.md"
_RELEASED = {
    "one-time": ("one noised vector for every record, beside its label", "the weights"),
    "joint": (
        "the weights after every step",
        "the noised vectors of the sampled records, beside their labels and places",
        "the number of steps",
        "the time it took, coarsely",
    ),
    "class-sums": ("noised sums over the records of each class", "the weights"),
}
_RELEASED_FOR_RIDGE = ("the noised sum of all vectors", "their noised second moments")
_HEADS: dict[str, tuple[Head, ...]] = {
    "paper": ("trained",),
    "one-time": ("trained", "prototypes"),
    "joint": ("trained", "prototypes"),
    "class-sums": ("ridge", "prototypes"),
}
_ENCODER = {
    "given": "the encoder's first weights, which must not have seen these records",
    "patches": "the encoder, made of patches of generated images",
    "generated": "the encoder's first weights, trained on generated images",
}
_SAMPLING = {
    "one-time": "none: every record once; later steps see released vectors only",
    "joint": (
        "Poisson: every record independently with probability {rate:.8g} at every step, once for"
        " gradients and, by another draw that is visible, once for vectors"
    ),
    "class-sums": "none: every record once",
}


def from_recipe(parts: Parts, chosen: SanitizationRecipe) -> Method:
    """The variant that the recipe names, its noise solved for where only ε is given."""
    if parts.recipe.training.views > 1:
        raise NoProofError(
            f"views is {parts.recipe.training.views}: every view of a record would be a vector of"
            " its own, which is not what is charged; set views = 1"
        )
    _refuse_unused(chosen)
    split = Split(parts.model)
    schedule = _schedule(parts, chosen)
    split.layer.use(schedule.vectors, chosen.clip, parts.source)
    watch = _watch(parts, chosen, split)
    if chosen.guarantee == "paper":
        _check_papers_relation(parts.recipe.privacy.relation)
        return _paper(parts, schedule, watch)
    promise = _promise(parts, chosen, schedule, split)
    names = _head_names(parts, split)
    if chosen.guarantee == "joint":
        return _joint(parts, chosen, schedule, split, watch, promise, names)
    for parameter in split.encoder_parameters():
        parameter.requires_grad_(False)
    if chosen.guarantee == "class-sums":
        ridge = chosen.head_by == "ridge"
        return ClassSums(promise, schedule, split, parts.gatherer(), parts.source, ridge=ridge)
    computed = chosen.head_by == "prototypes"
    return OneTimeRelease(
        promise,
        schedule,
        split,
        parts.gatherer(),
        ShuffledSampler(len(parts.records), parts.recipe.training.batch_size, parts.source),
        parts.optimizer,
        parts.memory,
        names,
        Prototypes(split, parts.memory) if computed else None,
    )


def _check_papers_relation(relation: Relation | None) -> None:
    if relation not in (None, Relation.REPLACE_FEATURES):
        raise ArgumentError(
            f"relation is {relation.value!r}, but what guarantee 'paper' shows is for"
            " 'replace-features', where labels are public; leave relation out, or choose a"
            " guarantee that proves something"
        )


def _paper(parts: Parts, schedule: SanitizedSchedule, watch: Watch) -> PaperSanitization:
    sampler = PoissonSampler(len(parts.records), schedule.batch_size, parts.source)
    details = _details(schedule)
    if schedule.sanitizer.counted:
        details["head_only"] = round_up(schedule.head_only(parts.recipe.privacy.delta))
    return PaperSanitization(
        parts.model,
        schedule,
        sampler,
        parts.gatherer(),
        parts.optimizer,
        parts.source,
        watch,
        details,
        parts.recipe.privacy.delta,
    )


def _joint(
    parts: Parts,
    chosen: SanitizationRecipe,
    schedule: SanitizedSchedule,
    split: Split,
    watch: Watch,
    promise: Promise,
    names: tuple[str, ...],
) -> JointTraining:
    count = len(parts.records)
    engine = parts.engine(Below(split), Flat(chosen.gradient_clip))
    samplers = Samplers(
        PoissonSampler(count, schedule.batch_size, parts.source),
        PoissonSampler(count, schedule.batch_size, parts.source.apart("activations")),
    )
    return JointTraining(
        promise,
        schedule,
        split,
        engine,
        parts.gatherer(),
        samplers,
        parts.optimizer,
        parts.source,
        watch,
        names,
        _guessed(parts, split) if chosen.head_by == "prototypes" else None,
    )


def _guessed(parts: Parts, split: Split) -> Prototypes:
    """Class means that start from guesses worth one epoch of vectors."""
    return Prototypes(split, parts.memory, len(parts.records) / linear_head(split).out_features)


def _refuse_unused(chosen: SanitizationRecipe) -> None:
    """Refuse a setting that would change nothing, for it was meant to."""
    joint, stops = chosen.guarantee == "joint", chosen.stop != "never"
    used = {
        "activation_noise": (joint, "guarantee 'joint'"),
        "gradient_clip": (joint, "guarantee 'joint'"),
        "mask": (chosen.dropout > 0, "dropout above 0"),
        "window": (stops, "stop 'flag' or 'stop'"),
        "slope": (stops and not chosen.follow, "stop 'flag' or 'stop' and without follow"),
        "tolerance": (stops and chosen.follow > 0, "stop 'flag' or 'stop' and with follow"),
    }
    for name, (useful, where) in used.items():
        value = getattr(chosen, name)
        if not useful and value != SanitizationRecipe.model_fields[name].default:
            raise ArgumentError(
                f"{name} is {value!r}, which has a use only with {where}; leave it out"
            )


def _schedule(parts: Parts, chosen: SanitizationRecipe) -> SanitizedSchedule:
    recipe, count = parts.recipe, len(parts.records)
    privacy, training = recipe.privacy, recipe.training
    relation = privacy.relation or Relation.REPLACE_FEATURES
    if chosen.head_by not in _HEADS[chosen.guarantee]:
        raise ArgumentError(
            f"head is {chosen.head_by!r}, but with guarantee {chosen.guarantee!r} it is one of"
            f" {', '.join(_HEADS[chosen.guarantee])}"
        )
    once = chosen.guarantee == "one-time" and chosen.head_by == "prototypes"
    steps = step_count(recipe, count)
    width = Split(parts.model).width(blank_record(parts.records)[0])
    schedule = SanitizedSchedule(
        chosen.guarantee,
        count,
        training.batch_size,
        1 if once or chosen.guarantee == "class-sums" else steps,
        privacy.noise or 1.0,
        Sanitizer(width, 1.0, chosen.values_in, chosen.dropout, chosen.mask),
        chosen.activation_noise,
    )
    if privacy.noise is None:
        return noise_for(schedule, privacy.epsilon or 0.0, privacy.delta, relation)
    claim = schedule.claimed(privacy.delta)
    cost = claim.epsilon if claim else schedule.proven(privacy.delta, relation)
    check_budget(cost, recipe)
    return schedule


def _watch(parts: Parts, chosen: SanitizationRecipe, split: Split) -> Watch:
    if chosen.stop != "never" and chosen.guarantee in ("one-time", "class-sums"):
        raise NoProofError(
            f"stop is {chosen.stop!r}, but with guarantee {chosen.guarantee!r} vectors are released"
            " once and their spread never changes; the head may train as long as it likes at no"
            " cost: set stop = 'never'"
        )
    rule = (
        TrendRule(chosen.window, chosen.tolerance)
        if chosen.follow
        else SlopeRule(chosen.window, chosen.slope)
    )
    per_epoch = len(parts.records) / parts.recipe.training.batch_size
    return Watch(split, chosen.follow, chosen.stop, rule, per_epoch, parts.memory)


def _promise(
    parts: Parts, chosen: SanitizationRecipe, schedule: SanitizedSchedule, split: Split
) -> Promise:
    more = _RELEASED_FOR_RIDGE if chosen.head_by == "ridge" else ()
    return Promise(
        method="sanitization",
        relation=parts.recipe.privacy.relation or Relation.REPLACE_FEATURES,
        steps=schedule.steps,
        released=(*_RELEASED[chosen.guarantee], *more),
        sampling=_SAMPLING[chosen.guarantee].format(rate=schedule.probability),
        proof=_PROOF,
        details=_details(schedule),
        public=(PUBLIC_LABELS, _ENCODER[chosen.encoder]),
        changing_state=_changing_state(parts, chosen, split),
    )


def _changing_state(parts: Parts, chosen: SanitizationRecipe, split: Split) -> dict[str, str]:
    """The buffers of the sanitization layer that move in training, and why that is safe."""
    layer = next(name for name, m in parts.model.named_modules() if m is split.layer)
    if chosen.guarantee == "joint" and chosen.follow:
        return {f"{layer}.threshold": "post-processing: a multiple of the norm of noised weights"}
    if chosen.guarantee == "class-sums" and chosen.head_by == "ridge":
        return {f"{layer}.centre": "noised: the mean of all vectors, a part of what is charged"}
    return {}


def _details(schedule: SanitizedSchedule) -> dict[str, Any]:
    sampled = schedule.guarantee in ("paper", "joint")
    return {
        "variant": schedule.guarantee,
        "noise_multiplier": schedule.noise,
        "sampling_probability": schedule.probability if sampled else None,
        "expected_batch_size": schedule.batch_size,
        "records": schedule.records,
    }


def _head_names(parts: Parts, split: Split) -> tuple[str, ...]:
    """The head's parameters as the whole network names them."""
    head = {id(parameter) for parameter in split.head.parameters()}
    return tuple(name for name, p in parts.model.named_parameters() if id(p) in head)
