"""What the publishers say about their datasets: classes, constants, counts, addresses, checksums.

Everything in this file was public before any record is read; none of it is computed from data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["image", "table", "text"]

TEN = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True)
class Download:
    """One file as its publisher serves it; a mirror may compress the same content differently."""

    file: str
    size: int
    md5: str
    addresses: tuple[str, ...]
    content_sha256: str | None = None


@dataclass(frozen=True)
class Published:
    """One named dataset; records per class are listed in the order of the class names."""

    name: str
    what: str
    kind: Kind
    shape: tuple[int, ...]
    class_names: tuple[str, ...]
    train_per_class: tuple[int, ...]
    test_per_class: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    downloads: tuple[Download, ...] = ()

    @property
    def train_records(self) -> int:
        return sum(self.train_per_class)

    @property
    def test_records(self) -> int:
        return sum(self.test_per_class)


def _idx(bases: tuple[str, ...], stem: str, size: int, md5: str, content_sha256: str) -> Download:
    file = f"{stem}.gz"
    return Download(file, size, md5, tuple(base + file for base in bases), content_sha256)


_MNIST = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_FASHION = ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",)
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_IMDB = "https://ai.stanford.edu/~amaas/data/sentiment/"

CIFAR_BINARY_SHA1 = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}
CIFAR_PYTHON_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR_BINARY_ARCHIVE = Download(
    "cifar-10-binary.tar.gz",
    170_052_171,
    "c32a1d4ab5d03f1284b67883e8d87530",
    (_CIFAR + "cifar-10-binary.tar.gz",),
)
CIFAR_PYTHON_ARCHIVE = Download(
    "cifar-10-python.tar.gz",
    170_498_071,
    "c58f30108f718f92721af3b95e74349a",
    (_CIFAR + "cifar-10-python.tar.gz",),
)
IMDB_ARCHIVE = Download(
    "aclImdb_v1.tar.gz",
    84_125_825,
    "7c2ac02c03563afcf9b574c7e56c153a",
    (_IMDB + "aclImdb_v1.tar.gz",),
)
IMDB_REVIEWS_PER_SIDE = 12_500

DATASETS = {
    entry.name: entry
    for entry in (
        Published(
            name="digits",
            what="handwritten digits, embedded in scikit-learn",
            kind="image",
            shape=(1, 8, 8),
            class_names=TEN,
            train_per_class=(151, 161, 143, 131, 147, 154, 150, 136, 127, 138),
            test_per_class=(27, 21, 34, 52, 34, 28, 31, 43, 47, 42),
            mean=(0.5,),
            std=(0.5,),
        ),
        Published(
            name="mnist",
            what="handwritten digits, greyscale",
            kind="image",
            shape=(1, 28, 28),
            class_names=TEN,
            train_per_class=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
            test_per_class=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
            mean=(0.1307,),
            std=(0.3081,),
            downloads=(
                _idx(
                    _MNIST,
                    "train-images-idx3-ubyte",
                    9_912_422,
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                ),
                _idx(
                    _MNIST,
                    "train-labels-idx1-ubyte",
                    28_881,
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                ),
                _idx(
                    _MNIST,
                    "t10k-images-idx3-ubyte",
                    1_648_877,
                    "9fb629c4189551a2d022fa330f9573f3",
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                ),
                _idx(
                    _MNIST,
                    "t10k-labels-idx1-ubyte",
                    4_542,
                    "ec29112dd5afa0611ce80d1b7f02629c",
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                ),
            ),
        ),
        Published(
            name="fashion-mnist",
            what="articles of clothing, greyscale",
            kind="image",
            shape=(1, 28, 28),
            class_names=(
                "T-shirt/top",
                "Trouser",
                "Pullover",
                "Dress",
                "Coat",
                "Sandal",
                "Shirt",
                "Sneaker",
                "Bag",
                "Ankle boot",
            ),
            train_per_class=(6000,) * 10,
            test_per_class=(1000,) * 10,
            mean=(0.2860,),
            std=(0.3530,),
            downloads=(
                _idx(
                    _FASHION,
                    "train-images-idx3-ubyte",
                    26_421_880,
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                ),
                _idx(
                    _FASHION,
                    "train-labels-idx1-ubyte",
                    29_515,
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                ),
                _idx(
                    _FASHION,
                    "t10k-images-idx3-ubyte",
                    4_422_102,
                    "bef4ecab320f06d8554ea6380940ec79",
                    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                ),
                _idx(
                    _FASHION,
                    "t10k-labels-idx1-ubyte",
                    5_148,
                    "bb300cfdad3c16e7a12a480ee83cd310",
                    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                ),
            ),
        ),
        Published(
            name="cifar-10",
            what="small colour photographs of animals and vehicles",
            kind="image",
            shape=(3, 32, 32),
            class_names=(
                "airplane",
                "automobile",
                "bird",
                "cat",
                "deer",
                "dog",
                "frog",
                "horse",
                "ship",
                "truck",
            ),
            train_per_class=(5000,) * 10,
            test_per_class=(1000,) * 10,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            downloads=(CIFAR_BINARY_ARCHIVE,),
        ),
        Published(
            name="imdb",
            what="film reviews, positive or negative",
            kind="text",
            shape=(256,),
            class_names=("negative", "positive"),
            train_per_class=(IMDB_REVIEWS_PER_SIDE,) * 2,
            test_per_class=(IMDB_REVIEWS_PER_SIDE,) * 2,
            downloads=(IMDB_ARCHIVE,),
        ),
    )
}
