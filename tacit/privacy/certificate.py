"""The certificate: what was released, to whom the promise is made, and the three numbers.

It follows from the ledger alone, so anyone who holds a run directory can issue it again and
compare. Proven ε is rounded up, audited ε down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit.errors import LedgerError
from tacit.privacy import accountants, elementary, events, tradeoff
from tacit.privacy.accountants import Accountant
from tacit.privacy.ledger import Entry, spent
from tacit.privacy.relations import Relation

Json = dict[str, Any]

SHOWN_RELATIONS = (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE)
_COPIED = (
    *("independence", "numerics", "budget", "method", "released", "sampling", "steps", "proof"),
    "clipping",
    *("treated_as_public", "not_covered", "tuning", "randomness", "warnings"),
    *("noise_multiplier", "sampling_probability", "expected_batch_size", "records"),
    *("mechanism", "sensitivity_squared", "norm_groups", "mini_sets"),
    *("no_guarantee_because", "head_only", "variant"),
    *("accounting", "test", "feedback", "expected_runs", "settings_to_try"),
)
AUDIT_LOOKED = "the figures of the audit, which were computed from training records without noise"
_ADVERSARY = (
    "the adversary sees everything that is listed as released and knows all other records, but"
    " not the run's private directory or the memory of the training process"
)
ASSUMPTIONS = (
    "ChaCha20 and BLAKE2b, keyed by the run's secret key, cannot be told from random functions",
    _ADVERSARY,
    "the time a run takes, and when it was evaluated, are not covered: they are treated as"
    " independent of the records",
)
IDEALISED_ASSUMPTIONS = (
    "normal noise is idealised: it is drawn in 32-bit floating point, and sums and norms are"
    " computed in the model's precision",
    _ADVERSARY,
    "the time a run takes, and when it was evaluated, are treated as independent of the records",
)
"""Of runs made before noise was exactly rounded."""
EXACT_NOISE = "exactly rounded Gaussian"
NOISE_PROVEN = (
    "Noise proven: every noised value is the exactly rounded sum of the computed value and an ideal"
    " Gaussian (docs/proofs/precision.md)."
)
NOISE_IDEALISED = (
    "Noise idealised: not covered against floating-point attacks. The run was made by a version"
    " whose noise was drawn in single precision; from the values it released the sums behind them"
    " may be identified. See SECURITY.md."
)


def round_up(value: float, digits: int = 4) -> float:
    """Never in our favour.

    >>> round_up(1.00001, 2)
    1.01
    """
    scale = 10.0**digits
    return math.ceil(value * scale - 1e-9) / scale if math.isfinite(value) else value


def in_full(epsilon: float) -> str:
    """A rounded ε with every digit it has, for a further rounding might be in our favour.

    >>> in_full(1234.5679), in_full(3.0)
    ('1234.5679', '3')
    """
    return f"{epsilon:.15g}"


def issue(
    entries: Sequence[Entry],
    *,
    delta: float | None = None,
    accountant: Accountant = Accountant.PLD,
    earlier: Json | None = None,
) -> Json:
    """The certificate of a run, from its ledger alone.

    A run that stopped early is certified at its planned cost, because stopping may have depended
    on the data; what was spent by then is named as such. A run without privacy gets no guarantee,
    and what is said of it here must not be stored as a certificate.

    Args:
        entries: The ledger.
        delta: Another δ than the one promised.
        accountant: How to compose the cost.
        earlier: A certificate issued by another version, whose accountants may have been less
            tight. Its ε and trade-off curve are kept where they promise less than the ledger
            supports.
    """
    if not entries or entries[0].kind != "promise":
        raise LedgerError("the ledger does not start with a promise; it was cut or is not ours")
    if any(entry.kind == "mixed" for entry in entries):
        raise LedgerError(
            "records were seen to influence each other after steps had been taken, so what was"
            " charged does not cover what was released, and there is no certificate"
        )
    promise = entries[0].body
    at_delta = float(promise["delta"]) if delta is None else delta
    charged = spent(list(entries))
    relation = Relation(promise["relation"])
    covering = covered(entries, at_delta, accountant)
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
    if earlier is not None:
        before = earlier.get("proven") or {}
        proven = {name: max(proven[name], before[name]) for name in proven if name in before}
    epsilon = proven.get(relation.value)
    private = epsilon is not None and math.isfinite(epsilon)
    release = next((e.body for e in reversed(entries) if e.kind == "release"), None)
    claimed = promise["claimed"] or (release or {}).get("claimed")
    ex_post = round_up(accountants.epsilon(charged, at_delta, relation, accountant))
    if earlier is not None:
        ex_post = max(ex_post, (earlier.get("spent_by_now") or {}).get("epsilon", math.inf))
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
        "trade_off": _trade_off(covering, relation, earlier) if private else None,
        "charges": sum(entry.kind == "charge" for entry in entries),
    }
    stated = {**promise, **(release or {}).get("selected", {})}
    certificate |= {key: stated[key] for key in _COPIED if key in stated}
    if audited and audited["on_training_records"]:
        certificate["not_covered"] = [*certificate["not_covered"], AUDIT_LOOKED]
    if release and "outcome" in release:
        certificate["outcome"] = release["outcome"]
    exact = EXACT_NOISE in promise.get("randomness", "")
    if private:
        certificate["noise"] = NOISE_PROVEN if exact else NOISE_IDEALISED
    assumptions = ASSUMPTIONS if exact else IDEALISED_ASSUMPTIONS
    certificate["assumptions"] = list(assumptions) if private else []
    if not private:
        certificate["budget"] = None
    certificate["versions"] = promise["versions"]
    certificate["ledger_head"] = entries[-1].hash
    certificate["weights_sha256"] = release["weights_sha256"] if release else None
    return certificate


def unmarked(issued: Json) -> Json:
    """The certificate as it was issued before noise was marked as proven or idealised."""
    marked = issued.get("noise") == NOISE_IDEALISED
    return {key: value for key, value in issued.items() if not (marked and key == "noise")}


def covered(
    entries: Sequence[Entry],
    delta: float | None = None,
    accountant: Accountant = Accountant.PLD,
) -> DpEvent:
    """What the certificate of a ledger covers: what was planned, or charged where that is more."""
    promise = entries[0].body
    at_delta = float(promise["delta"]) if delta is None else delta
    relation = Relation(promise["relation"])
    both = (events.from_json(promise["planned"]), spent(list(entries)))
    return max(both, key=lambda e: accountants.epsilon(e, at_delta, relation, accountant))


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


def _trade_off(event: DpEvent, relation: Relation, earlier: Json | None) -> list[list[float]]:
    """Rates of false alarms, and below which rate of misses no attack gets; rounded down."""
    misses = tradeoff.of(event, relation).misses(np.array(_FALSE_ALARMS))
    before = dict(map(tuple, (earlier or {}).get("trade_off") or []))
    return [
        [alpha, min(math.floor(float(beta) * 1e6) / 1e6, before.get(alpha, 1.0))]
        for alpha, beta in zip(_FALSE_ALARMS, misses, strict=True)
    ]


def _named(accountant: Accountant, event: DpEvent, delta: float, shown: Sequence[Relation]) -> str:
    """The accountant, and for which relations another one had to stand in for it."""
    if elementary.is_adaptive(event):
        return f"{Accountant.RDP.value} at one order, fixed in advance"
    if elementary.is_selected(event):
        return Accountant.RDP.value
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
        f"Proven: (ε = {in_full(epsilon)}, δ = {delta:g})-differentially private when"
        f" {relation.meaning}.{state}"
    )
