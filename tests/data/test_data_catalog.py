"""Listing, checking and fetching; no test here touches a network."""

from __future__ import annotations

import gzip
import hashlib
import io
import urllib.error
from dataclasses import replace

import pytest

from tacit.data.catalog import catalog, check, fetch
from tacit.data.options import DataOptions
from tacit.data.published import DATASETS, Download
from tacit.errors import DataError


def test_catalog(write):
    folder = write.idx("mnist")
    write.archive("cifar-10-binary.tar.gz", "top", write.cifar_binary_files())
    entries = {entry.name: entry for entry in catalog(write.root)}
    assert list(entries) == ["digits", "mnist", "fashion-mnist", "cifar-10", "imdb"]
    assert entries["digits"].found == "embedded in scikit-learn"
    assert entries["mnist"].found == str(folder)
    assert entries["mnist"].size_on_disk == sum(f.stat().st_size for f in folder.iterdir())
    assert entries["mnist"].train_records == 60_000 and entries["mnist"].shape == (1, 28, 28)
    assert (
        entries["cifar-10"].size_on_disk == (write.root / "cifar-10-binary.tar.gz").stat().st_size
    )
    assert entries["imdb"].found is None and entries["imdb"].size_on_disk is None


def test_digits_are_as_published():
    report = check("digits")
    assert report.ok and (report.train_records, report.test_records) == (1438, 359)


def _publish(monkeypatch, write, name: str) -> None:
    """Make the tiny files just written the published ones."""
    folder = write.root / name
    downloads = []
    for download in DATASETS[name].downloads:
        packed = (folder / download.file).read_bytes()
        downloads.append(
            replace(
                download,
                size=len(packed),
                md5=hashlib.md5(packed).hexdigest(),
                content_sha256=hashlib.sha256(gzip.decompress(packed)).hexdigest(),
            )
        )
    published = replace(
        DATASETS[name],
        downloads=tuple(downloads),
        train_per_class=(2,) * 10,
        test_per_class=(1,) * 5 + (0,) * 5,
    )
    monkeypatch.setitem(DATASETS, name, published)


def test_check_of_idx(write, monkeypatch):
    folder = write.idx("mnist")
    _publish(monkeypatch, write, "mnist")
    report = check("mnist", write.root)
    assert report.ok and len(report.files) == 4 and report.problems == ()
    assert (report.train_records, report.test_records) == (20, 5)

    labels = folder / "train-labels-idx1-ubyte.gz"
    content = gzip.decompress(labels.read_bytes())
    labels.write_bytes(gzip.compress(content, 9, mtime=1))
    assert check("mnist", write.root).ok, "the same content compressed otherwise is fine"

    flipped = content[:8] + bytes([content[8] + 1]) + content[9:]
    labels.write_bytes(gzip.compress(flipped))
    report = check("mnist", write.root)
    assert not report.ok
    assert [file.path for file in report.files if not file.ok] == [labels]
    assert any("training records of class '0'" in problem for problem in report.problems)

    labels.unlink()
    (folder / "train-labels-idx1-ubyte").write_bytes(content)
    assert check("mnist", write.root).ok, "uncompressed files are fine"

    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8bbroken")
    report = check("mnist", write.root)
    assert not report.ok and report.train_records is None

    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    report = check("mnist", write.root)
    assert any(file.detail == "missing" for file in report.files)


@pytest.mark.parametrize("layout", ["binary", "python"])
@pytest.mark.parametrize("packed", [False, True])
def test_check_of_unpublished_cifar(write, layout, packed):
    binary = layout == "binary"
    files = write.cifar_binary_files() if binary else write.cifar_python_files()
    top = "cifar-10-batches-bin" if binary else "cifar-10-batches-py"
    if packed:
        write.archive(f"cifar-10-{layout}.tar.gz", top, files)
    else:
        write.folder(top, files)
    report = check("cifar-10", write.root)
    assert len(report.files) == 6 and not any(file.ok for file in report.files)
    assert "20 training records, but 50000 were published" in report.problems


def test_check_of_imdb(write, monkeypatch):
    folder = write.folder("aclImdb", write.imdb_files(3))
    monkeypatch.setattr("tacit.data.catalog.IMDB_REVIEWS_PER_SIDE", 3)
    published = replace(DATASETS["imdb"], train_per_class=(3, 3), test_per_class=(3, 3))
    monkeypatch.setitem(DATASETS, "imdb", published)
    report = check("imdb", write.root)
    assert report.ok and "no published checksums" in report.files[0].detail
    (folder / "train/pos/1_9.txt").rename(folder / "train/pos/1_3.txt")
    assert any("rating 3" in problem for problem in check("imdb", write.root).problems)
    (folder / "train/pos/1_3.txt").rename(folder / "train/pos/7_9.txt")
    assert any("exactly the reviews" in problem for problem in check("imdb", write.root).problems)
    (folder / "train/pos/7_9.txt").unlink()
    report = check("imdb", write.root)
    assert "5 training records, but 6 were published" in report.problems


def test_check_of_what_is_not_there(write, tmp_path):
    with pytest.raises(DataError, match="tacit data fetch mnist"):
        check("mnist", write.root)
    with pytest.raises(DataError, match="neither"):
        check(str(tmp_path / "gone.npz"))


