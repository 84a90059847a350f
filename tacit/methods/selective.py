"""Selective update (DPSUR; DPSGD-BR, paper 001): propose by DP-SGD, test, accept or roll back.

A step is one trial, charged before its outcome is known. What is kept of it is decided by a noisy
test on a sample of its own; a rejected candidate leaves no trace but its charge. Buffering, decay
and the choice among accepted candidates are settings. Proof: docs/proofs/selective.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.clipping.contract import Batch, LossFunction
from tacit.data.sampling import PoissonSampler
from tacit.errors import NoProofError
from tacit.method_sections import SelectiveRecipe
from tacit.methods.base import Promise
from tacit.methods.candidates import Candidates, preferred
from tacit.methods.clipped import ClippedMethod, Equipment
from tacit.methods.course import Course
from tacit.methods.loss_test import NoisyLossChange
from tacit.methods.phases import Dials, Feedback, PhasedDecay
from tacit.noise.gaussian import GaussianNoise
from tacit.privacy import claims, events
from tacit.privacy.filter import RdpFilter
from tacit.privacy.rdp import Array
from tacit.privacy.selective import SelectiveSchedule
from tacit.state import Snapshot, TrainingState


@dataclass(frozen=True)
class Decay:
    """Noise that follows the accuracy: where that comes from, and the filter that limits it."""

    feedback: Feedback
    budget: RdpFilter


class Selective(ClippedMethod):
    """Binds both samplers, both noises, test and event; `memory` is saved with a checkpoint.

    Guarantee: a trial releases what `charge` said before it, whatever its outcome: by thinning a
    candidate or nothing, otherwise the noised gradient and the noised change of loss. A rejected
    trial leaves weights, optimizer, average and settings as they were, bit for bit.
    """

    def __init__(
        self,
        promise: Promise,
        schedule: SelectiveSchedule,
        sampler: PoissonSampler,
        test: NoisyLossChange,
        equipment: Equipment,
        state: TrainingState,
        memory: dict[str, Tensor],
        chosen: SelectiveRecipe,
        delta: float,
        decay: Decay | None = None,
    ) -> None:
        rates = sampler.probability, test.probability
        if rates != (schedule.probability, schedule.test_probability):
            raise NoProofError(
                f"records are sampled for gradients and tests with probabilities {rates}, the"
                f" schedule says {(schedule.probability, schedule.test_probability)}; they must"
                " agree"
            )
        _refuse_what_remembers(equipment.optimizer.inner)
        noise = GaussianNoise(equipment.source, schedule.noise)
        super().__init__(promise, schedule, sampler, noise, equipment)
        self._start = schedule
        self._test = test
        self._state = state
        self._candidates = Candidates(memory)
        self._chosen = chosen
        self._delta = delta
        self._decay = decay
        self._updated = False
        self._phases = PhasedDecay(chosen.fast, chosen.slow, chosen.progress)
        self.course = Course(
            memory, Dials(schedule.noise, chosen.validation_noise, schedule.test.beta)
        )

    @property
    def updated(self) -> bool:
        """Whether the last trial led to an update."""
        return self._updated

    def planned(self) -> DpEvent:
        """All trials, or all that the filter can let through."""
        return self._decay.budget.event() if self._decay else self._start.event()

    def charge(self, step: int) -> DpEvent:
        """A trial with the settings as they are now, or a question about the accuracy."""
        if self._decay is None:
            return self._start.trial_event()
        question = self._question()
        if question is not None:
            return events.adaptive(question, self._decay.budget.order)
        return self._decay.budget.trial(self._schedule_now())

    def admits(self, spent: Counter[DpEvent], step: int) -> bool:
        """Within the filter, and within the claimed ε where training is to end there."""
        end = self._chosen.stop_at_claimed
        if end is not None and self._claim_of(self.course.claimed + self._one_update()) > end:
            return False
        return self._decay is None or self._decay.budget.admits(spent, self.charge(step))

    def draw(self, step: int) -> Iterable[Batch]:
        """The records of a trial's gradient, or those that are asked."""
        if self._decay is not None and self._question() is not None:
            return self._decay.feedback.draw(step)
        return super().draw(step)

    def step(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> None:
        """One trial: propose, test, accept or roll back, and update where enough was accepted."""
        self._updated = False
        if self._decay is not None and self._question() is not None:
            self._turn(self._decay.feedback.accuracy(step, self._state.model, batches))
            return
        if self.course.accuracy is None:
            self._ask_public(step)  # a first accuracy turns nothing, so the charge still holds
        base = self._state.snapshot()
        test = self._schedule_now().test
        needed = self._needed()
        try:
            change = self._try(step, loss, batches)
            accepted = change < test.beta * test.half_range
            if accepted:
                self._candidates.add(self._state.snapshot(), change)
        finally:
            self._state.restore(base)
        if accepted:
            self.course.count(trials=1, accepted=1, rejected_in_a_row=None)
        else:
            self.course.count(trials=1, rejected_in_a_row=1)
            needed = self._needed()
        if len(self._candidates) < needed:
            return
        self._state.restore(self._choose(step))
        self._candidates.clear()
        self.course.claimed = self.course.claimed + self._one_update()
        self.course.count(applied=1)
        self._ask_public(step)
        self._updated = True

    def claim(self, delta: float) -> claims.Claim | None:
        """By the updates applied so far; None before the first trial."""
        if not self.course.counts["trials"]:
            return None
        return claims.selective(self.course.claimed, delta)

    def outcome(self) -> dict[str, Any]:
        """How the trials went, and where the settings ended; their charges cover both."""
        shown = {name: self.course.counts[name] for name in ("trials", "accepted", "applied")}
        if self._decay is None:
            return shown
        now = self.course.dials
        ended = {"noise": now.noise, "validation_noise": now.test_noise, "beta": now.beta}
        return shown | {f"last_{name}": value for name, value in ended.items()}

    def _try(self, step: int, loss: LossFunction, batches: Iterable[Batch]) -> float:
        """Make the candidate; its noisy change of loss, in standard deviations of the noise."""
        self._noise = GaussianNoise(self._equipment.source, self.course.dials.noise)
        self._equipment.optimizer.factor = self.course.dials.rate
        tested = self._test.draw(step)
        with self._equipment.weights_unwritten():
            before = self._test.losses(loss, tested)
        super().step(step, loss, batches)
        with self._equipment.weights_unwritten():
            after = self._test.losses(loss, tested)
        return self._test.noised(step, before, after, self._schedule_now().test)

    def _choose(self, step: int) -> Snapshot:
        choice = self._chosen.choice
        if choice == "average":
            return self._candidates.average()
        within = math.inf if choice == "random" else self._chosen.indifference
        source, changes = self._equipment.source, self._candidates.changes
        return self._candidates.at(preferred(changes, within, choice == "literal", source, step))

    def _needed(self) -> int:
        """Accepted candidates that make an update: one after too many rejections in a row."""
        patience, rejected = self._chosen.patience, self.course.counts["rejected_in_a_row"]
        return 1 if patience and rejected >= patience else self._chosen.buffer

    def _schedule_now(self) -> SelectiveSchedule:
        """The schedule at the settings as they are; noise in units of sensitivity."""
        now, start = self.course.dials, self._start
        test_noise = now.test_noise * start.test.noise / self._chosen.validation_noise
        test = replace(start.test, noise=test_noise, beta=now.beta)
        return replace(start, noise=now.noise, test=test)

    def _unasked(self) -> bool:
        """Whether the accuracy of the weights as they are is still unknown."""
        return self.course.counts["asked"] <= self.course.counts["applied"]

    def _question(self) -> DpEvent | None:
        """What asking for the accuracy costs, where that comes next and is not free."""
        if self._decay is None or not self._unasked():
            return None
        return self._decay.feedback.event

    def _ask_public(self, step: int) -> None:
        if self._decay is None or self._decay.feedback.event is not None or not self._unasked():
            return
        feedback = self._decay.feedback
        self._turn(feedback.accuracy(step, self._state.model, feedback.draw(step)))

    def _turn(self, accuracy: float) -> None:
        """Take in an accuracy, and decay what follows from its growth."""
        before, self.course.accuracy = self.course.accuracy, accuracy
        self.course.count(asked=1)
        until = self._chosen.decay_until
        over = until is not None and self._claim_of(self.course.claimed) >= until
        if before is not None and not over:
            self.course.dials = self._phases.turned(self.course.dials, accuracy - before)

    def _claim_of(self, divergences: Array) -> float:
        return claims.selective(divergences, self._delta).epsilon

    def _one_update(self) -> Array:
        """What paper 001 charges for an update with the settings as they are."""
        now, start = self.course.dials, self._start
        return claims.selective_update(
            start.probability, now.noise, start.test_probability, now.test_noise
        )


def _refuse_what_remembers(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that may learn something which rolling back does not take from it.

    torch's own keep what they learn in their state, which a snapshot holds; what others keep in
    attributes, closures or hooks cannot be seen.
    """
    kind = type(optimizer)
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if getattr(torch.optim, kind.__name__, None) is kind and not hooks:
        return
    reason = "has hooks" if hooks else "is not one of torch's own"
    raise NoProofError(
        f"optimizer is {kind.__name__}, which {reason} and may remember rejected candidates: a"
        " trial could not be rolled back. Use an optimizer of torch.optim, such as SGD or Adam"
    )
