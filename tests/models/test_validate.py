"""What cannot be private is found, named and, where possible, mended."""

import pytest
import torch
from torch import Tensor, nn

from tacit.errors import ModelError
from tacit.models import check, findings, mended

IMAGES = torch.randn(2, 3, 8, 8)


class MixesRecords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x - x.mean(0))


class KeepsStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().sum(0)
        return self.linear(x)


class OneNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).mean()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), "GroupNorm"),
        (nn.Sequential(nn.SyncBatchNorm(4)), "GroupNorm"),
        (nn.InstanceNorm2d(3, track_running_stats=True), "track_running_stats"),
        (nn.Embedding(10, 3, max_norm=1.0), "max_norm"),
        (nn.EmbeddingBag(10, 3, sparse=True), "sparse"),
        (nn.LazyLinear(3), "no shape"),
        (nn.Linear(3, 2).double(), "model.float"),
        (nn.Linear(3, 2).bfloat16(), "model.float"),
    ],
)
def test_findings_name_the_way_out(model: nn.Module, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        check(model)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (MixesRecords(), "other records"),
        (KeepsStatistics(), "buffer seen"),
        (OneNumber(), "row per record"),
    ],
)
def test_running_the_model_finds_what_its_layers_do_not_show(model: nn.Module, words: str) -> None:
    assert findings(model) == []
    with pytest.raises(ModelError, match=words):
        check(model, torch.randn(2, 4))


def test_ordinary_models_pass_and_are_left_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 5)
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval()
    check(model, IMAGES)
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_token_ids_are_probed_too() -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(20, 2))
    check(model, torch.zeros(1, 5, dtype=torch.int64))
    with pytest.raises(ModelError):
        check(nn.Sequential(model, MixesOutputs()), torch.arange(5).view(1, 5))


class MixesOutputs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_mending_replaces_batch_norm_and_keeps_the_original() -> None:
    model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.Sequential(nn.BatchNorm2d(48), nn.ReLU()))
    repaired = mended(model)
    check(repaired, IMAGES)
    assert isinstance(repaired[1][0], nn.GroupNorm) and repaired[1][0].num_groups == 24
    assert isinstance(model[1][0], nn.BatchNorm2d)
    assert isinstance(mended(nn.BatchNorm1d(6)), nn.GroupNorm)
    tracked = mended(nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)))
    check(tracked, IMAGES)
