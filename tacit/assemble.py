"""Puts a run together: the method with its sampler, clipping, noise and event; state and ledger.

Nothing about privacy is decided after this. Values are checked before data is touched.
"""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from tacit import native
from tacit.clipping.contract import LossFunction
from tacit.clipping.mini_sets import SetPass
from tacit.config import Recipe
from tacit.data.batches import Records, TensorRecords
from tacit.errors import ModelError, ReplayError, RunError
from tacit.fixed_state import check_state
from tacit.independence import (
    Independence,
    IndependenceGuard,
    Tier,
    check_resumed,
    independence_of,
)
from tacit.losses import blank_record, cross_entropy
from tacit.method_sections import SanitizationRecipe
from tacit.methods.base import Method, Promise
from tacit.methods.build import build, clipping_sentence, numerics_of
from tacit.methods.parts import Parts, step_count
from tacit.models import batch_norm, validate
from tacit.models.sanitization import SanitizationLayer
from tacit.noise.rounding import SAMPLER
from tacit.noise.source import RandomSource
from tacit.noise.sums import SumLog
from tacit.privacy import events
from tacit.privacy.ledger import Ledger
from tacit.privacy.relations import PUBLIC_LABELS, Relation
from tacit.rundir import RunDir
from tacit.state import TrainingState
from tacit.steps import Steps
from tacit.updates import private_optimizer, weight_average

EXACT_TIME = (
    "how long the run, or a part of it, took: files round it up coarsely, for exact times follow"
    " the private sizes of batches; do not publish logs or time stamps that show them"
)
OTHER_RUNS = "other runs and releases on the same records: what each of them gives away adds up"


@dataclass(frozen=True)
class Facts:
    """What the certificate and the report must say about the data and its preparation."""

    treated_as_public: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    evaluated_on: str = ""
    class_names: tuple[str, ...] = ()


def assemble(
    model: nn.Module,
    records: Records,
    recipe: Recipe,
    run: RunDir,
    facts: Facts,
    *,
    public: Records | None = None,
    loss: LossFunction = cross_entropy,
    optimizer: torch.optim.Optimizer | None = None,
    resume: bool = False,
    repeatable: bool = True,
    renew: bool = False,
    set_pass: SetPass | None = None,
    own_loop: bool = False,
) -> Steps:
    """Steps that are ready to go, on a new ledger or on the one that is there.

    `public` holds records that get no guarantee, to estimate on. `repeatable` says that the loss,
    and whatever else shapes a step outside the recipe, is the library's own, so that a resumed run
    may repeat its steps; a `set_pass` of the user's own is not. `renew` resumes under a new key,
    because a step could not be repeated. `own_loop` says that batches pass through a loop of the
    user's own.
    """
    steps = step_count(recipe, len(records))
    _check_model(model, records, recipe)
    independence = independence_of(
        model, records, recipe, own_inputs=repeatable and set_pass is None, own_loop=own_loop
    )
    guard = IndependenceGuard(model, records, recipe, independence, set_pass, own_loop)
    own_inputs = (
        repeatable and optimizer is None and set_pass is None and isinstance(records, TensorRecords)
    )
    bits = _bits(model, records, public) if own_inputs and recipe.run.deterministic else None
    ledger = _opened_ledger(recipe, run) if resume else None
    if ledger is not None:
        check_resumed(run.path, ledger.entries, independence)
    source, generation, replay = _source(recipe, run, bits, ledger, renew)
    memory: dict[str, Tensor] = {}
    own = private_optimizer(recipe, model, steps, memory, optimizer)
    state = TrainingState(model, own, weight_average(recipe, model), memory=memory)
    parts = Parts(
        recipe,
        model,
        records,
        own,
        source,
        state.memory,
        public,
        loss,
        ledger.entries[0].body if ledger else None,
        set_pass,
        own_loop=own_loop,
        known_layers=independence is not None and independence.by_layers,
    )
    method = build(parts)
    if ledger is None:
        run.write(run.recipe, recipe.as_toml().encode())
        run.save_key(source, generation, bits)
        header = header_of(
            recipe, method, records, source, with_public(facts, public), independence
        )
        book = Ledger.create(run.ledger, header)
        state.history["ledger_head"] = book.head
        run.save_checkpoint(state.snapshot())
        return Steps(method, state, book, source, generation, guard)
    _restore(run, state, ledger)
    ledger.append(
        "resume",
        {
            "step": state.step,
            "generation": generation,
            "replay": replay,
            "key": source.fingerprint,
        },
    )
    return Steps(method, state, ledger, source, generation, guard)


