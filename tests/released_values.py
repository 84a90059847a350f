"""Every value that a finished run may hold: its place, its kind, and why it may be published.

A place is the path of keys in a file; `[]` stands for the items of a list. PUBLIC values must not
depend on records, key, time or directory: they are the same in any two runs of a recipe. RELEASED
ones follow from what was charged for; TIME is coarse; KEYED follows from the random key alone.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tacit.privacy import events
from tacit.privacy.relations import Relation

PUBLIC, RELEASED, TIME, KEYED = "public", "released", "time", "keyed"
FILES = {
    *("recipe.toml", "ledger.jsonl", "metrics.json", "weights.safetensors"),
    *("certificate.json", "certificate.txt", "report.html"),
}
VECTORS = "sanitized.npz"
ENTRIES = {"promise", "charge", "release", "stop", "resume", "export"}
Kind = Callable[[Any], bool]


@dataclass(frozen=True)
class Rule:
    """What may stand at a place."""

    place: str
    origin: str
    kind: Kind


def text(value: Any) -> bool:
    """A sentence or a name, and no path of a machine."""
    return isinstance(value, str) and bool(value) and not re.search(r"(^|[\s'\"(])[/~]\w", value)


def count(value: Any) -> bool:
    return type(value) is int and value >= 0


def amount(value: Any) -> bool:
    """A finite number that is not negative."""
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def share(value: Any) -> bool:
    return amount(value) and value <= 1


def rounded(value: Any) -> bool:
    """A proven ε: four decimals at most."""
    return amount(value) and math.isclose(value, round(value, 4), abs_tol=1e-9)


def coarse(value: Any) -> bool:
    """1, 2 or 5 times a power of ten."""
    return (
        amount(value)
        and value > 0
        and f"{value:e}".rstrip("0123456789").startswith(("1.000000e", "2.000000e", "5.000000e"))
    )


def digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def fingerprint(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32}", value) is not None


def relation(value: Any) -> bool:
    return value in {each.value for each in Relation}


def event(value: Any) -> bool:
    return bool(events.to_json(events.from_json(value)) == value)


def nothing(value: Any) -> bool:
    return value is None or value == [] or value == {}


def maybe(kind: Kind) -> Kind:
    return lambda value: nothing(value) or kind(value)


def one_of(*known: Any) -> Kind:
    return lambda value: value in known


def _rules(origin: str, kind: Kind, *places: str) -> list[Rule]:
    return [Rule(place, origin, kind) for place in places]


_SENTENCES = (
    *("title", "method", "released[]", "sampling", "proof", "clipping", "treated_as_public[]"),
    *("not_covered[]", "tuning", "randomness", "warnings[]", "mechanism", "variant", "accounting"),
    *("test", "feedback", "no_guarantee_because", "versions.*", "independence"),
    *("numerics.meaning", "numerics.reason", "numerics.layers[]"),
)
_SETTINGS = ("steps", "records", "mini_sets", "norm_groups", "expected_batch_size")
_FACTORS = ("noise_multiplier", "sensitivity_squared", "head_only")
_CLAIM = [("epsilon", amount), ("mu", amount), ("relation", relation), ("source", text)]
_OUTCOME = [
    *((name, count) for name in ("trials", "accepted", "applied")),
    *((f"last_{name}", amount) for name in ("noise", "validation_noise", "beta")),
]
RULES = [
    # Promise and certificate share what is promised.
    *(
        rule
        for file in ("ledger.promise", "certificate")
        for rule in (
            *_rules(PUBLIC, maybe(text), *(f"{file}.{key}" for key in _SENTENCES)),
            *_rules(PUBLIC, maybe(count), *(f"{file}.{key}" for key in _SETTINGS)),
            *_rules(PUBLIC, maybe(amount), *(f"{file}.{key}" for key in _FACTORS)),
            *_rules(PUBLIC, maybe(share), f"{file}.sampling_probability"),
            *_rules(PUBLIC, maybe(amount), f"{file}.budget"),
            *_rules(PUBLIC, one_of("proven", "idealised"), f"{file}.numerics.sums"),
        )
    ),
    *(Rule(f"ledger.promise.claimed.{key}", PUBLIC, kind) for key, kind in _CLAIM),
    *_rules(PUBLIC, nothing, "ledger.promise.claimed"),
    *_rules(PUBLIC, share, "ledger.promise.delta"),
    *_rules(PUBLIC, relation, "ledger.promise.relation"),
    *_rules(PUBLIC, event, "ledger.promise.planned"),
    *_rules(PUBLIC, text, "ledger.promise.changing_state.*", "ledger.promise.groups[][]"),
    *_rules(PUBLIC, digest, "ledger.promise.recipe_digest"),
    *_rules(KEYED, fingerprint, "ledger.promise.key"),
    # What every line of a ledger has.
    *_rules(PUBLIC, count, "ledger.*.entry"),
    *_rules(PUBLIC, one_of(*ENTRIES), "ledger.*.kind"),
    *_rules(KEYED, digest, "ledger.*.after"),
    *_rules(PUBLIC, count, "ledger.charge.step", "ledger.charge.generation"),
    *_rules(PUBLIC, event, "ledger.charge.event"),
    *_rules(RELEASED, digest, "ledger.release.weights_sha256"),
    *(Rule(f"ledger.release.outcome.{key}", RELEASED, kind) for key, kind in _OUTCOME),
    *(Rule(f"ledger.release.claimed.{key}", RELEASED, kind) for key, kind in _CLAIM),
    *_rules(RELEASED, number, "ledger.release.outcome.score", "certificate.outcome.score"),
    *_rules(RELEASED, count, "ledger.stop.step"),
    *_rules(PUBLIC, one_of(VECTORS), "ledger.export.file"),
    *_rules(RELEASED, digest, "ledger.export.sha256"),
    # When a run was interrupted is as private as its time: only the step of the last save is told.
    *_rules(TIME, count, "ledger.resume.step", "ledger.resume.generation"),
    *_rules(TIME, one_of(True, False), "ledger.resume.replay"),
    *_rules(KEYED, fingerprint, "ledger.resume.key"),
    # A search over settings: what was tried is fixed ahead, what was chosen is charged for.
    *_rules(PUBLIC, amount, "ledger.promise.expected_runs", "certificate.expected_runs"),
    *_rules(PUBLIC, count, "ledger.promise.settings_to_try", "certificate.settings_to_try"),
    *_rules(PUBLIC, lambda v: number(v) or text(v), "ledger.promise.candidates[].*"),
    *(
        rule
        for rules in (
            _rules(RELEASED, maybe(text), *(f"ledger.release.selected.{k}" for k in _SENTENCES)),
            _rules(RELEASED, maybe(count), *(f"ledger.release.selected.{k}" for k in _SETTINGS)),
            _rules(RELEASED, maybe(amount), *(f"ledger.release.selected.{k}" for k in _FACTORS)),
            _rules(RELEASED, share, "ledger.release.selected.sampling_probability"),
            _rules(RELEASED, digest, "ledger.release.selected.recipe_digest"),
        )
        for rule in rules
    ),
    *_rules(RELEASED, maybe(amount), "ledger.stop.claimed"),
    # The certificate is a function of the ledger.
    *_rules(PUBLIC, text, "certificate.verdict", "certificate.assumptions[]", "certificate.noise"),
    *_rules(PUBLIC, nothing, "certificate.assumptions[]", "certificate.audited"),
    *_rules(PUBLIC, nothing, "certificate.guarantee", "certificate.proven"),
    *_rules(PUBLIC, rounded, "certificate.guarantee.epsilon", "certificate.proven.*"),
    *_rules(PUBLIC, share, "certificate.guarantee.delta"),
    *_rules(PUBLIC, relation, "certificate.guarantee.relation"),
    *_rules(PUBLIC, text, "certificate.guarantee.meaning", "certificate.guarantee.unit"),
    *_rules(PUBLIC, maybe(text), "certificate.accountant"),
    *_rules(PUBLIC, share, "certificate.trade_off[][]"),
    *_rules(PUBLIC, nothing, "certificate.trade_off"),
    *_rules(PUBLIC, count, "certificate.charges"),
    *_rules(RELEASED, nothing, "certificate.claimed", "certificate.spent_by_now"),
    *_rules(RELEASED, nothing, "certificate.stopped"),
    *(Rule(f"certificate.claimed.{key}", RELEASED, kind) for key, kind in _CLAIM),
    *_rules(PUBLIC, share, "certificate.claimed.delta"),
    *_rules(RELEASED, rounded, "certificate.spent_by_now.epsilon"),
    *_rules(RELEASED, text, "certificate.spent_by_now.name"),
    *_rules(RELEASED, count, "certificate.stopped.step"),
    *_rules(RELEASED, maybe(amount), "certificate.stopped.claimed"),
    *(Rule(f"certificate.outcome.{key}", RELEASED, kind) for key, kind in _OUTCOME),
    *_rules(RELEASED, digest, "certificate.ledger_head", "certificate.weights_sha256"),
    # Metrics: public facts, and what the weights do on records that get no protection.
    *_rules(PUBLIC, text, "metrics.model", "metrics.data", "metrics.evaluated_on"),
    *_rules(PUBLIC, count, "metrics.records", "metrics.parameters"),
    *_rules(PUBLIC, share, "metrics.delta"),
    *_rules(PUBLIC, nothing, "metrics.evaluations[]", "metrics.final"),
    *_rules(TIME, nothing, "metrics.inference_seconds"),
    *_rules(PUBLIC, count, "metrics.evaluations[].step"),
    *_rules(PUBLIC, amount, "metrics.evaluations[].epoch"),
    *_rules(PUBLIC, maybe(rounded), "metrics.evaluations[].epsilon", "metrics.epsilon_curve[]"),
    *_rules(PUBLIC, rounded, "metrics.epsilon_curve[][]"),
    *_rules(RELEASED, share, "metrics.evaluations[].accuracy", "metrics.final.accuracy"),
    *_rules(RELEASED, amount, "metrics.evaluations[].loss", "metrics.final.loss"),
    *_rules(RELEASED, count, "metrics.final.confusion[][]"),
    *_rules(PUBLIC, text, "metrics.final.class_names[]"),
    *_rules(TIME, coarse, "metrics.training_seconds", "metrics.inference_seconds"),
    *_rules(PUBLIC, one_of("never", "flag", "stop"), "metrics.sanitization.flag_mode"),
    *_rules(
        RELEASED,
        maybe(amount),
        *(f"metrics.sanitization.{key}[]" for key in ("spread", "threshold", "norm", "claimed")),
    ),
    *_rules(RELEASED, maybe(count), "metrics.sanitization.flags[]"),
    *_rules(RELEASED, maybe(number), "metrics.sanitization.slopes[]"),
    *_rules(RELEASED, number, "metrics.sanitization.slopes[][]"),
    *_rules(RELEASED, maybe(count), "metrics.sanitization.flags_around.*"),
    *_rules(RELEASED, nothing, "metrics.sanitization.flags_around"),
]


def leaves(path: Path) -> Iterator[tuple[str, Any]]:
    """Every value of a run's JSON files with its place."""
    for name in ("metrics", "certificate"):
        if (path / f"{name}.json").exists():
            yield from _leaves(name, json.loads((path / f"{name}.json").read_bytes()))
    for line in (path / "ledger.jsonl").read_bytes().splitlines():
        entry = json.loads(line)
        yield from _leaves(f"ledger.{entry['kind']}", entry)


