"""Compiled convolutions and their way back against torch in double precision."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit import native
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers.conv_compiled import Compiled
from tacit.clipping.layers.conv_geometry import Geometry
from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Flat
from tacit.native import Library

LAST = torch.channels_last


def random_images(*shape: int) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=LAST)


def assert_near(found: Tensor, expected: Tensor) -> None:
    atol = 3e-6 * float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=3e-6, atol=atol)
    assert found.is_contiguous(memory_format=LAST)


def way_back(g: Tensor, x: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return geometry.backward(x.double(), g.double(), weight.double(), (True, False))[0]


@pytest.mark.parametrize("seed", range(24))
def test_winograd_there_and_back(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    inputs, outputs = chance.choice([16, 32, 48, 80]), chance.choice([16, 32, 64, 112])
    height, width, padding = chance.randint(3, 9), chance.randint(3, 9), chance.randint(0, 2)
    x = random_images(chance.randint(1, 40), inputs, height, width)
    weight = torch.randn(outputs, inputs, 3, 3)
    if seed % 2:
        weight = weight.contiguous(memory_format=LAST)
    bias = torch.randn(outputs) if seed % 3 else None
    shift = None if bias is None else bias.double()
    exact = F.conv2d(x.double(), weight.double(), shift, padding=padding)
    assert_near(kernels.winograd(x, weight, bias, padding, back=False), exact)
    g = random_images(*exact.shape)
    geometry = Geometry((1, 1), (padding, padding), (1, 1), 1)
    found = kernels.winograd(g, weight, None, padding, back=True)
    assert_near(found, way_back(g, x, weight, geometry))


@pytest.mark.parametrize("seed", range(40))
def test_the_way_back_to_images_with_few_channels(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kernel = chance.randint(1, 8), chance.randint(1, 8)
    stride = chance.randint(1, 3), chance.randint(1, 3)
    padding = chance.randint(0, 2), chance.randint(0, 2)
    size = tuple(k + chance.randint(0, 7) for k in kernel)
    inputs, outputs = chance.choice([1, 2, 3, 6, 7, 16, 21]), chance.choice([1, 6, 16, 33])
    x = random_images(3, inputs, *size)
    weight = torch.randn(outputs, inputs, *kernel)
    if seed % 2:
        weight = weight.contiguous(memory_format=LAST)
    g = random_images(*F.conv2d(x, weight, None, stride, padding).shape)
    found = kernels.image_gradients(g, weight, (size[0], size[1]), stride, padding)
    assert_near(found, way_back(g, x, weight, Geometry(stride, padding, (1, 1), 1)))


@pytest.mark.parametrize("seed", range(40))
def test_convolutions_of_images_with_few_channels(kernels: Library, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    kernel = chance.randint(1, 8), chance.randint(1, 8)
    stride = chance.randint(1, 3), chance.randint(1, 3)
    padding = chance.randint(0, 2), chance.randint(0, 2)
    size = tuple(k + chance.randint(0, 30) for k in kernel)
    inputs, outputs = chance.choice([1, 2, 3, 6, 16]), chance.choice([1, 6, 16, 20, 33, 48, 70])
    x, weight = random_images(3, inputs, *size), torch.randn(outputs, inputs, *kernel)
    if seed % 2:
        weight = weight.contiguous(memory_format=LAST)
    bias = torch.randn(outputs) if seed % 3 else None
    shift = None if bias is None else bias.double()
    exact = F.conv2d(x.double(), weight.double(), shift, stride, padding)
    assert_near(kernels.convolved(x, weight, bias, stride, padding), exact)


def test_the_number_of_threads_changes_no_bit(kernels: Library) -> None:
    x, weight = random_images(9, 32, 14, 14), torch.randn(48, 32, 3, 3)
    g, narrow = random_images(9, 5, 10, 10), torch.randn(5, 6, 5, 5)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            there = kernels.winograd(x, weight, None, 1, back=False)
            back = kernels.image_gradients(g, narrow, (14, 14), (1, 1), (0, 0))
            found.append((there, back, kernels.convolved(back, narrow, None, (1, 1), (0, 0))))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], others, strict=True))


class Spied:
    """Notes which kernels were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for name in ("winograd", "image_gradients", "convolved"):
            original: Callable[..., Tensor] = getattr(Library, name)
            monkeypatch.setattr(Library, name, self._noting(name, original))

    def _noting(self, name: str, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def noting(*args: Any, **kwargs: Any) -> Tensor:
            self.calls.append(f"{name} back" if kwargs.get("back") else name)
            return original(*args, **kwargs)

        return noting


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def wide_model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 48, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4)),
    )


