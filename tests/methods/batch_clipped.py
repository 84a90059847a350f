"""A network with BatchNorm and recipes that clip batches."""

from typing import Any

import torch
from small_runs import FEATURES, small_recipe
from torch import nn

from tacit.config import Recipe


def bn_model() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def recipe_of(**settings: Any) -> Recipe:
    return small_recipe(method="batch-clipping", **settings)
