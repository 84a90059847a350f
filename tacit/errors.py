"""Every error a user can meet: each message names the argument, its value and the way out.

Library code names recipe values by their dotted keys, and an option together with what it is
called in Python, as both kinds of users meet the same message.
"""

from __future__ import annotations

RESUME = "--resume (in Python: resume=True)"  # for messages that both kinds of users may meet


class TacitError(Exception):
    """Base of all errors raised on purpose; the command line prints it without a traceback."""

    exit_code = 2


class ArgumentError(TacitError, ValueError):
    """A value that cannot be used, found before any data was touched."""


class DataError(TacitError, ValueError):
    """A data file that is missing, damaged or not what it should be."""

    exit_code = 3


class ModelError(TacitError, ValueError):
    """A network that cannot be trained privately as it is."""

    exit_code = 4


class MixedRecordsError(ModelError):
    """A model, loss or batch in which records influence each other's gradients."""


class NoProofError(TacitError):
    """A combination for which no proof is known; refused rather than guessed."""

    exit_code = 5


class RunError(TacitError):
    """A run directory that cannot be read, continued or written."""

    exit_code = 6


class ReplayError(RunError):
    """A step that was taken before a crash cannot be repeated exactly; it released nothing new.

    `tacit.fit` continues under a new key and charges the step again, unless noise is correlated.
    """


class LedgerError(RunError):
    """A ledger whose chain of hashes is broken, or that does not match the weights."""

    exit_code = 7


class BudgetError(TacitError):
    """A step that the remaining privacy budget does not cover."""

    exit_code = 8


class AuditError(TacitError):
    """An audit that shows more leakage than is proven, or that does not find what it must."""

    exit_code = 9
