"""Runs for comparisons, made without training."""

from pathlib import Path
from typing import Any

from tacit.report.groups import Member
from tacit.report.load import Confusion, Evaluation, Guarantee, Run

DELTA = 1e-5


def member(
    name: str,
    accuracy: float = 0.9,
    epsilon: float | None = 1.0,
    *,
    seed: int | None = None,
    delta: float = DELTA,
    relation: str = "add-or-remove-one",
    method: str = "dpsgd",
    model: str = "mlp",
    data: str = "digits",
    claimed: float | None = 0.8,
    audited: float | None = None,
    title: str = "A run",
    **settings: Any,
) -> Member:
    """A run of ten epochs of ten steps, evaluated after each; extra settings by dotted name."""
    guarantee = None if epsilon is None else Guarantee(epsilon, delta, relation, "one record")
    certificate = {
        "title": title,
        "method": method,
        "claimed": None if claimed is None else {"epsilon": claimed, "source": "a paper"},
        "audited": None if audited is None else {"epsilon": audited},
        "charges": 100,
        "noise_multiplier": None if epsilon is None else round(3 / epsilon, 4),
        "expected_batch_size": 10,
        "records": 100,
        "ledger_head": f"head of {name}",
    }
    metrics = {
        "model": model,
        "data": data,
        "delta": delta,
        "evaluated_on": f"20 records of {data}",
        "final": {"accuracy": accuracy},
        "training_seconds": 20.0,
        "inference_seconds": 0.5,
    }
    evaluations = [
        Evaluation(
            step=10.0 * i,
            epoch=float(i),
            seconds=2.0 * i,
            epsilon=None if epsilon is None else epsilon * i / 10,
            loss=1 / i,
            accuracy=accuracy * i / 10,
        )
        for i in range(1, 11)
    ]
    curve = [] if epsilon is None else [(10.0 * i, epsilon * i / 10) for i in range(1, 11)]
    run = Run(
        title=title,
        certificate=certificate,
        certificate_text="",
        metrics=metrics,
        recipe="",
        guarantee=guarantee,
        evaluations=evaluations,
        epsilon_curve=curve,
        confusion=Confusion([[9.0, 1.0], [2.0, 8.0]], ["cat", "dog"]),
    )
    known = {
        "title": title,
        "data.name": data,
        "model.name": model,
        "method.name": method,
        "privacy.epsilon": epsilon,
        "privacy.delta": delta,
        "privacy.relation": relation,
        "run.seed": seed,
    }
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return Member(Path(name), run, {**known, **dotted})
