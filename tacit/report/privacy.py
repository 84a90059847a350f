"""The parts of the page that speak about privacy: the verdict, the numbers, their cover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.report import values
from tacit.report.load import Guarantee, Run
from tacit.report.markup import (
    block,
    bullets,
    escape,
    facts,
    paragraph,
    section,
    sentences,
    table,
)

_SHOWN = {
    "guarantee": {"epsilon", "delta", "relation", "unit", "meaning"},
    "claimed": {"epsilon", "source", "delta", "mu", "relation"},
    "audited": {
        *("epsilon", "confidence", "attack", "relation", "delta"),
        *("status", "verdict", "tried", "on_training_records"),
    },
}
_OBTAINED = [
    ("Method", "method"),
    ("Sampling", "sampling"),
    ("Sampling probability", "sampling_probability"),
    ("Expected batch size", "expected_batch_size"),
    ("Training records", "records"),
    ("Clipping", "clipping"),
    ("Clipping norm", "clip"),
    ("Noise mechanism", "mechanism"),
    ("Trials are charged", "accounting"),
    ("Candidates are tested", "test"),
    ("Progress is measured", "feedback"),
    ("Outcome", "outcome"),
    ("Noise multiplier", "noise_multiplier"),
    ("Squared sensitivity", "sensitivity_squared"),
    ("Groups of layers", "norm_groups"),
    ("Mini-sets in a round", "mini_sets"),
    ("Accountant", "accountant"),
    ("Budget asked for, ε", "budget"),
    ("Steps planned", "steps"),
    ("Steps taken and paid for", "charges"),
    ("Tuning", "tuning"),
    ("Randomness", "randomness"),
    ("Proof", "proof"),
]
_TRACED = [("Head of the ledger", "ledger_head"), ("SHA-256 of the weights", "weights_sha256")]
_KNOWN = {
    *("title", "verdict", "guarantee", "proven", "claimed", "audited", "released", "warnings"),
    *("trade_off", "treated_as_public", "not_covered", "assumptions", "versions", "spent_by_now"),
    *(key for _, key in (*_OBTAINED, *_TRACED)),
}
_CHANGED = {
    "add-or-remove-one": "{} is added or removed",
    "replace-one": "{} is replaced by another",
    "zero-out": "{} is replaced by one that contributes nothing",
    "replace-features": "the features, not the label, of {} are changed",
}


def header(run: Run) -> str:
    """Title and verdict; a run without a guarantee opens with a red banner."""
    method = run.certificate.get("method")
    kicker = " · ".join(["Privacy report", *([values.method(method)] if method else [])])
    verdict = run.certificate.get("verdict")
    said = verdict if isinstance(verdict, str) else ""
    parts = [paragraph(kicker, "kicker"), f"<h1>{escape(run.title)}</h1>"]
    if run.guarantee is not None:
        parts.append(paragraph(said or _verdict(run.guarantee), "verdict"))
    else:
        parts.append(
            '<div class="banner" role="alert"><strong>No privacy guarantee</strong>'
            "<p>No proof limits what this model can reveal about a training record. "
            "Treat it as you would treat the training data.</p></div>"
        )
        parts.append(paragraph(f"Verdict: {said}" if said else "", "verdict plain"))
    return f"<header>{''.join(part for part in parts if part)}</header>"


def three_numbers(run: Run) -> str:
    """ε proven, claimed and audited, each with what it means."""
    claimed, audited = run.certificate.get("claimed"), run.certificate.get("audited")
    cards = [
        _proven_card(run.guarantee, run.certificate.get("proven") or {}),
        _claimed_card(claimed, run.guarantee),
        _audited_card(audited),
    ]
    return (
        '<section aria-label="The three values of ε"><div class="cards">'
        f"{''.join(cards)}</div></section>"
    )


def coverage(run: Run) -> str:
    """What the certificate covers, what it does not, and how the number was reached."""
    data = run.certificate
    private = run.guarantee is not None
    covered = [
        _meaning(run.guarantee),
        _listed("Released under it" if private else "Released", data.get("released"), private),
        _listed("Provided that" if private else "Assumptions", data.get("assumptions"), private),
        _relations(data.get("proven") or {}) if private else "",
    ]
    left_out = [
        _listed("Not covered", data.get("not_covered"), True),
        _listed("Treated as public", data.get("treated_as_public"), True),
    ]
    obtained = [(name, data.get(key)) for name, key in _OBTAINED if data.get(key) is not None]
    obtained += _spent(data.get("spent_by_now"))
    traced = [(name, data.get(key)) for name, key in _TRACED if data.get(key) is not None]
    versions = [(f"{name} version", v) for name, v in (data.get("versions") or {}).items()]
    return section(
        "coverage",
        "What the certificate covers, and what it does not"
        if run.certificate_text is not None
        else "What is covered: nothing",
        f'<div class="halves"><div class="half covered">{"".join(covered)}</div>'
        f'<div class="half left-out">{"".join(left_out)}</div></div>',
        block("How the number was reached" if private else "How it was trained", _facts(obtained)),
        block("What it was made with", _facts(versions + traced)),
        block("Also recorded", _facts(_unknown(run))),
    )


def _facts(pairs: list[tuple[str, Any]]) -> str:
    shown = [
        (name, values.method(value) if name == "Method" else values.plain(value))
        for name, value in pairs
    ]
    return facts(shown, code=("Proof", *(name for name, _ in _TRACED)))


def _unknown(run: Run) -> list[tuple[str, Any]]:
    """Fields this page has no place for, shown all the same."""
    data = run.certificate
    found = [(key, value) for key, value in data.items() if key not in _KNOWN]
    for key, shown in _SHOWN.items():
        inner = data.get(key) or {}
        found += [(f"{key} {name}", v) for name, v in inner.items() if name not in shown]
    if run.guarantee is None:
        found += [(key, data[key]) for key in ("guarantee", "proven") if data.get(key)]
    return [(values.words(name), value) for name, value in found]


def _spent(by_now: object) -> list[tuple[str, Any]]:
    """What an unfinished plan has cost; shown, but never as the guarantee."""
    epsilon = values.finite(by_now.get("epsilon")) if isinstance(by_now, dict) else None
    if epsilon is None:
        return []
    said = (
        f"ε = {values.proven(epsilon)} for the steps taken. The guarantee stays at the planned "
        "cost, because when to stop may have depended on the records."
    )
    return [("Spent at stop (ex post)", said)]


def _listed(title: str, value: object, always: bool) -> str:
    found = sentences(value)
    return block(title, bullets(found, "Nothing listed.")) if found or always else ""


def _delta(guarantee: Guarantee) -> str:
    return f"δ = {values.delta(guarantee.delta)}"


def _verdict(guarantee: Guarantee) -> str:
    relation = f", {guarantee.relation}" if guarantee.relation else ""
    unit = f"any {guarantee.unit}"
    return (
        f"Proven (ε = {values.proven(guarantee.epsilon)}, {_delta(guarantee)}) for {unit}{relation}"
    )


def _card(
    kind: str, name: str, value: str, under: str, *says: str, also: Sequence[str] = ()
) -> str:
    size = "value" if any(c.isdigit() or c == values.INFINITE for c in value) else "value absent"
    return (
        f'<article class="card {kind}"><h2>{escape(name)}</h2>'
        f'<p class="{size}">{escape(value)}</p>{paragraph(under, "under")}'
        f"{''.join(paragraph(text, 'also') for text in also)}"
        f"{''.join(paragraph(text) for text in says)}</article>"
    )


def _proven_card(guarantee: Guarantee | None, proven: dict[str, Any]) -> str:
    if guarantee is None:
        says = "No proof covers this run, so nothing limits what the model can reveal."
        return _card("main none", "ε proven", values.INFINITE, "", says)
    under = " · ".join([_delta(guarantee), *([guarantee.relation] if guarantee.relation else [])])
    others = [
        f"ε = {values.proven(epsilon)} if {_changed(relation, guarantee.unit)} ({relation})"
        for relation, epsilon in proven.items()
        if relation != guarantee.relation
    ]
    says = (
        f"A limit, backed by a proof, on what the release can reveal about {guarantee.unit}, "
        "whoever looks and whatever else they know. Rely on this one."
    )
    return _card("main", "ε proven", values.proven(guarantee.epsilon), under, says, also=others)


def _changed(relation: str, unit: str) -> str:
    return _CHANGED.get(relation, "the data differ in {}").format(unit)


def _claimed_card(claimed: dict[str, Any] | None, guarantee: Guarantee | None) -> str:
    if claimed is None:
        says = "A paper's own arithmetic would stand here; this run names none."
        return _card("side", "ε claimed", "not claimed", "", says)
    meaning = (
        "What a paper's own arithmetic gives for these settings; the guarantee does not rest on it."
    )
    source = claimed.get("source")
    says = f"Source: {source}" if source else ""
    epsilon = values.number(claimed.get("epsilon"))
    under = _beside(epsilon, guarantee)
    return _card("side", "ε claimed", values.claimed(epsilon), under, meaning, says)


def _beside(claimed: float | None, guarantee: Guarantee | None) -> str:
    """How the claim stands to what is proven, at the precision that is shown."""
    if claimed is None or guarantee is None:
        return ""
    if values.claimed(claimed) == values.proven(guarantee.epsilon):
        return "the same as what is proven, up to rounding"
    return f"{'less' if claimed < guarantee.epsilon else 'more'} than what is proven"


def _audited_card(audited: dict[str, Any] | None) -> str:
    if audited is None:
        says = "An attack on the model would give a lower bound here; none has been recorded."
        return _card("side", "ε audited", "not audited yet", "", says)
    confidence = values.finite(audited.get("confidence"))
    under = "lower bound"
    if confidence is not None:
        under += f" at {values.short_percent(confidence)} confidence"
    meaning = "An attack showed that at least this much leaks; the true ε lies above it."
    attack, relation = audited.get("attack"), audited.get("relation")
    under += f" · {relation}" if relation else ""
    says = f"Attack: {attack}" if attack else ""
    verdict = audited.get("verdict")
    said = verdict if isinstance(verdict, str) else ""
    shown = values.audited(audited.get("epsilon"))
    return _card("side", "ε audited", shown, under, meaning, says, said)


def _meaning(guarantee: Guarantee | None) -> str:
    if guarantee is None:
        return block("Covered", paragraph("Nothing: this run has no privacy guarantee."))
    change = {
        "add-or-remove-one": f"with {guarantee.unit} added or removed",
        "replace-one": f"with {guarantee.unit} replaced by another",
        "zero-out": f"with {guarantee.unit} replaced by one that contributes nothing",
        "replace-features": f"with the features, not the label, of {guarantee.unit} changed",
    }.get(guarantee.relation or "", f"differing in {guarantee.unit}")
    factor = values.growth(guarantee.epsilon)
    power = "e<sup>ε</sup>"
    times = f"{factor} times ({power})" if factor else f"{power} times"
    said = (
        f"{escape(f'Train on the data, or on the same data {change}')}: no outcome of the release "
        f"becomes more than {times} as likely, plus a probability of at most "
        f'<span class="whole">{escape(_delta(guarantee))}</span>.'
    )
    return block("Covered", f"<p>{said}</p>")


def _relations(proven: dict[str, Any]) -> str:
    if not proven:
        return ""
    rows = [(relation, values.proven(epsilon)) for relation, epsilon in proven.items()]
    return block(
        "Proven ε by relation", table("Proven ε by relation", ("Data sets differ by", "ε"), rows)
    )
