"""Scores of predictions: error rate, negative log probability, squared error, calibration."""

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "brier_score",
    "error_rate",
    "expected_calibration_error",
    "negative_log_probability",
    "standardised_squared_error",
]


def error_rate(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Share of rows whose most probable class is not theirs; labels [N], probabilities [N, C].

    >>> error_rate([0, 1], [[0.9, 0.1], [0.8, 0.2]])
    0.5
    """
    return float(np.mean(np.argmax(probabilities, axis=1) != np.asarray(labels)))


def negative_log_probability(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Mean of -log p(label), the NLP of the paper.

    >>> round(negative_log_probability([0, 1], [[0.5, 0.5], [0.5, 0.5]]), 4)
    0.6931
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    own = probabilities[np.arange(len(probabilities)), np.asarray(labels)]
    return float(-np.mean(np.log(np.maximum(own, np.finfo(np.float64).tiny))))


def brier_score(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Mean squared distance between probabilities and what happened: 0 is perfect, 2 the worst.

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
    targets, mean = np.asarray(targets, dtype=np.float64), np.asarray(mean, dtype=np.float64)
    return float(np.mean(np.mean((targets - mean) ** 2, axis=0) / np.var(targets, axis=0)))
