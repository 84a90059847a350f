"""Only networks of known layers in known arrangements are independent by construction."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tacit.independence import construction
from tacit.independence.construction import obstacle
from tacit.models import MODELS, build

_TEXTS = torch.randint(1, 50, (4, 12))
_IMAGES = torch.randn(4, 3, 32, 32)


@pytest.mark.parametrize("name", [n for n in MODELS if not n.endswith("bn") and n != "bn-lenet5"])
def test_the_librarys_networks_are_independent_by_construction(name: str) -> None:
    text = name.startswith("text")
    batch = _TEXTS if text else _IMAGES
    model = build(name, tuple(batch.shape[1:]), 5, tokens=50 if text else 0)
    assert obstacle(model, batch.dim()) is None


@pytest.mark.parametrize("name", ["convnet5-bn", "bn-lenet5", "resnet18-bn"])
def test_batch_norm_is_not_known(name: str) -> None:
    assert "BatchNorm" in str(obstacle(build(name, (3, 32, 32), 5), 4))


class _Own(nn.Linear):
    pass


def _hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 2))
    model[0].register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    return model


def _pre_hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 2))
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] - inputs[0].mean(0),))
    return model


def _backward_hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 2))
    model[0].register_full_backward_hook(lambda module, inputs, outputs: inputs)
    return model


def _forward_replaced() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 2))
    model.forward = lambda x: model[0](x - x.mean(0))  # type: ignore[method-assign]
    return model


def _parametrized() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("model", "dims", "words"),
    [
        (nn.Sequential(_Own(4, 2)), 2, "not one of the layers"),
        (_hooked(), 2, "hook"),
        (_pre_hooked(), 2, "hook"),
        (_backward_hooked(), 2, "hook"),
        (_forward_replaced(), 2, "replaced"),
        (_parametrized(), 2, "not one of the layers"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)), 2, "keep records apart"),
        (nn.Linear(4, 2), 1, "keep records apart"),
        (nn.Sequential(nn.Linear(4, 2), nn.Softmax(0)), 2, "keep records apart"),
        (nn.Sequential(nn.Linear(4, 2), nn.Softmax(-2)), 2, "keep records apart"),
        (nn.Sequential(nn.Linear(4, 2), nn.LogSoftmax()), 2, "keep records apart"),
        (nn.Sequential(nn.LayerNorm((8, 4)), nn.Linear(4, 2)), 2, "keep records apart"),
        (nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(9, 2)), 3, "keep records"),
        (nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True)), 3, "keep records apart"),
        (nn.Sequential(nn.Embedding(9, 2, max_norm=1.0), nn.Flatten()), 2, "keep records apart"),
        (nn.Sequential(nn.Unflatten(0, (2, 4)), nn.Flatten()), 2, "keep records apart"),
        (nn.Linear(4, 2), 3, "3 dimensions instead of 2"),
    ],
)
def test_whatever_could_mix_records_is_not_by_construction(
    model: nn.Module, dims: int, words: str
) -> None:
    assert words in str(obstacle(model, dims))


def test_hooks_for_all_modules_are_seen() -> None:
    model = nn.Linear(4, 2)
    handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: None)
    try:
        assert "all modules" in str(obstacle(model, 2))
    finally:
        handle.remove()
    assert obstacle(model, 2) is None


def test_a_class_whose_forward_is_patched_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixing(self: nn.ReLU, x: Tensor) -> Tensor:
        return x - x.mean(0)

    monkeypatch.setattr(nn.ReLU, "forward", mixing)
    assert "replaced" in str(obstacle(nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), 2))


def test_a_part_of_a_library_network_cannot_be_exchanged_unseen() -> None:
    model = copy.deepcopy(build("resnet18-gn", (3, 32, 32), 5))
    block = next(m for m in model.modules() if type(m).__name__ == "ResidualBlock")
    block.norm2 = nn.BatchNorm2d(64)
    assert "norm2" in str(obstacle(model, 4))


_LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(4, 3), (4,)),
    (nn.Linear(4, 3), (5, 4)),
    (nn.PReLU(4), (4, 3)),
    (nn.GroupNorm(2, 4), (4, 6)),
    (nn.LayerNorm(4), (5, 4)),
    (nn.InstanceNorm2d(3), (3, 5, 5)),
    (nn.Softmax(1), (4,)),
    (nn.Softmax(-1), (3, 4)),
    (nn.GLU(), (4,)),
    (nn.Flatten(), (3, 4)),
    (nn.Flatten(2), (3, 4, 5)),
    (nn.Unflatten(1, (2, 2)), (4,)),
    (nn.Conv1d(3, 2, 2, padding=1, padding_mode="circular"), (3, 6)),
    (nn.Conv2d(3, 2, 2), (3, 6, 6)),
    (nn.ConvTranspose2d(3, 2, 2), (3, 6, 6)),
    (nn.MaxPool2d(2), (3, 6, 6)),
    (nn.AdaptiveAvgPool2d(1), (3, 6, 6)),
    (nn.ReflectionPad2d(1), (3, 6, 6)),
    (nn.Upsample(scale_factor=2), (3, 6)),
    (nn.PixelShuffle(2), (4, 3, 3)),
    (nn.Softmax2d(), (3, 4, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), _LAYERS)
def test_known_layers_keep_records_apart_and_have_the_dimensions_stated(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    one, other = torch.randn(5, *shape), torch.randn(5, *shape)
    other[2] = one[2]
    outputs = layer(one), layer(other)
    assert torch.equal(outputs[0][2], outputs[1][2])
    assert outputs[0].shape[0] == 5
    assert construction._traverse(layer, "", one.dim(), construction._KNOWN) == outputs[0].dim()
