"""A described network as a pure function for JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from clipping_suite import network
from clipping_suite.network import Layer, Network

Array = Any
_STABILISER = 1e-5


def apply(
    layers: Network, weights: Mapping[str, Array], x: Array, channels_last: bool, prefix: str = ""
) -> Array:
    """Outputs for a batch; images are [N, C, H, W], or [N, H, W, C] with `channels_last`."""
    for place, layer in enumerate(layers):
        x = _layer(layer, weights, x, channels_last, f"{prefix}{place}.")
    return x


def losses(
    layers: Network, weights: Mapping[str, Array], x: Array, y: Array, channels_last: bool
) -> Array:
    """The cross-entropy of each record."""
    outputs = jax.nn.log_softmax(apply(layers, weights, x, channels_last))
    return -jnp.take_along_axis(outputs, y[:, None], axis=1)[:, 0]


def _layer(layer: Layer, weights: Mapping[str, Array], x: Array, last: bool, at: str) -> Array:
    match layer:
        case network.Linear():
            return x @ weights[at + "weight"].T + weights[at + "bias"]
        case network.Conv():
            return _convolution(layer, weights, x, last, at)
        case network.GroupNorm(groups):
            return _group_norm(groups, weights, x, last, at)
        case network.MaxPool(size, stride):
            window, strides = (1, 1, size, size), (1, 1, stride, stride)
            if last:
                window, strides = (1, size, size, 1), (1, stride, stride, 1)
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "VALID")
        case network.Relu():
            return jax.nn.relu(x)
        case network.Tanh():
            return jnp.tanh(x)
        case network.Flatten():
            ordered = x.transpose(0, 3, 1, 2) if last and x.ndim == 4 else x
            return ordered.reshape(len(x), -1)
        case network.SpatialMean():
            return x.mean((1, 2) if last else (2, 3))
        case network.MeanEmbedding():
            present = jnp.maximum((x != 0).sum(1, keepdims=True), 1)
            return weights[at + "embedding.weight"][x].sum(1) / present
        case network.Residual(main, shortcut):
            around = apply(shortcut, weights, x, last, at + "shortcut.")
            return jax.nn.relu(apply(main, weights, x, last, at + "main.") + around)


def _convolution(
    layer: network.Conv, weights: Mapping[str, Array], x: Array, last: bool, at: str
) -> Array:
    order = "NHWC" if last else "NCHW"
    out = jax.lax.conv_general_dilated(
        x,
        weights[at + "weight"],
        (layer.stride, layer.stride),
        [(layer.padding, layer.padding)] * 2,
        dimension_numbers=(order, "OIHW", order),
    )
    if not layer.bias:
        return out
    bias = weights[at + "bias"]
    return out + (bias if last else bias[:, None, None])


def _group_norm(groups: int, weights: Mapping[str, Array], x: Array, last: bool, at: str) -> Array:
    scale, shift = weights[at + "weight"], weights[at + "bias"]
    if last:
        rows, height, width, channels = x.shape
        grouped, axes = x.reshape(rows, height, width, groups, channels // groups), (1, 2, 4)
    else:
        rows, channels, height, width = x.shape
        grouped, axes = x.reshape(rows, groups, channels // groups, height, width), (2, 3, 4)
        scale, shift = scale[:, None, None], shift[:, None, None]
    centred = grouped - grouped.mean(axes, keepdims=True)
    variance = (centred**2).mean(axes, keepdims=True)
    normal = (centred * jax.lax.rsqrt(variance + _STABILISER)).reshape(x.shape)
    return normal * scale + shift
