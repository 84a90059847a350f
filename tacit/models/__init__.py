"""Networks by name, and the check that a network can be private."""

from tacit.models.networks import MODELS, TemperedSigmoid, build, check_name
from tacit.models.validate import check, findings, mended

__all__ = ["MODELS", "TemperedSigmoid", "build", "check", "check_name", "findings", "mended"]