def test_check_of_own_data(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,label\n" + "1,yes\n2,no\n" * 5)
    report = check(str(path))
    assert report.ok and report.train_records == 10 and report.test_records is None
    assert report.name == str(path) and "own data" in report.found_at
    with pytest.raises(DataError, match=r"row 2 .*none of the 2 class names"):
        check(str(path), options=DataOptions(classes=("yes", "maybe")))
    path.write_text("a,label\n1,yes\n,no\n")
    with pytest.raises(DataError, match=r"row 2 .*empty"):
        check(str(path))


class Network:
    """Answers the addresses it knows and counts what was asked of it."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, address: str, timeout: float) -> io.BytesIO:
        self.asked.append(address)
        if address not in self.answers:
            raise urllib.error.URLError("no route to host")
        return io.BytesIO(self.answers[address])


@pytest.fixture
def network(monkeypatch) -> Network:
    """A dataset of two small files, the first of which has two addresses."""
    contents = [gzip.compress(b"first " * 50, mtime=0), gzip.compress(b"second " * 50, mtime=0)]
    downloads = tuple(
        Download(
            file=f"{i}.gz",
            size=len(packed),
            md5=hashlib.md5(packed).hexdigest(),
            addresses=(f"https://a.example/{i}.gz", f"https://b.example/{i}.gz")[: 2 - i],
            content_sha256=hashlib.sha256(gzip.decompress(packed)).hexdigest(),
        )
        for i, packed in enumerate(contents)
    )
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], downloads=downloads))
    answers = {
        address: packed
        for download, packed in zip(downloads, contents, strict=True)
        for address in download.addresses
    }
    network = Network(answers)
    monkeypatch.setattr("urllib.request.urlopen", network)
    return network


def test_fetch(network, tmp_path):
    seen = []
    folder = fetch("mnist", tmp_path / "new", lambda *step: seen.append(step))
    assert folder == tmp_path / "new/mnist"
    assert sorted(file.name for file in folder.iterdir()) == ["0.gz", "1.gz"]
    assert [(name, done == total) for name, done, total in seen] == [("0.gz", True), ("1.gz", True)]
    assert len(network.asked) == 2
    fetch("mnist", tmp_path / "new")
    assert len(network.asked) == 2, "correct files are not fetched again"
    (folder / "1.gz").write_bytes(b"damaged")
    fetch("mnist", tmp_path / "new")
    assert len(network.asked) == 3 and (folder / "1.gz").read_bytes() != b"damaged"


def test_fetch_goes_to_the_cache(network, tmp_path):
    assert fetch("mnist") == tmp_path / "no-cache/tacit/mnist"


def test_fetch_of_one_archive(network, monkeypatch, tmp_path):
    single = replace(DATASETS["mnist"], downloads=DATASETS["mnist"].downloads[:1])
    monkeypatch.setitem(DATASETS, "mnist", single)
    assert fetch("mnist", tmp_path) == tmp_path / "0.gz"


def test_fetch_takes_the_next_address(network, tmp_path):
    del network.answers["https://a.example/0.gz"]
    assert (fetch("mnist", tmp_path) / "0.gz").is_file()
    network.answers["https://a.example/0.gz"] = b"<html>sign in</html>"
    assert (fetch("mnist", tmp_path / "other") / "0.gz").is_file()


def test_fetch_accepts_other_compression_of_the_same_content(network, tmp_path):
    address = "https://a.example/0.gz"
    network.answers[address] = gzip.compress(gzip.decompress(network.answers[address]), mtime=9)
    fetch("mnist", tmp_path)
    assert "https://b.example/0.gz" not in network.asked


@pytest.mark.parametrize("answer", [None, b"another file", b"x" * 100_000])
def test_failed_fetch_leaves_nothing(network, tmp_path, answer):
    if answer is None:
        network.answers.clear()
    else:
        network.answers = dict.fromkeys(network.answers, answer)
    with pytest.raises(DataError) as raised:
        fetch("mnist", tmp_path / "new")
    message = str(raised.value)
    assert "https://a.example/0.gz" in message and "https://b.example/0.gz" in message
    assert str(tmp_path / "new/mnist/0.gz") in message
    assert list((tmp_path / "new/mnist").iterdir()) == []


def test_failed_fetch_keeps_what_was_there(network, tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "0.gz").write_bytes(b"mine")
    network.answers.clear()
    with pytest.raises(DataError):
        fetch("mnist", tmp_path)
    assert [file.name for file in folder.iterdir()] == ["0.gz"]
    assert (folder / "0.gz").read_bytes() == b"mine"


def test_interrupted_fetch_leaves_nothing(network, tmp_path):
    def interrupt(*step: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("mnist", tmp_path, interrupt)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_fetch_refusals(network, tmp_path):
    with pytest.raises(DataError, match="nothing to fetch"):
        fetch("digits", tmp_path)
    with pytest.raises(DataError, match="Choose from mnist"):
        fetch("other", tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot be written"):
        fetch("mnist", tmp_path / "file")
    assert network.asked == []
