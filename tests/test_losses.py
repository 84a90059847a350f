"""What is refused about labels, models and losses before any step is charged."""

from pathlib import Path

import pytest
import torch
from small_runs import CLASSES, FEATURES, small_model, small_recipe
from torch import Tensor, nn
from torch.utils.data import Dataset

import tacit
from tacit.data.batches import as_records
from tacit.errors import ArgumentError, DataError, ModelError
from tacit.losses import check_labels, cross_entropy
from tacit.privacy import ledger


class Items(Dataset[tuple[Tensor, int]]):
    """Records without a list of their labels."""

    def __init__(self, labels: list[int]) -> None:
        self._labels = labels
        self._bad: int | None = None
        self.read = 0

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read += 1
        value = float("nan") if index == self._bad else float(index)
        return torch.full((FEATURES,), value), self._labels[index]


class ItemsWithTargets(Items):
    """Records of a dataset that keeps its labels apart, as torchvision's do."""

    @property
    def targets(self) -> list[int]:
        return self._labels


@pytest.mark.parametrize("kind", [Items, ItemsWithTargets])
@pytest.mark.parametrize("wrong", [-1, CLASSES])
def test_labels_of_a_dataset_are_checked_before_a_run_exists(
    kind: type[Items], wrong: int, tmp_path: Path
) -> None:
    data = kind([*[0, 1, 2] * 20, wrong])
    with pytest.raises(DataError, match=rf"outside 0…{CLASSES - 1}"):
        tacit.fit(small_model(), data, recipe=small_recipe(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_features_of_a_dataset_are_checked_and_read_once_before_training(tmp_path: Path) -> None:
    data = Items([0, 1, 2] * 20)
    records = as_records(data)
    check_labels(records, small_model(), cross_entropy)
    read = data.read
    check_labels(records, small_model(), cross_entropy)
    assert read <= 62 and data.read <= read + 1
    data._bad = 7
    with pytest.raises(DataError, match="NaN"):
        tacit.fit(small_model(), data, recipe=small_recipe(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_labels_kept_apart_are_not_read_record_by_record() -> None:
    data = ItemsWithTargets([0, 1, 2] * 100)
    check_labels(as_records(data), small_model(), cross_entropy)
    assert data.read < 5


def test_own_loops_are_refused_wrong_labels_before_a_charge(tmp_path: Path) -> None:
    data = Items([*[0, 1, 2] * 20, 7])
    steps = tacit.PrivateSteps(small_model(), data, recipe=small_recipe(), out=tmp_path / "run")
    next(iter(steps))
    with pytest.raises(DataError, match="outside"):
        steps.step(cross_entropy)
    assert [e.kind for e in ledger.read(tmp_path / "run" / "ledger.jsonl")] == ["promise"]


def test_a_loss_of_ones_own_may_use_any_labels(tmp_path: Path) -> None:
    x, y = torch.randn(60, FEATURES), torch.randn(60)

    def squared(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return (model(batch[0])[:, 0] - batch[1]).square()

    result = tacit.fit(
        small_model(), (x, y), loss=squared, recipe=small_recipe(), out=tmp_path / "run"
    )
    assert result.certificate["steps"] == 4


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (nn.Linear(FEATURES + 1, CLASSES), "does not take records of shape"),
        (nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0)), "class scores"),
    ],
)
def test_a_model_that_does_not_fit_the_records_is_named(model: nn.Module, named: str) -> None:
    data = torch.randn(9, FEATURES), torch.arange(9) % CLASSES
    with pytest.raises(ModelError, match=named):
        tacit.fit(model, data, recipe=small_recipe())


def test_test_labels_are_checked_before_training(tmp_path: Path) -> None:
    x, y = torch.randn(60, FEATURES), torch.arange(60) % CLASSES
    with pytest.raises(DataError, match="labels of test"):
        tacit.fit(
            small_model(), (x, y), test=(x, y + 1), recipe=small_recipe(), out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_evaluation_with_a_loss_of_ones_own_needs_no_classes(tmp_path: Path) -> None:
    x, y = torch.randn(60, FEATURES), torch.randn(60)

    def squared(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return (model(batch[0])[:, 0] - batch[1]).square()

    result = tacit.fit(
        small_model(), (x, y), test=(x, y), loss=squared, recipe=small_recipe(), out=tmp_path / "r"
    )
    assert result.accuracy is None and result.metrics["final"]["loss"] > 0
    assert result.report.exists()


@pytest.mark.parametrize("kind", ["another's", "a part"])
def test_an_optimizer_must_hold_the_model(kind: str, tmp_path: Path) -> None:
    model = small_model()
    held = small_model().parameters() if kind == "another's" else model[0].parameters()
    x, y = torch.randn(60, FEATURES), torch.arange(60) % CLASSES
    with pytest.raises(ArgumentError, match="parameters of this model"):
        tacit.fit(
            model,
            (x, y),
            optimizer=torch.optim.SGD(held, lr=0.1),
            recipe=small_recipe(),
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()


def test_a_finished_loop_takes_no_more_steps(tmp_path: Path) -> None:
    x, y = torch.randn(60, FEATURES), torch.arange(60) % CLASSES
    steps = tacit.PrivateSteps(small_model(), (x, y), recipe=small_recipe(), out=tmp_path / "run")
    for _ in steps:
        steps.step(cross_entropy)
    assert steps.finish() is steps.finish()
    with pytest.raises(ArgumentError, match="finished"):
        steps.step(cross_entropy)


def test_mending_is_asked_of_the_right_function() -> None:
    x, y = torch.randn(60, FEATURES), torch.arange(60) % CLASSES
    with pytest.raises(ArgumentError, match=r"tacit\.models\.mended"):
        tacit.fit(small_model(), (x, y), mend=True)
