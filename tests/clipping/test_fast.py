"""The fast engine against a loop of single-record gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tacit.clipping.contract import Batch, ClippingRule
from tacit.clipping.fast import FastEngine
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Automatic, Flat

CLIP = 0.1


@dataclass(frozen=True)
class PerParameter:
    """Every parameter its own group, each with its own bound."""

    parameters: int

    @property
    def bounds(self) -> tuple[float, ...]:
        return tuple(CLIP / (1 + i) for i in range(self.parameters))

    @property
    def shares(self) -> tuple[float, ...]:
        return (1 / self.parameters,) * self.parameters

    def grouping(self, names: Sequence[str]) -> Sequence[int]:
        return range(len(names))

    def factors(self, norms: Tensor) -> Tensor:
        return (torch.tensor(self.bounds).to(norms) / norms.clamp_min(1e-30)).clamp_max(1)


def squared_loss(model: nn.Module, batch: Batch) -> Tensor:
    outputs = model(*batch[:-1])
    return (outputs.flatten(1).sin().sum(1) - batch[-1]).square()


def rules_for(model: nn.Module) -> list[ClippingRule]:
    trainable = sum(p.requires_grad for p in model.parameters())
    return [Flat(CLIP), Automatic(CLIP), PerParameter(trainable)]


def assert_exact(
    model: nn.Module,
    *inputs: Tensor,
    views: int = 1,
    loss: Callable[[nn.Module, Batch], Tensor] = squared_loss,
) -> None:
    dtype = next(model.parameters()).dtype
    batch = (*inputs, torch.linspace(-1, 1, inputs[0].shape[0], dtype=dtype))
    tolerance = CLIP * (1e-12 if dtype == torch.float64 else 1e-5)
    for rule in rules_for(model):
        oracle = ReferenceEngine(model, rule, vectorised=False)
        expected = oracle.clipped_sum(loss, [batch], views).vector
        for deterministic in (False, True):
            engine = FastEngine(model, rule, deterministic=deterministic)
            for _ in range(2):
                found = engine.clipped_sum(loss, [batch], views).vector
                torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


MODELS = {
    "mlp": lambda: (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), (4,)),
    "sequence": lambda: (nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2)), (6, 4)),
    "convnet": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Conv2d(4, 4, (2, 3), groups=2, dilation=2, padding="same"),
            nn.Flatten(),
            nn.Linear(100, 2),
        ),
        (3, 9, 9),
    ),
}


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_whole_models_match_the_oracle(name: str, dtype: torch.dtype, views: int) -> None:
    torch.manual_seed(0)
    model, shape = MODELS[name]()
    assert_exact(model.to(dtype), torch.randn(6, *shape, dtype=dtype), views=views)


@pytest.mark.parametrize("views", [1, 3])
def test_embedding_with_repeated_tokens(views: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, padding_idx=1), nn.Flatten(), nn.Linear(28, 2))
    assert_exact(model.double(), torch.randint(0, 5, (6, 7)), views=views)
