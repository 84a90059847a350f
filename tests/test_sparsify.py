"""Weights that only noise moves are fixed; the others are not."""

from pathlib import Path

import pytest
import torch
from small_runs import small_model, small_recipe
from torch import nn

from tacit.clipping.contract import Layout
from tacit.data.batches import TensorRecords
from tacit.errors import ArgumentError
from tacit.loop import fit
from tacit.noise.gaussian import PrivateGradient
from tacit.optim import Pace, PrivateOptimizer
from tacit.privacy import ledger
from tacit.sparsify import Sparsifier

SIZE = 4000


def test_still_weights_are_fixed_at_their_average_and_moving_ones_go_on() -> None:
    """Half the weights get noise alone, half a steady push of many standard deviations."""
    model = nn.Linear(SIZE, 1, bias=False)
    layout = Layout(("weight",), (torch.Size([1, SIZE]),), (0,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    memory: dict[str, torch.Tensor] = {}
    private = PrivateOptimizer(model, optimizer, Pace(0.1, 100), Sparsifier(10, 0.5, memory))
    push = torch.zeros(SIZE)
    push[: SIZE // 2] = 5.0
    generator = torch.Generator().manual_seed(0)
    seen = []
    for step in range(20):
        noise = torch.randn(SIZE, generator=generator)
        private.apply(PrivateGradient(push + noise, layout, scales=(1.0,)), step)
        seen.append(model.weight.detach().flatten().clone())
        if step == 9:
            fixed = memory["sparse.fixed"].clone()
            last = model.weight.detach().flatten()
            expected = torch.stack([*seen[:-1], last]).mean(0)
    assert not fixed[: SIZE // 2].any()
    share = float(fixed[SIZE // 2 :].float().mean())
    assert share == pytest.approx(0.41, abs=0.06)
    assert torch.equal(seen[9][fixed], seen[19][fixed])
    torch.testing.assert_close(seen[9][fixed], expected[fixed], rtol=0, atol=0.08)
    assert bool((seen[19][: SIZE // 2] < seen[9][: SIZE // 2]).all())


def test_a_run_fixes_weights_and_costs_the_same(tmp_path: Path, records: TensorRecords) -> None:
    settings = {"epochs": 4, "noise": 5.0}
    plain = fit(small_model(), records, recipe=small_recipe(**settings), out=tmp_path / "plain")
    sparse = fit(
        small_model(),
        records,
        recipe=small_recipe(**settings, sparsify_every=1.0, sparsify_below=3.0),
        out=tmp_path / "sparse",
    )
    assert sparse.epsilon == plain.epsilon
    assert sparse.certificate["weights_sha256"] != plain.certificate["weights_sha256"]
    charges = [e for e in ledger.read(sparse.path / "ledger.jsonl") if e.kind == "charge"]
    assert len(charges) == 40


@pytest.mark.parametrize("settings", [{"method": "dpftrl"}, {"method": "plain"}])
def test_unknown_noise_is_refused(
    tmp_path: Path, records: TensorRecords, settings: dict[str, str]
) -> None:
    recipe = small_recipe(**settings, sparsify_every=1.0)
    with pytest.raises(ArgumentError, match="independent noise"):
        fit(small_model(), records, recipe=recipe, out=tmp_path / "run")
    with pytest.raises(ArgumentError, match="sgd"):
        small_recipe(optimizer="adam", sparsify_every=1.0)
