"""Problems and scores that are the same for every contender; runs in each one's Python, so it needs NumPy alone."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

PREDICTED_ROWS = 10_000  # at a time
SCORE_SAMPLES = 200


def random_problem(rows: int, inputs: int, inducing: int, classes: int, separate: bool) -> dict[str, Any]:
    """A classification of random rows: what a step costs does not depend on what they mean."""
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.standard_normal((rows, inputs), np.float32),
        "y_train": rng.integers(0, classes, rows),
        "z": rng.standard_normal((classes, inducing, inputs) if separate else (inducing, inputs), np.float32),
        "lengthscale": inputs**0.5,
        "variance": 5.0,
        "classes": classes,
        "num_data": 60 * rows,
        "kernel": "rbf",
    }


def read_problem(path: str) -> dict[str, Any]:
    with np.load(path) as arrays:
        problem = {name: array if array.ndim else array.item() for name, array in arrays.items()}
    return {**problem, "num_data": len(problem["x_train"])}


def scaled(problem: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Rows as a model takes them, in the precision of its inducing inputs."""
    exact = {"dtype": problem["z"].dtype, "casting": "same_kind"}
    found = np.subtract(x, problem["x_shift"], **exact)
    return np.divide(found, problem["x_scale"], out=found, **exact)


def minibatches(count: int, size: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Row numbers without end, each row once in an epoch, the last incomplete batch left out."""
    rng, size = np.random.default_rng(seed), min(size, count)
    while True:
        order = rng.permutation(count)
        for start in range(0, count - size + 1, size):
            yield order[start : start + size]


def in_blocks(predict: Callable[[np.ndarray], tuple[Any, Any]], x: np.ndarray) -> Iterator[tuple[Any, Any]]:
    return (predict(x[start : start + PREDICTED_ROWS]) for start in range(0, len(x), PREDICTED_ROWS))


def softmax_probabilities(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Class probabilities [T, Q] of Gaussian latents, from the same noise for every contender."""
    rng, deviation = np.random.default_rng(0), np.sqrt(np.maximum(variance, 0)).astype(np.float32)
    total = np.zeros(mean.shape)
    for _ in range(SCORE_SAMPLES):
        f = mean + deviation * rng.standard_normal(mean.shape, np.float32)
        f = np.exp(f - f.max(1, keepdims=True))
        total += f / f.sum(1, keepdims=True)
    return total / SCORE_SAMPLES


def class_scores(y: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    of_label = probabilities[np.arange(len(y)), y.astype(int)]
    return {
        "nlp": float(-np.log(np.maximum(of_label, 1e-30)).mean()),
        "error": float((probabilities.argmax(1) != y).mean()),
    }


def regression_scores(y: np.ndarray, mean: np.ndarray, variance: np.ndarray, scale: float) -> dict[str, float]:
    """Of standardised targets, told in the units of the data, which are `scale` times as small."""
    mean, variance = mean.reshape(y.shape), variance.reshape(y.shape)
    log_density = -0.5 * (np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance) - np.log(scale)
    return {"nlp": float(-log_density.mean()), "error": float(scale * np.sqrt(np.mean((y - mean) ** 2)))}


def scores(model: Any, problem: dict[str, Any]) -> dict[str, float]:
    """Negative log probability of a test row and, as `error`, the share of wrong classes or the root mean square."""
    parts = zip(*in_blocks(model.predictor(), scaled(problem, problem["x_test"])), strict=True)
    mean, variance = (np.concatenate([np.asarray(part) for part in column]) for column in parts)
    if problem["classes"]:
        return class_scores(problem["y_test"], softmax_probabilities(mean, variance))
    return regression_scores(problem["y_test"], mean, variance, problem["y_scale"])
