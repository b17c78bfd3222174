"""The kinds of columns of a table: what is known of each, and reading that from a file."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from autogp.data.columns import numbers_of
from autogp.data.dates import PERIODS, Date
from autogp.data.texts import MOST_CATEGORIES, ManyTexts, Text, Unseen
from autogp.data.written import Written

__all__ = ["KINDS", "Ignored", "Number", "Part", "part_of"]


@dataclass(frozen=True)
class Number:
    """A column of numbers or truth values."""

    name: str
    mean: float
    missing: int  # rows without a value in training
    decimal: str = "."  # of numbers in text,
    unit: str = ""  # and what stands beside them
    words: list[str] = field(default_factory=list)  # that stand where one is missing

    @property
    def note(self) -> str:
        """What was assumed, in a sentence, or nothing."""
        found = []
        if self.unit or self.decimal != ".":
            comma = " with decimal commas" if self.decimal == "," else ""
            found.append(f"holds numbers{comma}" + f" in {self.unit}" * bool(self.unit))
        if self.missing:
            words = f" ({', '.join(map(repr, self.words))} among them)" if self.words else ""
            found.append(
                f"has {self.missing} missing value{'s' * (self.missing > 1)}{words}, taken as the mean {self.mean:.6g}"
            )
        return f"{self.name!r} {', and '.join(found)}" if found else ""

    @staticmethod
    def value_of(number: float) -> float:
        """What a number of the array was in the table."""
        return number

    @staticmethod
    def encode(
        parts: Sequence["Number"], table: pa.Table | pa.RecordBatch, unseen: Unseen, first_row: int, place: str
    ) -> np.ndarray:
        """The numbers of these columns [B, c]: NaN where one is missing."""
        written = {part.name: Written(part.decimal, part.unit, tuple(part.words)) for part in parts}
        values = numbers_of(table, list(written), first_row, place, written)
        absent = np.isnan(values)
        for position, count in enumerate(absent.sum(axis=0).tolist()):
            if count and not parts[position].missing:
                unseen.add(parts[position].name, count)
        return values


@dataclass(frozen=True)
class Ignored:
    """A column that says nothing a model could use."""

    name: str
    reason: str

    @property
    def note(self) -> str:
        """What was assumed, in a sentence."""
        return f"{self.name!r} is left out: {self.reason}"


Part = Number | Text | Date | Ignored
KINDS = {"number": Number, "text": Text, "many_texts": ManyTexts, "date": Date, "ignored": Ignored}


def part_of(column: Any) -> Part:
    """A column of a description, which may come from anyone's file."""
    kind = next((kind for name, kind in KINDS.items() if isinstance(column, dict) and column.get("kind") == name), None)
    values = {key: value for key, value in column.items() if key != "kind"} if kind else {}
    fields = {} if kind is None else kind.__dataclass_fields__
    needed = {name for name, each in fields.items() if each.default is MISSING and each.default_factory is MISSING}
    if kind is None or not needed <= set(values) <= set(fields) or not isinstance(values["name"], str):
        raise ValueError(f"a column of a table's encoding is none of {', '.join(KINDS)}: {str(column)[:80]}")
    place = f"the encoding of column {values['name'][:80]!r}"
    if kind is Ignored and not isinstance(values["reason"], str):
        raise ValueError(f"{place} must have a text as its reason")
    if kind is not Ignored and not (type(values["missing"]) is int and values["missing"] >= 0):
        raise ValueError(f"{place} must have a whole number of missing rows")
    if kind in (Number, Date) and not (type(values["mean"]) is float and math.isfinite(values["mean"])):
        raise ValueError(f"{place} must have a finite mean")
    if kind is Number and not (values.get("decimal", ".") in (".", ",") and isinstance(values.get("unit", ""), str)):
        raise ValueError(f"{place} must have a decimal mark and a unit")
    if kind is Number:
        words = values.get("words", [])
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{place} must have texts as its words")
    if kind is Date:
        periods = values["periods"]
        known = isinstance(periods, list) and all(isinstance(each, str) and each in PERIODS for each in periods)
        if not known or len(set(periods)) < len(periods) or type(values["trend"]) is not bool:
            raise ValueError(f"{place} must have different periods out of {', '.join(PERIODS)}")
        if not isinstance(values["form"], str) or not (values["trend"] or periods):
            raise ValueError(f"{place} must say how dates are written, and what they tell")
    if kind in (Text, ManyTexts):
        found = values["categories"]
        if not isinstance(found, list) or not all(isinstance(category, str) for category in found):
            raise ValueError(f"{place} must have a list of categories")
        if not 1 <= len(found) <= MOST_CATEGORIES or found != sorted(set(found)):
            raise ValueError(f"{place} must have 1 to {MOST_CATEGORIES} different categories in sorted order")
    return kind(**values)
