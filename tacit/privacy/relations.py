"""Neighbouring relations: which two datasets must be hard to tell apart."""

from __future__ import annotations

from enum import Enum

PUBLIC_LABELS = "every record's label, and with it the number of records in each class"


class Relation(str, Enum):
    """To whom, and against which change, a promise is made."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"
    REPLACE_FEATURES = "replace-features"

    @property
    def meaning(self) -> str:
        """One sentence for a certificate."""
        return _MEANING[self]


_MEANING = {
    Relation.ADD_OR_REMOVE_ONE: "one training record is present or absent",
    Relation.ZERO_OUT: "one training record is replaced by one that contributes nothing",
    Relation.REPLACE_ONE: "one training record is replaced by any other",
    Relation.REPLACE_FEATURES: "one training record's features change, its label is public",
}