def described(
    model: nn.Module, records: Records, recipe: Recipe, public: Records | None = None
) -> Method:
    """The method of a recipe as a run would have it, to ask what it would promise and charge."""
    steps = step_count(recipe, len(records))
    _check_model(model, records, recipe)
    memory: dict[str, Tensor] = {}
    own = private_optimizer(recipe, model, steps, memory, None)
    source = RandomSource.from_seed(0)
    return build(Parts(recipe, model, records, own, source, memory, public))


def _check_model(model: nn.Module, records: Records, recipe: Recipe) -> None:
    """Refuse a model that the method's proof does not cover; BatchNorm keeps no buffers."""
    across = recipe.method.layers_across_records(recipe.training.batch_size)
    if across != "free" and not isinstance(recipe.method, SanitizationRecipe):
        _refuse_sanitization(model, recipe)
    if across == "sealed":
        batch_norm.seal(model)
    if across != "free":
        like = blank_record(records)[0]
        validate.check(model, like, whole_sets=across == "sealed")
        check_state(model)


def _refuse_sanitization(model: nn.Module, recipe: Recipe) -> None:
    for name, module in model.named_modules():
        if isinstance(module, SanitizationLayer):
            raise ModelError(
                f"{name}: a SanitizationLayer adds noise of its own in training, which method"
                f" {recipe.method.name!r} has no use for and does not account for; use method"
                " 'sanitization', or a model without the layer"
            )


def with_public(facts: Facts, public: Records | None) -> Facts:
    if public is None:
        return facts
    said = (
        f"{len(public):,} records that are treated as public: thresholds, statistics or an"
        " accuracy that steers training are taken from them without noise"
    )
    return replace(facts, not_covered=(*facts.not_covered, said))


def _opened_ledger(recipe: Recipe, run: RunDir) -> Ledger:
    ledger = Ledger.resume(run.ledger)
    if ledger.entries[0].body["recipe_digest"] != recipe.digest():
        raise RunError(
            f"{run.path}: the recipe differs from the one the run was started with; resume with"
            " the recipe.toml that lies there, or start a new run elsewhere"
        )
    return ledger


def _source(
    recipe: Recipe, run: RunDir, bits: dict[str, Any] | None, ledger: Ledger | None, renew: bool
) -> tuple[RandomSource, int, bool]:
    """The random source with its log, its generation, and whether charged steps may be repeated.

    Where something that decides the bits of a step is known to have changed, or is not known
    (`bits` is None), a new key is drawn and every further step is charged, the lost ones again.
    Otherwise the log decides, sum by sum. A new key is saved before the ledger names it; one that
    the ledger does not name has noised nothing, and is replaced.
    """
    if ledger is None:
        seed = recipe.run.seed
        source = RandomSource.from_entropy() if seed is None else RandomSource.from_seed(seed)
        source.log = _new_log(run, bits, 0)
        return source, 0, False
    source, generation, written = run.load_key()
    named = _named_generation(run, ledger, source, generation)
    if generation == named and not renew and bits is not None and bits == written:
        with contextlib.suppress(ReplayError):
            source.log = SumLog(run.sum_log(generation), replayed=True)
            return source, generation, True
    if recipe.method.correlated:
        raise RunError(
            f"{run.path}: noise is correlated over the steps, so the run can only go on where it"
            " repeats itself bit for bit. The records, the model or its code, the loss, the"
            " versions, the number of threads or the machine differ from those it was started with;"
            " or the log of its noised sums is damaged, or an earlier version wrote none. What it"
            " spent stays in its ledger"
        )
    generation = named + 1
    source = source.renewed(generation)
    source.log = _new_log(run, bits, generation)
    run.save_key(source, generation, bits)
    return source, generation, False


def _new_log(run: RunDir, bits: dict[str, Any] | None, generation: int) -> SumLog:
    """An empty log, on disk only if the run may be repeated."""
    return SumLog() if bits is None else SumLog(run.sum_log(generation))


