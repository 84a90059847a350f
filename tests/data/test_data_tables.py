"""Own tables and arrays: read alike from every format, faults named without private values."""

from __future__ import annotations

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from own_files import SECRET, load
from own_files import csv_file as csv_file
from own_files import npz_file as npz_file
from own_files import parquet_file as parquet_file

from tacit.data import datasets
from tacit.data.text import hashed_id
from tacit.errors import ArgumentError, DataError


def test_formats_agree(csv_file, parquet_file, npz_file):
    features = np.array([[1.5, -2], [0, 4], [3, 1]], np.float32)
    labels = [1, 0, 2]
    rows = "".join(f"{a},{label},{b}\n" for (a, b), label in zip(features, labels, strict=True))
    sources = [
        csv_file("\ufeffage, label,height\n" + rows + "\n"),
        parquet_file(age=features[:, 0], label=labels, height=features[:, 1].astype(np.float64)),
        npz_file(x=features, y=labels),
        npz_file(features=features.astype(np.float64), labels=np.array(labels, np.uint8)),
    ]
    for source in sources:
        data = load(source)
        assert data.kind == "table" and data.test is None
        assert data.train.features.dtype == torch.float32
        assert data.train.features.tolist() == features.tolist()
        assert data.train.labels.tolist() == labels
        assert data.class_names == ("0", "1", "2") and data.input_shape == (2,)
        assert data.mean == () and data.std == () and data.token_ids == 0
        assert data.found_at == source and data.name == "mine"


def test_label_column_choice(csv_file):
    content = "a,label,b\n1,0,1\n2,1,0\n"
    assert load(csv_file(content)).train.labels.tolist() == [0, 1]
    chosen = load(csv_file(content), label_column="b")
    assert chosen.train.labels.tolist() == [1, 0]
    assert chosen.train.features.tolist() == [[1, 0], [2, 1]]
    last = load(csv_file("a,b\n1,0\n2,1\n"))
    assert last.train.labels.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"label_column 'c'.*a, label, b"):
        load(csv_file(content), label_column="c")


def test_text_labels_become_sorted_classes(csv_file, parquet_file, npz_file):
    wanted = ("no", "yes")
    for source in (
        csv_file("a,label\n1,yes\n2, no\n"),
        parquet_file(a=[1, 2], label=["yes", "no"]),
        parquet_file(a=[1, 2], label=pyarrow.array(["yes", "no"]).dictionary_encode()),
        npz_file(x=[[1.0], [2.0]], y=["yes", "no"]),
    ):
        data = load(source)
        assert data.class_names == wanted and data.train.labels.tolist() == [1, 0]
        assert any("set of labels" in sentence for sentence in data.treated_as_public)


def test_own_files_are_refused_until_their_classes_are_stated(csv_file, parquet_file, npz_file):
    for source in (
        csv_file(f"a,label\n1,yes\n2,x{SECRET}\n"),
        parquet_file(a=[1, 2], label=["yes", f"x{SECRET}"]),
        npz_file(x=[[1.0], [2.0]], y=["yes", f"x{SECRET}"]),
    ):
        with pytest.raises(ArgumentError, match="is not given") as raised:
            datasets.load(source)
        message = str(raised.value)
        assert """--set 'data.options.classes=["flu", "cold"]'""" in message
        assert "--set data.options.classes=from-labels" in message
        assert "In Python these are values of DataOptions(classes=…)" in message
        assert SECRET not in message and "yes" not in message


def test_classes_from_labels_are_named_as_public(csv_file):
    path = csv_file("a,label\n1,yes\n2,no\n3,rare\n")
    derived = load(path)
    assert derived.class_names == ("no", "rare", "yes")
    assert (
        'the set of labels, taken from the records themselves because classes = "from-labels"; '
        "a label that only one record has would show"
    ) in derived.treated_as_public
    for classes in (["yes", "rare", "no"], ("no", "yes", "rare", "other")):
        stated = load(path, classes=classes)
        assert not any("taken from" in sentence for sentence in stated.treated_as_public)
        assert f"the names of the {len(classes)} classes (a given option)" in (
            stated.treated_as_public
        )


