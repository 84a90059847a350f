"""tacit trains neural networks under differential privacy and tells the truth about it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.config import Recipe
    from tacit.errors import TacitError
    from tacit.loop import Result, fit
    from tacit.losses import cross_entropy
    from tacit.privacy.plan import Question, solve
    from tacit.privacy.relations import Relation
    from tacit.private_steps import PrivateSteps
    from tacit.process_tuning import tune_process

__all__ = [
    "PrivateSteps",
    "Question",
    "Recipe",
    "Relation",
    "Result",
    "TacitError",
    "cross_entropy",
    "fit",
    "solve",
    "tune_process",
]

_HOME = {
    "PrivateSteps": "private_steps",
    "Question": "privacy.plan",
    "Recipe": "config",
    "Relation": "privacy.relations",
    "Result": "loop",
    "TacitError": "errors",
    "cross_entropy": "losses",
    "fit": "loop",
    "solve": "privacy.plan",
    "tune_process": "process_tuning",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use, so that `tacit plan` need not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"tacit has no {name!r}; public names: {', '.join(__all__)}")
    return getattr(import_module(f"tacit.{_HOME[name]}"), name)
