"""The files of numbers into which a process writes the rows that it has converted, and what it knows of them."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from autogp.data.columns import numbers_of, texts_of
from autogp.data.encoding import TableEncoder
from autogp.data.readers import Layout

__all__ = ["ColumnFacts", "InputFile", "TargetFile"]

REMOVE = "remove such rows, or say drop_missing_targets=True (--drop-missing-target)"
PIECE = 2**20  # numbers converted at a time
MOST_ROUNDING = 1e-5  # by float32, of the range of a column


@dataclass
class ColumnFacts:
    """What decides the dtype of inputs, of each column [C]; missing values are left out of all but `missing`."""

    low: np.ndarray
    high: np.ndarray
    rounding: np.ndarray  # by float32, at most
    whole: np.ndarray
    missing: np.ndarray

    @classmethod
    def of_rows(cls, x: np.ndarray) -> "ColumnFacts":
        """Those of rows [B, C], at least one."""
        missing: Any = np.isnan(x)
        with np.errstate(over="ignore"):
            rounding = np.fmax.reduce(np.abs(x.astype(np.float32) - x))
        whole = ((x == np.rint(x)) | missing).all(axis=0)
        return cls(np.fmin.reduce(x), np.fmax.reduce(x), rounding, whole, missing.any(axis=0))

    def merged(self, other: "ColumnFacts") -> "ColumnFacts":
        """Those of the rows of both."""
        return ColumnFacts(
            np.fmin(self.low, other.low),
            np.fmax(self.high, other.high),
            np.fmax(self.rounding, other.rounding),
            self.whole & other.whole,
            self.missing | other.missing,
        )

    def of(self, names: list[str], encoder: TableEncoder) -> "ColumnFacts":
        """Those of the columns that the encoder uses, with the codes that it gives to text."""
        places = [names.index(name) for name in encoder.used]
        found = ColumnFacts(*(values[places] for values in vars(self).values()))
        for name, categories in encoder.categories.items():
            found.high[encoder.used.index(name)] = len(categories) - 1
        return found

    def dtype(self, wide: str) -> np.dtype:
        """The smallest that keeps whole numbers exact, and what varies beside a large offset."""
        if (self.whole & ~self.missing & (self.low >= 0) & (self.high <= 255)).all():
            return np.dtype(np.uint8)
        allowed = np.where(self.whole, 0, MOST_ROUNDING * (self.high - self.low))
        return np.dtype(np.float64) if (self.rounding > allowed).any() else np.dtype(wide)


class InputFile:
    """A file of inputs in the narrowest dtype that keeps those met so far."""

    def __init__(self, path: Path, columns: int, wide: str) -> None:
        self.path, self.columns, self.wide = path, columns, wide
        self.dtype = np.dtype(np.uint8)
        none = np.full(columns, np.nan)
        self.known = ColumnFacts(none, none, none, np.ones(columns, bool), np.zeros(columns, bool))

    def append(self, x: np.ndarray) -> None:  # [B, C]
        if len(x) == 0:
            return
        self.known = self.known.merged(ColumnFacts.of_rows(x))
        needed = np.promote_types(self.dtype, self.known.dtype(self.wide))
        if needed != self.dtype and self.path.exists():
            _convert(self.path, self.dtype, needed)
        self.dtype = needed
        _append(self.path, x.astype(needed))

    def write(
        self,
        path: Path,
        dtype: np.dtype,
        start: int,
        settle: Callable[[np.ndarray], np.ndarray] | None,
        alone: bool,
    ) -> None:
        """Puts the rows into a file of all, after `start` numbers, with the codes and columns that `settle` gives."""
        if not self.path.exists():
            return
        if alone and settle is None and dtype == self.dtype:
            self.path.rename(path)
            return
        old = np.memmap(self.path, self.dtype, mode="r").reshape(-1, self.columns)
        step = max(1, PIECE // self.columns)
        pieces = (old[row : row + step] for row in range(0, len(old), step))
        _put_numbers(path, start, dtype, pieces if settle is None else map(settle, pieces))
        self.path.unlink()


@dataclass(frozen=True)
class AllTargets:
    """What is known of the targets when all rows have been read."""

    dtype: np.dtype
    classes: list[str] | None
    rank: np.ndarray | None  # for each code of this process its place among the classes


class TargetFile:
    """A file of targets: codes of labels, or float64 numbers that become int64 at the end where all are whole."""

    def __init__(self, path: Path, layout: Layout, single: bool, classes: Sequence[str] | None) -> None:
        self.path = path
        self.names = layout.targets
        self.single = single
        self.labels = _LabelFit(self.names[0], classes) if layout.text_target else None
        self.whole = layout.integer_targets and not layout.written
        self.written = layout.written

    def present(self, batch: pa.RecordBatch, place: str) -> np.ndarray:
        """Which rows of the batch have a target."""
        found = np.zeros(batch.num_rows, bool)
        for name in self.names:
            if name in self.written:
                found |= ~np.isnan(numbers_of(batch, [name], 1, place, self.written)[:, 0])
                continue
            column = batch.column(name)
            column = column if pa.types.is_floating(column.type) else texts_of(column, name, place)
            found |= ~column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        return np.flatnonzero(found)

    def append(self, batch: pa.RecordBatch, start: int, chosen: np.ndarray, place: str) -> None:
        """Adds the targets of the chosen rows of the batch; `start` rows came before."""
        if self.labels is not None:
            _append(self.path, self.labels.codes(batch.column(self.names[0]), start, chosen, place))
        elif self.names:
            y = numbers_of(batch, self.names, start + 1, f"{place}target ", self.written)[chosen]  # [B, P]
            if self.single and np.isnan(y).any():
                row = start + int(chosen[np.argmax(np.isnan(y[:, 0]))]) + 1
                raise ValueError(f"{place}target column {self.names[0]!r} has a missing value in row {row}: {REMOVE}")
            self.whole = self.whole and bool((y == np.rint(y)).all())
            _append(self.path, y)

    def together(self, parts: list["TargetFile"]) -> AllTargets:
        """What the targets of all parts are."""
        if self.labels is not None:
            classes = _LabelFit.classes([each.labels for each in parts if each.labels is not None])
            places = {label: place for place, label in enumerate(classes)}
            rank = np.array([places[label] for label in self.labels.known], np.int64)
            return AllTargets(np.dtype(np.int64), classes, rank)
        whole = all(each.whole for each in parts)
        return AllTargets(np.dtype(np.int64 if whole else np.float64), None, None)

    def write(self, path: Path, start: int, all_rows: AllTargets) -> None:
        """Puts the targets into a file of all, after those of `start` rows."""
        if not self.path.exists():
            return
        old = np.memmap(self.path, np.float64 if all_rows.rank is None else np.int64, mode="r")
        rank: Any = all_rows.rank
        pieces = (old[at : at + PIECE] for at in range(0, len(old), PIECE))
        pieces = pieces if rank is None else (rank[piece] for piece in pieces)
        _put_numbers(path, start * max(1, len(self.names)), all_rows.dtype, pieces)
        self.path.unlink()


class _LabelFit:
    """Class labels met so far, each with its code and the row that had it first."""

    def __init__(self, column: str, classes: Sequence[str] | None) -> None:
        self.column = column
        self.fixed = classes is not None
        self.known = {str(label): (code, 0, "") for code, label in enumerate(classes or [])}

    def codes(self, column: pa.Array, start: int, chosen: np.ndarray, place: str) -> np.ndarray:
        """Codes of the chosen rows, in order of first appearance; `start` rows came before the column's."""
        where = f"{place}target column {self.column!r}"
        column = texts_of(column, "", where).take(pa.array(chosen))
        if column.null_count:
            row = int(chosen[np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]])
            raise ValueError(f"{where} has a missing value in row {start + row + 1}: {REMOVE}")
        encoded = column.dictionary_encode()
        positions = encoded.indices.to_numpy()
        _, first = np.unique(positions, return_index=True)
        codes = []
        for label, row in zip(encoded.dictionary.to_pylist(), start + chosen[first] + 1, strict=True):
            if self.fixed and label not in self.known:
                raise ValueError(f"{where} has {label!r} in row {row}, which is not among {list(self.known)}")
            codes.append(self.known.setdefault(label, (len(self.known), int(row), where))[0])
        return np.array(codes, np.int64)[positions]

    @staticmethod
    def classes(parts: list["_LabelFit"]) -> list[str]:
        """The labels of all parts, sorted unless their order was given."""
        if parts[0].fixed:
            return list(parts[0].known)
        met = [(label, row, where) for part in parts for label, (_, row, where) in part.known.items()]
        number = next((each for each in met if _is_number(each[0])), None)
        text = next((each for each in met if not _is_number(each[0])), None)
        # A typing error or a "?" must not turn a regression into thousands of classes.
        if number is not None and text is not None:
            other = text[2].split(": target column")[0]
            raise ValueError(
                f"{number[2]} mixes numbers and text: row {number[1]} holds {number[0]!r}, row {text[1]} "
                + (f"of {other} " if text[2] != number[2] else "")
                + f"{text[0]!r}"
            )
        return sorted({label for label, *_ in met})


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _append(path: Path, array: np.ndarray) -> None:
    try:
        with path.open("ab") as file:
            file.write(np.ascontiguousarray(array).data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # which disk is full


def _put_numbers(path: Path, start: int, dtype: np.dtype, pieces: Iterator[np.ndarray]) -> None:
    """Writes numbers into a file, which other processes may write too, after `start` others."""
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            file.seek(start * dtype.itemsize)
            for piece in pieces:
                file.write(np.ascontiguousarray(piece, dtype).data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # which disk is full


def _convert(path: Path, before: np.dtype, after: np.dtype) -> None:
    """Rewrites a file of numbers in another dtype, piece by piece."""
    old = np.memmap(path, before, mode="r")
    fresh = path.with_suffix(".new")
    for start in range(0, len(old), PIECE):
        _append(fresh, old[start : start + PIECE].astype(after))
    fresh.replace(path)
