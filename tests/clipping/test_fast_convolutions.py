"""Every algorithm for per-record kernels, chosen or not, against one image after the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fast_support import one_thread as one_thread
from torch import Tensor

from tacit.clipping import fast as fast_module
from tacit.clipping.fast import FastEngine
from tacit.clipping.layers import choice
from tacit.clipping.layers.choice import Algorithm, Chooser
from tacit.clipping.layers.conv_geometry import Geometry, Problem
from tacit.clipping.layers.kernels import Kernels
from tacit.clipping.layers.outer_products import OuterProducts
from tacit.clipping.rules import Flat

CHOOSER = Chooser(deterministic=True, memory_ceiling=1 << 30)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    records, images = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    inputs, outputs = (groups * draw(st.integers(1, 3)) for _ in range(2))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    stride = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (2, 3), (3, 3)]))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    space = [
        d * (k - 1) + 1 + draw(st.integers(0, 4)) for k, d in zip(kernel, dilation, strict=True)
    ]
    torch.manual_seed(draw(st.integers(0, 9)))
    x = torch.randn(records * images, inputs, *space, dtype=torch.float64)
    weight = torch.randn(outputs, inputs // groups, *kernel, dtype=torch.float64)
    g = torch.randn_like(torch.conv2d(x, weight, None, stride, padding, dilation, groups))
    if draw(st.booleans()):
        x, g = (t.to(memory_format=torch.channels_last) for t in (x, g))
    geometry = Geometry(stride, padding, dilation, groups)
    return Problem(x, g, tuple(weight.shape), geometry, records)


def by_loop(problem: Problem) -> Tensor:
    weight = problem.x.new_empty(problem.kernel)
    parts = [problem.part(i, i + 1) for i in range(problem.records)]
    return torch.stack(
        [part.geometry.backward(part.x, part.g, weight, (False, True))[1] for part in parts]
    )


def names(problem: Problem) -> list[str]:
    return [a.name for a in Kernels(problem, CHOOSER)._algorithms(problem)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems())
def test_every_algorithm(problem: Problem) -> None:
    expected = by_loop(problem)
    factors = torch.linspace(0.5, 1, problem.records, dtype=torch.float64)
    for index, name in enumerate(names(problem)):
        kernels = Kernels(problem, CHOOSER)
        algorithm = kernels._algorithms(problem)[index]
        squares = algorithm.run()
        torch.testing.assert_close(squares, expected.flatten(1).square().sum(1), msg=name)
        total = torch.ones(problem.kernel, dtype=torch.float64)
        kernels.add_weighted(factors, total)
        torch.testing.assert_close(total - 1, torch.tensordot(factors, expected, 1), msg=name)
        torch.testing.assert_close(kernels.per_record(), expected, msg=name)
        algorithm.trial(problem.records)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [6, 8, 12])
def test_pixels_that_no_output_has_seen_do_not_matter(size: int, dtype: torch.dtype) -> None:
    """Not even where they are infinite, which a gradient of zero would not silence."""
    torch.manual_seed(0)
    last = torch.channels_last
    x = torch.randn(2, 16, size, size, dtype=dtype).contiguous(memory_format=last)
    sizes = (2, 16, *[(size - 3) // 2 + 1] * 2)
    g = torch.randn(sizes, dtype=dtype).contiguous(memory_format=last)
    problem = Problem(x, g, (16, 16, 3, 3), Geometry((2, 2), (0, 0), (1, 1), 1), 2)
    expected = by_loop(problem)
    x[0, :, -1], x[0, :, :, -1] = torch.inf, torch.inf
    for index, name in enumerate(names(problem)):
        squares = Kernels(problem, CHOOSER)._algorithms(problem)[index].run()
        torch.testing.assert_close(squares, expected.flatten(1).square().sum(1), msg=name)


def test_gradients_of_every_image_count_as_memory() -> None:
    """Where a way writes those of a record's images apart and adds them up afterwards."""
    x, g = torch.randn(6, 4, 9, 9), torch.randn(6, 5, 7, 7)
    problem = Problem(x, g, (5, 4, 3, 3), Geometry((1, 1), (0, 0), (1, 1), 1), 2)
    one = 4 * 2 * problem.weights
    memory = {a.name: a.memory for a in Kernels(problem, CHOOSER)._algorithms(problem) if a.keeps}
    assert memory["windows"] == memory["groups"] == one
    assert memory["rows"] == memory["tiles of 2"] == 7 * one