def _named_generation(run: RunDir, ledger: Ledger, source: RandomSource, generation: int) -> int:
    """The generation of the last key that the ledger names; the stored key must be it or the next.

    It is the next one after a crash between the key and the ledger's resume line.
    """
    last = [entry.body for entry in ledger.entries if "key" in entry.body][-1]
    named = int(last.get("generation", 0))
    if generation != named + 1 and (generation, source.fingerprint) != (named, last["key"]):
        raise RunError(f"{run.private}: the key is not the one the ledger was written with")
    return named


def _bits(model: nn.Module, records: Records, public: Records | None) -> dict[str, Any]:
    """What decides the bits of a step outside the recipe, as far as it is known beforehand.

    A difference means a new key without looking at any sum, so that this decision does not depend
    on the records. What is missing here, such as the code of the model, the log of noised sums
    finds.
    """
    return {
        "records": records.fingerprint(),
        "public": public.fingerprint() if public is not None else None,
        "model": str(model),
        "trained": [name for name, p in model.named_parameters() if p.requires_grad],
        "numpy": version("numpy"),
        "tacit": version("tacit"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "kernels": f"{kernels.name} {kernels.build}" if (kernels := native.active()) else "none",
        "sampler": SAMPLER,
    }


def _restore(run: RunDir, state: TrainingState, ledger: Ledger) -> None:
    snapshot = run.load_checkpoint()
    if snapshot is None:
        if any(entry.kind == "charge" for entry in ledger.entries):
            raise RunError(
                f"{run.private}: the checkpoints are gone, so the run cannot go on. What it spent"
                " stays in its ledger"
            )
        return
    state.restore(snapshot)
    if state.history.pop("ledger_head") not in {entry.hash for entry in ledger.entries}:
        raise RunError(
            f"{run.path}: the ledger is older than the checkpoint; charges were removed, so the"
            " run cannot be certified"
        )


def _public_labels(promise: Promise) -> tuple[str, ...]:
    said = any(PUBLIC_LABELS in each for each in promise.public)
    return () if said or promise.relation is not Relation.REPLACE_FEATURES else (PUBLIC_LABELS,)


def header_of(
    recipe: Recipe,
    method: Method,
    records: Records,
    source: RandomSource,
    facts: Facts,
    independence: Independence | None = None,
) -> dict[str, Any]:
    """The ledger's first entry: everything that the certificate will say."""
    privacy, promise = recipe.privacy, method.promise
    claim = method.claim(privacy.delta)
    warnings = list(promise.warnings)
    if privacy.delta >= 1 / len(records):
        warnings.append(
            f"delta is {privacy.delta:g}, at least one over the number of records: it permits"
            " giving away a whole record; choose it well below"
        )
    if independence is not None and independence.tier is Tier.ASSUMED:
        warnings.append(f"independence of records is {independence}")
    if source.repeatable:
        warnings.append(
            f"randomness came from {source.origin}: whoever knows it can subtract the noise. Train"
            " without a seed before releasing anything"
        )
    return {
        "title": recipe.title or f"{recipe.model.name} on {recipe.data.name}",
        **promise.as_json(),
        "independence": str(independence) if independence else None,
        "clipping": clipping_sentence(recipe),
        "numerics": numerics_of(method),
        "delta": privacy.delta,
        "budget": privacy.epsilon if recipe.method.budgeted else None,
        "planned": events.to_json(method.planned()),
        "claimed": claim.as_json() if claim else None,
        "treated_as_public": [
            f"the number of training records, {len(records)}",
            "the recipe, the model's architecture and initial weights",
            *_public_labels(promise),
            *promise.public,
            *facts.treated_as_public,
        ],
        "not_covered": [*facts.not_covered, EXACT_TIME, OTHER_RUNS],
        "tuning": privacy.tuned_on or "not covered: no search over settings is counted here",
        "randomness": f"ChaCha20 keyed by {source.origin}; noise by {SAMPLER}",
        "key": source.fingerprint,
        "warnings": warnings,
        "versions": {"tacit": version("tacit"), "torch": torch.__version__}
        | {name: version(name) for name in ("dp-accounting", "numpy", "scipy")}
        | {"python": platform.python_version()},
        "recipe_digest": recipe.digest(),
    }
