"""jax_privacy: its `clipped_grad` in the step written for JAX."""

from __future__ import annotations

from typing import Any

from clipping_suite.contestants.base import AbsentError, Contestant, Setting, Step
from clipping_suite.contestants.jax_vmap import JaxStep, Tree
from clipping_suite.workloads import Problem

try:
    from jax_privacy.clipping import clipped_grad
except ImportError as error:
    raise AbsentError(f"jax_privacy is not installed ({error})") from error

from clipping_suite.jax_network import losses


def build(problem: Problem, setting: Setting, step: Step) -> Contestant:
    """`clipped_grad` over the records of a micro-batch."""
    network, last = problem.workload.network, setting.channels_last

    def loss(weights: Tree, x: Any, y: Any) -> Any:
        return losses(network, weights, x, y, last)[0]

    clipped = clipped_grad(loss, l2_clip_norm=step.clip, batch_argnums=(1, 2))
    return JaxStep(problem, setting, step, clipped)
