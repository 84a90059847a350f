"""Text: words, ids that do not depend on the records, and the IMDb layouts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.datasets import DataOptions, load
from tacit.data.text import Encoder, hashed_id, words
from tacit.errors import DataError


def test_words():
    text = "It's GREAT!<br /><br />Don\u2019t miss_it: 3 < 4 <b class='x'>caf\u00e9</b>"
    assert words(text) == ["it's", "great", "don't", "miss", "it", "3", "4", "caf\u00e9"]
    assert words("") == [] and words("<br/>...") == []


def test_hash_is_pinned():
    assert [hashed_id(word, 4096) for word in ("the", "film", "caf\u00e9")] == [2607, 3164, 2020]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.integers(1, 50), st.integers(1, 20))
def test_ids_stay_in_range(text, buckets, length):
    encoder = Encoder.by_hash(buckets, length)
    row = encoder.encode([text])[0]
    kept = min(len(words(text)), length)
    assert row.shape == (length,)
    assert (row[:kept] >= 1).all() and (row[:kept] < encoder.size).all()
    assert (row[kept:] == 0).all()


def test_ids_do_not_depend_on_other_records():
    alone = Encoder.by_hash(64, 8).encode(["a good film"])[0]
    among = Encoder.by_hash(64, 8).encode(["other words first", "a good film"])[1]
    assert (alone == among).all()


def test_a_word_set_holds_each_word_once_and_no_common_ones():
    encoder = Encoder.by_hash(1 << 20, 6, word_set=True)
    expected = [hashed_id(word, 1 << 20) for word in ("good", "film", "not")]
    row = encoder.encode(["The good, good film. It is not a film of the good"])[0]
    assert row.tolist() == [*expected, 0, 0, 0]
    crowded = Encoder.by_hash(2, 6, word_set=True).encode(["one two three four five six"])[0]
    assert sorted(crowded.tolist()) == [0, 0, 0, 0, 1, 2]


def test_pairs_of_words_come_after_the_words():
    row = Encoder.by_hash(1000, 8, ngrams=2).encode(["not a good film"])[0]
    grams = ("not", "a", "good", "film", "not a", "a good", "good film")
    assert row.tolist() == [*(hashed_id(gram, 1000) for gram in grams), 0]
    kept = Encoder.by_hash(1000, 2, ngrams=2).encode(["not a good film"])[0]
    assert kept.tolist() == row[:2].tolist()


def test_vocabulary(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\ufeffgood\nBAD\n\ngood\nfilm\n", encoding="utf-8")
    encoder = Encoder.by_vocabulary(path, 5)
    assert encoder.size == 5
    assert encoder.encode(["Good bad film, nowhere"])[0].tolist() == [2, 3, 4, 1, 0]


@pytest.mark.parametrize("content", [None, b"", b" \n\n", b"\xff\xfe\x00"])
def test_unusable_vocabulary(tmp_path, write, content):
    write.folder("aclImdb", write.imdb_files())
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"words\.txt"):
        load("imdb", data_dir=write.root, options=DataOptions(vocabulary=str(path)))


@pytest.mark.parametrize("packed", [False, True])
def test_imdb_layouts(write, packed):
    files = {**write.imdb_files(12), "train/unsup/0_0.txt": b"unlabelled", "README": b"read"}
    if packed:
        write.archive("aclImdb_v1.tar.gz", "aclImdb", files)
    else:
        write.folder("aclImdb", files)
    options = DataOptions(length=6, hash_buckets=100)
    data = load("imdb", data_dir=write.root, options=options)
    assert data.kind == "text" and data.class_names == ("negative", "positive")
    assert data.train.features.shape == (24, 6) and data.train.features.dtype == torch.int64
    assert data.train.labels.tolist() == [0] * 12 + [1] * 12
    assert data.token_ids == 101 and data.mean == ()
    expected = [hashed_id(word, 100) for word in ("a", "bad", "film", "no", "11", "train")]
    assert data.train.features[11].tolist() == expected
    assert any("100 ids" in sentence for sentence in data.treated_as_public)


def test_imdb_faults(write):
    folder = write.folder("aclImdb", write.imdb_files())
    (folder / "train/pos/0_9.txt").write_bytes(b"\xff\xfe broken")
    with pytest.raises(DataError, match=r"0_9\.txt: not UTF-8"):
        load("imdb", data_dir=write.root)
    for file in [*folder.glob("train/pos/*"), *folder.glob("train/neg/*")]:
        file.unlink()
    with pytest.raises(DataError, match="no reviews found"):
        load("imdb", data_dir=write.root)
    (folder / "train/pos").rmdir()
    with pytest.raises(DataError, match="train/pos: missing"):
        load("imdb", data_dir=write.root)
