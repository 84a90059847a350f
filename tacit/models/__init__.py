"""Networks by name, and the check that a network can be private."""

from tacit.models.networks import MODELS, InitialWeights, TemperedSigmoid, build, check_name
from tacit.models.validate import check, findings, mended

__all__ = [
    "MODELS",
    "InitialWeights",
    "TemperedSigmoid",
    "build",
    "check",
    "check_name",
    "findings",
    "mended",
]
