"""Groups of layers clipped apart, or multiplied and clipped together: exact and bounded."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.clipping.contract import Batch, ClippedSum, ClippingRule, LossFunction
from tacit.clipping.fast import FastEngine
from tacit.clipping.groups import Groups
from tacit.clipping.mini_sets import MiniSetEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Layerwise, Multiplied
from tacit.errors import ArgumentError, ModelError
from tacit.losses import cross_entropy
from tacit.noise.gaussian import GaussianNoise
from tacit.noise.source import RandomSource
from tacit.privacy.relations import Relation


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 4)
    ).double()


def records(count: int = 9) -> Batch:
    torch.manual_seed(4)
    return torch.randn(count, 1, 6, 6, dtype=torch.float64), torch.randint(0, 4, (count,))


def rules(model: nn.Module) -> dict[str, ClippingRule]:
    names = [name for name, _ in model.named_parameters()]
    layers, tensors = Groups.layers(names), Groups.tensors(names)
    two = layers.merged([1.0, 5.0, 1.1], 2)
    return {
        "layers": Layerwise(layers, (0.4, 0.03, 0.9)),
        "tensors": Layerwise(tensors, tuple(0.05 * (1 + i) for i in range(len(tensors)))),
        "two groups, unequal shares": Layerwise(two, (0.5, 0.05), (0.8, 0.2)),
        "multiplied": Multiplied(layers, 0.7, (1.0, 9.0, 2.5)),
    }


KINDS = ["layers", "tensors", "two groups, unequal shares", "multiplied"]


def gradients(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(batch[0]), batch[1])
    found = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip((n for n, _ in model.named_parameters()), found, strict=True))


def clipped_by_hand(rule: ClippingRule, found: dict[str, Tensor]) -> Tensor:
    """The definitions, written out once more."""
    assert isinstance(rule, Layerwise | Multiplied)
    factors: dict[str, float] = {}
    if isinstance(rule, Multiplied):
        whole = math.sqrt(
            sum(
                float((m * found[name]).square().sum())
                for group, m in zip(rule.groups.members, rule.multipliers, strict=True)
                for name in group
            )
        )
        factors = dict.fromkeys(found, min(1.0, rule.clip / whole))
    else:
        for group, bound in zip(rule.groups.members, rule.bounds, strict=True):
            norm = math.sqrt(sum(float(found[name].square().sum()) for name in group))
            factors |= dict.fromkeys(group, min(1.0, bound / norm))
    return torch.cat([(g * factors[name]).flatten() for name, g in found.items()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", [ReferenceEngine, FastEngine])
def test_every_engine_clips_by_the_definition(kind: str, engine: type) -> None:
    model, (x, y) = net(), records()
    rule = rules(model)[kind]
    expected = sum(
        clipped_by_hand(rule, gradients(model, (x[i : i + 1], y[i : i + 1]))) for i in range(len(x))
    )
    found = engine(model, rule).clipped_sum(cross_entropy, [(x[:5], y[:5]), (x[5:], y[5:])], 1)
    torch.testing.assert_close(found.vector, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_mini_sets_are_clipped_as_a_whole(kind: str) -> None:
    model, (x, y) = net(), records()
    rule = rules(model)[kind]
    sets = [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:], y[8:])]
    expected = sum(clipped_by_hand(rule, gradients(model, each)) for each in sets)
    found = MiniSetEngine(model, rule).clipped_sum(cross_entropy, sets, 1)
    torch.testing.assert_close(found.vector, expected, rtol=1e-10, atol=1e-12)


def in_noise_units(one: ClippedSum, other: ClippedSum, relation: Relation) -> float:
    """How far two sums lie apart, each group measured in its noise at multiplier one."""
    scales = one.noise_scales(1.0, relation)
    moved = (one.vector - other.vector).split(one.layout.sizes)
    return math.sqrt(
        sum(float((m / scale).square().sum()) for m, scale in zip(moved, scales, strict=True))
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_one_record_moves_the_sum_by_at_most_one_unit_of_noise(kind: str, scale: float) -> None:
    model, (x, y) = net(), records()
    x = x * scale
    engine = FastEngine(model, rules(model)[kind])
    whole = engine.clipped_sum(cross_entropy, [(x, y)], 1)
    without = engine.clipped_sum(cross_entropy, [(x[1:], y[1:])], 1)
    other = x.clone()
    other[0] = -other[0]
    replaced = engine.clipped_sum(cross_entropy, [(other, (y + 1) % 4)], 1)
    first = engine.clipped_sum(cross_entropy, [(other[:1], (y[:1] + 1) % 4)], 1)
    assert torch.isfinite(replaced.vector).all()
    for relation in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT):
        assert in_noise_units(whole, without, relation) <= 1 + 1e-9
    swapped = ClippedSum(without.vector + first.vector, first.layout, first.bounds, first.shares)
    for relation in (Relation.REPLACE_ONE, Relation.REPLACE_FEATURES):
        assert in_noise_units(whole, swapped, relation) <= 1 + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_the_unit_of_noise_is_reached(kind: str) -> None:
    """A record that is clipped in every group moves the sum by exactly one unit."""
    model, (x, y) = net(), records(1)
    with torch.no_grad():
        model[4].weight.mul_(30)
    engine = ReferenceEngine(model, rules(model)[kind])
    with_it = engine.clipped_sum(cross_entropy, [(x, y)], 1)
    nothing = engine.clipped_sum(cross_entropy, [], 1)
    assert in_noise_units(with_it, nothing, Relation.ZERO_OUT) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_moves_a_mini_set_by_at_most_twice_the_bound(kind: str) -> None:
    """Whatever changes: a record becomes extreme, or goes, or all others go."""
    model, (x, y) = net(), records(4)
    engine = MiniSetEngine(model, rules(model)[kind])
    extreme = x.clone()
    extreme[0] = 1e4
    one = engine.clipped_sum(cross_entropy, [(x, y)], 1)
    for neighbour in ((extreme, y), (x[1:], y[1:]), (x[:1], y[:1])):
        other = engine.clipped_sum(cross_entropy, [neighbour], 1)
        assert in_noise_units(one, other, Relation.REPLACE_ONE) <= 1 + 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relation", list(Relation))
def test_twice_the_bound_is_reached_when_a_record_turns_the_set_round(
    kind: str, relation: Relation
) -> None:
    """Mini-sets that differ in one record, by a pass that looks at it: one unit of noise."""

    def led(
        net: nn.Module, trained: Sequence[nn.Parameter], loss: LossFunction, batch: Batch
    ) -> list[Tensor]:
        way = 1.0 if (batch[0].flatten(1)[:, 0] > 99).any() else -1.0
        return [torch.full_like(p, 1e3 * way) for p in trained]

    model, (x, y) = net(), records(4)
    leader = x.clone()
    leader[0] = 100.0
    without = x[1:] if relation is Relation.ADD_OR_REMOVE_ONE else x
    engine = MiniSetEngine(model, rules(model)[kind], led)
    one = engine.clipped_sum(cross_entropy, [(leader, y)], 1)
    other = engine.clipped_sum(cross_entropy, [(without, y[: len(without)])], 1)
    assert in_noise_units(one, other, Relation.REPLACE_ONE) == pytest.approx(1, rel=1e-9)


def test_noise_follows_thresholds_shares_and_multipliers() -> None:
    groups = Groups((("a",), ("b",)))
    apart = Layerwise(groups, (0.5, 2.0), (0.2, 0.8))
    together = Multiplied(groups, 3.0, (1.0, 6.0))

    def scales(rule: ClippingRule) -> tuple[float, ...]:
        from tacit.clipping.contract import Layout

        layout = Layout(("a", "b"), (torch.Size([2]), torch.Size([3])), (0, 1))
        empty = ClippedSum(torch.zeros(5), layout, rule.bounds, rule.shares)
        return empty.noise_scales(1.5, Relation.ZERO_OUT)

    assert scales(apart) == pytest.approx((1.5 * 0.5 / math.sqrt(0.2), 1.5 * 2 / math.sqrt(0.8)))
    assert scales(together) == pytest.approx((1.5 * 3, 1.5 * 3 / 6))
    private = GaussianNoise(RandomSource.from_seed(1), 1.5)
    model = nn.Sequential(nn.Linear(200, 100, bias=False), nn.Linear(100, 200, bias=False))
    wide = Multiplied(Groups.layers(["0.weight", "1.weight"]), 3.0, (1.0, 6.0))
    nothing = ReferenceEngine(model, wide).clipped_sum(cross_entropy, [], 1)
    first, second = private.privatise(nothing, 0, 1.0).vector.split(20_000)
    assert float(first.std()) == pytest.approx(4.5, rel=0.03)
    assert float(second.std()) == pytest.approx(0.75, rel=0.03)


def test_groups_by_layer_by_tensor_and_by_norm() -> None:
    names = [name for name, _ in net().named_parameters()]
    assert len(Groups.layers(names)) == 3 and len(Groups.tensors(names)) == 6
    merged = Groups.layers(names).merged([1.0, 0.01, 1.2], 2)
    assert merged.members == (("0.weight", "0.bias", "4.weight", "4.bias"), ("1.weight", "1.bias"))
    assert merged.numbers(names) == [0, 0, 1, 1, 0, 0]
    assert len(Groups.layers(names).merged([1.0, 2.0, 3.0], 9)) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g: Layerwise(g, (1.0,)), "one for each"),
        (lambda g: Layerwise(g, (1.0, 0.0)), "positive"),
        (lambda g: Layerwise(g, (1.0, 1.0), (0.9, 0.2)), "adding up to one"),
        (lambda g: Multiplied(g, 1.0, (1.0,)), "one for each"),
        (lambda g: Multiplied(g, 1.0, (1.0, math.inf)), "positive and finite"),
        (lambda g: g.merged([1.0, 2.0], 0), "at least one"),
        (lambda g: g.merged([1.0], 1), "1 norms"),
    ],
)
def test_rules_that_make_no_sense_are_refused(make: Callable[[Groups], object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make(Groups((("a",), ("b",))))


def test_groups_of_another_model_are_refused() -> None:
    with pytest.raises(ModelError, match="do not match"):
        ReferenceEngine(net(), Layerwise(Groups((("other",),)), (1.0,)))