@settings(max_examples=20, deadline=None, derandomize=True)
@given(problems())
def test_silenced_records_are_gone(problem: Problem) -> None:
    expected = by_loop(problem)
    expected[0] = 0
    factors = torch.ones(problem.records, dtype=torch.float64)
    marked = torch.arange(problem.records) == 0
    for index, name in enumerate(names(problem)):
        kernels = Kernels(problem, CHOOSER)
        kernels._algorithms(problem)[index].run()
        kernels.silence(marked)
        total = torch.zeros(problem.kernel, dtype=torch.float64)
        kernels.add_weighted(factors, total)
        torch.testing.assert_close(total, expected.sum(0), msg=name)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(*[st.integers(1, 5)] * 4)
def test_every_algorithm_for_sequences(
    records: int, positions: int, inputs: int, outputs: int
) -> None:
    x = torch.randn(records, positions, inputs, dtype=torch.float64)
    g = torch.randn(records, positions, outputs, dtype=torch.float64)
    expected = torch.einsum("rpo,rpi->roi", g, x)
    factors = torch.linspace(0.5, 1, records, dtype=torch.float64)
    for index in range(len(OuterProducts(x, g, CHOOSER)._algorithms(positions, inputs, outputs))):
        products = OuterProducts(x, g, CHOOSER)
        algorithm = products._algorithms(positions, inputs, outputs)[index]
        algorithm.trial(records)
        torch.testing.assert_close(algorithm.run(), expected.flatten(1).square().sum(1))
        total = torch.zeros(outputs, inputs, dtype=torch.float64)
        products.add_weighted(factors, total)
        torch.testing.assert_close(total, torch.tensordot(factors, expected, 1))


def algorithm(name: str, cost: float, memory: int, calls: list[str]) -> Algorithm:
    def run() -> Tensor:
        return torch.zeros(1)

    return Algorithm(name, cost, memory, False, run, lambda records: calls.append(name))


def test_a_deterministic_choice_never_runs_a_trial() -> None:
    calls: list[str] = []
    choices = [algorithm("dear", 2, 1, calls), algorithm("cheap", 1, 1, calls)]
    chooser = Chooser(deterministic=True, memory_ceiling=10)
    assert chooser.pick("key", 5, choices).name == "cheap"
    assert not calls


def test_what_takes_microseconds_is_not_timed() -> None:
    calls: list[str] = []
    choices = [algorithm("dear", 2e4, 1, calls), algorithm("cheap", 1e4, 1, calls)]
    chooser = Chooser(deterministic=False, memory_ceiling=10)
    assert chooser.pick("tiny", 5, choices).name == "cheap" and not calls


def test_measurements_are_remembered() -> None:
    calls: list[str] = []
    choices = [algorithm("a", 1e6, 1, calls), algorithm("b", 1e6, 1, calls)]
    chooser = Chooser(deterministic=False, memory_ceiling=10)
    first = chooser.pick(("remembered",), 5, choices).name
    tried = len(calls)
    assert tried >= 2
    assert (
        Chooser(deterministic=False, memory_ceiling=10).pick(("remembered",), 5, choices).name
        == first
    )
    assert len(calls) == tried


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_memory_ceiling_comes_first(deterministic: bool) -> None:
    choices = [
        algorithm("large", 1, 100, []),
        algorithm("small", 9, 5, []),
        algorithm("least", 99, 4, []),
    ]
    chooser = Chooser(deterministic=deterministic, memory_ceiling=5)
    assert chooser.pick(("ceiling", deterministic), 5, choices).name in ("small", "least")
    none = Chooser(deterministic=deterministic, memory_ceiling=1)
    assert none.pick(("no room", deterministic), 5, choices).name == "least"


