"""Which files are mutated, and the tests that must notice, the fastest first."""

from __future__ import annotations

TARGETS: dict[str, tuple[str, ...]] = {
    "tacit/privacy/relations.py": ("tests/privacy/test_elementary.py",),
    "tacit/data/sampling.py": (
        "tests/data/test_batches_of_samplers.py",
        "tests/data/test_sampling.py",
    ),
    "tacit/clipping/rules.py": ("tests/clipping/test_rules.py",),
    "tacit/noise/gaussian.py": (
        "tests/noise/test_released_gradients.py",
        "tests/noise/test_gaussian.py",
    ),
    "tacit/noise/correlated.py": (
        "tests/noise/test_correlated_streams.py",
        "tests/noise/test_correlated.py",
    ),
    "tacit/noise/sums.py": ("tests/noise/test_sums.py",),
    "tacit/noise/rounding.py": ("tests/noise/test_rounding.py",),
    "tacit/privacy/ledger.py": ("tests/privacy/test_ledger.py",),
    "tacit/steps.py": ("tests/test_steps.py",),
    "tacit/privacy/rdp.py": ("tests/privacy/test_rdp.py",),
    "tacit/privacy/elementary.py": ("tests/privacy/test_elementary.py",),
    "tacit/privacy/gaussian_pair.py": ("tests/privacy/test_gaussian_pair.py",),
    "tacit/privacy/loss_points.py": ("tests/privacy/test_loss_points.py",),
    "tacit/privacy/tilted.py": ("tests/privacy/test_tilted.py",),
    "tacit/privacy/tilted_tail.py": ("tests/privacy/test_tilted_tail.py",),
    "tacit/privacy/pld.py": ("tests/privacy/test_pld.py",),
}