def test_one_record_does_not_change_the_stated_classes(csv_file):
    rows = "a,label\n" + "1,no\n2,yes\n" * 4
    for classes in (["yes", "no", "rare"], ("rare", "no", "yes")):
        with_it = load(csv_file(rows + "3,rare\n"), classes=classes)
        without = load(csv_file(rows), classes=classes)
        assert with_it.class_names == without.class_names == tuple(classes)
        assert with_it.train.labels[-1] == classes.index("rare")
        assert torch.equal(with_it.train.labels[:-1], without.train.labels)
        assert with_it.treated_as_public == without.treated_as_public


def test_class_names_match_labels_as_written(csv_file, parquet_file, npz_file):
    for source in (
        csv_file("a,label\n1,b\n2, 7\n3,b\n"),
        parquet_file(a=[1, 2, 3], label=["b ", "7", "b"]),
        npz_file(x=[[1.0], [2.0], [3.0]], y=["b", " 7", "b"]),
    ):
        assert load(source, classes=["b", "7"]).train.labels.tolist() == [0, 1, 0]
    whole = npz_file(x=[[1.0], [2.0]], y=[12, 3])
    assert load(whole, classes=["3", "12"]).train.labels.tolist() == [1, 0]
    for content in (f"a,label\n1,b\n2,{SECRET}\n", "a,label\n1,b\n2,\n"):
        with pytest.raises(DataError, match=r"row 2 .*none of the 2 class names") as raised:
            load(csv_file(content), classes=["b", "7"])
        assert SECRET not in str(raised.value)


def test_a_number_of_classes_fixes_the_labels(csv_file):
    data = load(csv_file("a,label\n1,0\n2,1.0\n"), classes=5)
    assert data.class_names == ("0", "1", "2", "3", "4")
    assert "the number of classes, 5 (a given option)" in data.treated_as_public
    for content in ("a,label\n1,0\n2,5\n", "a,label\n1,0\n2,-1\n"):
        with pytest.raises(DataError, match=r"label in row 2 .*5 classes.*0 to 4"):
            load(csv_file(content), classes=5)
    with pytest.raises(DataError, match=r"row 1 .*list of class names"):
        load(csv_file("a,label\n1,no\n2,yes\n"), classes=2)


def test_texts_become_ids_by_hash_or_public_vocabulary(csv_file, parquet_file, tmp_path):
    texts, labels = ["Good film, GOOD!", "bad", ""], ["pos", "neg", "neg"]
    rows = "".join(f'{i},"{t}",{y}\n' for i, (t, y) in enumerate(zip(texts, labels, strict=True)))
    (tmp_path / "words.txt").write_text("bad\ngood\n")
    vocabulary = str(tmp_path / "words.txt")
    for source in (
        csv_file("id,note,label\n" + rows),
        parquet_file(id=["x", "y", "z"], note=texts, label=labels),
    ):
        given = {"classes": ["neg", "pos"], "text_column": "note", "length": 3}
        data = load(source, vocabulary=vocabulary, **given)
        assert (
            data.kind == "text" and data.token_ids == 4 and data.train.labels.tolist() == [1, 0, 0]
        )
        assert data.train.features.tolist() == [[3, 1, 3], [2, 0, 0], [0, 0, 0]]
        assert data.train.features.dtype == torch.int64
        assert any("vocabulary of 2 words" in sentence for sentence in data.treated_as_public)
        hashed = load(source, hash_buckets=50, **given)
        expected = [hashed_id(word, 50) for word in ("good", "film", "good")]
        assert hashed.token_ids == 51 and hashed.train.features[0].tolist() == expected
        assert any("50 ids" in sentence for sentence in hashed.treated_as_public)


def test_text_columns_that_cannot_be_read(csv_file, parquet_file):
    path = csv_file("note,label\nfine,0\nbad,1\n")
    with pytest.raises(DataError, match=r"column 'note' is not a number.*text_column"):
        load(path)
    with pytest.raises(DataError, match="text_column 'text' is not among"):
        load(path, text_column="text")
    with pytest.raises(DataError, match="both text and label"):
        load(path, text_column="label")
    with pytest.raises(DataError, match=r"vocabulary='words.txt': has no effect.*text_column"):
        load(path, vocabulary="words.txt")
    with pytest.raises(DataError, match=r"scale=.*has no effect"):
        load(path, text_column="note", scale=(0, 1))
    with pytest.raises(DataError, match="column 'note' has type int64"):
        load(parquet_file(note=[1, 2], label=[0, 1]), text_column="note")


