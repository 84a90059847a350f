"""Sanitized datasets: the data owner releases noised vectors once, others train on them."""

from __future__ import annotations

import io
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit import config
from tacit.assemble import Facts, assemble
from tacit.config import Recipe
from tacit.data.batches import TensorRecords
from tacit.data.published import DATASETS
from tacit.errors import ArgumentError
from tacit.journal import Journal
from tacit.loop import directory, finish, new_run_path, started
from tacit.losses import cross_entropy
from tacit.method_sections import SanitizationRecipe
from tacit.models.sanitization import Split
from tacit.progress import Silent
from tacit.train import Prepared, prepare

_ROWS = 2048


@dataclass(frozen=True)
class Sanitized:
    """A released dataset and the certificate that goes with it."""

    path: Path
    data: Path
    certificate: dict[str, Any]
    records: int
    width: int
    classes: int


def recipe_for(what: str, overrides: dict[str, str] | None = None) -> Recipe:
    """How a dataset is sanitized: images by patches of generated images, unless told otherwise."""
    if what not in DATASETS and not Path(what).exists():
        raise ArgumentError(
            f"{what!r} is neither a dataset ({', '.join(DATASETS)}) nor a file or folder"
        )
    method = {"name": "sanitization", "guarantee": "one-time", "range": "ball"}
    values: dict[str, Any] = {"data": {"name": what}, "method": method}
    known = DATASETS.get(what)
    if known is not None and known.kind == "image":
        values["model"] = {"name": "patches"}
        values["method"]["encoder"] = "patches"
    return config.from_values(values, overrides)


def sanitize(
    recipe: Recipe,
    *,
    data_dir: Path | None = None,
    out: Path | None = None,
    with_test: bool = False,
) -> Sanitized:
    """Release one noised vector for every training record, with its label.

    Guarantee: what the run directory holds of the training records is one Gaussian release under
    replace-features; training on the vectors, by anyone and for ever, costs nothing more. The test
    records of a published dataset are written as the encoder sees them, without noise; those of
    one's own only `with_test`. The certificate names them as not covered. Records that were set
    aside from the training records (`holdout`, `test_fraction`) are never written.
    """
    method = recipe.method
    if not isinstance(method, SanitizationRecipe) or method.guarantee != "one-time":
        raise ArgumentError(
            "only method 'sanitization' with guarantee 'one-time' releases a dataset; the others"
            " release weights or sums"
        )
    ready = prepare(recipe, data_dir)
    records = len(ready.train)
    once = ready.recipe.with_settings(epochs=1, batch_size=records)
    seed = secrets.randbits(63) if once.run.seed is None else once.run.seed
    model = ready.network(seed)
    tested = _written_tests(ready, with_test)
    facts = _and_tests(ready.facts) if tested else ready.facts
    run = directory(out or new_run_path(f"{Path(recipe.data.name).stem}-sanitized"), False)
    with started(run, False):
        steps = assemble(model, ready.train, once, run, facts)
    steps.advance(cross_entropy)
    vectors, labels = steps.state.memory["vectors"], steps.state.memory["labels"]
    arrays = {"x": vectors.numpy(), "y": labels.numpy()}
    if tested is not None:
        seen, known = _as_seen(Split(model), tested)
        arrays |= {"x_test": seen.numpy(), "y_test": known.numpy()}
    digest = run.save_export(_archive(arrays))
    steps.ledger.append("export", {"file": run.export.name, "sha256": digest})
    journal = Journal(steps, once, records, ready.tested, cross_entropy, Silent())
    result = finish(steps, journal.metrics(facts), run)
    width, classes = vectors.shape[1], ready.data.classes
    return Sanitized(run.path, run.export, result.certificate, records, width, classes)


def _written_tests(ready: Prepared, asked: bool) -> TensorRecords | None:
    """Test records that are published already, or that the user wants to publish."""
    data = ready.recipe.data
    aside = data.holdout or data.options.get("test_fraction")
    if asked and (ready.tested is None or aside):
        raise ArgumentError(
            "with_test is set, but there is no test set of its own: records set aside from the"
            " training records are never written without noise; leave with_test out, or add x_test"
            " and y_test to the file"
        )
    return ready.tested if not aside and (asked or ready.data.published) else None


def _and_tests(facts: Facts) -> Facts:
    said = "the test records, which lie in sanitized.npz as the encoder sees them, without noise"
    return replace(facts, not_covered=(*facts.not_covered, said))


def _as_seen(split: Split, records: TensorRecords) -> tuple[Tensor, Tensor]:
    """Public records as a head meets them in evaluation."""
    found = []
    for part in (*split.encoder, split.layer):
        part.eval()
    with torch.no_grad():
        for indices in torch.arange(len(records)).split(_ROWS):
            found.append(split.layer(split.activations(records.batch(indices)[0])))
    return torch.cat(found), records.labels


def _archive(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()
