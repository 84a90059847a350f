"""The certificate: what was released, to whom the promise is made, and the three numbers.

It follows from the ledger alone, so anyone who holds a run directory can issue it again and
compare. Proven ε is rounded up, audited ε down.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit.errors import LedgerError
from tacit.privacy import accountants, events, tradeoff
from tacit.privacy.accountants import Accountant
from tacit.privacy.ledger import Entry, spent
from tacit.privacy.relations import Relation

Json = dict[str, Any]

SHOWN_RELATIONS = (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE)
_COPIED = (
    *("budget", "method", "released", "sampling", "steps", "proof", "clipping"),
    *("treated_as_public", "not_covered", "tuning", "randomness", "warnings"),
    *("noise_multiplier", "sampling_probability", "expected_batch_size", "records"),
    *("mechanism", "sensitivity_squared", "norm_groups", "mini_sets"),
    *("no_guarantee_because", "head_only", "variant"),
    *("accounting", "test", "feedback"),
)
AUDIT_LOOKED = "the figures of the audit, which were computed from training records without noise"
ASSUMPTIONS = (
    "normal noise is idealised: it is drawn in 32-bit floating point, and sums and norms are"
    " computed in the model's precision",
    "the adversary sees everything that is listed as released and knows all other records, but"
    " not the run's private directory or the memory of the training process",
    "the time a run takes, and when it was evaluated, are treated as independent of the records",
)


def round_up(value: float, digits: int = 4) -> float:
    """Never in our favour.

    >>> round_up(1.00001, 2)
    1.01
    """
    scale = 10.0**digits
    return math.ceil(value * scale - 1e-9) / scale if math.isfinite(value) else value


def issue(
    entries: Sequence[Entry],
    *,
    delta: float | None = None,
    accountant: Accountant = Accountant.PLD,
) -> Json:
    """The certificate of a run, from its ledger alone.

    A run that stopped early is certified at its planned cost, because stopping may have depended
    on the data; what was spent by then is named as such. A run without privacy gets no guarantee,
    and what is said of it here must not be stored as a certificate.
    """
    if not entries or entries[0].kind != "promise":
        raise LedgerError("the ledger does not start with a promise; it was cut or is not ours")
    promise = entries[0].body
    at_delta = float(promise["delta"]) if delta is None else delta
    planned = events.from_json(promise["planned"])
    charged = spent(list(entries))
    relation = Relation(promise["relation"])
    covering = _larger(planned, charged, at_delta, relation, accountant)
    shown = [
        each
        for each in dict.fromkeys((*SHOWN_RELATIONS, relation))
        if each is relation or (accountant is Accountant.PLD and accountants.covers(covering, each))
    ]
    proven = {
        each.value: round_up(accountants.epsilon(covering, at_delta, each, accountant))
        for each in shown
    }
    proven = {
        name: value
        for name, value in proven.items()
        if name == relation.value or math.isfinite(value)
    }
    epsilon = proven.get(relation.value)
    private = epsilon is not None and math.isfinite(epsilon)
    release = next((e.body for e in reversed(entries) if e.kind == "release"), None)
    claimed = promise["claimed"] or (release or {}).get("claimed")
    ex_post = round_up(accountants.epsilon(charged, at_delta, relation, accountant))
    audited = next((e.body for e in reversed(entries) if e.kind == "audit"), None)
    certificate: Json = {
        "title": promise["title"],
        "verdict": _denial(promise) or _verdict(epsilon, at_delta, relation, release is not None),
        "guarantee": {
            "epsilon": epsilon,
            "delta": at_delta,
            "relation": relation.value,
            "meaning": relation.meaning,
            "unit": "one training record",
        }
        if private
        else None,
        "proven": proven if private else {},
        "claimed": claimed and {**claimed, "delta": promise["delta"]},
        "audited": audited,
        "spent_by_now": {"epsilon": ex_post, "name": "spent at stop (ex post)"}
        if private and (release is None or ex_post < (epsilon or 0))
        else None,
        "stopped": next((e.body for e in reversed(entries) if e.kind == "stop"), None),
        "accountant": _named(accountant, covering, at_delta, shown) if private else None,
        "trade_off": _trade_off(covering, relation) if private else None,
        "charges": sum(entry.kind == "charge" for entry in entries),
    }
    certificate |= {key: promise[key] for key in _COPIED if key in promise}
    if audited and audited["on_training_records"]:
        certificate["not_covered"] = [*certificate["not_covered"], AUDIT_LOOKED]
    if release and "outcome" in release:
        certificate["outcome"] = release["outcome"]
    certificate["assumptions"] = list(ASSUMPTIONS) if private else []
    if not private:
        certificate["budget"] = None
    certificate["versions"] = promise["versions"]
    certificate["ledger_head"] = entries[-1].hash
    certificate["weights_sha256"] = release["weights_sha256"] if release else None
    return certificate


def is_written(issued: Json) -> bool:
    """Whether the certificate is stored: where something is proven, or a claim must be denied."""
    return bool(issued["guarantee"] or issued.get("no_guarantee_because"))


def _denial(promise: Json) -> str:
    reason = promise.get("no_guarantee_because")
    return f"No guarantee for the weights follows from this run: {reason}." if reason else ""


_FALSE_ALARMS = (
    *(0.0, 1e-5, 1e-4, 0.001, 0.002, 0.005, 0.01, 0.02),
    *(round(0.04 + 0.03 * i, 2) for i in range(32)),
    *(0.98, 0.99, 0.995, 0.998, 0.999, 1.0),
)


def _trade_off(event: DpEvent, relation: Relation) -> list[list[float]]:
    """Rates of false alarms, and below which rate of misses no attack gets; rounded down."""
    curve = tradeoff.of(event, relation)
    misses = curve.misses(np.array(_FALSE_ALARMS))
    return [
        [alpha, math.floor(float(beta) * 1e6) / 1e6]
        for alpha, beta in zip(_FALSE_ALARMS, misses, strict=True)
    ]


def _larger(
    planned: DpEvent, charged: DpEvent, delta: float, relation: Relation, accountant: Accountant
) -> DpEvent:
    cost = [accountants.epsilon(e, delta, relation, accountant) for e in (planned, charged)]
    return planned if cost[0] >= cost[1] else charged


def _named(accountant: Accountant, event: DpEvent, delta: float, shown: Sequence[Relation]) -> str:
    """The accountant, and for which relations another one had to stand in for it."""
    used = {each: accountants.applied(event, delta, each, accountant) for each in shown}
    if set(used.values()) == {Accountant.GAUSSIAN}:
        return Accountant.GAUSSIAN.value
    replaced = [each.value for each, found in used.items() if found is not accountant]
    if not replaced:
        return accountant.value
    return (
        f"{accountant.value}; {Accountant.RDP.value} for {', '.join(replaced)}, where"
        f" {accountant.value} finds no finite bound at this δ"
    )


def _verdict(epsilon: float | None, delta: float, relation: Relation, released: bool) -> str:
    if epsilon is None or not math.isfinite(epsilon):
        return (
            "No privacy guarantee, and no certificate: this run releases unprotected values;"
            " nothing about the training records is protected."
        )
    state = "" if released else " The run is not finished; this is its planned cost."
    return (
        f"Proven: (ε = {epsilon:g}, δ = {delta:g})-differentially private when"
        f" {relation.meaning}.{state}"
    )


def as_text(certificate: Json) -> str:
    """The certificate as a page that a reviewer can read."""
    title = [certificate["title"], "=" * len(certificate["title"]), ""]
    if certificate.get("no_guarantee_because"):
        lines = [certificate["verdict"], "", *title]
    else:
        lines = [*title, *textwrap.wrap(certificate["verdict"], 92), ""]
    lines += _three_numbers(certificate)
    for key, heading in _SECTIONS:
        value = certificate.get(key)
        if value:
            lines += ["", heading]
            for item in value if isinstance(value, list) else [str(value)]:
                lines += textwrap.wrap(
                    str(item), 90, initial_indent="  - ", subsequent_indent="    "
                )
    lines += ["", "Settings"]
    for key in _SETTINGS:
        if certificate.get(key) is not None:
            lines.append(f"  {key.replace('_', ' ')}: {certificate[key]}")
    versions = ", ".join(f"{name} {value}" for name, value in certificate["versions"].items())
    lines += [f"  versions: {versions}", ""]
    lines += [f"Ledger ends with {certificate['ledger_head']}"]
    lines += [f"Weights (SHA-256) {certificate['weights_sha256'] or 'not released'}"]
    return "\n".join(lines) + "\n"


_SECTIONS = (
    ("warnings", "Warnings"),
    ("released", "What is released"),
    ("sampling", "Sampling"),
    ("clipping", "Clipping"),
    ("treated_as_public", "Treated as public"),
    ("not_covered", "Not covered"),
    ("tuning", "Tuning"),
    ("randomness", "Randomness"),
    ("assumptions", "Assumptions"),
    ("proof", "Proof"),
)
_SETTINGS = (
    "method",
    "variant",
    "budget",
    "steps",
    "charges",
    "mechanism",
    "accounting",
    "test",
    "feedback",
    "outcome",
    "noise_multiplier",
    "sensitivity_squared",
    "norm_groups",
    "mini_sets",
    "sampling_probability",
    "expected_batch_size",
    "records",
    "accountant",
)


def _three_numbers(certificate: Json) -> list[str]:
    claimed, audited = certificate["claimed"], certificate["audited"]
    proven = [f"{value:g} ({name})" for name, value in certificate["proven"].items()]
    guarantee = certificate["guarantee"]
    at_delta = f", at δ = {guarantee['delta']:g}" if guarantee else ""
    lines = [
        "claimed ε  "
        + (
            f"{claimed['epsilon']:.4f}, at δ = {claimed['delta']:g}"
            if claimed
            else "none: no paper's claim"
        ),
        "proven ε   " + (", ".join(proven) + at_delta if proven else "none: nothing is guaranteed"),
        "audited ε  "
        + (
            f"at least {audited['epsilon']:g} ({audited['relation']}), at δ = {audited['delta']:g},"
            f" {audited['confidence']:.0%} confidence"
            if audited
            else "not audited yet"
        ),
    ]
    if audited:
        lines += textwrap.wrap(
            f"audited: {audited['verdict']}", 90, initial_indent="  ", subsequent_indent="  "
        )
    if claimed:
        lines += textwrap.wrap(
            f"claimed: {claimed['source']}", 90, initial_indent="  ", subsequent_indent="  "
        )
    if certificate["spent_by_now"]:
        now = certificate["spent_by_now"]
        lines.append(f"  {now['name']}: {now['epsilon']:g}")
    return lines + _stop_lines(certificate)


def _stop_lines(certificate: Json) -> list[str]:
    """An early stop saves time; the planned cost stays what is guaranteed, or claimed."""
    lines = []
    if certificate.get("head_only") is not None:
        lines.append(
            f"  the noised vectors alone, had the encoder not been trained: ε ="
            f" {certificate['head_only']:g} (replace-features)"
        )
    stopped = certificate.get("stopped")
    if stopped:
        lines.append(f"  stopped early, after step {stopped['step']} of {certificate['steps']}")
        if stopped["claimed"] is not None:
            lines.append(f"  claimed for the steps taken until then: {stopped['claimed']:.4f}")
    return lines
