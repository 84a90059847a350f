"""Encoders from generated images."""

import pytest
import torch
from torch import nn

from tacit import models, pretraining
from tacit.data.generated import KINDS, GeneratedImages
from tacit.data.patches import PatchFeatures
from tacit.errors import ArgumentError
from tacit.models.sanitization import Split
from tacit.train import prepare, recipe_for


def test_patches_follow_from_the_seed_and_give_vectors_of_length_one() -> None:
    ends = []
    for _ in range(2):
        model = models.build("patches", (1, 12, 12), 3, seed=0)
        pretraining.prepare(model, "patches", (1, 12, 12), 7, (0.1,), (0.3,), images=400)
        ends.append(model.state_dict())
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    split = Split(model)
    features = split.encoder[0]
    assert isinstance(features, PatchFeatures) and float(features.patches.norm()) > 0
    pixels = (GeneratedImages.draw(100, (1, 12, 12), 9).pixels - 0.1) / 0.3
    with torch.no_grad():
        norms = split.activations(pixels).norm(dim=1)
    assert 0.5 < float(norms.mean()) < 2.0


def test_training_on_generated_images_teaches_their_kinds() -> None:
    model = models.build("funnel-cnn", (1, 16, 16), 3, seed=0, width=20)
    before = Split(model).encoder_parameters()[0].detach().clone()
    assert isinstance(model, nn.Sequential)
    head = model[-1].weight.detach().clone()
    pretraining.prepare(model, "generated", (1, 16, 16), 3, images=1500)
    split = Split(model)
    assert not torch.equal(split.encoder_parameters()[0], before)
    assert torch.equal(model[-1].weight, head)
    drawn = GeneratedImages.draw(600, (1, 16, 16), 5)
    with torch.no_grad():
        vectors = split.layer.bounded(split.activations(drawn.pixels))
    means = torch.stack([vectors[:300][drawn.kinds[:300] == k].mean(0) for k in range(KINDS)])
    nearest = torch.cdist(vectors[300:], means).argmin(1)
    assert float((nearest == drawn.kinds[300:]).float().mean()) > 0.17


def test_a_given_encoder_is_left_alone() -> None:
    model = models.with_sanitization(models.build("mlp", (1, 8, 8), 3))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    pretraining.prepare(model, "given", (1, 8, 8), 1)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("encoder", ["given", "generated"])
def test_a_model_of_patches_that_nothing_fills_is_refused(encoder: str) -> None:
    model = models.build("patches", (1, 12, 12), 3)
    with pytest.raises(ArgumentError, match=f"encoder is '{encoder}'.*encoder = 'patches'"):
        pretraining.prepare(model, encoder, (1, 12, 12), 1)


@pytest.mark.parametrize("method", ["dpsgd", "plain", "sanitization"])
def test_recipes_with_an_empty_model_of_patches_are_refused(method: str) -> None:
    recipe = recipe_for("digits", {"model.name": "patches", "method.name": method})
    with pytest.raises(ArgumentError, match="patches of generated images"):
        prepare(recipe).network(0)
