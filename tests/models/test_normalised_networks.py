"""The networks of paper 003: their shapes, their layers, and which of them can be private."""

import pytest
import torch
from torch import nn

from tacit import models
from tacit.clipping.groups import Groups
from tacit.errors import ModelError
from tacit.models import batch_norm

COLOUR, GREY = (3, 32, 32), (1, 28, 28)
SHAPES = {
    "convnet5": COLOUR,
    "convnet5-bn": COLOUR,
    "convnet5-gn": COLOUR,
    "bn-lenet5": GREY,
    "gn-lenet5": GREY,
    "resnet18-bn": COLOUR,
    "resnet18-gn": COLOUR,
}


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", list(SHAPES))
def test_they_score_ten_classes(name: str) -> None:
    model = models.build(name, SHAPES[name], 10)
    with torch.no_grad():
        assert model(torch.randn(2, *SHAPES[name])).shape == (2, 10)


def test_layers_are_counted_as_the_paper_counts_them() -> None:
    assert len(Groups.layers(names(models.build("bn-lenet5", GREY, 10)))) == 8
    assert len(Groups.tensors(names(models.build("resnet18-bn", COLOUR, 10)))) == 62
    assert len(Groups.layers(names(models.build("convnet5", COLOUR, 10)))) == 5
    weights = sum(p.numel() for p in models.build("resnet18-bn", COLOUR, 10).parameters())
    assert weights == 11_173_962


@pytest.mark.parametrize("name", list(SHAPES))
def test_only_those_without_batch_norm_are_private_record_by_record(name: str) -> None:
    model = models.build(name, SHAPES[name], 10)
    if batch_norm.layers(model):
        with pytest.raises(ModelError, match="GroupNorm"):
            models.check(model)
        batch_norm.seal(model)
        models.check(model, torch.zeros(1, *SHAPES[name]), whole_sets=True)
        models.check(models.mended(model))
    else:
        models.check(model, torch.zeros(1, *SHAPES[name]))


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ModelError, match="28×28 or 32×32"):
        models.build("bn-lenet5", (1, 40, 40), 10)
    with pytest.raises(ModelError, match="at least 8×8"):
        models.build("convnet5", (3, 4, 4), 10)


def test_statistics_from_public_records_are_those_of_inference() -> None:
    """Each layer's buffers are the moments of its inputs when all layers before use theirs."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 5), nn.BatchNorm1d(5)
    )
    x = torch.randn(64, 4)
    batch_norm.seal(model)
    batch_norm.fill_from_public(model, lambda: [(x[:32], x), (x[32:], x)])
    model.eval()
    inputs = model[3](model[2](model[1](model[0](x)))).detach()
    torch.testing.assert_close(model[4].running_mean, inputs.mean(0))
    torch.testing.assert_close(model[4].running_var, inputs.var(0, unbiased=False))
    single = torch.cat([model(row[None]) for row in x])
    torch.testing.assert_close(single, model(x), rtol=1e-4, atol=1e-5)


def test_sealed_layers_keep_nothing() -> None:
    model = models.build("convnet5-bn", COLOUR, 10)
    batch_norm.seal(model)
    for mode in (model.train(), model.eval()):
        mode(torch.randn(4, *COLOUR) * 100)
        assert not list(model.buffers())
