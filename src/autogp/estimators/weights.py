"""What each row counts: checked weights, and rows that are the same row."""

import math
import warnings
from typing import Any

import numpy as np

from autogp.data import Source, Subset
from autogp.estimators.inputs import refuse_non_finite

__all__ = ["checked_weights", "merged"]

LARGEST, LEAST_TOTAL = (
    1e8,
    1e-8,
)  # beyond, sums of rows have no digits left for the others, or for the data beside q's prior
FAR_FROM_ONE = 5.0


def checked_weights(sample_weight: Any, count: int, meaning: str) -> np.ndarray | None:
    """Weights [N] of rows; with the meaning "importance" divided by their mean.

    Then a weight w divides the variance of Gaussian noise: with a mean of 1, sum_n w_n log N(y_n; f_n, s) and
    sum_n log N(y_n; f_n, s / w_n) differ by a constant.
    """
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=np.float64)
    weights = np.full(count, weights) if weights.ndim == 0 else weights
    if weights.shape != (count,):
        raise ValueError(f"sample_weight must be one number per row, [{count}], got the shape {weights.shape}")
    refuse_non_finite(weights, "sample_weight", largest=math.inf)
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        raise ValueError(f"sample_weight must not be negative, got {weights[row]:g} in row {row} (counted from 0)")
    if not weights.any():
        raise ValueError("sample_weight must not be zero for every row")
    if meaning == "importance":
        weights = weights / weights.max()  # first: a sum of large numbers could overflow
        return weights / weights.mean()
    row, advice = int(weights.argmax()), "for weights of which only the ratios matter, set weights='importance'"
    if weights[row] > LARGEST:
        raise ValueError(
            f"sample_weight must be at most {LARGEST:g}, got {weights[row]:g} in row {row} (counted from 0): a weight "
            f"of 2 is the row twice; {advice}"
        )
    mean = weights.mean()
    if mean * count < LEAST_TOTAL:
        raise ValueError(
            f"sample_weight must sum to at least {LEAST_TOTAL:g}, got {mean * count:g}: a weight of 2 is the row "
            f"twice; {advice}"
        )
    if not 1 / FAR_FROM_ONE <= mean <= FAR_FROM_ONE:
        warnings.warn(
            f"sample_weight has the mean {mean:.3g}: as a weight of 2 is the row twice, the model will be as certain "
            f"as from {mean * count:.3g} rows, not {count}; {advice}",
            stacklevel=5,
        )
    return weights


def merged(rows: Source, weights: np.ndarray | None) -> tuple[Source, np.ndarray | None]:
    """Equal rows with equal targets as one row, whose weight is their sum; as they are where none are equal.

    Rows are then in an order of their own, so that a row of weight 2 and a row given twice are the same data.
    """
    x, y = rows.rows(np.arange(len(rows)))
    if x.dtype == object or np.asarray(y).dtype == object:
        return rows, weights
    parts = [np.ascontiguousarray(part).reshape(len(rows), -1) for part in (x, y)]
    joined = np.hstack([part.view(np.uint8) for part in parts])
    keys = joined.view(np.dtype((np.void, joined.shape[1])))[:, 0]
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(rows) and (weights is None or (weights == 1).all()):
        return rows, None
    return Subset(rows, first), np.bincount(group.ravel(), weights)
