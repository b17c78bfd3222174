"""A support vector machine, for classes, to compare with."""

import time
from itertools import product
from typing import Any

import numpy as np
from sklearn.metrics import pairwise_distances
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

from autogp.datasets import Dataset

__all__ = ["support_vectors"]

FOLDS = 3
WIDTHS = (1.0, 2.0, 4.0, 8.0, 16.0)  # gamma, times the median of squared distances
COSTS = (0.3, 1.0, 3.0, 10.0)
CHUNK_ROWS = 2000


def support_vectors(data: Dataset, samples: int | None, seed: int) -> dict[str, Any]:
    """scikit-learn's SVC with an RBF kernel; gamma and C, every pair, by cross-validation on the training rows."""
    started = time.monotonic()
    scale = np.float32(1 / max(1.0, float(data.x_train.max())))
    x, y = data.x_train * scale, data.y_train
    apart = pairwise_distances(x, metric="sqeuclidean")
    unit = 1 / float(np.median(apart))
    wrong_rows = dict.fromkeys(product(WIDTHS, COSTS), 0)
    for width in WIDTHS:
        gram = np.exp(-width * unit * apart)
        for kept, held in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, y):
            inner, outer = (np.ascontiguousarray(gram[np.ix_(rows, kept)], np.float64) for rows in (kept, held))
            for cost in COSTS:
                machine = SVC(C=cost, kernel="precomputed", cache_size=1000).fit(inner, y[kept])
                wrong_rows[width, cost] += int(np.sum(machine.predict(outer) != y[held]))
    width, cost = min(wrong_rows, key=wrong_rows.__getitem__)
    machine = SVC(C=cost, gamma=width * unit, cache_size=1000).fit(x, y)  # pyright: ignore[reportArgumentType]
    trained = time.monotonic()
    wrong = 0
    for start in range(0, len(data.x_test), CHUNK_ROWS):  # by matrix products: SVC's own prediction takes minutes
        rows = slice(start, start + CHUNK_ROWS)
        apart = pairwise_distances(data.x_test[rows] * scale, machine.support_vectors_, metric="sqeuclidean")
        decision = np.exp(-width * unit * apart) @ machine.dual_coef_[0] + machine.intercept_[0]
        wrong += int(np.sum(machine.classes_[(decision > 0).astype(int)] != data.y_test[rows]))
    return {
        "settings": {"C": cost, "gamma": width * unit, "max_epochs": None},
        "model": {"support_vectors": len(machine.support_vectors_)},
        "scores": {"error": wrong / len(data.x_test)},
        "tried": [{"C": c, "gamma": w * unit, "error": count / len(x)} for (w, c), count in wrong_rows.items()],
        "seconds": {"training": trained - started, "scoring": time.monotonic() - trained},
        "epochs": 0,
    }
