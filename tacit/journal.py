"""The public record of a run: evaluations and ε spent; what reports and progress bars read."""

from __future__ import annotations

import math
import time
from typing import Any

from tacit.assemble import Facts
from tacit.clipping.contract import LossFunction
from tacit.config import Recipe
from tacit.data.batches import Records
from tacit.evaluate import Evaluation, evaluate
from tacit.optim import weights_swapped
from tacit.privacy import accountants, elementary, events
from tacit.privacy.certificate import round_up
from tacit.progress import Moment, Watcher
from tacit.steps import Steps

_CURVE_POINTS = 24
_SHOWS_PER_SECOND = 8
_CHECKPOINT_SECONDS = 30.0
_SHORTEST_TRAINING, _SHORTEST_INFERENCE = 10.0, 0.01


def coarse_seconds(seconds: float, shortest: float) -> float:
    """Rounded up to 1, 2 or 5 times a power of ten, and never below `shortest`.

    Exact times follow the sizes of sampled batches, which are private.

    >>> coarse_seconds(3.2, 10.0), coarse_seconds(61.0, 10.0)
    (10.0, 100.0)
    """
    at_least = max(seconds, shortest)
    decade = 10.0 ** math.floor(math.log10(at_least))
    steps = (decade * factor for factor in (1, 2, 5, 10))
    return round(next(step for step in steps if step >= at_least * (1 - 1e-9)), 9)


