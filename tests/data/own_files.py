"""What tests of people's own files share: how to write each kind, and how to load it."""

from __future__ import annotations

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tacit.data import datasets
from tacit.data.datasets import Data, DataOptions

SECRET = "8675309.25"


def load(source: str, **options: object) -> Data:
    """Own records; their classes come from the labels unless the test says otherwise."""
    return datasets.load(source, options=DataOptions(**{"classes": "from-labels", **options}))


@pytest.fixture
def csv_file(tmp_path):
    def write(content: str, name: str = "mine.csv") -> str:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def parquet_file(tmp_path):
    def write(**columns: object) -> str:
        path = tmp_path / "mine.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        return str(path)

    return write


@pytest.fixture
def npz_file(tmp_path):
    def write(**arrays: object) -> str:
        path = tmp_path / "mine.npz"
        np.savez(path, **arrays)
        return str(path)

    return write
