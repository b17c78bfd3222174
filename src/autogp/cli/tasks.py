"""What kind of target a file holds, and what was assumed about it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from autogp.data import ArraySource, Labels

__all__ = ["TaskFound", "find_task", "task_of"]

MOST_CLASSES = 20  # more different whole numbers than these are taken for quantities
ROWS_PER_CLASS = 5
OTHER_TASKS = "else say --task count or --task regression"


LIKELIHOODS = {  # of each task
    "regression": ("gaussian", "student_t", "heteroscedastic", "box_cox", "beta", "network"),
    "count": ("poisson", "negative_binomial", "zero_inflated"),
    "classification": ("logit", "probit", "softmax", "ordinal"),
}


@dataclass(frozen=True)
class TaskFound:
    """The task, its targets, and the sentence that says what was assumed."""

    task: str  # classification, regression or count
    y: Any  # Labels [N], or numbers [N] or [N, P]; for classification [N, P] of 0 and 1
    assumption: str = ""


def find_task(source: ArraySource, wanted: str) -> TaskFound:
    """The task that was `wanted`, after a check that the targets suit it; where that is "auto", the likeliest one.

    Text is classes, and so are few different whole numbers. Everything else is a quantity.
    """
    y = source.y
    if y.ndim == 2 and y.shape[1] == 0:
        raise ValueError("there is nothing to predict: say with --target where the targets are")
    if len(y) == 1:
        raise ValueError("there is one row only: a model is learnt from two at least")
    if source.classes is not None:
        if wanted in ("regression", "count"):
            raise ValueError(
                f"the target holds text, such as {source.classes[0]!r}: --task {wanted} needs numbers, text is for "
                "classification"
            )
        return _classification(Labels.of(y, source.classes), "the target holds text" if wanted == "auto" else "")
    whole = y.dtype.kind != "f" or bool((y == np.rint(y)).all())
    if wanted == "auto":
        return _likeliest(y, whole)
    if wanted == "classification":
        if y.ndim == 2 and not _indicates(y):
            raise ValueError("--task classification of several targets needs columns of 0 and 1, one for each label")
        if y.ndim == 2:
            return TaskFound("classification", y)
        if not whole:
            raise ValueError("the target holds fractions: --task classification needs labels")
        return _classification(Labels.of(y.astype(np.int64)))
    if wanted == "count" and (not whole or y.min() < 0):
        row = int(np.flatnonzero(((y < 0) | (y != np.rint(y))).reshape(len(y), -1).any(axis=1))[0])
        raise ValueError(f"--task count needs whole numbers from 0, but the target holds {y[row]} in row {row + 1}")
    return TaskFound(wanted, y)


def task_of(likelihood: Any) -> str:
    """The task that a likelihood of this name is for, "auto" where none is named, or a user's own.

    >>> task_of("zero_inflated"), task_of("student_t"), task_of(None)
    ('count', 'regression', 'auto')
    """
    return next((task for task, names in LIKELIHOODS.items() if likelihood in names), "auto")


def _indicates(y: np.ndarray) -> bool:
    """Whether columns [N, P] say which labels a row has."""
    return bool(((y == 0) | (y == 1) | (y != y)).all())


def _likeliest(y: np.ndarray, whole: bool) -> TaskFound:
    if y.ndim == 2 and _indicates(y):
        return TaskFound("classification", y, "the targets hold 0 and 1; else say --task regression")
    if not whole or y.ndim == 2:
        return TaskFound(
            "regression", y, "the target holds fractions" if y.ndim == 1 else "the target has several columns"
        )
    count = len(np.unique(y))
    few = count <= max(2, min(MOST_CLASSES, len(y) // ROWS_PER_CLASS))
    if few and (y.dtype.kind != "f" or count <= 2):
        return _classification(
            Labels.of(y.astype(np.int64)),
            f"the target holds {count} different whole numbers; {OTHER_TASKS}",
        )
    other = "; --task count is for counts, --task classification for labels" if y.min() >= 0 else ""
    return TaskFound("regression", y, f"the target holds {count} different whole numbers{other}")


def _classification(labels: Labels, assumption: str = "") -> TaskFound:
    count = len(labels.classes)
    if count == 1:
        raise ValueError(f"the target is {str(labels.classes[0])!r} in every row: there is nothing to learn")
    if count > max(MOST_CLASSES, len(labels) // 2):
        raise ValueError(
            f"the target holds {count} different labels in {len(labels)} rows: most classes would have a single row"
        )
    return TaskFound("classification", labels, assumption)