class Journal:
    """Follows the steps of a run. Nothing that private records touched enters it, except through
    the weights: evaluation is on public records only. Exact times stay in the checkpoint."""

    def __init__(
        self,
        steps: Steps,
        recipe: Recipe,
        records: int,
        public: Records | None,
        loss: LossFunction,
        watcher: Watcher,
    ) -> None:
        self._steps, self._recipe, self._records = steps, recipe, records
        self._public, self._loss, self._watcher = public, loss, watcher
        self._history = steps.state.history
        self._history.setdefault("evaluations", [])
        self._started = time.monotonic() - float(self._history.get("seconds", 0.0))
        self._taken_before = steps.state.step
        self._resumed_at = time.monotonic()
        self._shown = self._saved = -math.inf
        self._epsilon: float | None = self._spent()
        self._bound, self._bound_until = self._epsilon, steps.state.step

    def after_step(self) -> None:
        """Evaluate if it is time, and show where the run stands."""
        if self._evaluation_due():
            self._evaluate()
        now = time.monotonic()
        if now - self._shown > 1 / _SHOWS_PER_SECOND or not self._steps.remaining:
            self._shown = now
            self._watcher.show(self._moment())

    def checkpoint_due(self) -> bool:
        """Whether enough time has passed to save the state again, or the first step is taken:
        some methods spend everything in it."""
        now = time.monotonic()
        first = self._steps.state.step == 1
        if now - self._saved < _CHECKPOINT_SECONDS and not first:
            return False
        self._saved = now
        return True

    def stamp(self) -> None:
        """Bring the history in the state up to date before it is saved."""
        self._history = self._steps.state.history
        self._history["seconds"] = time.monotonic() - self._started
        self._history["ledger_head"] = self._steps.ledger.head

    def metrics(self, facts: Facts) -> dict[str, Any]:
        """Everything public about the run, for reports and comparisons."""
        started = time.perf_counter()
        final = self._measure()
        inference = time.perf_counter() - started
        seconds = time.monotonic() - self._started
        model = self._steps.state.model
        names = facts.class_names or tuple(
            str(i) for i in range(len(final.confusion) if final and final.confusion else 0)
        )
        return {
            "model": self._recipe.model.name,
            "data": self._recipe.data.name,
            "records": self._records,
            "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "delta": self._recipe.privacy.delta,
            "evaluated_on": facts.evaluated_on if final else "nothing",
            "evaluations": self._history["evaluations"],
            "final": {
                "accuracy": final.accuracy,
                "loss": final.loss,
                "confusion": final.confusion,
                "class_names": list(names),
            }
            if final
            else None,
            "training_seconds": coarse_seconds(seconds, _SHORTEST_TRAINING),
            "inference_seconds": coarse_seconds(inference, _SHORTEST_INFERENCE) if final else None,
            "epsilon_curve": self._curve(),
            **self._steps.method.trace(),
        }

    def _evaluation_due(self) -> bool:
        steps = self._steps.method.promise.steps
        every = self._recipe.run.evaluate_every * steps / self._recipe.training.epochs
        step = self._steps.state.step
        return not self._steps.remaining or step // every > (step - 1) // every

    def _evaluate(self) -> None:
        self._epsilon = self._spent()
        found = self._measure()
        if found is not None:
            self._history["evaluations"].append(
                {
                    "step": self._steps.state.step,
                    "epoch": self._epoch(),
                    "epsilon": None if self._epsilon is None else round_up(self._epsilon),
                    "loss": found.loss,
                    "accuracy": found.accuracy,
                }
            )

    def _measure(self) -> Evaluation | None:
        if self._public is None:
            return None
        state = self._steps.state
        averaged = state.average.values if state.average else None
        with weights_swapped(state.model, averaged), self._steps.as_released():
            return evaluate(state.model, self._public, self._loss)

    def _spent(self) -> float | None:
        relation = self._steps.method.promise.relation
        spent = accountants.epsilon(self._steps.spent(), self._recipe.privacy.delta, relation)
        return spent if math.isfinite(spent) else None

    def _curve(self) -> list[tuple[int, float]]:
        """ε after so many charges, from the ledger."""
        delta, relation = self._recipe.privacy.delta, self._steps.method.promise.relation
        charged = [
            events.from_json(entry.body["event"])
            for entry in self._steps.ledger.entries
            if entry.kind == "charge"
        ]
        if self._epsilon is None:
            return []
        cuts = {math.ceil(len(charged) * i / _CURVE_POINTS) for i in range(1, _CURVE_POINTS + 1)}
        return [
            (cut, round_up(accountants.epsilon(events.counted(charged[:cut]), delta, relation)))
            for cut in sorted(cuts)
        ]

    def _spent_at_most(self) -> float | None:
        """ε proven for the steps so far, never below: computed ahead for some steps at once."""
        taken = self._steps.state.step
        if self._bound is not None and taken > self._bound_until:
            method, last = self._steps.method, self._steps.method.promise.steps
            until = min(last, taken + -(-last // _CURVE_POINTS))
            ahead = events.counted(method.charge(step) for step in range(taken, until))
            if elementary.is_adaptive(ahead):
                return self._spent()
            both = events.composed([self._steps.spent(), ahead])
            delta, relation = self._recipe.privacy.delta, method.promise.relation
            bound = accountants.epsilon(both, delta, relation)
            self._bound, self._bound_until = bound if math.isfinite(bound) else None, until
        return self._bound

    def _epoch(self) -> float:
        done = self._steps.state.step / self._steps.method.promise.steps
        return done * self._recipe.training.epochs

    def _moment(self) -> Moment:
        step, remaining = self._steps.state.step, self._steps.remaining
        taken = max(1, step - self._taken_before)
        each = (time.monotonic() - self._resumed_at) / taken
        evaluations = self._history["evaluations"]
        spent = self._spent_at_most()
        return Moment(
            step=step,
            steps=step + remaining,
            epoch=self._epoch(),
            epochs=self._recipe.training.epochs,
            epsilon=None if spent is None else round_up(spent),
            budget=self._recipe.privacy.epsilon if self._recipe.method.budgeted else None,
            accuracy=evaluations[-1]["accuracy"] if evaluations else None,
            records_per_second=self._recipe.training.batch_size / max(each, 1e-9),
            seconds_left=each * remaining,
        )
