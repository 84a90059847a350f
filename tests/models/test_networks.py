"""The networks of the papers, weight for weight."""

import pytest
import torch

from tacit.errors import ArgumentError, ModelError
from tacit.models import MODELS, InitialWeights, TemperedSigmoid, build


@pytest.mark.parametrize(
    ("name", "shape", "weights"),
    [
        ("mlp", (1, 28, 28), 567_434),
        ("lenet5", (1, 28, 28), 61_706),
        ("tempered-cnn", (1, 28, 28), 26_010),
        ("tempered-cnn", (3, 32, 32), 550_570),
        ("convnet", (1, 8, 8), 6_090),
        ("linear", (12,), 130),
    ],
)
def test_sizes(name: str, shape: tuple[int, ...], weights: int) -> None:
    model = build(name, shape, 10)
    assert sum(p.numel() for p in model.parameters()) == weights
    assert model(torch.randn(3, *shape)).shape == (3, 10)


def test_layers_of_the_mlp_and_lenet_are_those_of_paper_002() -> None:
    dense = [m for m in build("mlp", (1, 28, 28), 10) if isinstance(m, torch.nn.Linear)]
    assert [m.out_features for m in dense] == [512, 256, 128, 10]
    drops = [m.p for m in build("mlp", (1, 28, 28), 10) if isinstance(m, torch.nn.Dropout)]
    assert drops == [0.2, 0.2, 0.2]
    lenet = build("lenet5", (1, 28, 28), 10)
    assert [m.out_channels for m in lenet if isinstance(m, torch.nn.Conv2d)] == [6, 16]
    assert [m.in_features for m in lenet if isinstance(m, torch.nn.Linear)] == [400, 120, 84]


@pytest.mark.parametrize("name", ["text-mean", "text-tempered", "text-linear", "text-lstm"])
def test_padding_does_not_count_in_a_text_even_after_noise(name: str) -> None:
    model = build(name, (8,), 2, tokens=50)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    short = torch.tensor([[5, 7, 0, 0, 0, 0, 0, 0]])
    assert not torch.equal(model(short), torch.zeros(1, 2))
    torch.testing.assert_close(model(short), model(torch.tensor([[5, 7]])))
    assert torch.isfinite(model(torch.zeros(1, 8, dtype=torch.int64))).all()


def test_tempered_sigmoid_is_tanh_by_default() -> None:
    x = torch.linspace(-3, 3, 50)
    torch.testing.assert_close(TemperedSigmoid()(x), torch.tanh(x))
    scaled = TemperedSigmoid(1.0, 3.0, 0.25)(x)
    torch.testing.assert_close(scaled, torch.sigmoid(3 * x) - 0.25)


def test_seeds_decide_the_weights_and_nothing_else() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    one, two, other = (build("linear", (5,), 2, seed=s) for s in (1, 1, 2))
    assert torch.equal(one[1].weight, two[1].weight)
    assert not torch.equal(one[1].weight, other[1].weight)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("initial", "variance"), [("kaiming", 2 / 784), ("xavier", 2 / 1296)])
def test_initial_weights_have_the_named_spread(initial: InitialWeights, variance: float) -> None:
    first = build("mlp", (1, 28, 28), 10, initial=initial)[1]
    assert float(first.weight.detach().var()) == pytest.approx(variance, rel=0.02)
    assert float(first.bias.detach().abs().max()) == 0.0


def test_unknown_names_and_shapes_are_refused_with_a_way_out() -> None:
    with pytest.raises(ArgumentError, match="did you mean 'lenet5'"):
        build("lenet", (1, 28, 28), 10)
    for name in ("lenet5", "tempered-cnn", "convnet"):
        with pytest.raises(ModelError, match="needs images"):
            build(name, (7,), 2)
    with pytest.raises(ArgumentError, match="text"):
        build("text-mean", (1, 8, 8), 2)
    assert set(MODELS) >= {"mlp", "lenet5", "tempered-cnn"}


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_what_comes_out_of_a_first_convolution_lies_channels_last(shape: tuple[int, ...]) -> None:
    """Also for one channel, which torch takes for channels first; pooling is much slower then."""
    first = next(m for m in build("funnel-cnn", shape, 10) if isinstance(m, torch.nn.Conv2d))
    x = torch.randn(2, *shape)
    assert first(x).is_contiguous(memory_format=torch.channels_last)
    weight = first.weight.contiguous()
    expected = torch.nn.functional.conv2d(x, weight, first.bias, padding=1)
    torch.testing.assert_close(first(x), expected)
