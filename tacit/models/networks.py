"""The networks of the papers, and a few general ones, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from tacit.errors import ArgumentError
from tacit.models.normalised_networks import NORMALISED, Shape, checked_image
from tacit.models.sanitized_networks import funnel_cnn, patches, projection, resnet18

InitialWeights = Literal["torch", "kaiming", "xavier"]


class TemperedSigmoid(nn.Module):
    """scale·σ(temperature·x) − offset (Papernot et al. 2021); the defaults make it tanh.

    Bounded activations keep per-record gradients small, so clipping distorts them less.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        if (self.scale, self.temperature, self.offset) == (2.0, 2.0, 1.0):
            return torch.tanh(x)
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        return f"scale={self.scale}, temperature={self.temperature}, offset={self.offset}"


class WordWeights(nn.Module):
    """A linear layer on the words of a text, which together have norm one if each stands once.

    Noise on a weight then reaches an output in proportion to that norm, whatever the number of
    weights, so that a large table costs no accuracy. Weights start at zero.
    """

    def __init__(self, tokens: int, classes: int) -> None:
        super().__init__()
        self.embedding = _bag(tokens, classes, "sum")
        nn.init.zeros_(self.embedding.weight)

    def forward(self, ids: Tensor) -> Tensor:
        summed: Tensor = self.embedding(ids)
        return summed / words_of(ids).sqrt()


