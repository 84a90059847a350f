"""The sanitization layer (000): activations are clipped, and noised while training."""

from __future__ import annotations

import math
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import ArgumentError, ModelError
from tacit.noise.source import RandomSource
from tacit.privacy.sanitized import Mask, Range, Sanitizer


class SanitizationLayer(nn.Module):
    """Clips every row, and in training drops elements and adds normal noise to the rest.

    Guarantee: in training mode the output of a row, given the rows' labels and who takes part, is
    the Gaussian mechanism that `sanitizer.release()` describes, for any change of that row's
    input; values that are not numbers count as zero. The noise is drawn afresh in every call. What
    that proves for *weights* is another matter: gradients below this layer see raw activations.
    In evaluation rows are clipped and nothing else.

    `clip` is the threshold C: elements lie in [0, C] ("positive") or [−C, C] ("symmetric"), or the
    whole row in a ball of radius C ("ball"). `noise` is in units of C√k, k the elements kept; for
    a ball in units of C. The mask is drawn before the noise, without looking at the row.

    >>> layer = SanitizationLayer(clip=0.5, noise=1.0).eval()
    >>> layer(torch.tensor([[-1.0, 0.2, 3.0]]))
    tensor([[0.0000, 0.2000, 0.5000]])
    """

    threshold: Tensor
    centre: Tensor

    def __init__(
        self,
        clip: float = 1.0,
        noise: float = 1.0,
        range: Range = "positive",
        dropout: float = 0.0,
        mask: Mask = "exact",
    ) -> None:
        super().__init__()
        if not clip > 0:
            raise ArgumentError(f"clip is {clip}; the threshold must be positive")
        self.settings = Sanitizer(1, noise, range, dropout, mask)
        asked: dict[str, object] = {"clip": clip, "noise": noise, "range": range}
        self._asked = {**asked, "dropout": dropout, "mask": mask}
        self.register_buffer("threshold", torch.tensor(float(clip)))
        self.register_buffer("centre", torch.zeros(()))
        self._source: RandomSource | None = None
        self._draw = self._calls = 0
        self.spread: list[float] = []
        """Mean standard deviation of the noised rows of each call since `begin`: as private as
        the rows themselves."""

    def use(self, settings: Sanitizer, clip: float, source: RandomSource) -> None:
        """Take noise and threshold from a plan, and randomness from a run's own source.

        What was given to the layer itself must be what the plan has.
        """
        usual = signature(SanitizationLayer).parameters
        for name, asked in self._asked.items():
            planned = clip if name == "clip" else getattr(settings, name)
            if asked not in (usual[name].default, planned):
                raise ArgumentError(
                    f"{name} of the SanitizationLayer is {asked!r}, but {planned!r} by the recipe;"
                    " say the same to both, or leave it out of the layer"
                )
        self.settings, self._source = settings, source
        self.threshold.fill_(clip)

    def recentre(self, centre: Tensor) -> None:
        """Subtract this vector, which must be public or released, before clipping."""
        self.centre = centre

    def begin(self, draw: int) -> None:
        """Address the noise of the following calls by `draw`, so that a run can be repeated."""
        self._draw, self._calls = draw, 0
        self.spread = []

    def bounded(self, x: Tensor) -> Tensor:
        """Rows within the bounds that the noise is made for."""
        x = torch.nan_to_num(x, nan=0.0) - self.centre
        limit = float(self.threshold)
        if self.settings.range == "ball":
            norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
            return torch.mul(x, limit / norms.clamp_min(limit))
        return x.clamp(0.0 if self.settings.range == "positive" else -limit, limit)

    def radius(self, width: int) -> float:
        """Half of how far apart two rows of so many elements can be, once they are clipped."""
        limit = float(self.threshold)
        if self.settings.range == "ball":
            return limit
        return limit * math.sqrt(width) / (2 if self.settings.range == "positive" else 1)

    def variance(self, width: int) -> float:
        """That of the noise on an element of a row in training, averaged over what is dropped."""
        shape = replace(self.settings, width=width)
        return shape.deviation(float(self.threshold)) ** 2 * width / shape.kept

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise ModelError(
                f"the sanitization layer got {x.dim()} dimensions; flatten to one row per record"
            )
        return self.noised(x) if self.training else self.bounded(x)

    def noised(self, x: Tensor) -> Tensor:
        """What training sees: rows clipped, masked and noised, scaled up for what is dropped."""
        clipped = self.bounded(x)
        shape = replace(self.settings, width=x.shape[1])
        deviation = shape.deviation(float(self.threshold))
        noise = self._normal(clipped.detach(), deviation) * deviation
        released = clipped + noise.to(x)
        if shape.dropout:
            kept = self._kept(x.shape, shape)
            released = torch.where(kept, released * (shape.width / shape.kept), 0.0)
        if x.shape[1] > 1 and len(x):
            self.spread.append(float(released.detach().std(dim=1).mean()))
        self._calls += 1
        return released

    def _normal(self, clipped: Tensor, deviation: float) -> Tensor:
        """Addressed by draw, call and content: no two different batches share their noise."""
        source = self._own_source()
        place = f"sanitization noise {self._draw} {self._calls}"
        purpose = source.address(place, clipped, [deviation])
        return source.normal(purpose, 0, clipped.numel()).view(clipped.shape)

    def _kept(self, size: torch.Size, shape: Sanitizer) -> Tensor:
        purpose = f"sanitization mask {self._draw} {self._calls}"
        words = self._own_source().words(purpose, 0, size.numel())
        drawn = torch.from_numpy(words.astype("int64")).view(size)
        if shape.mask == "bernoulli":
            return drawn >= round(shape.dropout * 2**32)
        places = drawn.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        return places < shape.kept

    def _own_source(self) -> RandomSource:
        if self._source is None:
            self._source = RandomSource.from_entropy()
        return self._source

    def __getstate__(self) -> dict[str, Any]:
        """Without the key: whoever has it can subtract the noise."""
        return {**self.__dict__, "_source": None}

    def extra_repr(self) -> str:
        s = self.settings
        return f"noise={s.noise:g}, range={s.range!r}, dropout={s.dropout:g}, mask={s.mask!r}"


