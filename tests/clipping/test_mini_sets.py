"""Passes over mini-sets: what they compute, and that they leave the model as it was."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from tacit.clipping.contract import Batch, LossFunction
from tacit.clipping.mini_sets import MiniSetEngine, MomentumPass, OwnPass, mean_gradient
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Flat
from tacit.errors import ArgumentError
from tacit.losses import cross_entropy


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def records(count: int = 12) -> Batch:
    torch.manual_seed(1)
    return torch.randn(count, 5, dtype=torch.float64), torch.randint(0, 3, (count,))


def flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in parts])


def test_sets_of_one_record_are_individual_clipping() -> None:
    model, (x, y) = net(), records()
    sets = [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    found = MiniSetEngine(model, Flat(0.3)).clipped_sum(cross_entropy, sets, 1)
    expected = ReferenceEngine(model, Flat(0.3)).clipped_sum(cross_entropy, [(x, y)], 1)
    torch.testing.assert_close(found.vector, expected.vector)


def test_a_momentum_pass_in_one_piece_is_the_mean_gradient() -> None:
    model, batch = net(), records()
    trained = list(model.parameters())
    expected = flat(mean_gradient(model, trained, cross_entropy, batch))
    found = flat(MomentumPass(1, 0.3, 0.9)(model, trained, cross_entropy, batch))
    torch.testing.assert_close(found, expected)


def test_a_momentum_pass_is_gradient_descent_over_the_pieces() -> None:
    model, (x, y) = net(), records()
    found = flat(MomentumPass(3, 0.2, 0.5)(model, list(model.parameters()), cross_entropy, (x, y)))
    walker = net()
    optimizer = torch.optim.SGD(walker.parameters(), lr=0.2, momentum=0.5)
    for i in range(3):
        optimizer.zero_grad()
        cross_entropy(walker, (x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4])).mean().backward()
        optimizer.step()
    went = flat(list(model.parameters())) - flat(list(walker.parameters()))
    torch.testing.assert_close(found, went / (3 * 0.2))


def test_weights_are_put_back_whatever_happens() -> None:
    model, batch = net(), records()
    before = flat(list(model.parameters())).clone()
    engine = MiniSetEngine(model, Flat(1.0), MomentumPass(4, 1.0, 0.9))
    engine.clipped_sum(cross_entropy, [batch], 1)
    assert torch.equal(before, flat(list(model.parameters())))
    calls: list[int] = []

    def breaks(net: nn.Module, batch: Batch) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("in the middle")
        return cross_entropy(net, batch)

    with pytest.raises(RuntimeError, match="in the middle"):
        engine.clipped_sum(breaks, [batch], 1)
    assert torch.equal(before, flat(list(model.parameters())))


def test_a_pass_of_ones_own_is_clipped_and_leaves_no_trace_in_the_weights() -> None:
    model, batch = net(), records()
    before = flat(list(model.parameters())).clone()

    def careless(
        net: nn.Module, trained: Sequence[nn.Parameter], loss: LossFunction, batch: Batch
    ) -> list[Tensor]:
        for p in trained:
            p.data.add_(batch[0].sum())
        return [p.data for p in trained]

    found = MiniSetEngine(model, Flat(0.3), OwnPass(careless)).clipped_sum(
        cross_entropy, [batch], 1
    )
    moved = before + float(batch[0].sum())
    torch.testing.assert_close(found.vector, moved * min(1.0, 0.3 / float(moved.norm())))
    assert torch.equal(before, flat(list(model.parameters())))
    short = MiniSetEngine(model, Flat(0.3), OwnPass(lambda *_: [torch.zeros(2)]))
    with pytest.raises(ArgumentError, match="1 tensors that do not match the 4"):
        short.clipped_sum(cross_entropy, [batch], 1)


def test_a_set_without_finite_gradient_or_records_contributes_zero() -> None:
    model, (x, y) = net(), records(4)
    x[0] = float("nan")
    engine = MiniSetEngine(model, Flat(1.0))
    empty = (x[:0], y[:0])
    assert float(engine.clipped_sum(cross_entropy, [(x, y), empty], 1).vector.abs().max()) == 0.0
    found = engine.clipped_sum(cross_entropy, [(x, y), (x[1:], y[1:])], 1)
    alone = engine.clipped_sum(cross_entropy, [(x[1:], y[1:])], 1)
    assert torch.equal(found.vector, alone.vector)


@pytest.mark.parametrize("values", [(0, 0.1, 0.9), (2, 0.0, 0.9), (2, 0.1, 1.0)])
def test_senseless_passes_are_refused(values: tuple[int, float, float]) -> None:
    with pytest.raises(ArgumentError, match="pieces is"):
        MomentumPass(*values)
