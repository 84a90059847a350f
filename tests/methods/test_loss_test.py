"""The test of a candidate: its noise, its clip, and what one record can do to it."""

import math
from typing import Any

import pytest
import torch
from small_runs import RECORDS, small_model

from tacit.data.batches import Gatherer, TensorRecords
from tacit.data.sampling import PoissonSampler
from tacit.methods.loss_test import NoisyLossChange
from tacit.noise.source import RandomSource
from tacit.privacy.selective import LossTest


def changes(records: TensorRecords, clip: float = 0.01) -> NoisyLossChange:
    source = RandomSource.from_seed(3)
    sampler = PoissonSampler(RECORDS, 60, source, "validation sampling")
    return NoisyLossChange(small_model(), sampler, Gatherer(records, 64, 1, ()), source, clip)


@pytest.mark.parametrize("statistic", ["clipped-mean", "clipped-sum"])
@pytest.mark.parametrize("direction", [-1.0, 1.0])
def test_noise_of_the_test_has_the_promised_scale(
    records: TensorRecords, statistic: Any, direction: float
) -> None:
    """Extreme changes are accepted as often as the accounting says: wrong noise would show."""
    tested, test = changes(records), LossTest(60, 1.37, -0.8, statistic, 0.7)
    before = torch.zeros(50).double()
    found = torch.tensor(
        [tested.noised(step, before, before + 1e3 * direction, test) for step in range(4000)]
    )
    z = (found - direction * test.half_range).double()
    assert abs(float(z.mean())) * math.sqrt(len(z)) < 4.5
    assert abs(float(z.square().mean()) - 1) / math.sqrt(2 / len(z)) < 4.5
    least, most = test.acceptance(0.2).bounds
    expected = most if direction < 0 else least
    accepted = float((found < test.beta * test.half_range).double().mean())
    assert abs(accepted - expected) < 4.5 * math.sqrt(expected * (1 - expected) / len(z))


@pytest.mark.parametrize(("statistic", "bound"), [("clipped-mean", 2.0), ("clipped-sum", 1.0)])
def test_one_record_moves_the_test_by_no_more_than_its_bound(
    records: TensorRecords, statistic: Any, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise: any record added to any sample, in units of the clip."""
    tested, test = changes(records, clip=0.01), LossTest(60, 1.0, -1.0, statistic, 50.0)
    monkeypatch.setattr(
        RandomSource,
        "perturb_",
        lambda self, vector, *rest: vector,  # the sum as it is
    )
    generator = torch.Generator().manual_seed(1)
    moved = []
    for _ in range(300):
        size = int(torch.randint(0, 4, (1,), generator=generator))
        wild = 10.0 ** torch.randint(-3, 3, (1,), generator=generator)
        change = wild * torch.randn(size + 1, generator=generator).double()
        zeros = torch.zeros_like(change)
        with_record = tested.noised(0, zeros, change, test)
        without = tested.noised(0, zeros[1:], change[1:], test)
        moved.append(abs(with_record - without))
    assert max(moved) <= 1.0 + 1e-6
    assert max(moved) > 0.9
    scale = float(bound * 0.01)
    assert tested.noised(0, zeros[:1], zeros[:1] + 1e9, test) * scale == pytest.approx(0.01)


def test_a_change_that_is_not_finite_counts_as_the_worst(
    records: TensorRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RandomSource, "perturb_", lambda self, vector, *rest: vector)
    tested, test = changes(records), LossTest(60, 1.0)
    zero = torch.zeros(3).double()
    for value in (math.nan, math.inf):
        assert tested.noised(0, zero, zero + value, test) == pytest.approx(test.half_range)
    assert tested.noised(0, zero[:0], zero[:0], test) == 0.0
