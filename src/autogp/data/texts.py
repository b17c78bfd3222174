"""Columns of text as codes of their categories."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from autogp.data.columns import texts_of

__all__ = ["CONSTANT", "MOST_CATEGORIES", "ManyTexts", "Text", "TextFit", "Unseen"]

SURE_ONE_HOT, MOST_ONE_HOT = 50, 250  # categories that have a column each: in any case, and at most
ROWS_EACH = 3  # on average, from which a column each is better,
AFFORDABLE = 1e8  # where there can be as many inducing inputs as categories, which takes rows * categories^2
MOST_CATEGORIES = 100_000
FEW_CATEGORIES = 10  # this many are never too many for the rows there are
CONSTANT = "it has the same value in every row"

pc: Any = pyarrow.compute  # its functions exist at run time only


@dataclass(frozen=True)
class Text:
    """A column of text: a number is the code of its category, its place among them."""

    name: str
    categories: list[str]
    missing: int  # rows without a value in training

    @property
    def note(self) -> str:
        """What was assumed, in a sentence."""
        also = f", and {self.missing} missing" if self.missing else ""
        count = len(self.categories)
        return f"{self.name!r} is text with {count} {'category' if count == 1 else 'categories'}{also}"

    def value_of(self, number: float) -> str | None:
        """What a number of the array was in the table; None where it was missing or never seen in training."""
        return self.categories[int(number)] if number >= 0 else None

    @staticmethod
    def encode(
        parts: Sequence["Text"], table: pa.Table | pa.RecordBatch, unseen: "Unseen", first_row: int, place: str
    ) -> np.ndarray:
        """Codes [B, c] of these columns: NaN where a value is missing, -1 for categories that training never saw."""
        out = np.empty((table.num_rows, len(parts)))
        for position, part in enumerate(parts):
            column = texts_of(table.column(part.name), part.name, place)
            codes, absent = _codes(column, part.categories), column.is_null().to_numpy(zero_copy_only=False)
            strange = np.flatnonzero(np.isnan(codes) & ~absent)
            if len(strange):
                codes[strange] = -1
                unseen.add(part.name, len(strange), *column.take(pa.array(strange)).unique().to_pylist()[:3])
            if absent.any() and not part.missing:
                unseen.add(part.name, int(absent.sum()))
            out[:, position] = codes
        return out


@dataclass(frozen=True)
class ManyTexts(Text):
    """A column of text with so many categories that a model places them by what their targets are like."""

    @property
    def note(self) -> str:
        """What was assumed, in a sentence."""
        return f"{super().note}, each placed by the targets of its rows"


class Unseen:
    """Counts what an encoder met for the first time, so that it can be told once.

    Example:
        >>> unseen = Unseen()
        >>> unseen.add("port", 2, "Dover")
        >>> unseen.sentences()
        ["column 'port': 2 rows hold values that training never saw ('Dover'): their intervals are wider"]
    """

    def __init__(self) -> None:
        self.missing: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def add(self, column: str, rows: int, *values: str) -> None:
        """Adds rows with some of the values they hold, or rows without a value."""
        if not values:
            self.missing[column] += rows
            return
        self.rows[column] += rows
        known = self.examples.setdefault(column, [])
        known += [value for value in values if value not in known][: 3 - len(known)]

    def merge(self, other: "Unseen") -> None:
        """Adds what another has met."""
        for column, rows in other.rows.items():
            self.add(column, rows, *other.examples[column])
        self.missing.update(other.missing)

    def sentences(self) -> list[str]:
        """One for each column and kind of surprise."""
        found = []
        for name, rows in self.rows.items():
            examples = ", ".join(f"{value[:40]!r}" for value in self.examples[name])
            counted = "1 row holds a value" if rows == 1 else f"{rows} rows hold values"
            found.append(f"column {name!r}: {counted} that training never saw ({examples}): their intervals are wider")
        for name, rows in self.missing.items():
            counted = "1 row has" if rows == 1 else f"{rows} rows have"
            found.append(
                f"column {name!r}: {counted} no value, which never happened in training: their intervals are wider"
            )
        return found


class TextFit:
    """Learns the categories of a column of text, batch by batch."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.categories: dict[str, int] = {}  # and their codes, in order of first appearance
        self.rows = self.missing = 0

    def add(self, column: Any) -> np.ndarray:
        """Learns from the next rows [B], as `texts_of` gives them; returns their codes, NaN where missing."""
        if len(self.categories) <= MOST_CATEGORIES:
            for value in column.drop_null().unique().slice(0, MOST_CATEGORIES + 1).to_pylist():
                self.categories.setdefault(value, len(self.categories))
        self.missing += column.null_count
        self.rows += len(column)
        return _codes(column, list(self.categories))

    def merge(self, other: "TextFit") -> None:
        """Learns what another has learnt from rows of its own."""
        for value in other.categories:
            self.categories.setdefault(value, len(self.categories))
        self.rows, self.missing = self.rows + other.rows, self.missing + other.missing

    def finish(self, varies: bool) -> Text | str:
        """The column's categories, or why it is left out; with `varies` also where it has only one."""
        present, count = self.rows - self.missing, len(self.categories)
        if count == 0:
            return "it has no values"
        if varies and count == 1 and not self.missing:
            return CONSTANT
        if count > MOST_CATEGORIES:
            return f"it is text with more than {MOST_CATEGORIES:,} different values"
        if count > max(FEW_CATEGORIES, present / 2):
            return f"it is text with {count} different values in {present} rows"
        each = count <= MOST_ONE_HOT and present >= ROWS_EACH * count and self.rows * count**2 <= AFFORDABLE
        kind = Text if each or count <= SURE_ONE_HOT else ManyTexts
        return kind(self.name, sorted(self.categories), self.missing)


def _codes(column: Any, categories: list[str]) -> np.ndarray:
    """The place of each text [B] among the categories, float64; NaN where it has none."""
    codes = pc.index_in(column, value_set=pa.array(categories, pa.large_string()))
    return codes.cast(pa.float64()).to_numpy(zero_copy_only=False).copy()
