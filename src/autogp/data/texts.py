"""Columns of text as columns of zeros and ones, one for each category."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from autogp.data.columns import NUMBER

__all__ = ["MOST_CATEGORIES", "Text", "TextFit", "Unseen"]

MOST_CATEGORIES = 50
FEW_CATEGORIES = 10  # this many are never too many for the rows there are, nor a sign of numbers
WHOLE_NUMBER = r"^[+-]?\d+$"
NUMBER_WITH_COMMA = r"^[+-]?\d+(,\d+)+(\.\d*)?$|^[+-]?\d+(\.\d+)*,\d+$"  # 1,234.5 or 1.234,5

pc: Any = pyarrow.compute  # its functions exist at run time only


@dataclass(frozen=True)
class Text:
    """A column of text: one column of zeros and ones for each category, "missing" among them if it occurred."""

    name: str
    categories: list[str]
    missing: int

    @property
    def columns(self) -> list[str]:
        """Names of the encoded columns."""
        found = [f"{self.name}={category}" for category in self.categories]
        return [*found, f"{self.name} missing"] if self.missing else found

    def encode(self, column: Any, out: np.ndarray, unseen: "Unseen") -> None:
        """Sets the ones in `out` [B, ...], which is zero; `column` [B] is text as `texts_of` gives it."""
        codes = pc.index_in(column, value_set=pa.array(self.categories, pa.large_string()))
        codes = codes.fill_null(-1).to_numpy(zero_copy_only=False)  # [B]
        known = np.flatnonzero(codes >= 0)
        out[known, codes[known]] = 1
        absent = column.is_null().to_numpy(zero_copy_only=False)
        if self.missing:
            out[absent, len(self.categories)] = 1
        elif absent.any():
            unseen.add(self.name, int(absent.sum()))
        strange = np.flatnonzero((codes < 0) & ~absent)
        if len(strange):
            unseen.add(self.name, len(strange), *column.take(pa.array(strange)).unique().to_pylist()[:3])


class Unseen:
    """Counts what an encoder met for the first time, so that it can be told once.

    Example:
        >>> unseen = Unseen()
        >>> unseen.add("port", 2, "Dover")
        >>> unseen.sentences()
        ["column 'port': 2 rows hold values that training never saw ('Dover'): they count as no category"]
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

    def sentences(self) -> list[str]:
        """One for each column and kind of surprise."""
        found = []
        for name, rows in self.rows.items():
            examples = ", ".join(f"{value[:40]!r}" for value in self.examples[name])
            counted = "1 row holds a value" if rows == 1 else f"{rows} rows hold values"
            found.append(f"column {name!r}: {counted} that training never saw ({examples}): they count as no category")
        for name, rows in self.missing.items():
            counted = "1 row has" if rows == 1 else f"{rows} rows have"
            found.append(
                f"column {name!r}: {counted} no value, which never happened in training: they count as average"
            )
        return found


class TextFit:
    """Learns the categories of a column of text, batch by batch."""

    def __init__(self, name: str, categorical: bool) -> None:
        self.name = name
        self.categorical = categorical  # the user's own word that these are categories, whatever they look like
        self.categories: set[str] = set()
        self.rows = self.missing = 0
        self.numbers = 0  # rows that hold a number, however it is written
        self.fraction = False  # some of them are not whole
        self.first_fault: tuple[int, str] | None = None  # the first value that is no number as it is written

    def add(self, column: Any) -> None:
        """Learns from the next rows, as `texts_of` gives them."""
        if len(self.categories) <= MOST_CATEGORIES:
            self.categories.update(column.drop_null().unique().to_pylist()[: MOST_CATEGORIES + 1])
        proper = pc.match_substring_regex(column, NUMBER)
        count = _count(proper)
        alike = count + _count(pc.match_substring_regex(column, NUMBER_WITH_COMMA))
        self.numbers += alike
        if alike and not self.fraction:
            self.fraction = alike > _count(pc.match_substring_regex(column, WHOLE_NUMBER))
        if self.first_fault is None and count < len(column) - column.null_count:
            row = proper.index(False).as_py()
            self.first_fault = (self.rows + row + 1, column[row].as_py())
        self.missing += column.null_count
        self.rows += len(column)

    def finish(self, place: str) -> Text | str:
        """The column's categories, or why it has none; `place` is what error messages start with."""
        present, count = self.rows - self.missing, len(self.categories)
        if count == 0:
            return "it has no values"
        # A typing error or a "?" must not turn a column of numbers into hundreds of categories.
        written = _count(pc.match_substring_regex(pa.array(sorted(self.categories)), NUMBER))
        if not self.categorical and self.numbers > present / 2 and (self.fraction or written > FEW_CATEGORIES):
            if self.first_fault is None:
                raise ValueError(f"{place}column {self.name!r} holds numbers stored as text: convert it to numbers")
            row, value = self.first_fault
            raise ValueError(
                f"{place}column {self.name!r} holds numbers, but {value[:80]!r} in row {row}: "
                "correct it, or leave it empty if the value is missing"
            )
        if count > MOST_CATEGORIES:
            return f"it is text with more than {MOST_CATEGORIES} different values"
        if count > max(FEW_CATEGORIES, present / 2):
            return f"it is text with {count} different values in {present} rows"
        return Text(self.name, sorted(self.categories), self.missing)


def _count(mask: Any) -> int:
    return pc.sum(mask).as_py() or 0
