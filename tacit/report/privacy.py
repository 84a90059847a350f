"""The parts of the page that speak about privacy: the verdict, the numbers, their cover."""

from __future__ import annotations

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
    "guarantee": {"epsilon", "delta", "relation", "unit"},
    "claimed": {"epsilon", "source"},
    "audited": {"epsilon", "confidence", "attack"},
}
_KNOWN = {
    *("title", "verdict", "method", "guarantee", "proven", "claimed", "audited", "released"),
    *("sampling", "accountant", "treated_as_public", "not_covered", "tuning", "randomness"),
    *("assumptions", "proof", "steps", "noise_multiplier", "clip", "versions", "ledger_head"),
    *("weights_sha256", "warnings"),
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
        _proven_card(run.guarantee),
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
    traced = [(name, data.get(key)) for name, key in _TRACED if data.get(key) is not None]
    versions = [(f"{name} version", v) for name, v in (data.get("versions") or {}).items()]
    return section(
        "coverage",
        "What the certificate covers, and what it does not",
        f'<div class="halves"><div class="half covered">{"".join(covered)}</div>'
        f'<div class="half left-out">{"".join(left_out)}</div></div>',
        block("How the number was reached" if private else "How it was trained", _facts(obtained)),
        block("What it was made with", _facts(versions + traced)),
        block("Also in the certificate", _facts(_unknown(run))),
    )


_OBTAINED = [
    ("Method", "method"),
    ("Sampling", "sampling"),
    ("Accountant", "accountant"),
    ("Steps", "steps"),
    ("Noise multiplier", "noise_multiplier"),
    ("Clipping norm", "clip"),
    ("Tuning", "tuning"),
    ("Randomness", "randomness"),
    ("Proof", "proof"),
]
_TRACED = [("Head of the ledger", "ledger_head"), ("SHA-256 of the weights", "weights_sha256")]


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
        found += [(f"{key}.{name}", v) for name, v in inner.items() if name not in shown]
    if run.guarantee is None:
        found += [(key, data[key]) for key in ("guarantee", "proven") if data.get(key)]
    return found


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


def _card(kind: str, name: str, value: str, under: str, *says: str) -> str:
    size = "value" if any(c.isdigit() or c == values.INFINITE for c in value) else "value absent"
    return (
        f'<article class="card {kind}"><h2>{escape(name)}</h2>'
        f'<p class="{size}">{escape(value)}</p>{paragraph(under, "under")}'
        f"{''.join(paragraph(text) for text in says)}</article>"
    )


def _proven_card(guarantee: Guarantee | None) -> str:
    if guarantee is None:
        says = "No proof covers this run, so nothing limits what the model can reveal."
        return _card("main none", "ε proven", values.INFINITE, "", says)
    under = " · ".join([_delta(guarantee), *([guarantee.relation] if guarantee.relation else [])])
    says = (
        f"A limit, backed by a proof, on what the release can reveal about {guarantee.unit}, "
        "whoever looks and whatever else they know. Rely on this one."
    )
    return _card("main", "ε proven", values.proven(guarantee.epsilon), under, says)


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
    below = epsilon is not None and guarantee is not None and epsilon < guarantee.epsilon
    under = "less than what is proven" if below else ""
    return _card("side", "ε claimed", values.proven(epsilon), under, meaning, says)


def _audited_card(audited: dict[str, Any] | None) -> str:
    if audited is None:
        says = "An attack on the model would give a lower bound here; none has been recorded."
        return _card("side", "ε audited", "not audited yet", "", says)
    confidence = values.finite(audited.get("confidence"))
    under = "lower bound"
    if confidence is not None:
        under += f" at {values.short_percent(confidence)} confidence"
    meaning = "An attack showed that at least this much leaks; the true ε lies above it."
    attack = audited.get("attack")
    says = f"Attack: {attack}" if attack else ""
    return _card("side", "ε audited", values.audited(audited.get("epsilon")), under, meaning, says)


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
