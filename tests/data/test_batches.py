"""Records become batches: normalised, augmented, and the same whatever the micro-batch."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from tacit.data.batches import (
    Augmentation,
    DatasetRecords,
    Gatherer,
    TensorRecords,
    as_records,
)
from tacit.errors import ArgumentError, DataError

IMAGES = torch.arange(6 * 2 * 8 * 8, dtype=torch.uint8).view(6, 2, 8, 8)
LABELS = torch.arange(6)


class Items(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return IMAGES[index].float(), index


def test_bytes_are_normalised_by_given_constants() -> None:
    x, y = TensorRecords(IMAGES, LABELS, (0.5, 0.25), (0.5, 2.0)).batch(torch.tensor([3, 1]))
    expected = (IMAGES[[3, 1]].float() / 255 - torch.tensor([0.5, 0.25]).view(2, 1, 1)) / (
        torch.tensor([0.5, 2.0]).view(2, 1, 1)
    )
    torch.testing.assert_close(x, expected)
    assert y.tolist() == [3, 1]


def test_half_precision_is_kept_until_a_batch_is_gathered() -> None:
    records = TensorRecords(IMAGES.half(), LABELS)
    assert records.features.dtype == torch.float16
    x, _ = records.batch(torch.tensor([4]))
    assert x.dtype == torch.float32 and torch.equal(x, IMAGES[[4]].float())
    broken = IMAGES.half()
    broken[5, 1, 2, 3] = float("inf")
    with pytest.raises(DataError, match="NaN, infinite"):
        TensorRecords(broken, LABELS)


def test_any_dataset_will_do() -> None:
    for data in (Items(), TensorDataset(IMAGES.float(), LABELS), (IMAGES.float(), LABELS)):
        records = as_records(data)
        x, y = records.batch(torch.tensor([5, 0]))
        assert y.tolist() == [5, 0] and x.shape == (2, 2, 8, 8) and len(records) == 6
        assert len(records.batch(torch.tensor([], dtype=torch.int64))[0]) == 0


@pytest.mark.parametrize("data", [42, [1, 2], (IMAGES,), "mnist"])
def test_other_things_are_refused(data: object) -> None:
    with pytest.raises(ArgumentError):
        as_records(data)


def test_numpy_arrays_are_records() -> None:
    x = np.random.default_rng(1).normal(size=(6, 3))
    for features in (x, x.astype(np.float16), x.astype(">f4"), x[:, ::-1]):
        for labels in (np.arange(6), np.arange(6, dtype=np.uint8), LABELS):
            batch = as_records((features, labels)).batch(torch.tensor([4, 1]))
            assert batch[0].dtype == torch.float32 and batch[1].dtype == torch.int64
            np.testing.assert_array_equal(batch[0].numpy(), features[[4, 1]].astype(np.float32))
            assert batch[1].tolist() == [4, 1]
    images, _ = as_records((IMAGES.numpy(), LABELS.numpy())).batch(torch.tensor([2]))
    torch.testing.assert_close(images, IMAGES[[2]].float() / 255)
    with pytest.raises(ArgumentError, match="labels are an array of type <U"):
        as_records((x, np.array(list("abcdef"))))
    with pytest.raises(DataError, match="too large for float32"):
        as_records((np.full((6, 1), 1e300), LABELS))


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_features_become_single_precision_and_labels_keep_their_type(kind: torch.dtype) -> None:
    x, y = torch.randn(6, 3).to(kind), torch.randn(6, dtype=torch.float64)

    class Pairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            return x[index], y[index]

    for records in (as_records((x, y)), as_records(Pairs())):
        features, labels = records.batch(torch.tensor([0, 5]))
        assert features.dtype == torch.float32 and torch.equal(features, x[[0, 5]].float())
        assert labels.dtype == torch.float64 and torch.equal(labels, y[[0, 5]])


def test_damaged_records_are_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        TensorRecords(IMAGES[:0], LABELS[:0])
    with pytest.raises(DataError, match="match"):
        TensorRecords(IMAGES, LABELS[:3])
    with pytest.raises(DataError, match="NaN"):
        TensorRecords(torch.full((2, 3), torch.nan), LABELS[:2])


@pytest.mark.parametrize("views", [1, 3])
def test_micro_batches_make_no_difference(views: int) -> None:
    records = TensorRecords(IMAGES, LABELS)
    indices = np.array([0, 2, 3, 4, 5])
    joined = []
    for size in (1, 2, 100):
        gatherer = Gatherer(records, size, views, list(Augmentation))
        pieces = list(gatherer.micro_batches(indices, seed=9))
        joined.append([torch.cat(parts) for parts in zip(*pieces, strict=True)])
    for x, y in joined[1:]:
        assert torch.equal(x, joined[0][0]) and torch.equal(y, joined[0][1])
    assert joined[0][1].tolist() == [i for i in indices for _ in range(views)]


def test_augmentation_changes_images_but_not_their_values() -> None:
    records = TensorRecords(IMAGES, LABELS)
    for kind in Augmentation:
        gatherer = Gatherer(records, 100, 20, [kind])
        ((x, _),) = gatherer.micro_batches(np.array([1]), seed=1)
        assert len({tuple(row.flatten().tolist()) for row in x}) > 1
        assert set(x.unique().tolist()) <= set((IMAGES[1].float() / 255).unique().tolist())


def test_augmenting_what_is_no_image_is_refused() -> None:
    gatherer = Gatherer(TensorRecords(torch.randn(4, 3), LABELS[:4]), 2, 1, [Augmentation.FLIP])
    with pytest.raises(ArgumentError, match="images"):
        list(gatherer.micro_batches(np.array([0]), seed=0))


def test_fingerprints_follow_the_records() -> None:
    changed = IMAGES.clone()
    changed[4, 0, 0, 0] += 1
    for make in (lambda x: TensorRecords(x, LABELS), lambda x: DatasetRecords(TensorDataset(x))):
        assert make(IMAGES).fingerprint() == make(IMAGES.clone()).fingerprint()
        assert make(IMAGES).fingerprint() != make(changed).fingerprint()
