"""Gradient canaries on the real loop: tight, never above the proof, and aware of faults."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tacit.audit.canaries import gradient_canaries
from tacit.audit.faults import FAULTS
from tacit.audit.promised import Promised
from tacit.audit.protocol import Played
from tacit.audit.selftest import self_test
from tacit.audit.verdict import Status, conclude
from tacit.config import Recipe
from tacit.errors import NoProofError
from tacit.privacy.relations import Relation

RECORDS = 3000


def recipe(**settings: Any) -> Recipe:
    given = {"epsilon": 4.0, "epochs": 2, "batch_size": 300, "clip": 0.7, **settings}
    return Recipe().with_settings(**given)


def played(
    chosen: Recipe, records: int = RECORDS, canaries: int = RECORDS, seed: int = 1
) -> Played:
    steps: list[tuple[int, int]] = []
    game = gradient_canaries(chosen, records, canaries)
    found = game.play(seed, lambda done, of: steps.append((done, of)))
    assert steps[-1][0] == steps[-1][1] == len(steps)
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "dpsgd"},
        {"method": "dpsgd", "clipping": "automatic"},
        {"method": "dpsgd", "relation": "replace-one"},
        {"method": "dpftrl"},
        {"method": "dpftrl", "relation": "replace-one"},
        {"method": "dpftrl", "mechanism": "banded", "bands": 5},
        {"method": "dpftrl", "mechanism": "amplified", "bands": 4},
    ],
    ids=lambda settings: " ".join(str(value) for value in settings.values()),
)
def test_canaries_come_close_to_what_the_proof_allows(settings: dict[str, Any]) -> None:
    found = [played(recipe(**settings), seed=seed) for seed in range(1, 5)]
    finding = conclude("canaries", found, 1e-5)
    assert finding.proven == pytest.approx(4.0, abs=0.01)
    assert finding.status is Status.CONSISTENT
    assert finding.epsilon >= 1.5
    assert finding.auc.low <= finding.highest_auc
    assert finding.auc.estimate >= finding.highest_auc - 0.04


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "batch-clipping", "batch_size": 10, "epochs": 1},
        {"method": "batch-clipping", "batch_size": 10, "epochs": 1, "mini_sets": 5},
        {"method": "batch-clipping", "batch_size": 10, "epochs": 1, "sampling": "partition"},
        {"method": "batch-clipping", "batch_size": 10, "epochs": 2, "sampling": "once-per-epoch"},
        {"method": "dpsur", "batch_size": 100, "validation_batch_size": 50, "beta": 1.0},
        {"method": "dpsgd-br", "batch_size": 100, "validation_batch_size": 50, "beta": 1.0},
    ],
    ids=lambda settings: " ".join(str(value) for value in settings.values()),
)
def test_other_methods_are_within_their_proof_and_show_something(settings: dict[str, Any]) -> None:
    found = played(recipe(**settings), records=1000, canaries=1000)
    finding = conclude("canaries", [found], 1e-5)
    assert finding.proven <= 4.0
    assert finding.status is Status.CONSISTENT
    assert [bound.name for bound in finding.bounds] == ["one run"]
    assert finding.auc.high > 0.55 and finding.auc.low <= finding.highest_auc


def test_the_event_is_the_one_that_the_run_was_charged() -> None:
    chosen = recipe(method="dpsgd")
    found = played(chosen)
    assert found.relation is Relation.ADD_OR_REMOVE_ONE
    assert Promised(found.event, found.relation).epsilon(1e-5) == pytest.approx(4.0, abs=0.01)
    assert found.claimed is not None


def test_fewer_canaries_than_records_keep_rate_and_steps() -> None:
    for method in ("dpsgd", "dpftrl"):
        whole = gradient_canaries(recipe(method=method), 3000, 3000)
        part = gradient_canaries(recipe(method=method), 3000, 1000)
        assert part.records == 1000
        assert part.recipe.training.batch_size == 100
        assert part.recipe.training.epochs == whole.recipe.training.epochs == 2


def test_the_same_seed_plays_the_same_game_and_another_seed_another() -> None:
    game = gradient_canaries(recipe(method="dpsgd", batch_size=50), 200, 200)
    first, again, other = (game.play(seed, lambda done, of: None) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.scores.values, again.scores.values)
    assert (first.scores.heads != other.scores.heads).any()


def test_methods_without_clipped_gradients_are_refused() -> None:
    with pytest.raises(NoProofError, match="plain"):
        gradient_canaries(recipe(method="plain"), 100, 100)


def test_every_planted_fault_is_found_and_correct_code_passes() -> None:
    faults = [fault for fault in FAULTS if not fault.hostile_trials]
    tried = self_test(faults, runs=1)
    assert [one.fault.name for one in tried if not one.passed] == []
    assert sum(one.caught for one in tried) == sum(not fault.harmless for fault in faults) >= 6


def test_charging_accepted_updates_only_is_found_on_a_hostile_loss() -> None:
    hostile = [fault for fault in FAULTS if fault.hostile_trials]
    assert [fault.harmless for fault in hostile] == [True, False]
    right, wrong = self_test([replace(hostile[0], hostile_trials=16), hostile[1]])
    assert right.passed and wrong.passed
    assert wrong.finding.proven < 1 < right.finding.proven
    assert wrong.finding.attack == "acceptance counts"
    assert {bound.name for bound in wrong.finding.bounds} == {"one run", "Clopper–Pearson"}


def test_half_the_noise_shows_more_than_was_proven() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "half the noise")
    finding = self_test([fault], runs=1)[0].finding
    assert finding.epsilon > finding.proven
    assert finding.status is Status.BROKEN
    assert "broken" in finding.verdict
