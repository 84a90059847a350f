"""Networks by name, and the check that a network can be private."""

from tacit.models.networks import MODELS, InitialWeights, TemperedSigmoid, build, check_name
from tacit.models.sanitization import SanitizationLayer, with_sanitization
from tacit.models.validate import check, findings, mended

__all__ = [
    "MODELS",
    "InitialWeights",
    "SanitizationLayer",
    "TemperedSigmoid",
    "build",
    "check",
    "check_name",
    "findings",
    "mended",
    "with_sanitization",
]