class Recurrent(nn.Module):
    """An LSTM over the token vectors of a text; the mean of its outputs at the words."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(ids))
        present = (ids != 0).unsqueeze(2).to(outputs.dtype)
        summed: Tensor = (outputs * present).sum(1)
        return summed / words_of(ids)


def _bag(tokens: int, width: int, mode: str) -> nn.EmbeddingBag:
    """Token vectors put together; token 0 is padding and does not count, though noise reaches
    its vector as any other."""
    return nn.EmbeddingBag(tokens, width, mode=mode, padding_idx=0)


def words_of(ids: Tensor) -> Tensor:
    """How many tokens of each text are words and not padding, at least 1."""
    return (ids != 0).sum(1, keepdim=True).clamp_min(1).float()


def mlp(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """Hidden layers of 512, 256 and 128 with ReLU and dropout 0.2 (002, section II)."""
    widths = [math.prod(shape), 512, 256, 128]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def lenet5(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling (002, section II): 61,706 weights on 28×28 images."""
    channels, height, width = checked_image(shape, "lenet5", 12)
    flat = 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def tempered_cnn(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """Tempered-sigmoid networks of Papernot et al. (2021): for one channel the small one of
    their MNIST experiments, for colour the six-convolution one of their CIFAR-10 experiments."""
    channels, height, width = checked_image(shape, "tempered-cnn", 16)
    if channels == 1:
        features = nn.Sequential(
            nn.Conv2d(1, 16, 8, stride=2, padding=3),
            TemperedSigmoid(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2),
            TemperedSigmoid(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
        )
        hidden = 32
    else:
        blocks: list[nn.Module] = []
        for before, after in ((channels, 32), (32, 64), (64, 128)):
            blocks += [nn.Conv2d(before, after, 3, padding=1), TemperedSigmoid()]
            blocks += [nn.Conv2d(after, after, 3, padding=1), TemperedSigmoid(), nn.MaxPool2d(2)]
        features = nn.Sequential(*blocks, nn.Flatten())
        hidden = 128
    flat = _width_after(features, (channels, height, width))
    return nn.Sequential(
        features, nn.Linear(flat, hidden), TemperedSigmoid(), nn.Linear(hidden, classes)
    )


def convnet(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """Two 3×3 convolutions with tempered sigmoids and pooling: for small images of any size."""
    channels, height, width = checked_image(shape, "convnet", 4)
    features = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        TemperedSigmoid(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        TemperedSigmoid(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    flat = _width_after(features, (channels, height, width))
    return nn.Sequential(features, nn.Linear(flat, classes))


def linear(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def feature_cnn(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """Two 3×3 convolutions with tempered sigmoids on a few pixels of many channels, such as
    scattering features (after Tramèr and Boneh 2021)."""
    channels, height, width = checked_image(shape, "feature-cnn", 4)
    features = nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        TemperedSigmoid(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        TemperedSigmoid(),
        nn.Flatten(),
    )
    flat = _width_after(features, (channels, height, width))
    return nn.Sequential(features, nn.Linear(flat, classes))


def text_mean(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """Mean of 16-dimensional token vectors, then a linear layer."""
    _text(shape, tokens, "text-mean")
    return nn.Sequential(_bag(tokens, 16, "mean"), nn.Linear(16, classes))


def text_tempered(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """Mean of 16-dimensional token vectors, a layer of 32 tempered sigmoids, a linear layer."""
    _text(shape, tokens, "text-tempered")
    hidden = [nn.Linear(16, 32), TemperedSigmoid()]
    return nn.Sequential(_bag(tokens, 16, "mean"), *hidden, nn.Linear(32, classes))


def text_linear(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """One weight per token and class on a text's words, scaled to norm one."""
    _text(shape, tokens, "text-linear")
    return WordWeights(tokens, classes)


def text_lstm(shape: Shape, classes: int, tokens: int) -> nn.Module:
    """32-dimensional token vectors, an LSTM of 32 units, then a linear layer."""
    _text(shape, tokens, "text-lstm")
    return nn.Sequential(Recurrent(tokens, 32), nn.Linear(32, classes))


MODELS: dict[str, Callable[[Shape, int, int], nn.Module]] = {
    "mlp": mlp,
    "lenet5": lenet5,
    "tempered-cnn": tempered_cnn,
    "convnet": convnet,
    "linear": linear,
    "feature-cnn": feature_cnn,
    "text-mean": text_mean,
    "text-tempered": text_tempered,
    "text-linear": text_linear,
    "text-lstm": text_lstm,
    **NORMALISED,
    "funnel-cnn": funnel_cnn,
    "resnet-18": resnet18,
    "patches": patches,
    "projection": projection,
}
_OF_ANY_WIDTH = {"funnel-cnn": funnel_cnn, "patches": patches, "projection": projection}


def check_name(name: str) -> None:
    """Refuse an unknown model, naming the nearest known one."""
    if name not in MODELS:
        near = get_close_matches(name, MODELS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ArgumentError(f"model is {name!r}; {hint}known models: {', '.join(MODELS)}")


def build(
    name: str,
    shape: Shape,
    classes: int,
    *,
    tokens: int = 0,
    seed: int = 0,
    initial: InitialWeights = "torch",
    width: int = 0,
) -> nn.Module:
    """A named network with fresh weights drawn from `seed`; torch's global state is untouched.

    `initial` is torch's own rule, He et al.'s for ReLU ("kaiming") or Glorot's ("xavier"). `width`
    is that of the layer before the last, for networks that let one choose it.
    Weights of convolutions lie channels last, as that is faster on every engine.

    >>> sum(p.numel() for p in build("lenet5", (1, 28, 28), 10).parameters())
    61706
    """
    check_name(name)
    if width and name not in _OF_ANY_WIDTH:
        raise ArgumentError(
            f"width is {width}, but model {name!r} has no width to choose; these have one:"
            f" {', '.join(_OF_ANY_WIDTH)}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        maker = partial(_OF_ANY_WIDTH[name], width=width) if width else MODELS[name]
        model = maker(shape, classes, tokens)
        if initial != "torch":
            for module in model.modules():
                _initialise(module, initial)
        for parameter in model.parameters():
            if parameter.dim() == 4:
                parameter.data = _channels_last(parameter.data)
        return model


def _channels_last(weight: Tensor) -> Tensor:
    """The weight of a convolution with its channels last, also where there is only one: torch takes
    that for channels first, and what comes out of the layer then lies so too."""
    laid = weight.contiguous(memory_format=torch.channels_last)
    height, width = weight.shape[2:]
    return laid.as_strided(
        laid.shape, (laid.shape[1] * height * width, 1, width * laid.shape[1], laid.shape[1])
    )


def _initialise(module: nn.Module, initial: InitialWeights) -> None:
    if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return
    if initial == "kaiming":
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    else:
        nn.init.xavier_uniform_(module.weight)
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def _text(shape: Shape, tokens: int, model: str) -> None:
    if len(shape) != 1 or tokens == 0:
        raise ArgumentError(f"model is {model!r}, but records have shape {shape}; it needs text")


def _width_after(features: nn.Module, shape: Shape) -> int:
    with torch.no_grad():
        return int(features(torch.zeros(1, *shape)).shape[1])