def with_sanitization(model: nn.Module, layer: SanitizationLayer | None = None) -> nn.Sequential:
    """The network with a sanitization layer before its last linear layer.

    Takes a Sequential, as all networks by name are, flattens nested ones, and shares its weights.
    """
    parts = list(_flattened(model))
    if any(isinstance(part, SanitizationLayer) for part in parts):
        return nn.Sequential(*parts)
    last = max((i for i, part in enumerate(parts) if isinstance(part, nn.Linear)), default=0)
    if last == 0:
        raise ModelError(
            "a sanitization layer goes before the last linear layer of a Sequential, and this model"
            " has none to put it before; build nn.Sequential(encoder, SanitizationLayer(), head)"
        )
    parts.insert(last, layer or SanitizationLayer())
    return nn.Sequential(*parts)


def _flattened(model: nn.Module) -> list[nn.Module]:
    if type(model) is nn.Sequential:
        return [inner for part in model for inner in _flattened(part)]
    return [model]


class Split:
    """A network cut at its sanitization layer: encoder below it, head above it."""

    def __init__(self, model: nn.Module) -> None:
        parts = list(model) if type(model) is nn.Sequential else []
        places = [i for i, part in enumerate(parts) if isinstance(part, SanitizationLayer)]
        if len(places) != 1 or places[0] in (0, len(parts) - 1):
            raise ModelError(
                "method 'sanitization' needs a Sequential with one SanitizationLayer between an"
                " encoder and a head; tacit.models.with_sanitization(model) makes one"
            )
        at = places[0]
        layer = parts[at]
        assert isinstance(layer, SanitizationLayer)
        self.encoder, self.layer, self.head = parts[:at], layer, nn.Sequential(*parts[at + 1 :])

    def activations(self, x: Tensor) -> Tensor:
        """What reaches the layer."""
        for part in self.encoder:
            x = part(x)
        return x

    def width(self, like: Tensor) -> int:
        """Elements of a vector, for records in the shape and type of `like`."""
        modes = [(part, part.training) for part in self.encoder]
        try:
            for part in self.encoder:
                part.eval()
            with torch.no_grad():
                return int(self.activations(torch.zeros_like(like[:1])).shape[1])
        finally:
            for part, mode in modes:
                part.train(mode)

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Trained by DP-SGD, or not at all."""
        return [p for part in self.encoder for p in part.parameters()]

    def weights_below(self) -> Tensor | None:
        """W of the last linear or convolutional layer below, whose norm a moving C follows."""
        found = [
            module.weight
            for part in self.encoder
            for module in part.modules()
            if isinstance(module, nn.Linear | nn.Conv2d)
        ]
        return found[-1] if found else None
