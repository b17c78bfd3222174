"""Scores of predictions: error rate, negative log probability, squared error, calibration."""

import math

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import mean_squared_error, roc_auc_score, zero_one_loss

__all__ = [
    "area_under_curve",
    "brier_score",
    "class_scores",
    "error_rate",
    "expected_calibration_error",
    "negative_log_probability",
    "number_scores",
    "standardised_squared_error",
]


def error_rate(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Share of rows whose most probable class is not theirs; labels [N], probabilities [N, C].

    >>> error_rate([0, 1], [[0.9, 0.1], [0.8, 0.2]])
    0.5
    """
    return float(zero_one_loss(labels, np.argmax(probabilities, axis=1)))


def negative_log_probability(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Mean of -log p(label), the NLP of the paper; scikit-learn's log_loss clips probabilities below 2e-16.

    >>> round(negative_log_probability([0, 1], [[0.5, 0.5], [0.5, 0.5]]), 4)
    0.6931
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    own = probabilities[np.arange(len(probabilities)), np.asarray(labels)]
    return float(-np.mean(np.log(np.maximum(own, np.finfo(np.float64).tiny))))


def area_under_curve(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Area under the ROC curve of two classes: how often a row of class 1 has a larger probability of it than one of 0.

    >>> area_under_curve([0, 0, 1], [[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    0.5
    """
    return float(roc_auc_score(labels, np.asarray(probabilities)[:, 1]))


def brier_score(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Mean squared distance between probabilities and what happened: 0 is perfect, 2 the worst.

    As scikit-learn's brier_score_loss(..., scale_by_half=False), which takes more than two classes from 1.7 on.

    >>> brier_score([0], [[1.0, 0.0]])
    0.0
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    happened = np.eye(probabilities.shape[1])[np.asarray(labels)]
    return float(np.mean(np.sum((probabilities - happened) ** 2, axis=1)))


def expected_calibration_error(labels: ArrayLike, probabilities: ArrayLike, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy, over `bins` equal bins of confidence, weighted by their rows.

    >>> expected_calibration_error([0, 0, 0, 1], [[0.75, 0.25]] * 4)
    0.0
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == np.asarray(labels)
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(number, weights=confidence - right, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def standardised_squared_error(targets: ArrayLike, mean: ArrayLike) -> float:
    """Mean squared error over the variance of the targets, averaged over the outputs: the MSSE (or SMSE) of the paper.

    >>> standardised_squared_error([1.0, 3.0], [2.0, 2.0])
    1.0
    """
    squared = mean_squared_error(targets, mean, multioutput="raw_values")
    return float(np.mean(squared / np.var(np.asarray(targets), axis=0)))


def class_scores(labels: ArrayLike, probabilities: ArrayLike) -> dict[str, float]:
    """Every score of predicted classes; labels [N], probabilities [N, C].

    >>> class_scores([0, 1], [[0.5, 0.5], [0.5, 0.5]])
    {'error': 0.5, 'nlp': 0.6931471805599453, 'brier': 0.5, 'calibration': 0.0}
    """
    return {
        "error": error_rate(labels, probabilities),
        "nlp": negative_log_probability(labels, probabilities),
        "brier": brier_score(labels, probabilities),
        "calibration": expected_calibration_error(labels, probabilities),
    }


def number_scores(
    targets: ArrayLike,
    mean: ArrayLike,
    log_density: ArrayLike | None = None,
    interval: tuple[ArrayLike, ArrayLike] | None = None,
) -> dict[str, float]:
    """Every score of predicted numbers; targets and mean [N] or [N, P], log_density [N], interval two such as mean.

    Missing targets (NaN) do not count. `smse` and `r2` are averaged over the outputs that vary, and NaN if none does.
    `nlp` is there with `log_density`, `coverage`, the share of the targets in their intervals, with `interval`.

    >>> number_scores([1.0, 3.0], [2.0, 3.0], interval=([0.0, 3.5], [2.0, 4.0]))
    {'smse': 0.5, 'r2': 0.5, 'rmse': 0.7071067811865476, 'coverage': 0.5}
    """
    y, mean = (np.atleast_2d(np.asarray(array, dtype=np.float64).T).T for array in (targets, mean))  # [N, P]
    known = ~np.isnan(y)
    columns = [(y[rows, p], mean[rows, p]) for p, rows in enumerate(known.T)]
    ratios = [standardised_squared_error(true, said) for true, said in columns if len(true) and np.ptp(true) > 0]
    smse = float(np.mean(ratios)) if ratios else math.nan
    rmse = math.sqrt(np.mean((y - mean)[known] ** 2)) if known.any() else math.nan
    found = {"smse": smse, "r2": 1 - smse, "rmse": rmse}
    if log_density is not None:
        found["nlp"] = -float(np.mean(np.asarray(log_density)))
    if interval is not None:
        low, high = (np.reshape(bound, y.shape)[known] for bound in interval)
        found["coverage"] = float(np.mean((low <= y[known]) & (y[known] <= high))) if known.any() else math.nan
    return found
