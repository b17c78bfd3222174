"""The rows that a report is about: their numbers, their names, and how to show them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.utils.validation import check_is_fitted

from autogp.data.sources import as_tensor
from autogp.estimators.base import GPEstimator
from autogp.report.pictures import find_image_shape, picture

__all__ = ["HeldOut", "figure_of", "percent", "score_of"]

SHOWN_COLUMNS = 6
NEAREST_ROWS = 10_000  # at a time
LONGEST_TEXT = 60
LEAST_SHARE = 0.01  # of importance
LOOKED_AT = 20  # rows for each that a list shows


class HeldOut:
    """Held-out rows of a fitted estimator, with their targets as `y`: codes of classes [N], or numbers [N, P]."""

    def __init__(
        self,
        estimator: GPEstimator,
        X: Any,
        y: Any,
        feature_names: Sequence[str] | None,
        image_shape: Sequence[int] | None,
    ):
        check_is_fitted(estimator)
        self.estimator: Any = estimator
        self.source, targets = estimator._read(X, y, reset=False)
        self.y: Any = estimator._encode_targets(targets)
        if not is_classifier(estimator):
            self.y = self.y.astype(np.float64).reshape(len(targets), -1)
        self.frame = X if hasattr(X, "iloc") else None  # a DataFrame shows its own values
        self.names = self._names(feature_names)
        self.image_shape = find_image_shape(self.source, estimator.encoder_, image_shape or estimator.image_shape_)
        self.importances = estimator.feature_importances_
        known = [self.frame is not None or self.place(column) is not None for column in range(len(self.names))]
        order = np.argsort(-self.importances, kind="stable")
        self.shown = order[np.array(known)[order]][:SHOWN_COLUMNS]  # files do not hold columns that are left out
        pixels, _ = self.source.rows(np.arange(min(len(self.source), 1000)))
        self.range = float(pixels.min()), float(pixels.max())

    def __len__(self) -> int:
        return len(self.y)

    def columns(self) -> list[tuple[str, bool]]:
        """Names of the columns of tables, the most important ones, and whether they hold numbers."""
        return [(self.names[column], self.categories(column) is None) for column in self.shown]

    def main_columns(self, most: int) -> list[int]:
        """The most important columns, if they have a share in the predictions; none where rows are images."""
        used = [int(column) for column in self.shown if self.importances[column] >= LEAST_SHARE]
        return [] if self.image_shape is not None else used[:most]

    def pictures(self, rows: np.ndarray) -> list[str]:
        """Rows as addresses of pictures."""
        assert self.image_shape is not None
        return [picture(x, self.image_shape, self.range) for x in self.source.rows(rows)[0]]

    def table(self, rows: np.ndarray) -> list[list[str]]:
        """The values of the most important columns, as texts."""
        if self.frame is not None:
            return [[_shown(self.frame.iloc[int(row), column]) for column in self.shown] for row in rows]
        places = [(column, self.place(column)) for column in self.shown]
        x, _ = self.source.rows(rows)
        return [[self.said(column, row[place]) for column, place in places] for row in x]

    def distinct(self, order: np.ndarray, most: int) -> np.ndarray:
        """The first of these rows that differ in inputs or target, at most so many."""
        seen, found = set(), []
        for row in order[: LOOKED_AT * most]:
            content = (self.source.rows(np.array([row]))[0].tobytes(), self.y[row].tobytes())
            if content not in seen:
                seen.add(content)
                found.append(row)
        return np.array(found[:most], dtype=np.int64)

    def place(self, column: int) -> int | None:
        """Where a source has this column of the data, if it is used."""
        encoder = self.estimator.encoder_
        if encoder is None:
            return int(column)
        name = encoder.inputs[column]
        return None if name in encoder.ignored else encoder.used.index(name)

    def categories(self, column: int) -> list[str] | None:
        """The categories that a column counts, if it does."""
        encoder = self.estimator.encoder_
        return None if encoder is None else encoder.categories.get(encoder.inputs[column])

    def values(self, column: int, rows: np.ndarray) -> np.ndarray:
        """What a source has in this column of the data, [R]."""
        return np.asarray(self.source.rows(rows)[0][:, self.place(column)], dtype=np.float64)

    def said(self, column: int, value: Any) -> str:
        """A value of a source as the data has it."""
        encoder, place = self.estimator.encoder_, self.place(column)
        return _shown(value if encoder is None or place is None else encoder.used_parts[place].value_of(value))

    def nearest_to_inducing(self) -> np.ndarray:
        """For each inducing input (of the first function, where each has its own) the row nearest to it, [M]."""
        z = self.estimator.model_.inducing_inputs.detach()[0].double().cpu().numpy()  # [M, D]
        row, distance = np.zeros(len(z), np.int64), np.full(len(z), np.inf)
        for start in range(0, len(self), NEAREST_ROWS):
            x, _ = self.source.rows(np.arange(start, min(start + NEAREST_ROWS, len(self))))
            found, apart = pairwise_distances_argmin_min(z, features(self.estimator, x))
            closer = apart < distance
            row[closer], distance[closer] = start + found[closer], apart[closer]
        return row

    def _names(self, given: Sequence[str] | None) -> list[str]:
        count = self.estimator.n_features_in_
        if given is not None and len(given) != count:
            raise ValueError(f"feature_names has {len(given)} names, but the model has {count} columns")
        names = given if given is not None else getattr(self.estimator, "feature_names_in_", None)
        return [f"x{number}" for number in range(count)] if names is None else [str(name) for name in names]


def features(estimator: Any, x: np.ndarray) -> np.ndarray:
    """Rows where the inducing inputs live, [B, D]."""
    rows = as_tensor(x).to(estimator.model_.device)
    with torch.no_grad():
        return estimator.model_.embed(rows).double().cpu().numpy()


def figure_of(value: Any) -> str:
    """A number as a person writes it."""
    value = float(value)
    if not math.isfinite(value):
        return "–"
    # Four digits stand together, as those of a year do.
    text = f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return text.replace("-", "−")


def score_of(value: Any) -> str:
    """The same for scores, which have fewer digits the smaller they are."""
    return figure_of(float(f"{value:.2g}") if abs(value) < 0.1 else value)


def percent(share: Any) -> str:
    """0.0123 as 1.2 %, and never 100 % or 0 % where that is not so."""
    if not math.isfinite(share):
        return "–"
    digits = 1 if 0 < share < 1 else 0
    while digits < 4 and 0 < share < 1 and round(100 * share, digits) in (0, 100):
        digits += 1
    return f"{100 * share:.{digits}f} %"


def share_of(importance: Any) -> str:
    """In tenths of a percent: what is less is noise of the rows that it was measured on."""
    return "under 0.1 %" if importance < 0.0005 else percent(importance)


def _shown(value: Any) -> str:
    if value is None or value != value or str(value) == "<NA>":
        return "–"
    if isinstance(value, (float, np.floating)):
        return figure_of(value)
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
