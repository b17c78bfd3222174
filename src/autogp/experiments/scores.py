"""Every score of a fitted estimator on rows it has not seen."""

from typing import Any

import numpy as np

from autogp.metrics import class_scores, number_scores

__all__ = ["scores"]


def scores(estimator: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """`metrics.class_scores` for classes; for numbers and counts `metrics.number_scores`, in the units of the data."""
    if estimator.model_.likelihood.num_classes is not None:
        return class_scores(np.searchsorted(estimator.classes_, y), estimator.predict_proba(x))
    return number_scores(y, estimator.predict(x), estimator.log_density(x, y))
