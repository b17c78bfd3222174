"""Columns of dates and times as seconds, and which of their periods the data span."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from autogp.data.columns import is_date, is_number, is_text, texts_of
from autogp.data.texts import CONSTANT, Unseen
from autogp.data.written import CLOCKS, DAY, DIGITS, seconds_of

__all__ = ["FIRST_DAY", "LAST_DAY", "PERIODS", "Date", "DateFit", "days_in_digits"]

PERIODS = {"year": 365.2425 * DAY, "week": 7 * DAY, "day": DAY}  # in seconds
WHOLE_YEAR = 0.95  # from January to December is less than a year by a few days, at least
MOST_DAYS = 100_000  # different ones that are counted
FIRST_DAY, LAST_DAY = 19_000_101, 20_991_231  # as whole numbers
FEWEST_DAYS = 5  # different ones, for numbers to be taken as days


@dataclass(frozen=True)
class Date:
    """A column of dates or times: a number is seconds since 1970 on its own clock, or since midnight."""

    name: str
    mean: float
    missing: int  # rows without a value in training
    form: str  # how text writes them
    trend: bool  # whether time goes on, as it does not for times of the day
    periods: list[str]  # those that the data span

    @property
    def note(self) -> str:
        """What was assumed, in a sentence."""
        what = " and ".join([*(["trend"] * self.trend), *(f"time of {period}" for period in self.periods)])
        written = f", written as {self.form}" if "%" in self.form else ""
        also = f", and {self.missing} missing" if self.missing else ""
        return f"{self.name!r} holds dates or times{written}{also}: {what}"

    def value_of(self, number: float) -> str | None:
        """What a number of the array was in the table, in ISO's form; to the day where it is midnight."""
        if np.isnan(number):
            return None
        day, clock = str(np.datetime64(round(float(number)), "s")).split("T")
        return clock[:5] if not self.trend else day if clock == "00:00:00" else f"{day} {clock[:5]}"

    @staticmethod
    def encode(
        parts: Sequence["Date"], table: pa.Table | pa.RecordBatch, unseen: Unseen, first_row: int, place: str
    ) -> np.ndarray:
        """Seconds of these columns [B, c]: NaN where one is missing."""
        out = np.empty((table.num_rows, len(parts)))
        for position, part in enumerate(parts):
            out[:, position] = seconds_in(table.column(part.name), part.name, part.form, first_row, place)
            absent = int(np.isnan(out[:, position]).sum())
            if absent and not part.missing:
                unseen.add(part.name, absent)
        return out


def seconds_in(column: Any, name: str, form: str, first_row: int, place: str) -> np.ndarray:
    """Seconds of a column [B], NaN where a value is missing; others than dates are an error."""
    if is_text(column.type) or pa.types.is_null(column.type) or (form == DIGITS and is_number(column.type)):
        column = texts_of(column, name, place)
    elif not is_date(column.type):
        raise ValueError(f"{place}column {name!r} must hold dates or times as in training, but it holds {column.type}")
    seconds, wrong = seconds_of(column, form or "iso")
    if wrong >= 0:
        raise ValueError(
            f"{place}column {name!r} holds dates or times, but {str(column[wrong].as_py())[:80]!r} in row "
            f"{first_row + wrong}: correct it, or leave it empty if it is missing"
        )
    return seconds


def days_in_digits(column: Any) -> bool:
    """Whether numbers are days such as 20240131, all of them, and several."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return False
    values = column.drop_null().unique().cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if len(values) < FEWEST_DAYS or values.min() < FIRST_DAY or values.max() > LAST_DAY or (values % 1).any():
        return False
    return seconds_of(pa.array(values.astype(np.int64)).cast(pa.large_string()), DIGITS)[1] < 0


class DateFit:
    """Learns what a column of dates or times spans, batch by batch."""

    def __init__(self, name: str, form: str, clock: bool) -> None:
        self.name, self.form, self.clock = name, form, clock or form in CLOCKS
        self.rows = self.missing = 0
        self.low, self.high, self.total = np.inf, -np.inf, 0.0
        self.hours = False  # some are not at midnight
        self.days: set[int] = set()

    def add(self, column: Any, first_row: int, place: str) -> np.ndarray:
        """Learns from the next rows; returns their seconds [B], NaN where missing."""
        seconds = seconds_in(column, self.name, self.form, first_row, place)
        present = seconds[~np.isnan(seconds)]
        self.rows += len(seconds)
        self.missing += len(seconds) - len(present)
        if len(present):
            self.low, self.high = min(self.low, present.min()), max(self.high, present.max())
            self.total += present.sum()
            self.hours = self.hours or bool((present % DAY != 0).any())
            if len(self.days) < MOST_DAYS:
                self.days.update(np.unique(present // DAY).astype(int).tolist())
        return seconds

    def merge(self, other: "DateFit") -> None:
        """Learns what another has learnt from rows of its own."""
        self.rows, self.missing, self.total = (
            self.rows + other.rows,
            self.missing + other.missing,
            self.total + other.total,
        )
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.hours, self.days = self.hours or other.hours, self.days | other.days

    def finish(self, varies: bool) -> Date | str:
        """What the column tells, or why it is left out; with `varies` also where it is constant."""
        count = self.rows - self.missing
        if count == 0:
            return "it has no values"
        if varies and self.low == self.high and not self.missing:
            return CONSTANT
        span = self.high - self.low
        spanned = {
            "year": span >= WHOLE_YEAR * PERIODS["year"],
            "week": span >= 2 * PERIODS["week"]
            and len(self.days) * PERIODS["week"] >= span,  # days come weekly or more
            "day": self.hours and (self.clock or span >= 2 * DAY),
        }
        periods = [period for period, some in spanned.items() if some and (period == "day" or not self.clock)]
        return Date(self.name, float(self.total / count), self.missing, self.form, not self.clock, periods)
