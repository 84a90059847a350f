"""`tacit sanitize`: released vectors, their certificate, and what others do with them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.assemble import Facts, assemble
from tacit.audit.attacks import Settings
from tacit.audit.run import audit
from tacit.audit.verdict import Status
from tacit.cli import app
from tacit.config import Recipe, from_values
from tacit.data import tables
from tacit.data.datasets import DataOptions, load
from tacit.data.released import release_of
from tacit.errors import ArgumentError, DataError, LedgerError, RunError
from tacit.export import recipe_for, sanitize
from tacit.losses import cross_entropy
from tacit.privacy.certificate import issue
from tacit.privacy.ledger import Ledger
from tacit.privacy.relations import Relation
from tacit.progress import Silent
from tacit.rundir import RunDir
from tacit.steps import Steps
from tacit.train import prepare, train
from tacit.train import recipe_for as train_recipe
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
    release, trained = (check(path).certificate for path in (out, tmp_path / "run"))
    assert trained["guarantee"] == release["guarantee"] and trained["proven"] == release["proven"]
    assert trained["variant"].endswith(release["ledger_head"]) and trained["budget"] is None
    with pytest.raises(ArgumentError, match=f"audit {out}"):
        audit(str(tmp_path / "run"), out=tmp_path / "audit")


def test_a_guarantee_carries_over_only_to_the_very_vectors_that_were_released(
    tmp_path: Path,
) -> None:
    recipe = recipe_for("digits", {"model.name": "mlp", "method.encoder": "given"})
    released = sanitize(recipe, out=tmp_path / "release").data
    found = release_of(released)
    assert found is not None and found.relation is Relation.REPLACE_FEATURES
    elsewhere = Path(shutil.copy(released, tmp_path))
    assert release_of(elsewhere) is None
    other = Path(shutil.copy(released, released.with_name("other.npz")))
    assert release_of(other) is None
    with released.open("ab") as file:
        file.write(b" ")
    with pytest.raises(DataError, match="names other contents"):
        release_of(released)


def test_what_is_trained_on_is_what_was_compared_with_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_for("digits", {"model.name": "mlp", "method.encoder": "given"})
    path = sanitize(recipe, out=tmp_path / "release").data
    released, original = path.read_bytes(), tables.read_npz

    def put_back(*arguments: Any) -> Any:
        found = original(*arguments)
        path.write_bytes(released)
        return found

    monkeypatch.setattr(tables, "read_npz", put_back)
    np.savez(path, x=np.zeros((20, 3)), y=np.arange(20) % 10)
    with pytest.raises(DataError, match="names other contents"):
        load(str(path), options=DataOptions(classes=10))


def test_steps_after_the_first_cost_nothing_on_released_vectors(tmp_path: Path) -> None:
    recipe = recipe_for("digits", {"model.name": "mlp", "method.encoder": "given"})
    released = sanitize(recipe, out=tmp_path / "release")
    plain = {"method.name": "plain", "model.name": "linear", "data.options.classes": "10"}
    for epochs in ("1", "3"):
        trained = train(
            train_recipe(str(released.data), {**plain, "training.epochs": epochs}),
            out=tmp_path / epochs,
        )
        assert trained.certificate["guarantee"] == released.certificate["guarantee"]
    raw = train(train_recipe("digits", {"method.name": "plain"}), out=tmp_path / "raw")
    assert raw.certificate["guarantee"] is None


def test_a_run_never_goes_on_with_another_release(tmp_path: Path) -> None:
    class Stop(Silent):
        def show(self, moment: object) -> None:
            raise KeyboardInterrupt

    chosen = {"model.name": "mlp", "method.encoder": "given"}
    for name, epsilon in (("here", "1"), ("weaker", "50")):
        sanitize(recipe_for("digits", {**chosen, "privacy.epsilon": epsilon}), out=tmp_path / name)
    plain = {"method.name": "plain", "model.name": "linear", "data.options.classes": "10"}
    recipe = train_recipe(str(tmp_path / "here" / "sanitized.npz"), plain)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, out=tmp_path / "run", watcher=Stop())
    (tmp_path / "here").rename(tmp_path / "first")
    (tmp_path / "weaker").rename(tmp_path / "here")
    with pytest.raises(RunError, match="not of the release"):
        train(recipe, out=tmp_path / "run", resume=True)


def test_a_first_step_that_is_repeated_does_not_pay_for_the_release_again(tmp_path: Path) -> None:
    recipe = recipe_for("digits", {"model.name": "mlp", "method.encoder": "given"})
    released = sanitize(recipe, out=tmp_path / "release")
    plain = {"method.name": "plain", "model.name": "linear", "data.options.classes": "10"}
    ready = prepare(train_recipe(str(released.data), plain))

    def opened(run: RunDir, resume: bool) -> Steps:
        more = {"repeatable": False, "resume": resume}
        return assemble(ready.network(0), ready.train, ready.recipe, run, Facts(), **more)

    opened(RunDir.create(tmp_path / "run"), False).advance(cross_entropy)
    again = opened(RunDir.open(tmp_path / "run"), True)
    again.advance(cross_entropy)
    charges = [e.body for e in again.ledger.entries if e.kind == "charge"]
    assert [(c["step"], c["generation"]) for c in charges] == [(0, 0), (0, 1)]
    trained = issue(again.ledger.entries)
    assert trained["guarantee"]["epsilon"] == released.certificate["guarantee"]["epsilon"]
    assert trained["spent_by_now"]["epsilon"] == released.certificate["guarantee"]["epsilon"]


def test_what_a_release_warns_of_is_said_by_whoever_trains_on_it(tmp_path: Path) -> None:
    chosen = {"model.name": "mlp", "method.encoder": "given", "run.seed": "1"}
    released = sanitize(recipe_for("digits", chosen), out=tmp_path / "release")
    plain = {"method.name": "plain", "model.name": "linear", "data.options.classes": "10"}
    trained = train(train_recipe(str(released.data), plain), out=tmp_path / "run").certificate
    assert any("seed 1" in warning for warning in trained["warnings"])
    assert any("every record's label" in said for said in trained["treated_as_public"])


def test_an_audited_release_is_still_a_release(tmp_path: Path) -> None:
    recipe = recipe_for("digits", {"model.name": "mlp", "method.encoder": "given"})
    released = sanitize(recipe, out=tmp_path / "release")
    book = Ledger.resume(released.path / "ledger.jsonl")
    book.append("audit", {"on_training_records": False})
    book.close()
    assert release_of(released.data) is not None


def test_records_set_aside_from_training_are_not_written_without_noise(tmp_path: Path) -> None:
    chosen = {"model.name": "mlp", "method.encoder": "given", "data.holdout": "200"}
    released = sanitize(recipe_for("digits", chosen), out=tmp_path / "release")
    assert set(np.load(released.data)) == {"x", "y"}


def own_file(path: Path, records: int = 60) -> Recipe:
    draw = np.random.default_rng(0)
    arrays = {"x": draw.normal(size=(records, 5)), "y": np.arange(records) % 2}
    arrays |= {"x_test": draw.normal(size=(20, 5)), "y_test": np.arange(20) % 2}
    np.savez(path, **{key: a.astype("f4" if a.ndim == 2 else "i8") for key, a in arrays.items()})
    return recipe_for(str(path), {"data.options.classes": "2"})


def test_test_records_of_ones_own_are_written_only_when_asked_for(tmp_path: Path) -> None:
    recipe = own_file(tmp_path / "own.npz")
    said = "without noise"
    kept = sanitize(recipe, out=tmp_path / "kept")
    assert set(np.load(kept.data)) == {"x", "y"}
    assert not any(said in each for each in kept.certificate["not_covered"])
    assert any("other runs and releases" in each for each in kept.certificate["not_covered"])
    given = sanitize(recipe, out=tmp_path / "given", with_test=True)
    assert np.load(given.data)["x_test"].shape == (20, given.width)
    assert any(said in each for each in given.certificate["not_covered"])
    digits = recipe_for("digits", {"model.name": "mlp", "method.encoder": "given"})
    published = sanitize(digits, out=tmp_path / "published")
    assert "x_test" in np.load(published.data)
    assert any(said in each for each in published.certificate["not_covered"])
    aside = recipe.model_copy(update={"data": recipe.data.model_copy(update={"holdout": 10})})
    with pytest.raises(ArgumentError, match="with_test"):
        sanitize(aside, out=tmp_path / "aside", with_test=True)


def test_batches_play_no_part_in_a_release(tmp_path: Path) -> None:
    recipe = own_file(tmp_path / "own.npz", records=60)
    assert recipe.training.batch_size > 60
    released = sanitize(recipe, out=tmp_path / "release")
    assert released.records == 60 and released.certificate["steps"] == 1


def test_a_model_of_patches_that_is_asked_for_by_name_is_filled(tmp_path: Path) -> None:
    command = ["sanitize", "digits", "--out", str(tmp_path / "run"), "--model", "patches"]
    done = CliRunner().invoke(app, [*command, "--noise", "0.001"])
    assert done.exit_code == 0, done.output
    vectors = np.load(tmp_path / "run" / "sanitized.npz")["x"]
    assert np.linalg.norm(vectors, axis=1).mean() == pytest.approx(1.0, abs=0.3)


def test_an_audit_of_a_release_is_held_against_what_it_proves(tmp_path: Path) -> None:
    chosen = {"privacy.epsilon": "2", "method.head": "prototypes"}
    released = sanitize(recipe_for("digits", chosen), out=tmp_path / "release")
    done = audit(str(released.path), settings=Settings(pairs=60), out=tmp_path / "audit")
    finding = done.worst
    assert finding.attack == "loss-threshold" and finding.relation == "replace-features"
    assert finding.proven == pytest.approx(released.certificate["guarantee"]["epsilon"], abs=1e-3)
    assert finding.status is Status.CONSISTENT and finding.highest_auc < 1