@pytest.mark.parametrize(("kept", "chosen"), [(0.5, "kept"), (0.95, "again"), (2.0, "again")])
def test_gradients_are_kept_only_where_a_whole_batch_shows_it_to_be_worth_it(
    kept: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a few records keeping is always far ahead here, as it is while they fit into a cache."""
    seconds = 0.0
    given_back: list[str] = []
    monkeypatch.setattr(choice, "give_back_memory", lambda: given_back.append("after a trial"))

    def takes(few: float, many: float) -> Callable[[int], None]:
        def trial(records: int) -> None:
            nonlocal seconds
            seconds += many if records == 500 else few

        return trial

    monkeypatch.setattr("time.perf_counter", lambda: seconds)

    def choices(memory: int) -> list[Algorithm]:
        return [
            Algorithm("kept", 1e6, memory, True, lambda: torch.zeros(1), takes(0.1, kept)),
            Algorithm("again", 1e6, 1, False, lambda: torch.zeros(1), takes(0.9, 1.0)),
            Algorithm("slower", 1e6, 1, False, lambda: torch.zeros(1), takes(1.9, 0.1)),
        ]

    chooser = Chooser(deterministic=False, memory_ceiling=1 << 30)
    for _ in range(2):
        assert chooser.pick(("whole batch", kept), 500, choices(1 << 28)).name == chosen
        assert len(given_back) == (9 if kept == 0.95 else 5)
    given_back.clear()
    assert chooser.pick(("in a cache", kept), 500, choices(1 << 10)).name == "kept"
    assert len(given_back) == 3


def test_times_of_other_numbers_of_records_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An algorithm that a large batch has no room for may be tried with a smaller one."""
    seconds = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: seconds)

    def takes(each: float) -> Callable[[int], None]:
        def trial(records: int) -> None:
            nonlocal seconds
            seconds += each * records

        return trial

    def choices(memory: int) -> list[Algorithm]:
        return [
            Algorithm(name, 1e5, most, False, lambda: torch.zeros(1), takes(each))
            for name, each, most in (("fast", 1.0, 1), ("usual", 2.0, 1), ("slow", 3.0, memory))
        ]

    chooser = Chooser(deterministic=False, memory_ceiling=10)
    assert chooser.pick("numbers", 300, choices(100)).name == "fast"
    assert chooser.pick("numbers", 40, choices(1)).name == "fast"


def test_a_moment_in_which_the_machine_is_held_up_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The better one is tried while everything takes a third longer."""
    seconds = 0.0
    tried: list[str] = []
    monkeypatch.setattr("time.perf_counter", lambda: seconds)

    def takes(name: str, usual: float) -> Callable[[int], None]:
        def trial(records: int) -> None:
            nonlocal seconds
            seconds += usual * (4 / 3 if tried.count("better") < 4 and name == "better" else 1)
            tried.append(name)

        return trial

    choices = [
        Algorithm(name, 1e6, 1, False, lambda: torch.zeros(1), takes(name, usual))
        for name, usual in (("worse", 1.1), ("better", 1.0), ("hopeless", 9.0))
    ]
    chooser = Chooser(deterministic=False, memory_ceiling=1 << 30)
    assert chooser.pick("held up", 500, choices).name == "better"
    assert tried.count("hopeless") == 3


def test_memory_of_the_first_batch_is_given_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(fast_module, "give_back_memory", lambda: calls.append("given back"))
    monkeypatch.setattr(choice, "_measured", {})
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())
    engine = FastEngine(model, Flat(1.0))
    batch = (torch.randn(4, 1, 6, 6),)

    def loss(model: torch.nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        outputs: Tensor = model(batch[0])
        return outputs.square().sum(1)

    for _ in range(3):
        engine.clipped_sum(loss, [batch], 1)
    assert calls == ["given back"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc belongs to Linux")
def test_freed_memory_goes_back_to_the_system() -> None:
    """Also where the process was tuned to keep it: in a process of its own, for that reason."""
    code = """
import torch
from pathlib import Path
from tacit import tune_process
from tacit.clipping.layers.choice import give_back_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

tuned = tune_process().allocator
start = resident()
held = [torch.ones(1 << 18) for _ in range(100)]
last = torch.ones(1 << 18)
del held
kept = resident() - start
give_back_memory()
print(tuned, kept > 90 << 20, resident() - start < 20 << 20)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tuned, kept, gone = ended.stdout.split()
    assert (kept, gone) == ("True", "True") or tuned == "False"
