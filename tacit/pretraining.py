"""Encoders that have seen no person's data: patches of, or training on, generated images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.data.generated import KINDS, GeneratedImages
from tacit.data.patches import PatchFeatures, drawn_patches
from tacit.errors import ArgumentError
from tacit.models.sanitization import Split

IMAGES = 8000
_WHITENING = 0.01
_EPOCHS = 4
_BATCH = 100


def prepare(
    model: nn.Module,
    encoder: str,
    shape: tuple[int, ...],
    seed: int,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    images: int = IMAGES,
) -> None:
    """Make the encoder of a network ready before any private record is seen.

    `shape` is that of a record, `mean` and `std` are how records are normalised; both are public.
    """
    if encoder != "patches" and any(isinstance(part, PatchFeatures) for part in model.modules()):
        raise ArgumentError(
            f"encoder is {encoder!r}, but model 'patches' is empty until patches of generated"
            " images fill it; use method 'sanitization' with encoder = 'patches', or another model"
        )
    if encoder == "given":
        return
    drawn = GeneratedImages.draw(images, shape, seed)
    pixels = _normalised(drawn.pixels, mean, std)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if encoder == "patches":
            _from_patches(model, pixels)
        else:
            _by_training(model, pixels, drawn.kinds)


def _normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    if not mean or not std:
        return pixels
    return (pixels - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)


def _from_patches(model: nn.Module, pixels: Tensor) -> None:
    """Fill the patches, the centring and the projection from generated images."""
    parts = Split(model).encoder
    features, project = parts[0], parts[-1]
    if not isinstance(features, PatchFeatures) or not isinstance(project, nn.Linear):
        raise ArgumentError("encoder is 'patches', which is for model 'patches'")
    with torch.no_grad():
        features.patches.copy_(drawn_patches(pixels, features))
        answers = torch.cat([features.answers(part) for part in pixels.split(_BATCH)])
        features.centre.copy_(answers.mean(0))
        features.scale.copy_(answers.std(0) + 1e-3)
        project.weight.copy_(_projection((answers - features.centre) / features.scale, project))


def _projection(answers: Tensor, project: nn.Linear) -> Tensor:
    """The strongest directions of the features, evened out; vectors come out near length one."""
    values, axes = torch.linalg.eigh(answers.T @ answers / len(answers))
    kept, directions = values.flip(0)[: project.out_features], axes.flip(1)
    spread = (kept + _WHITENING * values[-1]).rsqrt()
    weight = (directions[:, : project.out_features] * spread).T
    return torch.div(weight, (answers @ weight.T).norm(dim=1).mean())


def _by_training(model: nn.Module, pixels: Tensor, kinds: Tensor) -> None:
    """Train the encoder to tell the kinds of generated images apart, with a head of its own."""
    split = Split(model)
    encoder = nn.Sequential(*split.encoder)
    head = nn.Linear(split.width(pixels[:1]), KINDS)
    encoder.train()
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(_EPOCHS):
        for batch in torch.randperm(len(pixels)).split(_BATCH):
            scores = head(split.layer.bounded(encoder(pixels[batch])))
            optimizer.zero_grad()
            F.cross_entropy(scores, kinds[batch]).backward()
            optimizer.step()
    optimizer.zero_grad()
