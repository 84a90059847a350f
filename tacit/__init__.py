"""tacit trains neural networks under differential privacy and tells the truth about it."""

from tacit.config import Recipe
from tacit.errors import TacitError
from tacit.fit import Result, cross_entropy, fit
from tacit.privacy.plan import Question, solve
from tacit.privacy.relations import Relation
from tacit.steps import Steps

__all__ = [
    "Question",
    "Recipe",
    "Relation",
    "Result",
    "Steps",
    "TacitError",
    "cross_entropy",
    "fit",
    "solve",
]
