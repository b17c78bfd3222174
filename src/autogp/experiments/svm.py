"""Support vector machines, for classes, to compare with."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.metrics import pairwise_distances
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

from autogp.datasets import Dataset
from autogp.kernels import ArcCosine

__all__ = ["arc_cosine", "rbf", "support_vectors", "swept"]

FOLDS = 3
WIDTHS = (1.0, 2.0, 4.0, 8.0, 16.0)  # gamma, times the median of squared distances
COSTS = (0.3, 1.0, 3.0, 10.0)
DEGREE, DEPTH = 0, 6  # of the arc-cosine kernel, as in the paper's figure 2
DEGREES, DEPTHS, SWEPT_ROWS = (0, 1, 2), range(1, 7), 1_500  # of which the paper has tried all
CHUNK_ROWS = 2000

Gram = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of rows [N, D] and [M, D], [N, M]


def rbf(x: np.ndarray) -> Iterator[tuple[dict[str, float], Gram]]:
    """exp(-gamma |x - z|^2) for several gamma."""
    unit = 1 / float(np.median(pairwise_distances(x, metric="sqeuclidean")))
    for width in WIDTHS:
        yield {"gamma": width * unit}, partial(_rbf, gamma=width * unit)


def _rbf(x: np.ndarray, z: np.ndarray, gamma: float) -> np.ndarray:
    return np.exp(-gamma * pairwise_distances(x, z, metric="sqeuclidean"))


def arc_cosine(x: np.ndarray) -> Iterator[tuple[dict[str, float], Gram]]:
    """Of one degree and depth."""
    yield {"degree": DEGREE, "depth": DEPTH}, partial(_arc_cosine, degree=DEGREE, depth=DEPTH)


def arc_cosines(x: np.ndarray) -> Iterator[tuple[dict[str, float], Gram]]:
    """Of every degree and depth."""
    for degree in DEGREES:
        for depth in DEPTHS:
            yield {"degree": degree, "depth": depth}, partial(_arc_cosine, degree=degree, depth=depth)


@torch.no_grad()
def _arc_cosine(x: np.ndarray, z: np.ndarray, degree: int, depth: int) -> np.ndarray:
    """k(x, z) / sqrt(k(x, x) k(z, z)): without it the kernel grows as |x| to the power of 2 degree^depth."""
    kernel = ArcCosine(degree=degree, depth=depth)
    rows, others = (torch.from_numpy(part).double()[None] for part in (x, z))
    norms = kernel.diag(rows).sqrt()[..., None] * kernel.diag(others).sqrt()[..., None, :]
    return (kernel.gram(rows, others) / norms)[0].numpy()


def support_vectors(
    data: Dataset,
    samples: int | None,
    seed: int,
    kernels: Callable[[np.ndarray], Iterator[tuple[dict[str, float], Gram]]] = rbf,
) -> dict[str, Any]:
    """scikit-learn's SVC with these kernels; kernel and C, every pair, by cross-validation on the training rows."""
    started = time.monotonic()
    scale = np.float32(1 / max(1.0, float(data.x_train.max())))
    x, y = np.asarray(data.x_train * scale, np.float32), data.y_train
    folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, y))
    tried = []
    for settings, function in kernels(x):
        gram = _in_chunks(function, x, x)
        wrong_rows = dict.fromkeys(COSTS, 0)
        for kept, held in folds:
            inner, outer = (np.ascontiguousarray(gram[np.ix_(rows, kept)], np.float64) for rows in (kept, held))
            for cost in COSTS:
                machine = SVC(C=cost, kernel="precomputed", cache_size=1000).fit(inner, y[kept])
                wrong_rows[cost] += int(np.sum(machine.predict(outer) != y[held]))
        tried += [({"C": cost, **settings}, function, wrong / len(x)) for cost, wrong in wrong_rows.items()]
    settings, function, _ = min(tried, key=lambda each: each[2])
    machine = SVC(C=settings["C"], kernel="precomputed", cache_size=1000).fit(_in_chunks(function, x, x), y)
    trained = time.monotonic()
    wrong = 0
    for start in range(0, len(data.x_test), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        found = machine.predict(function(np.asarray(data.x_test[rows] * scale, np.float32), x))
        wrong += int(np.sum(found != data.y_test[rows]))
    return {
        "settings": {**settings, "max_epochs": None},
        "model": {"support_vectors": len(machine.support_)},
        "scores": {"error": wrong / len(data.x_test)},
        "tried": [{**each, "error": error} for each, _, error in tried],
        "seconds": {"training": trained - started, "scoring": time.monotonic() - trained},
        "epochs": 0,
    }


def swept(data: Dataset, samples: int | None, seed: int) -> dict[str, Any]:
    """Every degree and depth of the arc-cosine kernel, on some of the training rows."""
    chosen = np.random.default_rng(seed).permutation(len(data.x_train))[:SWEPT_ROWS]
    part = replace(data, x_train=data.x_train[chosen], y_train=data.y_train[chosen])
    return support_vectors(part, samples, seed, kernels=arc_cosines)


def _in_chunks(function: Gram, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The matrix in float32: temporaries are those of some rows."""
    return np.concatenate([function(x[i : i + CHUNK_ROWS], z).astype(np.float32) for i in range(0, len(x), CHUNK_ROWS)])