def narrow_model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 16, 5), nn.ReLU()),
        *(nn.Conv2d(16, 8, 4, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )


@pytest.mark.parametrize(
    ("make", "used"),
    [(wide_model, {"winograd", "winograd back"}), (narrow_model, {"image_gradients", "convolved"})],
)
def test_sums_are_exact_with_compiled_convolutions(
    make: Callable[[], nn.Module],
    used: set[str],
    kernels: Library,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    spied, clip = Spied(monkeypatch), 0.05
    model = make()
    batch = torch.randn(5, 3, 28, 28), torch.randint(0, 4, (5,))
    exact = copy.deepcopy(model).double()
    expected = ReferenceEngine(exact, Flat(clip)).clipped_sum(
        losses, [(batch[0].double(), batch[1])], 1
    )
    model.to(memory_format=LAST)  # type: ignore[call-overload]
    last = batch[0].contiguous(memory_format=LAST), batch[1]
    engine = FastEngine(model, Flat(clip))
    for records in (5, 5, 1):
        part = last[0][:records], last[1][:records]
        found = engine.clipped_sum(losses, [part], 1)
        if records == 5:
            torch.testing.assert_close(
                found.vector.double(), expected.vector, rtol=0, atol=1e-5 * clip
            )
    assert set(spied.calls) == used and kernels is native.active()
    assert not engine.clipped_sum(losses, [(last[0][:0], last[1][:0])], 1).vector.any()


def test_what_torch_does_as_well_is_left_to_it(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows before columns: the model is then read off its graph, as it runs by itself."""
    spied, model = Spied(monkeypatch), narrow_model()
    engine = FastEngine(model, Flat(1.0))
    batch = torch.randn(5, 3, 28, 28), torch.randint(0, 4, (5,))
    for _ in range(2):
        engine.clipped_sum(losses, [batch], 1)
    assert not spied.calls and kernels is native.active()


@pytest.mark.parametrize(
    ("weight", "geometry"),
    [
        (torch.randn(32, 32, 3, 3).double(), Geometry((1, 1), (1, 1), (1, 1), 1)),
        (torch.randn(32, 16, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 2)),
        (torch.randn(32, 32, 3, 3), Geometry((1, 1), (2, 2), (2, 2), 1)),
        (torch.randn(32, 32, 3), Geometry((1,), (1,), (1,), 1)),
    ],
    ids=["double precision", "groups", "dilation", "one dimension"],
)
def test_other_convolutions_are_left_to_torch(weight: Tensor, geometry: Geometry) -> None:
    assert Compiled.of(weight, geometry) is None


def test_how_many_records_there_are_decides_nothing(kernels: Library) -> None:
    weight, geometry = torch.randn(32, 32, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 1)
    compiled = Compiled.of(weight, geometry)
    assert compiled is not None
    for size, helped in ((8, True), (4, False)):
        images = random_images(60, 32, size, size)
        assert {compiled.helps(images[:records]) for records in (1, 11, 60)} == {helped}
    x = random_images(7, 32, 8, 8)
    together = compiled.convolved(x, None)
    alone = [compiled.convolved(x[i : i + 1], None) for i in range(7)]
    assert together is not None and all(each is not None for each in alone)
    assert torch.equal(together, torch.cat([each for each in alone if each is not None]))
    assert kernels is native.active()


def test_a_device_set_elsewhere_is_not_the_result_s(kernels: Library) -> None:
    x, weight = random_images(2, 16, 8, 8), torch.randn(16, 16, 3, 3)
    expected = kernels.winograd(x, weight, None, 1, back=False)
    with torch.device("meta"):
        found = kernels.winograd(x, weight, None, 1, back=False)
    assert torch.equal(found, expected)


def test_what_torch_would_complain_of_is_left_to_it(kernels: Library) -> None:
    compiled = Compiled.of(torch.randn(32, 32, 3, 3), Geometry((1, 1), (1, 1), (1, 1), 1))
    assert compiled is not None and kernels is native.active()
    x = random_images(2, 32, 8, 8)
    assert compiled.convolved(x, torch.randn(32)) is not None
    for bias in (torch.randn(16), torch.randn(32).half()):
        assert compiled.convolved(x, bias) is None
    assert compiled.convolved(random_images(2, 48, 8, 8), None) is None


def test_a_single_pixel_is_taken_as_torch_takes_it(kernels: Library) -> None:
    compiled = Compiled.of(torch.randn(6, 6, 3, 3), Geometry((1, 1), (2, 2), (1, 1), 1))
    assert compiled is not None and kernels is native.active()
    x, g = torch.randn(50, 6, 1, 1), torch.randn(50, 6, 3, 3)
    assert compiled.gradient(x, g) is None


@pytest.mark.parametrize(("size", "ours"), [(28, True), (3, False)])
def test_a_single_channel_keeps_the_format_that_torch_would_give(
    kernels: Library, size: int, ours: bool
) -> None:
    """Only strides of a dimension of one say which; torch complains of images below a kernel."""
    x = torch.randn(2, 1, size, size)
    for form in (torch.contiguous_format, LAST):
        conv = nn.Conv2d(1, 16, 5).to(memory_format=form)  # type: ignore[call-overload]
        compiled = Compiled.of(conv.weight.detach(), Geometry((1, 1), (0, 0), (1, 1), 1))
        assert compiled is not None and kernels is native.active()
        found = compiled.convolved(x, None)
        assert (found is not None) == compiled.helps(x) == (ours and form is LAST)
        if found is not None:
            assert found.stride() == conv(x).stride()


def test_an_engine_goes_on_without_kernels() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 26 * 26, 4))
    engine = FastEngine(model, Flat(1.0))
    batch = torch.randn(6, 1, 28, 28), torch.randint(0, 4, (6,))
    first = engine.clipped_sum(losses, [batch], 1).vector
    with native.limited_to(0):
        second = engine.clipped_sum(losses, [batch], 1).vector
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)
