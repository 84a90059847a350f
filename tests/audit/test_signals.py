"""Membership scores: members stand out where shadow models show how."""

import numpy as np
import pytest
from scipy.stats import norm

from tacit.audit import signals
from tacit.audit.scores import Scores
from tacit.audit.signals import SCORES, Shadows, Signals

RECORDS, CLASSES = 400, 3


def model(generator: np.random.Generator, hardness: np.ndarray) -> tuple[Signals, np.ndarray]:
    """A model whose margin on a record is its ease, some noise, and more if it was a member."""
    members = generator.random(RECORDS) < 0.5
    margin = hardness + 1.5 * members + generator.normal(size=RECORDS)
    labels = np.arange(RECORDS) % CLASSES
    logits = np.zeros((RECORDS, CLASSES), dtype=np.float32)
    logits[np.arange(RECORDS), labels] = margin
    gradients = np.exp(-margin[:, None] + np.zeros((1, 2))).astype(np.float32)
    return Signals(logits, gradients, labels), members


@pytest.fixture(scope="module")
def played() -> tuple[Signals, np.ndarray, Shadows]:
    generator = np.random.default_rng(4)
    hardness = 3 * generator.normal(size=RECORDS)
    target, members = model(generator, hardness)
    others = [model(generator, hardness) for _ in range(10)]
    return target, members, Shadows(*(tuple(part) for part in zip(*others, strict=True)))


def area(name: str, played: tuple[Signals, np.ndarray, Shadows]) -> float:
    target, members, shadows = played
    return Scores(SCORES[name](target, shadows), members).auc(0.95).estimate


@pytest.mark.parametrize("name", sorted(SCORES))
def test_every_attack_finds_members(name: str, played: tuple[Signals, np.ndarray, Shadows]) -> None:
    assert area(name, played) > 0.55


@pytest.mark.parametrize("name", ["lira-offline", "lira-online", "rmia"])
def test_attacks_that_know_how_hard_a_record_is_beat_a_threshold(
    name: str, played: tuple[Signals, np.ndarray, Shadows]
) -> None:
    assert area(name, played) > area("loss-threshold", played) + 0.05


def test_margin_is_the_log_odds_of_the_true_class() -> None:
    logits = np.array([[2.0, 0.0, -1.0]], dtype=np.float32)
    found = Signals(logits, np.zeros((1, 1), np.float32), np.array([0]))
    chance = np.exp(2) / (np.exp(2) + 1 + np.exp(-1))
    assert found.log_probability[0] == pytest.approx(np.log(chance))
    assert found.margin[0] == pytest.approx(np.log(chance / (1 - chance)))


def test_margin_of_a_certain_model_is_finite() -> None:
    logits = np.array([[400.0, 0.0]], dtype=np.float32)
    found = Signals(logits, np.zeros((1, 1), np.float32), np.array([0]))
    assert found.margin[0] == pytest.approx(400.0)


def test_online_ratio_is_that_of_two_normal_laws(
    played: tuple[Signals, np.ndarray, Shadows],
) -> None:
    target, _, shadows = played
    margins = np.stack([one.margin for one in shadows.signals])
    members = np.stack(shadows.members)
    record = 7
    spread = {}
    for side in (True, False):
        mask = members == side
        seen = [margins[mask[:, i], i] for i in range(RECORDS) if mask[:, i].any()]
        squares = sum(((one - one.mean()) ** 2).sum() for one in seen)
        freedom = sum(len(one) - 1 for one in seen)
        own = margins[mask[:, record], record].mean()
        spread[side] = norm(own, np.sqrt(squares / freedom))
    expected = spread[True].logpdf(target.margin[record]) - spread[False].logpdf(
        target.margin[record]
    )
    found = signals.lira_online(target, shadows)[record]
    assert found == pytest.approx(expected, abs=1e-3)
