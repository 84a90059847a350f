"""Models for attacks on trained models: trained as the recipe says, kept as what they show."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from dp_accounting import DpEvent
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacit.audit.pool import Pool, coins, drawn_pool, is_member, released_pool
from tacit.audit.protocol import claimed_epsilon
from tacit.audit.scores import Coins
from tacit.audit.signals import Signals
from tacit.clipping.contract import Batch
from tacit.config import Recipe
from tacit.errors import RunError
from tacit.loop import fit
from tacit.method_sections import SanitizationRecipe
from tacit.privacy import events, ledger
from tacit.privacy.relations import Relation
from tacit.progress import Watcher
from tacit.rundir import RunDir
from tacit.train import Prepared, prepare

_BATCH = 64  # gradients of so many records are held at once
_LAST_TENSORS = 4  # weights and biases of the last two layers


@dataclass(frozen=True)
class Shown:
    """What a model shows of a pool, which of its records it was trained on, and at what charge."""

    signals: Signals
    heads: Coins
    event: DpEvent
    claimed: float | None


@dataclass(frozen=True)
class PoolOf:
    """Which pool: drawn from a recipe's training records, or the pairs of a released run."""

    recipe: Recipe
    pairs: int | None
    seed: int
    run: Path | None = None

    @property
    def relation(self) -> Relation:
        """What a coin changes: one record by another of its class, so features alone where the
        method promises no more than that."""
        features, chosen = Relation.REPLACE_FEATURES, self.recipe.privacy.relation
        by_default = chosen is None and isinstance(self.recipe.method, SanitizationRecipe)
        return features if by_default or chosen is features else Relation.REPLACE_ONE

    def digest(self) -> str:
        """Names everything that decides the pool and the models on it."""
        released = RunDir(self.run).weights_hash() if self.run else ""
        said = f"{version('tacit')} {self.recipe.digest()} {self.pairs} {self.seed} {released}"
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def load(self, data_dir: Path | None) -> tuple[Prepared, Pool, Coins | None]:
        """The pool, with the coins of the released run if it is about one."""
        ready = prepare(self.recipe, data_dir)
        if self.run is None:
            return ready, drawn_pool(ready, self.pairs, self.seed), None
        return ready, *released_pool(ready, self.pairs, self.seed)


@dataclass(frozen=True)
class Model:
    """A model of its own number: number 0 is the released one where there is a run."""

    pool: PoolOf
    number: int
    cache: Path

    @property
    def name(self) -> str:
        return f"model {self.number}"

    @property
    def kind(self) -> str:
        return "released" if self._released else "trained"

    @property
    def _released(self) -> bool:
        return self.pool.run is not None and self.number == 0

    @property
    def path(self) -> Path:
        return self.cache / f"model-{self.number}-{self.pool.digest()}.npz"

    @property
    def finished(self) -> bool:
        return self.path.is_file()

    def do(self, data_dir: Path | None, watcher: Watcher) -> None:
        """Train the model, or take the released one; keep what it shows.

        Shadow models of a run see fewer records than the run did, in batches smaller by the same
        share.
        """
        ready, pool, heads = self.pool.load(data_dir)
        if self.pool.run is not None and heads is not None and self._released:
            model, run = ready.network(0), RunDir.open(self.pool.run)
            _load(model, run)
        else:
            heads = coins(self.pool.seed, self.number + 1, pool.pairs)
            model, run = self._trained(ready, pool, heads, watcher)
        entries = ledger.read(run.ledger)
        claimed = claimed_epsilon(entries[0].body, self.pool.relation)
        event = events.counted(events.leaves(ledger.spent(entries)))
        shown = Shown(signals_of(model, pool), heads, event, claimed)
        _keep(self.path, shown)

    def _trained(
        self, ready: Prepared, pool: Pool, heads: Coins, watcher: Watcher
    ) -> tuple[nn.Module, RunDir]:
        seed = int(np.random.default_rng([self.pool.seed, 6, self.number]).integers(2**62))
        recipe = ready.recipe.with_settings(seed=seed)
        if self.pool.run is not None:
            size = recipe.training.batch_size * pool.pairs / len(ready.train)
            recipe = recipe.with_settings(batch_size=max(1, round(size)))
        out = self.cache / "runs" / self.path.stem
        model = ready.network(seed)
        resume = RunDir(out).ledger.exists()
        if resume and RunDir(out).finished:
            _load(model, RunDir(out))
        else:
            train = pool.records(np.flatnonzero(is_member(heads)))
            fit(model, train, recipe=recipe, out=out, resume=resume, watcher=watcher)
        return model, RunDir.open(out)

    def shown(self) -> Shown:
        """What `do` kept."""
        return _kept(self.path)


def _load(model: nn.Module, run: RunDir) -> None:
    from safetensors.torch import load

    model.load_state_dict(load(run.weights.read_bytes()))


def signals_of(model: nn.Module, pool: Pool) -> Signals:
    """Outputs and last gradients for every record of the pool."""
    model.eval()
    records = pool.records()
    named = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    last = dict(list(named.items())[-_LAST_TENSORS:])

    def record_loss(parameters: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(model, parameters, (features.unsqueeze(0),))
        return F.cross_entropy(scores, label.unsqueeze(0))

    per_record = vmap(grad(record_loss), in_dims=(None, 0, 0))
    logits, norms = [], []
    for start in range(0, len(records), _BATCH):
        places = torch.arange(start, min(start + _BATCH, len(records)))
        batch: Batch = records.batch(places)
        with torch.no_grad():
            logits.append(model(batch[0]))
        found = per_record(last, *batch)
        norms.append(torch.stack([found[name].flatten(1).norm(dim=1) for name in last], dim=1))
    return Signals(
        torch.cat(logits).numpy(), torch.cat(norms).detach().numpy(), pool.labels.numpy()
    )


def _keep(path: Path, shown: Shown) -> None:
    facts = {"event": events.to_json(shown.event), "claimed": shown.claimed}
    file, signals = io.BytesIO(), shown.signals
    np.savez_compressed(
        file,
        logits=signals.logits,
        gradients=signals.gradients,
        labels=signals.labels,
        heads=shown.heads,
        facts=json.dumps(facts),
    )
    RunDir(path.parent).write(path, file.getvalue(), mode=0o600)


def _kept(path: Path) -> Shown:
    try:
        with np.load(path, allow_pickle=False) as file:
            signals = Signals(file["logits"], file["gradients"], file["labels"])
            facts = json.loads(str(file["facts"]))
            return Shown(signals, file["heads"], events.from_json(facts["event"]), facts["claimed"])
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path}: cannot be read ({error}); remove it, it is made again") from error
