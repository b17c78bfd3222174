"""What a user should know about targets before they are learnt: they never vary, or a column gives them away."""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import rankdata

from autogp.data import Source
from autogp.data.sources import evenly_spaced

__all__ = ["remarks_on_columns", "remarks_on_numbers"]

COMPARED_ROWS = 5_000
FEWEST_ROWS = 30
MOST_COLUMNS = 1_000
ROWS_A_VALUE = 10  # on average, for the values of a column to count as groups
AS_GOOD_AS_ONE = 0.9999  # a correlation


def remarks_on_numbers(y: np.ndarray) -> Iterator[str]:
    """On targets [N] or [N, P] that are the same in every row."""
    for output, column in enumerate(y.reshape(len(y), -1).T):
        known = column[~np.isnan(column)] if column.dtype.kind == "f" else column
        if len(known) and known.min() == known.max():
            where = "y" if y.ndim == 1 else f"column {output} of y"
            rows = "the one row that there is" if len(known) == 1 else "every row"
            yield f"{where} is {known[0]:g} in {rows}: no column can tell anything about it"


def remarks_on_columns(
    source: Source, y: np.ndarray, names: Sequence[str] | None, every: bool = False
) -> Iterator[str]:
    """On columns from which the targets y [N, P] follow, among several that have names.

    A column gives a target away where their rank correlation is 1 or -1, as for a logarithm of the target or the same
    in another unit; where it has few values, each of which has one target; or where a limit separates two classes.
    With `every` it must give all targets of a row away, as it must for all classes of several.
    """
    if names is None or not 1 < len(names) <= MOST_COLUMNS or len(y) < FEWEST_ROWS:
        return
    rows = evenly_spaced(len(y), COMPARED_ROWS)
    x, y = np.asarray(source.rows(rows)[0], dtype=np.float64), np.asarray(y[rows], dtype=np.float64)
    for name, column in zip(names, x.T, strict=True):
        known = ~np.isnan(column) & ~np.isnan(y).any(1)
        if known.sum() < FEWEST_ROWS:
            continue
        found = (min if every else max)(_association(column[known], target) for target in y[known].T)
        if found >= AS_GOOD_AS_ONE:
            yield (
                f"column {name!r} gives the target away (correlation {found:.4f}): it is used, so leave it out if it "
                "is not known when you predict"
            )


def _association(x: np.ndarray, y: np.ndarray) -> float:
    """From 0 to 1: the correlation of ranks, or the correlation ratio where x has few values; where y has two, Somers'
    D, which is 1 where the larger y always has the larger x."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    _, group = np.unique(x, return_inverse=True)
    counts = np.bincount(group)
    if len(counts) * ROWS_A_VALUE <= len(x):
        means = np.bincount(group, y) / counts
        return float(np.sqrt(np.sum(counts * (means - y.mean()) ** 2) / np.sum((y - y.mean()) ** 2)))
    ranks = rankdata(x)
    second = y == y.max()
    if (second | (y == y.min())).all():
        ones, zeros = int(second.sum()), int((~second).sum())
        return abs(2 * (ranks[second].sum() - ones * (ones + 1) / 2) / (ones * zeros) - 1)
    return abs(float(np.corrcoef(ranks, rankdata(y))[0, 1]))
