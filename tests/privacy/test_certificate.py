"""Certificates follow from the ledger, and never promise too much."""

from pathlib import Path
from typing import Any

import pytest

from tacit.errors import LedgerError
from tacit.privacy import certificate, certificate_text, events
from tacit.privacy.accountants import Accountant
from tacit.privacy.ledger import Entry, Ledger

STEP = events.poisson(0.1, events.gaussian(2.0))


def header(**changes: Any) -> dict[str, Any]:
    return {
        "title": "A run",
        "method": "dpsgd",
        "relation": "add-or-remove-one",
        "steps": 10,
        "delta": 1e-5,
        "budget": 1.0,
        "planned": events.to_json(events.repeated(STEP, 10)),
        "claimed": None,
        "released": ["the weights after every step"],
        "warnings": [],
        "versions": {"tacit": "0"},
        **changes,
    }


def entries(path: Path, charges: int, release: bool = True, **changes: Any) -> tuple[Entry, ...]:
    book = Ledger.create(path / "ledger", header(**changes))
    for step in range(charges):
        book.charge(step, 0, STEP)
    if release:
        book.append("release", {"weights_sha256": "ab"})
    return book.entries


def test_a_finished_run(tmp_path: Path) -> None:
    issued = certificate.issue(entries(tmp_path, 10))
    assert issued["guarantee"]["epsilon"] == issued["proven"]["add-or-remove-one"]
    assert issued["proven"]["replace-one"] > issued["proven"]["add-or-remove-one"]
    assert issued["weights_sha256"] == "ab" and issued["spent_by_now"] is None
    text = certificate_text.as_text(issued)
    for part in ("A run", "proven ε", "claimed ε", "audited ε", issued["ledger_head"]):
        assert part in text


def test_stopping_early_does_not_lower_the_guarantee(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = certificate.issue(entries(tmp_path / "whole", 10))
    early = certificate.issue(entries(tmp_path, 4))
    assert early["guarantee"] == whole["guarantee"]
    assert early["spent_by_now"]["epsilon"] < early["guarantee"]["epsilon"]
    assert "ex post" in certificate_text.as_text(early)


def test_charges_beyond_the_plan_raise_the_guarantee(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = certificate.issue(entries(tmp_path / "whole", 10))
    more = certificate.issue(entries(tmp_path, 12))
    assert more["guarantee"]["epsilon"] > whole["guarantee"]["epsilon"]


def test_no_privacy_no_certificate(tmp_path: Path) -> None:
    changed = {"planned": {"non-private": True}, "method": "plain", "budget": None}
    issued = certificate.issue(entries(tmp_path, 1, **changed))
    assert issued["guarantee"] is None and issued["proven"] == {}
    assert issued["assumptions"] == [] and issued["budget"] is issued["accountant"] is None
    assert "No privacy guarantee, and no certificate" in certificate_text.as_text(issued)


def test_another_delta_and_accountant(tmp_path: Path) -> None:
    book = entries(tmp_path, 10)
    own = certificate.issue(book)
    tighter = certificate.issue(book, delta=1e-7)
    assert tighter["guarantee"]["epsilon"] > own["guarantee"]["epsilon"]
    loose = certificate.issue(book, accountant=Accountant.RDP)
    assert loose["guarantee"]["epsilon"] > own["guarantee"]["epsilon"]


def test_a_claim_names_the_delta_it_was_computed_at(tmp_path: Path) -> None:
    book = entries(tmp_path, 10, claimed={"epsilon": 0.5, "source": "a paper"})
    other = certificate.issue(book, delta=1e-7)
    assert other["claimed"] == {"epsilon": 0.5, "source": "a paper", "delta": 1e-5}
    text = certificate_text.as_text(other)
    assert "claimed ε  0.5000, at δ = 1e-05" in text
    (proven,) = [line for line in text.splitlines() if line.startswith("proven ε")]
    assert proven.endswith("at δ = 1e-07")


def test_a_delta_too_small_for_pld_names_the_accountant_that_stood_in(tmp_path: Path) -> None:
    book = entries(tmp_path, 10)
    assert certificate.issue(book)["accountant"] == "pld"
    tiny = certificate.issue(book, delta=1e-60)
    assert tiny["guarantee"]["epsilon"] < float("inf")
    assert tiny["accountant"].startswith("pld; rdp for add-or-remove-one, where pld finds no")
    assert "rdp for add-or-remove-one" in certificate_text.as_text(tiny)
    by_rdp = certificate.issue(book, delta=1e-60, accountant=Accountant.RDP)
    assert by_rdp["accountant"] == "rdp"
    assert by_rdp["guarantee"]["epsilon"] == tiny["guarantee"]["epsilon"]


def test_time_is_among_the_assumptions(tmp_path: Path) -> None:
    assert any(
        "time a run takes" in a for a in certificate.issue(entries(tmp_path, 1))["assumptions"]
    )


def test_a_ledger_without_its_promise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError):
        certificate.issue(entries(tmp_path, 2)[1:])


def test_rounding_is_never_in_our_favour() -> None:
    for value in (1.00001, 2.99996, 0.12345, 7.0):
        assert value <= certificate.round_up(value) < value + 1e-4 + 1e-9


def test_a_large_epsilon_keeps_all_its_digits(tmp_path: Path) -> None:
    large = events.to_json(events.gaussian(0.07))
    issued = certificate.issue(entries(tmp_path, 1, planned=large))
    epsilon = issued["guarantee"]["epsilon"]
    assert epsilon > 100 and f"ε = {epsilon}," in issued["verdict"]
    assert f"{epsilon} (add-or-remove-one)" in certificate_text.as_text(issued)
