"""GroupNorm in channels-last format without kernels: its gradients, and how they are added up."""

from __future__ import annotations

import pytest
import torch
from test_fast_support import CLIP, batch_of, by_loop, fast, squared_loss
from test_fast_support import both_paths as both_paths
from test_fast_support import one_thread as one_thread
from torch import nn

from tacit.clipping.layers.normalisation import _backward_by_image
from tacit.clipping.rules import Flat


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_group_norm_may_come_first_in_channels_last_format(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 3, 3)).to(dtype)
    records = torch.randn(3, 4, 5, 5, dtype=dtype)
    oracle = by_loop(model, Flat(CLIP), batch_of(records, dtype=dtype), 1, squared_loss)
    last = records.contiguous(memory_format=torch.channels_last)  # torch's own backward crashes
    found = fast(model, Flat(CLIP), batch_of(last, dtype=dtype), loss=squared_loss)
    torch.testing.assert_close(found, oracle)


def test_sums_in_half_precision_do_not_overflow() -> None:
    """Neither those of scale and shift nor the input's gradient, which is made of them."""
    sizes, last = (2, 8, 48, 48), torch.channels_last
    x, g = (torch.randn(sizes).mul(20).half().contiguous(memory_format=last) for _ in "xg")
    x.mul_(500)
    weight = torch.ones(8).half()
    _, mean, rstd = torch.native_group_norm(x, weight, None, 2, 8, 48 * 48, 2, 1e-5)
    found = _backward_by_image(x, g, weight, mean, rstd, True)
    wide = (t.double() for t in (x, g, weight, mean, rstd))
    for each, expected in zip(found, _backward_by_image(*wide, True), strict=True):
        assert each is not None and expected is not None and each.dtype == torch.float16
        torch.testing.assert_close(each.double(), expected, atol=1e-2, rtol=1e-2)


def test_a_large_mean_does_not_drown_the_scale_of_a_norm() -> None:
    x, g = (torch.randn(3, 4, 5, 5).contiguous(memory_format=torch.channels_last) for _ in "xg")
    x += 1000
    mean = x.unflatten(1, (2, 2)).mean((2, 3, 4))
    rstd = torch.ones_like(mean)
    found = _backward_by_image(x, g, None, mean, rstd, True)
    wide = (t.double() for t in (mean, rstd))
    exact = _backward_by_image(x.double(), g.double(), None, *wide, True)
    for each, expected in zip(found, exact, strict=True):
        assert each is not None and expected is not None
        torch.testing.assert_close(each.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("images", [3, 70])
@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_behind_a_norm_in_channels_last_are_those_of_torch(
    scaled: bool, images: int
) -> None:
    sizes = (images, 8, 32, 32)
    x, g = (torch.randn(sizes).double().contiguous(memory_format=torch.channels_last) for _ in "xg")
    x.requires_grad_()
    weight = torch.randn(8).double() if scaled else None
    output, mean, rstd = torch.native_group_norm(x, weight, None, images, 8, 32 * 32, 2, 1e-5)
    (expected,) = torch.autograd.grad(output, x, g)
    with torch.no_grad():
        found, scale, shift = _backward_by_image(x, g, weight, mean, rstd, True)
        alone, *others = _backward_by_image(x, g, weight, mean, rstd, False)
    assert found is not None and alone is None
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close([scale, shift], others)
