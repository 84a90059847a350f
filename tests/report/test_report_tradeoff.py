"""The trade-off curve on the page: proven, claimed, and what an attack reached."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import small_model, small_recipe

from tacit.data.batches import TensorRecords
from tacit.errors import RunError
from tacit.loop import fit
from tacit.privacy import events, ledger, tradeoff
from tacit.privacy.relations import Relation
from tacit.report import write_report
from tacit.report.load import load_run
from tacit.report.tradeoff import trade_off


@pytest.fixture
def finished(tmp_path: Path, records: TensorRecords) -> Path:
    recipe = small_recipe(method="batch-clipping", mini_sets=2, epochs=1)
    return fit(small_model(), records, recipe=recipe, out=tmp_path / "run").path


def test_the_certificate_holds_the_curve_of_the_run(finished: Path) -> None:
    run = load_run(finished)
    planned = events.from_json(ledger.read(finished / "ledger.jsonl")[0].body["planned"])
    curve = tradeoff.of(planned, Relation.REPLACE_ONE)
    alpha, beta = (np.array(side) for side in zip(*run.trade_off, strict=True))
    exact = curve.misses(alpha)
    assert np.all(beta <= exact) and np.all(beta > exact - 2e-6)


def test_the_page_draws_it_with_claim_and_attack(finished: Path) -> None:
    plain = trade_off(load_run(finished))
    assert plain is not None and "paper's approximation" in plain.caption
    run = load_run(finished)
    assert run.guarantee is not None
    too_small = run.certificate["claimed"]["epsilon"] < run.guarantee.epsilon
    assert ("In ε it is too small" in plain.caption) == too_small
    assert plain.csv().startswith("false_alarms,misses_proven,misses_claimed\n0.0,")
    weak = {"epsilon": 0.1, "roc": [[0.0, 0.0, 1.0]]}
    strong = {"epsilon": 0.5, "roc": [[0.0, 0.1, 0.5], [0.5, 0.7, 0.9]]}
    (finished / "audit.json").write_text(json.dumps({"findings": [weak, strong]}))
    run = load_run(finished)
    assert run.attacked == [(0.0, 0.9), (0.5, pytest.approx(0.3))]
    chart = trade_off(run)
    assert chart is not None and "the attack that ran" in chart.svg()
    write_report(finished)
    assert 'class="trade-off"' in (finished / "report.html").read_text()


def test_the_caption_says_where_the_claim_promises_too_much(finished: Path) -> None:
    run = load_run(finished)
    rates = [(a, b) for a, b in run.trade_off if 0.1 <= a <= 0.5]
    claimed = {**run.certificate["claimed"], "mu": 0.0}
    hopeful = replace(run, trade_off=rates, certificate={**run.certificate, "claimed": claimed})
    chart = trade_off(hopeful)
    most = max(1 - a - b for a, b in rates)
    assert chart is not None
    assert f"at {len(rates)} of {len(rates)} rates, from {rates[0][0]} to" in chart.caption
    assert f"{rates[-1][0]}, by up to {most:.4f}" in chart.caption


def test_a_damaged_curve_is_named(finished: Path) -> None:
    path = finished / "certificate.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "trade_off": [0.5]}))
    with pytest.raises(RunError, match="pairs of rates"):
        load_run(finished)


def test_without_a_guarantee_there_is_no_curve(tmp_path: Path, records: TensorRecords) -> None:
    recipe = small_recipe(method="plain", epochs=1)
    path = fit(small_model(), records, recipe=recipe, out=tmp_path / "run").path
    assert trade_off(load_run(path)) is None
