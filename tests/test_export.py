"""`tacit sanitize`: released vectors, their certificate, and what others do with them."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli import app
from tacit.config import from_values
from tacit.errors import ArgumentError, LedgerError
from tacit.export import sanitize
from tacit.verify import check


def test_vectors_are_released_with_a_certificate_and_can_be_trained_on(tmp_path: Path) -> None:
    out = tmp_path / "release"
    command = ["sanitize", "digits", "--out", str(out), "--epsilon", "8", "--seed", "1", "--json"]
    found = json.loads(CliRunner().invoke(app, [*command, "--model", "mlp"]).stdout)
    certificate = found["certificate"]
    assert certificate["guarantee"]["relation"] == "replace-features"
    assert certificate["guarantee"]["epsilon"] <= 8 and certificate["charges"] == 1
    assert certificate["released"][0].startswith("one noised vector for every record")
    arrays = np.load(out / "sanitized.npz")
    assert arrays["x"].shape == (found["records"], found["width"]) == (1438, 128)
    spread = arrays["x"].std()
    assert spread == pytest.approx(certificate["noise_multiplier"], rel=0.02)
    assert np.linalg.norm(arrays["x_test"], axis=1).max() <= 1 + 1e-5
    assert not (out / "private").exists()
    assert "the sanitized vectors are the ones the ledger names" in check(out).checked
    np.savez(out / "sanitized.npz", x=arrays["x"] + 1, y=arrays["y"])
    with pytest.raises(LedgerError, match="sanitized"):
        check(out)


def test_only_a_release_of_vectors_makes_a_dataset(tmp_path: Path) -> None:
    values = {"data": {"name": "digits"}, "method": {"name": "sanitization"}}
    values["method"]["guarantee"] = "class-sums"
    with pytest.raises(ArgumentError, match="one-time"):
        sanitize(from_values(values), out=tmp_path / "run")


def test_the_command_that_is_shown_trains_on_the_release(tmp_path: Path) -> None:
    out = tmp_path / "release"
    command = ["sanitize", "digits", "--out", str(out), "--epsilon", "8", "--model", "mlp"]
    shown = CliRunner().invoke(app, command).stdout
    line = shown.split("train on it:  tacit ")[1].split("\n")[0].split()
    short = ["--out", str(tmp_path / "run"), "--epochs", "1"]
    done = CliRunner().invoke(app, [*line, *short])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "weights.safetensors").exists()
