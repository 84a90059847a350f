"""Where the named datasets are looked for, and in which of their layouts they were found."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tacit.data.published import CIFAR_BINARY_SHA1, CIFAR_PYTHON_MD5, DATASETS
from tacit.errors import DataError

Layout = Literal[
    "embedded",
    "idx",
    "cifar-binary",
    "cifar-python",
    "imdb-folder",
    "cifar-binary-archive",
    "cifar-python-archive",
    "imdb-archive",
]
SYSTEM_FOLDER = Path("/usr/share/datasets")
IDX_STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_FOLDERS: dict[str, tuple[tuple[Layout, str], ...]] = {
    "mnist": (("idx", "mnist"), ("idx", "MNIST/raw"), ("idx", "MNIST")),
    "fashion-mnist": (
        ("idx", "fashion-mnist"),
        ("idx", "FashionMNIST/raw"),
        ("idx", "FashionMNIST"),
    ),
    "cifar-10": (
        ("cifar-binary", "cifar-10-batches-bin"),
        ("cifar-python", "cifar-10-batches-py"),
    ),
    "imdb": (("imdb-folder", "aclImdb"),),
}
_ARCHIVES: dict[str, tuple[tuple[Layout, str], ...]] = {
    "cifar-10": (
        ("cifar-binary-archive", "cifar-10-binary.tar.gz"),
        ("cifar-python-archive", "cifar-10-python.tar.gz"),
    ),
    "imdb": (("imdb-archive", "aclImdb_v1.tar.gz"),),
}


@dataclass(frozen=True)
class Found:
    """A named dataset on this machine: its layout, and its folder or archive."""

    layout: Layout
    path: Path

    @property
    def described(self) -> str:
        """Where it is, for people."""
        return "embedded in scikit-learn" if self.layout == "embedded" else str(self.path)


def user_cache() -> Path:
    """The folder that downloads go to unless another is named."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tacit"


def places(data_dir: Path | None) -> list[Path]:
    """The folders searched, in order."""
    named = os.environ.get("TACIT_DATA")
    return [
        *([Path(data_dir).expanduser()] if data_dir is not None else []),
        *([Path(named).expanduser()] if named else []),
        user_cache(),
        SYSTEM_FOLDER,
    ]


def idx_file(folder: Path, stem: str) -> Path | None:
    """The IDX file of that stem, compressed or not, under either spelling in use."""
    dotted = stem.replace("-idx", ".idx")
    for name in (f"{stem}.gz", stem, f"{dotted}.gz", dotted):
        if (folder / name).is_file():
            return folder / name
    return None


def _holds(layout: Layout, folder: Path) -> bool:
    if layout == "idx":
        return any(idx_file(folder, stem) for stem in IDX_STEMS)
    if layout == "cifar-binary":
        return any((folder / name).is_file() for name in CIFAR_BINARY_SHA1)
    if layout == "cifar-python":
        return any((folder / name).is_file() for name in CIFAR_PYTHON_MD5)
    return (folder / "train").is_dir() or (folder / "test").is_dir()


def find(name: str, data_dir: Path | None) -> Found | None:
    """The first place that holds any part of the named dataset, or None."""
    if name == "digits":
        return Found("embedded", Path())
    for place in places(data_dir):
        for layout, relative in _FOLDERS[name]:
            if _holds(layout, place / relative):
                return Found(layout, place / relative)
            steps = Path(relative).parts
            if place.parts[-len(steps) :] == steps and _holds(layout, place):
                return Found(layout, place)
        for layout, archive in _ARCHIVES.get(name, ()):
            if (place / archive).is_file():
                return Found(layout, place / archive)
    return None


def locate(name: str, data_dir: Path | None) -> Found:
    """Like `find`, but a dataset that is nowhere is an error that lists every place."""
    found = find(name, data_dir)
    if found is not None:
        return found
    looked = "\n".join(
        f"  {place}" + ("" if place.is_dir() else " (no such folder)") for place in places(data_dir)
    )
    wanted = [relative + "/" for _, relative in _FOLDERS[name]]
    wanted += [archive for _, archive in _ARCHIVES.get(name, ())]
    files = ", ".join(download.file for download in DATASETS[name].downloads)
    raise DataError(
        f"dataset {name!r}: not found. Looked for {' or '.join(wanted)} in\n{looked}\n"
        f"Get it with `tacit data fetch {name}`, or put {files} there by hand and name the folder "
        f"with --data-dir (in Python: data_dir) or TACIT_DATA."
    )