@pytest.mark.parametrize(
    "scale",
    [[[0, 10], [-100, 100]], {"height": [-100, 100], "age": [0, 10]}],
    ids=["list", "names"],
)
def test_every_column_may_have_bounds_of_its_own(csv_file, scale):
    path = csv_file("age,label,height\n5,0,50\n20,1,-100\n")
    data = load(path, scale=scale)
    assert data.train.features.tolist() == [[0.0, 0.5], [1.0, -1.0]]
    said = next(text for text in data.treated_as_public if text.startswith("feature bounds"))
    assert "0 to 10" in said and "-100 to 100" in said


@pytest.mark.parametrize(
    ("scale", "reason"),
    [
        ([[0, 1]], "1 pairs, but .* has 2 feature columns .age, height."),
        ({"age": [0, 1]}, "no bounds for height"),
        ({"age": [0, 1], "height": [0, 1], "weight": [0, 1]}, "no feature column weight"),
        ({"age": [1, 0], "height": [0, 1]}, "for column 'age'"),
    ],
)
def test_bounds_must_fit_the_columns(csv_file, scale, reason):
    path = csv_file("age,label,height\n5,0,50\n20,1,-100\n")
    with pytest.raises(DataError, match=reason):
        load(path, scale=scale)


def test_scale_clips_and_maps(csv_file):
    path = csv_file("a,label\n0,0\n5,1\n10,0\n99,1\n-99,0\n")
    data = load(path, scale=(0, 10))
    assert data.train.features.flatten().tolist() == [-1, 0, 1, 1, -1]
    assert any("bounds 0 to 10" in sentence for sentence in data.treated_as_public)
    assert load(path).train.features.flatten().tolist() == [0, 5, 10, 99, -99]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "0 column"),
        ("a;label\n1;0\n", "1 column"),
        ("a,label\n", "no records"),
        ("a,a,label\n1,2,0\n", "same name"),
        (f"a,b,label\n1,2,0\n{SECRET},3\n", "row 2 .*2 cells.*has 3"),
        (f"a,b,label\n1,2,0\n1,x{SECRET},1\n", "row 2 .*column 'b' is not a number"),
        (f"a,label,b\n1,0,2\n{SECRET},1,\n", "row 2 .*column 'b' is empty"),
        (f"a,b,label\n{SECRET},2,0\n1,nan,1\n", "row 2 .*column 'b' is not a finite"),
        ("a,b,label\n1,2,0\n1,1e39,1\n", "row 2 .*column 'b' is not a finite"),
        (f"a,label\n1,0\n2,{SECRET}\n", "label in row 2 .*whole number"),
        ("a,label\n1,0\n2,yes\n", "label in row 2 .*though others are"),
        ("a,label\n1,yes\n2,\n", "label in row 2 .*empty"),
        ("a,label\n1,0\n2,0\n", "fewer than 2 classes"),
        ("a,label\n1,0\n2,-7\n", "fewer than 2 classes"),
        ("a,label\n1,0\n2,8675309\n", "more than 1000 classes"),
        (f'a,label\n1,"{SECRET}\n', "cannot be read"),
    ],
)
def test_faulty_csv_never_shows_values(csv_file, content, reason):
    path = csv_file(content)
    with pytest.raises(DataError, match=reason) as raised:
        load(path)
    message = str(raised.value)
    assert path in message
    assert "8675309" not in message
    assert raised.value.__cause__ is None


def test_csv_in_another_encoding(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_bytes("a,label\n1,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        load(str(path))


def test_faulty_parquet(parquet_file, tmp_path):
    for columns, reason in (
        ({"a": [1.0, None], "label": [0, 1]}, "row 2 .*'a' is missing"),
        ({"a": [1.0, float("nan")], "label": [0, 1]}, "row 2 .*'a' is not a finite"),
        ({"a": ["u", SECRET], "label": [0, 1]}, "column 'a' has type string"),
        ({"a": [1, 2], "label": [[0], [1]]}, "column 'label' has type list"),
        ({"a": [1, 2]}, "1 column"),
        ({"a": np.array([], np.float32), "label": np.array([], np.int64)}, "no records"),
    ):
        with pytest.raises(DataError, match=reason) as raised:
            load(parquet_file(**columns))
        assert SECRET not in str(raised.value)
    path = tmp_path / "mine.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        load(str(path))


def test_parquet_booleans(parquet_file):
    data = load(parquet_file(a=[True, False], label=[True, False]))
    assert data.train.features.tolist() == [[1], [0]] and data.train.labels.tolist() == [1, 0]
