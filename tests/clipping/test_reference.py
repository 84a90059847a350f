"""The oracle itself, checked against gradients computed one record at a time by autograd."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping.contract import Batch
from tacit.clipping.mini_sets import MiniSetEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Automatic, Flat
from tacit.errors import ModelError
from tacit.losses import cross_entropy
from tacit.privacy.relations import Relation

CLIP = 0.05


@dataclass(frozen=True)
class TwoGroups:
    """The first parameter alone, all others together."""

    bounds: tuple[float, ...] = (0.02, 0.05)
    shares: tuple[float, ...] = (0.25, 0.75)

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        return [0] + [1] * (len(names) - 1)

    def factors(self, norms: Tensor) -> Tensor:
        return (torch.tensor(self.bounds, dtype=norms.dtype) / norms).clamp_max(1.0)


def small_net(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, 4)
    )
    return net.to(dtype)


def records(count: int = 9) -> Batch:
    torch.manual_seed(4)
    return torch.randn(count, 1, 6, 6, dtype=torch.float64), torch.randint(0, 4, (count,))


def single_gradients(net: nn.Module, batch: Batch, views: int = 1) -> list[list[Tensor]]:
    found = []
    for start in range(0, len(batch[0]), views):
        loss = F.cross_entropy(
            net(batch[0][start : start + views]), batch[1][start : start + views]
        )
        found.append(list(torch.autograd.grad(loss, list(net.parameters()))))
    return found


def flat_expected(net: nn.Module, batch: Batch, views: int = 1) -> Tensor:
    total = 0
    for gradients in single_gradients(net, batch, views):
        vector = torch.cat([g.flatten() for g in gradients])
        total = total + vector * min(1.0, CLIP / float(vector.norm()))
    return total


def split(batch: Batch, size: int) -> Iterable[Batch]:
    return list(zip(batch[0].split(size), batch[1].split(size), strict=True))


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("micro", [1, 2, 9])
def test_flat_clipping_is_the_sum_of_clipped_records(vectorised: bool, micro: int) -> None:
    net, batch = small_net(), records()
    engine = ReferenceEngine(net, Flat(CLIP), vectorised=vectorised)
    found = engine.clipped_sum(cross_entropy, split(batch, micro), 1)
    torch.testing.assert_close(found.vector, flat_expected(net, batch), rtol=1e-12, atol=1e-14)


def test_groups_are_clipped_apart() -> None:
    net, batch, rule = small_net(), records(), TwoGroups()
    found = ReferenceEngine(net, rule).clipped_sum(cross_entropy, [batch], 1)
    first = rest = 0
    for gradients in single_gradients(net, batch):
        head, tail = gradients[0].flatten(), torch.cat([g.flatten() for g in gradients[1:]])
        first = first + head * min(1.0, rule.bounds[0] / float(head.norm()))
        rest = rest + tail * min(1.0, rule.bounds[1] / float(tail.norm()))
    torch.testing.assert_close(found.vector, torch.cat([first, rest]), rtol=1e-12, atol=1e-14)


def test_normalised_clipping() -> None:
    net, batch = small_net(), records(1)
    found = ReferenceEngine(net, Automatic(CLIP)).clipped_sum(cross_entropy, [batch], 1)
    vector = torch.cat([g.flatten() for g in single_gradients(net, batch)[0]])
    expected = vector * CLIP / (vector.norm() + 0.01)
    torch.testing.assert_close(found.vector, expected, rtol=1e-12, atol=1e-14)


def test_views_are_averaged_before_clipping() -> None:
    net, batch = small_net(), records()
    found = ReferenceEngine(net, Flat(CLIP)).clipped_sum(cross_entropy, [batch], 3)
    torch.testing.assert_close(found.vector, flat_expected(net, batch, 3), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rule", [Flat(CLIP), Automatic(CLIP), TwoGroups()])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_one_record_moves_no_group_further_than_its_bound(rule: Flat, scale: float) -> None:
    net, (x, y) = small_net(), records()
    engine = ReferenceEngine(net, rule)
    x = x * scale
    with_it = engine.clipped_sum(cross_entropy, [(x, y)], 1)
    without = engine.clipped_sum(cross_entropy, [(x[1:], y[1:])], 1)
    other = x.clone()
    other[0] = -7 * scale
    replaced = engine.clipped_sum(cross_entropy, [(other, y)], 1)
    for relation, neighbour in (
        (Relation.ADD_OR_REMOVE_ONE, without),
        (Relation.ZERO_OUT, without),
        (Relation.REPLACE_ONE, replaced),
        (Relation.REPLACE_FEATURES, replaced),
    ):
        moved = torch.zeros(len(rule.bounds), dtype=torch.float64)
        difference = engine.layout.views(with_it.vector - neighbour.vector)
        for part, group in zip(difference.values(), engine.layout.groups, strict=True):
            moved[group] += part.square().sum()
        for norm, bound in zip(moved.sqrt(), with_it.sensitivity(relation), strict=True):
            assert float(norm) <= bound * (1 + 1e-9)


def test_the_bound_is_reached_so_every_layer_counts() -> None:
    """If any layer were left out of the norm, the clipped gradient would be longer than this."""
    net, batch = small_net(), records(1)
    found = ReferenceEngine(net, Flat(CLIP)).clipped_sum(cross_entropy, [batch], 1)
    assert float(found.vector.norm()) == pytest.approx(CLIP, rel=1e-12)
    assert all(float(part.norm()) > 0 for part in found.layout.views(found.vector).values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("vectorised", [True, False])
def test_a_record_without_finite_gradient_contributes_zero(bad: float, vectorised: bool) -> None:
    net, (x, y) = small_net(), records()
    x[2] = bad
    if bad == 1e300:
        net[0].weight.data *= 1e10
    engine = ReferenceEngine(net, Flat(CLIP), vectorised=vectorised)
    keep = torch.arange(len(x)) != 2
    found = engine.clipped_sum(cross_entropy, [(x, y)], 1)
    alone = engine.clipped_sum(cross_entropy, [(x[2:3], y[2:3])], 1)
    others = engine.clipped_sum(cross_entropy, [(x[keep], y[keep])], 1)
    assert bool(torch.isfinite(found.vector).all())
    assert float(alone.vector.norm()) <= CLIP * (1 + 1e-9)
    torch.testing.assert_close(found.vector, others.vector + alone.vector)


def test_empty_batches_give_zero() -> None:
    net = small_net()
    x, y = records()
    engine = ReferenceEngine(net, Flat(CLIP))
    for batches in ([], [(x[:0], y[:0])]):
        assert float(engine.clipped_sum(cross_entropy, batches, 1).vector.abs().max()) == 0.0


def test_frozen_parameters_have_no_place_in_the_sum() -> None:
    net = small_net()
    net[0].weight.requires_grad_(False)
    found = ReferenceEngine(net, Flat(CLIP)).clipped_sum(cross_entropy, [records()], 1)
    assert "0.weight" not in found.layout.names
    assert found.vector.numel() == sum(p.numel() for p in net.parameters() if p.requires_grad)


def test_an_averaged_loss_is_refused() -> None:
    engine = ReferenceEngine(small_net(), Flat(CLIP))
    with pytest.raises(ModelError, match="reduction='none'"):
        engine.clipped_sum(lambda m, b: F.cross_entropy(m(b[0]), b[1]), [records()], 1)


def test_the_module_is_left_as_it_was() -> None:
    net = small_net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    ReferenceEngine(net, Flat(CLIP)).clipped_sum(cross_entropy, [records()], 1)
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("clip", [1e-16, 1e-22, 1e-28])
@pytest.mark.parametrize("engine", ["reference", "loop", "mini-sets"])
def test_gradients_whose_squares_single_precision_loses_are_clipped(
    engine: str, clip: float
) -> None:
    model = nn.Linear(3, 2)
    rule = Flat(clip)
    made = (
        MiniSetEngine(model, rule)
        if engine == "mini-sets"
        else ReferenceEngine(model, rule, vectorised=engine == "reference")
    )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0]).sum(1) * 10 * clip

    moved = made.clipped_sum(loss, [(torch.ones(1, 3), torch.zeros(1))], 1).vector
    assert moved.double().norm() == pytest.approx(clip, rel=1e-4)
