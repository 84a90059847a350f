"""The law of the noise: the compiled fast path on all 2³² words, every path on ten million.

    OMP_NUM_THREADS=1 nice -n 10 python benchmarks/noise_law.py

A coordinate's noise follows from a uniform 32-bit word wherever single precision decides, so the
law of the fast path is a finite sum, which this program takes for each instruction set of this
machine. Every decision is compared with the normal distribution function in double precision. Ends
with an error if anything deviates. Needs a C++ compiler. Writes docs/results/noise-law.json, .md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from tacit import native
from tacit.native.noise import _quantile, _run
from tacit.noise import quantile
from tacit.noise.rounding import Grid, exact_steps, runs
from tacit.noise.source import RandomSource, _word, _words

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
WORDS = 1 << 32
SCALE, PLACE = 1.0, 0.3  # standard deviation, and how far above a grid point the sum lies, in steps
HALF = 1024  # grid points on either side of zero: eight standard deviations
REFERENCE_ERROR = 1e-3
"""In words: granted to the boundaries between grid points in double precision."""
MOMENT_TOLERANCE = 1e-6
RANDOM_WORDS = 10_000_000
OPTIONS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
LEVELS = {
    "baseline": [],
    "avx2": ["-DTACIT_LEVEL_AVX2", "-mavx2", "-mfma"],
    "avx512": [
        *("-DTACIT_LEVEL_AVX512", "-mavx2", "-mfma", "-mavx512f", "-mavx512dq", "-mavx512bw"),
        *("-mavx512vl", "-mprefer-vector-width=512"),
    ],
}
PAGE = """# The law of the noise

The compiled fast path with noise of scale {scale:g} on a sum {place:g} grid steps above a grid
point, for every one of the {words:,} words that a coordinate can draw, with each instruction set of
the machine. Made by `python benchmarks/noise_law.py` on one thread.

| instruction set | decided | wrong | error of Φ⁻¹ | of its bound | E z² − 1 | E z⁴ − 3 | minutes |
|---|---|---|---|---|---|---|---|
{rows}

A decision is wrong if some number in the word's interval rounds to another grid point, by SciPy's
`ndtr` in double precision. What is not decided here is decided by comparison with certified values
of Φ, so it adds no error. The error of Φ⁻¹ is the largest over all words at the farther end of the
word's interval; it must stay below its bound, {constant:g} + {slope:g}·|z|. Moments are those of
the approximation, with the tails beyond it added from the normal law; they must be within
{tolerance:g}.

Random words through `RandomSource.perturb_`, on sums of sizes from 0.001 to 100:

| path | words | proven right by 32 bits and Φ | checked in ball arithmetic | wrong |
|---|---|---|---|---|
{random}
"""


class Law(ctypes.Structure):
    """What the driver in noise_law.cpp counts."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("decided", "wrong")),
        *((name, ctypes.c_double) for name in ("error", "share", "second", "fourth")),
    ]


def machine_levels() -> list[str]:
    """Instruction sets that this machine has."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    needs = {"baseline": set(), "avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512vl"}}
    return [level for level, needed in needs.items() if needed <= set(flags)]


def law_of(level: str) -> dict[str, Any]:
    """The sum over all words with one instruction set."""
    begun = time.monotonic()
    grid = Grid.of(SCALE)
    lowest, highest = right_words(grid)
    found = Law()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "law.so"
        options = [*OPTIONS, *LEVELS[level], "-shared", "-fPIC"]
        source = str(HERE / "noise_law.cpp")
        subprocess.run(["c++", *options, "-o", str(library), source], check=True)
        run = _run(runs([WORDS], [SCALE], grid.step)[0])
        ctypes.CDLL(str(library)).noise_law(
            *(ctypes.byref(_quantile()), ctypes.byref(run)),
            ctypes.c_float(PLACE * grid.step),
            *map(ctypes.c_double, (quantile.QUANTILE_ERROR, quantile.QUANTILE_SLOPE)),
            *(ctypes.c_void_p(array.ctypes.data) for array in (lowest, highest)),
            *(ctypes.c_int64(HALF), ctypes.byref(found)),
        )
    tail = quantile.LOWEST / WORDS
    b = -float(ndtri(tail))
    density = math.exp(-b * b / 2) / math.sqrt(2 * math.pi)
    return {
        **{"decided": found.decided, "wrong": found.wrong},
        **{"error": found.error, "share": found.share},
        "second": found.second / WORDS + 2 * (b * density + tail) - 1,
        "fourth": found.fourth / WORDS + 2 * (b**3 * density + 3 * b * density + 3 * tail) - 3,
        "minutes": (time.monotonic() - begun) / 60,
    }


def right_words(grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lowest and the highest word whose whole interval belongs to each grid point."""
    place = float(np.float32(PLACE * grid.step)) / grid.step
    edges = (np.arange(-HALF, HALF + 1) - 0.5 - place) / grid.ratio
    above = WORDS * ndtr(-edges)
    lowest = np.ceil(above[1:] + REFERENCE_ERROR).astype(np.int64)
    highest = np.floor(above[:-1] - REFERENCE_ERROR).astype(np.int64) - 1
    return lowest, highest


