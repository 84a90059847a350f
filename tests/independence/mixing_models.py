"""Models and losses that mix records, each in a way that has to be looked for."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS, LENGTH = 500, 20


class TrimsToLongest(nn.Module):
    """Cuts padding that all texts of a batch share, then averages over what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8, padding_idx=0)
        self.linear = nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        longest = int((ids != 0).sum(1).max().clamp_min(1))
        out: Tensor = self.linear(self.embedding(ids[:, :longest]).mean(1))
        return out


class FixedLength(TrimsToLongest):
    """The same without trimming."""

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.linear(self.embedding(ids).mean(1))
        return out


class RareGate(nn.Module):
    """Mixes only where a batch holds a value that is almost never there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x.abs() > 8).any()):
            x = x - x.mean(0)
        out: Tensor = self.linear(x)
        return out


class FaintMean(RareGate):
    """Adds a ten-thousandth of the batch mean."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x + 1e-4 * x.detach().mean(0))
        return out


class FaintestMean(RareGate):
    """Adds so little that only the last bits of a loss change."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x + 5e-6 * x.detach().mean(0).nan_to_num(0.0).clamp(-1, 1))
        return out


class FirstRecord(RareGate):
    """The first record reaches all others."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x - 0.1 * x[:1])
        return out


class GradientOnly(RareGate):
    """Outputs do not depend on other records; gradients do."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out + (out - out.detach()) * x.detach().mean().nan_to_num(0.0).clamp(-1, 1)


class HidesBehindZero(nn.Module):
    """Outputs are zero whatever the records are, until the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        out: Tensor = self.head(hidden / hidden.detach().abs().amax())
        return out


class LargeBatches(RareGate):
    """Mixes batches of more than 40 records only."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x - x.mean(0) if len(x) > 40 else x)
        return out


def rows(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """An ordinary loss of one's own."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def hardest_only(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    losses = rows(model, batch)
    return losses * (losses.detach() >= 0.9 * losses.detach().max())


def averaged(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Every row is divided by the number of rows."""
    return rows(model, batch) / len(batch[0])


def balanced(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Rows are weighted by how often their label is in the batch."""
    counts = torch.bincount(batch[1], minlength=3).float()
    return rows(model, batch) / counts[batch[1]]


def shifted(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Losses depend on other records a little; gradients do not."""
    return rows(model, batch) + 1e-5 * batch[0].mean().nan_to_num(0.0).clamp(-1, 1)


def texts(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, LENGTH + 1, (count,), generator=generator)
    ids = torch.randint(1, TOKENS, (count, LENGTH), generator=generator)
    ids = ids * (torch.arange(LENGTH) < lengths[:, None])
    return ids, torch.randint(0, 2, (count,), generator=generator)


def vectors(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=generator)
    return x, torch.randint(0, 3, (count,), generator=generator)


class Causal(nn.Module):
    """Every record sees a little of the sum of all records before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x - 2e-4 * (torch.cumsum(x, 0) - x))
        return out
