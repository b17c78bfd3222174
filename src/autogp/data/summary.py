"""One streaming pass over a source: moments of every column, class counts, and a check that all is finite."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from torch import Tensor

from autogp.data.sources import Source, as_tensor, evenly_spaced

__all__ = ["Moments", "Summary", "check_finite", "summarise"]

CHUNK_BYTES = 2**22  # of numbers read at a time: they stay in the cache from one operation to the next
MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Moments:
    """Mean, standard deviation (divisor N), minimum and maximum of each column, all float64 [D]."""

    mean: np.ndarray
    std: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray

    def shift_and_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """What to subtract from each column, and then to divide it by, for zero mean and unit variance."""
        # Rounding can leave a constant column a mean one digit off and a tiny deviation: its extremes tell for certain.
        constant = self.minimum == self.maximum
        shift = np.where(constant, self.minimum, self.mean)
        return shift, np.where(constant | (self.std == 0), 1.0, self.std)


@dataclass(frozen=True)
class Summary:
    """What one pass over the data tells.

    Attributes:
        rows: The number of rows read.
        x: Moments of the D inputs.
        y: Moments of the P targets, of those that are not missing; none without targets.
        class_counts: Rows of each value of integer targets [N], by value; none for other targets and for more than
            10,000 values.
    """

    rows: int
    x: Moments
    y: Moments | None
    class_counts: dict[int, int] | None


def summarise(
    source: Source,
    *,
    allow_missing_targets: bool = False,
    max_rows: int | None = None,
    chunk_rows: int | None = None,
) -> Summary:
    """The summary of `source`, in one pass that raises `ValueError` at the first number that is not finite.

    Arguments:
        source: The data.
        allow_missing_targets: Whether targets may be NaN. Infinite ones never pass.
        max_rows: Read (and check) no more than this many rows, evenly spaced.
        chunk_rows: Rows read at a time; by default about 4 MB of them.

    Example:
        >>> from autogp.data import ArraySource
        >>> summary = summarise(ArraySource(np.array([[1, 5], [3, 5]]), np.array([0, 0])))
        >>> summary.x.mean.tolist(), summary.x.std.tolist(), summary.class_counts
        ([2.0, 5.0], [1.0, 0.0], {0: 2})
    """
    inputs = _RunningMoments()
    targets: list[_RunningMoments] = []
    counts: dict[int, int] | None = {}
    rows = 0
    for indices, x, y in _chunks(source, max_rows, chunk_rows):
        _check_chunk(indices, x, y, allow_missing_targets)
        inputs.update(x)
        columns = y[:, None] if y.ndim == 1 else y  # [B, P]
        targets = targets or [_RunningMoments() for _ in range(columns.shape[1])]
        for moments, column in zip(targets, columns.T, strict=True):
            observed = column[~np.isnan(column)] if column.dtype.kind == "f" else column
            moments.update(observed[:, None])
        if counts is not None:
            counts = _add_counts(counts, y)
        rows += len(indices)
    empty = [number for number, moments in enumerate(targets) if moments.count == 0]
    if empty:
        raise ValueError(f"every target is missing in column {empty[0]} (counted from 0)")
    return Summary(rows, inputs.finish(), _joined([each.finish() for each in targets]), counts)


def check_finite(
    source: Source,
    *,
    allow_missing_inputs: bool = False,
    allow_missing_targets: bool = False,
    check_targets: Callable[[Tensor], object] | None = None,
    chunk_rows: int | None = None,
) -> None:
    """Raises `ValueError` naming the first input or target that is not finite, by row and column counted from 0.

    Missing ones (NaN) may be allowed; infinite ones never pass.

    Whole numbers are always finite: where both inputs and targets are integers, only one row is read, unless the
    targets have to pass a check of their own, `check_targets`, which raises ValueError.

    Example:
        >>> from autogp.data import ArraySource
        >>> check_finite(ArraySource([[1.0, 2.0], [3.0, float("nan")]], [0, 1]))
        Traceback (most recent call last):
        ValueError: inputs hold nan in row 1, column 1 (counted from 0)
    """
    x, y = map(np.asarray, source.rows(np.zeros(1, np.int64)))
    if x.dtype.kind != "f" and y.dtype.kind != "f" and check_targets is None:
        return
    for number, (indices, x, y) in enumerate(_chunks(source, None, chunk_rows)):
        _check_chunk(indices, x, y, allow_missing_targets, allow_missing_inputs)
        if check_targets is not None:
            try:
                check_targets(as_tensor(y))
            except ValueError:  # once more with the rows before, for the row's number
                so_far = [y for _, _, y in islice(_chunks(source, None, chunk_rows), number + 1)]
                check_targets(as_tensor(np.concatenate(so_far)))
                raise


def _chunks(
    source: Source, max_rows: int | None, chunk_rows: int | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Row numbers [B], inputs [B, D] and targets [B] or [B, P], in ascending order of rows."""
    length = len(source)
    if length == 0:
        raise ValueError("the source has no rows")
    if chunk_rows is None:
        features = np.shape(source.rows(np.zeros(1, np.int64))[0])[1]
        # Eight bytes a number, whatever is stored: the moments are computed in float64.
        chunk_rows = max(1, CHUNK_BYTES // (8 * features))
    sample = None if max_rows is None or max_rows >= length else evenly_spaced(length, max_rows)
    count = length if sample is None else len(sample)
    for start in range(0, count, chunk_rows):
        stop = min(start + chunk_rows, count)
        indices = np.arange(start, stop) if sample is None else sample[start:stop]
        x, y = source.rows(indices)
        yield indices, np.asarray(x), np.asarray(y)


def _check_chunk(
    indices: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    allow_missing_targets: bool,
    allow_missing_inputs: bool = False,
) -> None:
    for what, values, missing in (("inputs", x, allow_missing_inputs), ("targets", y, allow_missing_targets)):
        bad = None if values.dtype.kind != "f" else (np.isinf(values) if missing else ~np.isfinite(values))
        if bad is not None and bad.any():
            place = tuple(np.argwhere(bad)[0])
            where = f"row {indices[place[0]]}" + (f", column {place[1]}" if values.ndim == 2 else "")
            raise ValueError(f"{what} hold {values[place]} in {where} (counted from 0)")


def _add_counts(counts: dict[int, int], y: np.ndarray) -> dict[int, int] | None:
    if y.dtype.kind == "f" or y.ndim != 1:
        return None
    for value, count in zip(*np.unique(y, return_counts=True), strict=True):
        counts[int(value)] = counts.get(int(value), 0) + int(count)
    return dict(sorted(counts.items())) if len(counts) <= MOST_CLASSES else None


def _joined(columns: list[Moments]) -> Moments | None:
    if not columns:
        return None
    names = ("mean", "std", "minimum", "maximum")
    return Moments(**{name: np.concatenate([getattr(column, name) for column in columns]) for name in names})


class _RunningMoments:
    """Moments merged chunk by chunk: Chan, Golub & LeVeque (1983), of the distance to the first row.

    Means that differ little beside a large offset would lose their digits in the merging.
    """

    def __init__(self) -> None:
        self.count = 0
        self.origin = self.mean = self.squares = np.zeros(0)  # squares: the sum of (x - mean)^2
        self.minimum = self.maximum = np.zeros(0)

    def update(self, chunk: np.ndarray) -> None:
        """Adds the rows of `chunk` [B, D]."""
        count = len(chunk)
        if count == 0:
            return
        minimum, maximum = chunk.min(axis=0).astype(np.float64), chunk.max(axis=0).astype(np.float64)
        if self.count == 0:
            self.origin = chunk[0].astype(np.float64)
            self.mean = self.squares = np.zeros_like(self.origin)
            self.minimum, self.maximum = minimum, maximum
        centred = chunk.astype(np.float64)
        centred -= self.origin
        mean = centred.mean(axis=0)
        centred -= mean
        squares = np.einsum("bd,bd->d", centred, centred)
        total = self.count + count
        difference = mean - self.mean
        self.mean = self.mean + difference * (count / total)
        self.squares = self.squares + squares + difference**2 * (self.count * count / total)
        self.minimum, self.maximum = np.minimum(self.minimum, minimum), np.maximum(self.maximum, maximum)
        self.count = total

    def finish(self) -> Moments:
        return Moments(self.origin + self.mean, np.sqrt(self.squares / self.count), self.minimum, self.maximum)
