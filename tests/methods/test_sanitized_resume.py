"""A run that releases once and is cut short: what is lost is not released a second time."""

from pathlib import Path

import pytest
import torch.nn.functional as F
from sanitized_runs import RECORDS, dataset, network, recipe
from torch import Tensor, nn

import tacit
from tacit.assemble import Facts, assemble
from tacit.clipping.contract import Batch
from tacit.config import Recipe
from tacit.errors import BudgetError
from tacit.privacy import ledger
from tacit.rundir import RunDir
from tacit.steps import Steps

HEAD_BATCH = 30


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """A loss that the library does not know, so that no step can be repeated exactly."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def opened(run: RunDir, chosen: Recipe, *, resume: bool) -> Steps:
    more = {"loss": own_loss, "repeatable": False, "resume": resume}
    return assemble(network(), dataset(0.0), chosen, run, Facts(), **more)


@pytest.mark.parametrize(
    ("guarantee", "head"),
    [("one-time", "trained"), ("one-time", "prototypes"), ("class-sums", "ridge")],
)
def test_a_lost_release_is_not_made_again_with_other_noise(
    tmp_path: Path, guarantee: str, head: str
) -> None:
    chosen = recipe(guarantee, head=head)
    run = RunDir.create(tmp_path / "run")
    opened(run, chosen, resume=False).advance(own_loss)
    again = opened(RunDir.open(run.path), chosen, resume=True)
    with pytest.raises(BudgetError, match="start a new run"):
        _ = again.remaining
    with pytest.raises(BudgetError, match="start a new run"):
        again.advance(own_loss)
    assert [e.kind for e in ledger.read(run.ledger)] == ["promise", "charge", "resume"]


def test_a_release_is_saved_before_the_next_step(tmp_path: Path) -> None:
    calls = 0

    def killed(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal calls
        calls += len(batch[0]) == HEAD_BATCH
        if calls == 2:
            raise RuntimeError("killed in step 1")
        return own_loss(model, batch)

    path, chosen = tmp_path / "run", recipe("one-time")
    with pytest.raises(RuntimeError, match="killed"):
        tacit.fit(network(), dataset(0.0), recipe=chosen, loss=killed, out=path)
    run = tacit.fit(network(), dataset(0.0), recipe=chosen, loss=own_loss, out=path, resume=True)
    assert run.certificate["charges"] == RECORDS // HEAD_BATCH * 2
    assert run.epsilon == pytest.approx(4.3772, abs=1e-4)
    charged = [e.body for e in ledger.read(path / "ledger.jsonl") if e.kind == "charge"]
    assert [c["step"] for c in charged if "visible" in c["event"]] == [0]
