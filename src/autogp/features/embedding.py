"""Columns of many categories as points: where a category lies says what its targets are like."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autogp.data import Source, blocks
from autogp.features.base import FeatureMap, as_rows

__all__ = ["CrossFitted", "Embedding"]

LAP = 2**17  # codes of a fold; more than a column may have categories
FOLDS = 5
MOST_TARGETS = 5  # coordinates that come from the targets
FREE = 2  # coordinates at random, by which the kernel can tell categories apart whose targets are alike


class Embedding(FeatureMap):
    """Codes of categories [B, c] as points [B, c d]; codes below 0, which training never saw, lie in the middle.

    The first coordinates of a category are the means of its targets, shrunk towards the mean of all: with n rows of the
    category, variance t between categories and s within them, by the factor n t / (n t + s), the posterior mean of a
    random effect. The others are random numbers. Missing values are a category.

    A row's own target is among those that place its category, so the row must not be learnt from at that place:
    `CrossFitted` rows lie where the other four fifths of the rows put their category.

    Arguments:
        names: Of the columns.
        sizes: How many categories each has.
        table: Points [T, d], those of the first column first, after its categories that of missing values; or [F T, d],
            where the first T are for predictions and the others each for a part of the training rows.
    """

    allows_missing = True
    from_targets = True
    table: Tensor
    base: Tensor
    size: Tensor

    def __init__(self, names: Sequence[str], sizes: Sequence[int], table: Tensor) -> None:
        super().__init__()
        self.names, self.sizes = list(names), list(sizes)
        self.key = self.names, self.sizes
        total = sum(self.sizes) + len(self.sizes)
        if len(names) != len(sizes) or not sizes or min(sizes) < 1 or max(sizes) >= LAP:
            raise ValueError(f"columns must have 1 to {LAP - 1} categories each, and a name, got {self.sizes[:10]}")
        if table.ndim != 2 or len(table) == 0 or len(table) % total or table.shape[1] == 0:
            raise ValueError(f"the points of {total} categories must be [T, d], got {tuple(table.shape)}")
        base = np.concatenate([[0], np.cumsum([size + 1 for size in self.sizes])[:-1]])
        self.register_buffer("table", table.to(torch.float64))
        self.register_buffer("base", torch.from_numpy(base), persistent=False)
        self.register_buffer("size", torch.tensor(self.sizes), persistent=False)

    @classmethod
    def of(cls, parts: Sequence[Any]) -> "Embedding":
        """For these columns of an encoder, before it has learnt where their categories lie."""
        sizes = [len(part.categories) for part in parts]
        return cls([part.name for part in parts], sizes, torch.zeros(sum(sizes) + len(sizes), 1 + FREE))

    @property
    def columns(self) -> list[str]:
        """Names of the outputs."""
        return [f"{name} {number + 1}" for name in self.names for number in range(self.table.shape[1])]

    def forward(self, x: Tensor) -> Tensor:
        code = torch.where(x.isnan(), self.size.to(x.dtype), x).long()  # [B, c]
        fold = code.clamp_min(0) // LAP
        place = fold * (len(self.base) + int(sum(self.sizes))) + self.base + code.clamp_min(0) % LAP
        points = torch.where((code < 0)[..., None], 0.0, self.table[place])
        return points.flatten(-2).to(x.dtype)

    def origins(self, columns: Sequence[int | None]) -> list[int | None]:
        return [column for column in columns for _ in range(self.table.shape[1])]

    def fit(self, X: Any, y: Any = None, seed: int = 0) -> "Embedding":
        """Places the categories by targets [N, P], of which some may be NaN; for `CrossFitted` rows of this seed."""
        source = as_rows(X)
        total = len(self.base) + sum(self.sizes)
        rows = CrossFitted(source, list(range(len(self.sizes))), self.sizes, seed)
        sums: Any = None
        for _, x, y in blocks(rows):
            code = x.astype(np.int64)
            place = ((code // LAP) * total + self.base.numpy() + code % LAP).T.ravel()  # [c B]
            known = np.tile(~np.isnan(y), (x.shape[1], 1))
            values = np.tile(np.nan_to_num(y), (x.shape[1], 1))
            weigh = [known.astype(float), values, values**2]  # n, sum y, sum y^2
            found = [
                np.stack([np.bincount(place, each[:, p], (1 + FOLDS) * total) for p in range(y.shape[1])], 1)
                for each in weigh
            ]
            sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
        count, first, square = (each.reshape(1 + FOLDS, total, -1) for each in sums)  # [F, T, P]
        for each in (count, first, square):
            each[0] = each.sum(0)  # all rows, and for each fold those of the others
            each[1:] = each[0] - each[1:]
        means = [_shrunken(count[:, part], first[:, part], square[0, part]) for part in self._parts()]
        points = _narrowed(np.concatenate(means, 1), count[0].mean(-1))
        free = np.random.default_rng(seed).normal(size=(total, FREE)) * np.ones((1 + FOLDS, 1, 1))
        self.table = torch.from_numpy(np.concatenate([points, free], -1)).flatten(0, 1)
        return self

    def settle(self) -> None:
        """Forgets the places for rows of training."""
        self.table = self.table[: len(self.base) + sum(self.sizes)].clone()

    def _parts(self) -> list[slice]:
        return [slice(first, first + size + 1) for first, size in zip(self.base.tolist(), self.sizes, strict=True)]


class CrossFitted:
    """Rows of which an `Embedding` places each category without the targets of a fifth of all rows, the row's own.

    Arguments:
        source: The rows.
        columns: Those of many categories.
        sizes: How many categories each of them has.
        seed: As in `Embedding.fit`.
    """

    def __init__(self, source: Source, columns: Sequence[int], sizes: Sequence[int], seed: int) -> None:
        self.source, self.columns, self.sizes = source, list(columns), np.array(sizes)
        self.fold = np.random.default_rng(seed).integers(1, 1 + FOLDS, len(source), np.uint8)
        self.in_memory = getattr(source, "in_memory", False)

    def __len__(self) -> int:
        return len(self.source)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.source.rows(indices)
        x = np.array(x, np.float64)
        codes = x[:, self.columns]
        laps = LAP * self.fold[indices].astype(np.int64)[:, None]
        x[:, self.columns] = np.where(np.isnan(codes), self.sizes, codes) + laps
        return x, y


def _shrunken(count: np.ndarray, first: np.ndarray, square: np.ndarray) -> np.ndarray:
    """Random effects of categories [F, C, P] from counts and sums [F, C, P] and sums of squares of all rows [C, P].

    The variances are those of the analysis of variance (method of moments), by all rows.
    """
    n, rows = count[0], np.maximum(count[0].sum(0), 1)  # [C, P], [P]
    groups = (n > 0).sum(0)
    overall = first[0].sum(0) / rows
    mean = first / np.maximum(count, 1)  # [F, C, P]
    within = (square - n * mean[0] ** 2).sum(0) / np.maximum(rows - groups, 1)
    among = (n * (mean[0] - overall) ** 2).sum(0) / np.maximum(groups - 1, 1)
    typical = (rows - (n**2).sum(0) / rows) / np.maximum(groups - 1, 1)
    between = np.maximum(among - within, 0) / np.maximum(typical, 1)
    weight = count * between / np.maximum(count * between + within, np.finfo(float).tiny)
    return weight * (mean - overall) * (count > 0)


def _narrowed(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Points [F, T, P] in their first principal components, if there are many targets."""
    if points.shape[-1] <= MOST_TARGETS:
        return points
    axes = np.linalg.eigh((weights[:, None] * points[0]).T @ points[0])[1]
    return points @ axes[:, : -MOST_TARGETS - 1 : -1]