def check_random(levels: int, count: int) -> dict[str, Any]:
    """Random words on one path: every result is proven right, by 32 bits or in ball arithmetic."""
    source, grid = RandomSource.from_seed(31), Grid.of(1.7)
    proven = exact = wrong = 0
    for index, size in enumerate(np.logspace(-3, 2, 10)):
        part = count // 10
        address = source._address("law", index, part)
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(part, generator=generator) * float(size)
        with native.limited_to(levels):
            y = source.perturb_(x.clone(), "law", index, [part], [1.7], 1.0)
        steps = y.double().numpy() / grid.step
        words = np.concatenate(list(_words(*address, part)))
        is_proven = _proven(x.double().numpy() / grid.step, words, steps, grid)
        proven += int(is_proven.sum())
        for place in np.flatnonzero(~is_proven).tolist():
            bits = [_word(*address, place, level) for level in range(8)]
            exact += 1
            true = exact_steps(x.numpy()[place : place + 1], grid, bits.__getitem__)
            wrong += bool(steps[place] != true)
    return {"words": count, "proven": proven, "exact": exact, "wrong": wrong}


def _proven(
    t: NDArray[np.float64], words: NDArray[np.uint32], steps: NDArray[np.float64], grid: Grid
) -> NDArray[np.bool_]:
    signed = words.view(np.int32)
    folded = (signed ^ (signed >> 31)).astype(np.float64)
    moved = np.where(signed < 0, t - steps, steps - t)
    upper, lower = (moved + 0.5) / grid.ratio, (moved - 0.5) / grid.ratio
    inner = np.where(upper > 0, ndtr(-upper), 1.0) * (1 + 1e-12)
    outer = np.where(lower > 0, ndtr(-lower) * (1 - 1e-12), 1.0)
    return np.asarray((folded / WORDS > inner) & ((folded + 1) / WORDS < outer))


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the law of the noise on all words.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    out = parser.parse_args().out
    laws = {}
    for level in machine_levels():
        laws[level] = law_of(level)
        print(level, laws[level], flush=True)
    paths = {"portable": 0, "compiled kernels": 3}
    random = {name: check_random(levels, RANDOM_WORDS) for name, levels in paths.items()}
    found = {"words": WORDS, "scale": SCALE, "place": PLACE, "laws": laws, "random": random}
    (out / "noise-law.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (out / "noise-law.md").write_text(page(found), encoding="utf-8")
    if not all(map(holds, laws.values())) or any(row["wrong"] for row in random.values()):
        sys.exit("the noise does not have the law that it should have")


def holds(law: dict[str, Any]) -> bool:
    """Whether nothing was found that the proof excludes."""
    moments = abs(law["second"]), abs(law["fourth"])
    return bool(law["wrong"] == 0 and law["share"] <= 1 and max(moments) <= MOMENT_TOLERANCE)


def page(found: dict[str, Any]) -> str:
    """The results as a page."""
    rows = [
        f"| {level} | {law['decided']:,} ({law['decided'] / WORDS:.4%}) | {law['wrong']} |"
        f" {law['error']:.3g} | {law['share']:.1%} | {law['second']:.1e} | {law['fourth']:.1e} |"
        f" {law['minutes']:.1f} |"
        for level, law in found["laws"].items()
    ]
    random = [
        f"| {name} | {row['words']:,} | {row['proven']:,} | {row['exact']:,} | {row['wrong']} |"
        for name, row in found["random"].items()
    ]
    return PAGE.format(
        **{name: found[name] for name in ("words", "scale", "place")},
        **{"rows": "\n".join(rows), "random": "\n".join(random), "tolerance": MOMENT_TOLERANCE},
        **{"constant": quantile.QUANTILE_ERROR, "slope": quantile.QUANTILE_SLOPE},
    )


if __name__ == "__main__":
    main()
