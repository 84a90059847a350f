"""JAX by hand: vmap(grad) under jit, clip, noise and update in the same program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from clipping_suite.contestants.base import AbsentError, Contestant, Setting, Step
from clipping_suite.workloads import Problem, Weights

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise AbsentError(f"JAX is not installed ({error})") from error

from clipping_suite.jax_network import losses

Tree = dict[str, Any]
ClippedSum = Callable[[Tree, Any, Any], Tree]


class JaxStep:
    """A clipped sum made into whole steps; micro-batches are summed in a scan."""

    def __init__(
        self, problem: Problem, setting: Setting, step: Step, clipped_sum: ClippedSum
    ) -> None:
        x, y = np.asarray(problem.x), problem.y.astype(np.int32)
        if setting.channels_last:
            x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        if x.dtype == np.int64:
            x = x.astype(np.int32)
        rows = setting.piece or len(x)
        whole = len(x) // rows * rows
        if whole != len(x):
            raise ValueError(f"a batch of {len(x)} is not made of pieces of {rows}")
        self._x = jnp.asarray(x.reshape(-1, rows, *x.shape[1:]))
        self._y = jnp.asarray(y.reshape(-1, rows))
        self._weights: Tree = {k: jnp.asarray(v) for k, v in problem.weights.items()}
        self._key = jax.random.key(0)
        self._scale = jnp.float32(step.noise * step.clip)
        self._rate = jnp.float32(step.learning_rate / len(x))

        def update(
            weights: Tree, key: Any, x: Any, y: Any, scale: Any, rate: Any
        ) -> tuple[Tree, Any]:
            if len(x) == 1:
                total = clipped_sum(weights, x[0], y[0])
            else:
                zero = jax.tree.map(jnp.zeros_like, weights)

                def add(total: Tree, piece: tuple[Any, Any]) -> tuple[Tree, None]:
                    return jax.tree.map(jnp.add, total, clipped_sum(weights, *piece)), None

                total, _ = jax.lax.scan(add, zero, (x, y))
            key, *keys = jax.random.split(key, len(weights) + 1)
            changed = {}
            for one, (name, value) in zip(keys, weights.items(), strict=True):
                noise = scale * jax.random.normal(one, value.shape)
                changed[name] = value - rate * (total[name] + noise)
            return changed, key

        self._update = jax.jit(update, donate_argnums=(0, 1))

    def step(self) -> None:
        self._weights, self._key = self._update(
            self._weights, self._key, self._x, self._y, self._scale, self._rate
        )
        jax.block_until_ready(self._weights)

    def weights(self) -> Weights:
        return {name: np.array(value) for name, value in self._weights.items()}


def build(problem: Problem, setting: Setting, step: Step) -> Contestant:
    """Per-example gradients of the whole micro-batch, then norms and weighted sums."""
    network, last = problem.workload.network, setting.channels_last

    def loss(weights: Tree, x: Any, y: Any) -> Any:
        return losses(network, weights, x[None], y[None], last)[0]

    def clipped_sum(weights: Tree, x: Any, y: Any) -> Tree:
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(weights, x, y)
        squares = [jnp.sum(g.reshape(len(x), -1) ** 2, 1) for g in gradients.values()]
        norm = jnp.sqrt(jnp.sum(jnp.stack(squares), 0))
        factors = jnp.minimum(1.0, step.clip / jnp.maximum(norm, 1e-30))
        return {name: jnp.tensordot(factors, g, 1) for name, g in gradients.items()}

    return JaxStep(problem, setting, step, clipped_sum)