def rules_for(place: str) -> list[Rule]:
    """The rules of a place; brackets stand for themselves."""
    found = place.replace("[", "<").replace("]", ">")
    return [r for r in RULES if fnmatchcase(found, r.place.replace("[", "<").replace("]", ">"))]


def faults(path: Path, files: Iterable[str] = FILES) -> list[str]:
    """Files, keys and values that are not on the list."""
    found = [
        f"file {each.relative_to(path)}"
        for each in path.rglob("*")
        if str(each.relative_to(path)) not in files
    ]
    for place, value in leaves(path):
        if not any(rule.kind(value) for rule in rules_for(place)):
            found.append(f"{place}: {value!r}")
    return found


def public_values(path: Path, not_public: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """What must be the same in every run of a recipe."""
    return [
        (place, value)
        for place, value in leaves(path)
        if {rule.origin for rule in rules_for(place)} == {PUBLIC}
        and not any(fnmatchcase(place, pattern) for pattern in not_public)
    ]


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    whole = any(rule.kind is event for rule in rules_for(place))
    if isinstance(value, dict) and value and not whole:
        for key, item in value.items():
            yield from _leaves(f"{place}.{key}", item)
    elif isinstance(value, list) and not whole:
        if not value:
            yield f"{place}[]", None
        for item in value:
            yield from _leaves(f"{place}[]", item)
    else:
        yield place, value
