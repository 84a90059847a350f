"""Small models and recipes shared by the tests."""

from typing import Any

import torch
from torch import nn

from tacit.config import Recipe

RECORDS, FEATURES, CLASSES = 300, 6, 3


def small_model() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def small_recipe(**settings: Any) -> Recipe:
    defaults = {"epochs": 2, "batch_size": 30, "noise": 1.0, "epsilon": None, "seed": 1}
    return Recipe().with_settings(**{**defaults, **settings})
