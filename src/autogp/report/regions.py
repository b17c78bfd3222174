"""Whether a model's intervals hold what they should wherever one looks, and how predictions follow its main columns."""

from typing import Any

import numpy as np
import torch

from autogp.model import SparseGP
from autogp.report.figures import dependence_figure
from autogp.report.heldout import HeldOut, figure_of, percent

__all__ = ["coverage_by_region", "dependence"]

MAIN_COLUMNS = 3
PARTS = 4  # of a range
MOST_CATEGORIES = 5
FEWEST_ROWS = 40  # for shares by region
CURVES = 4  # columns drawn
GRID, AVERAGED_ROWS, DRAWS = 16, 30, 200  # values of a column, rows that each is put into, functions


def coverage_by_region(held: HeldOut, y: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> Any:
    """Shares of the targets [N] within their 90 % intervals, in quarters of the prediction and of the main columns."""
    known = np.flatnonzero(~np.isnan(y))
    if len(known) < FEWEST_ROWS:
        return None
    inside, error = ((low <= y) & (y <= high))[known], (y - mean)[known]
    sides = abs if not held.estimator.model_.likelihood.counts else lambda more: -more  # counts always hold more
    found = [{"name": "predicted value", "parts": _quarters(mean[known], figure_of)}]
    for column in held.main_columns(MAIN_COLUMNS):
        values = held.values(column, known)
        parts = _categories(held, column, values) if held.categories(column) else None
        parts = parts or _quarters(values, lambda value, column=column: held.said(column, value))
        found.append({"name": held.names[column], "parts": parts})
    for region in found:
        region["parts"] = [
            {
                "label": label,
                "rows": int(chosen.sum()),
                "coverage": percent(inside[chosen].mean()),
                "rmse": figure_of(np.sqrt(np.mean(error[chosen] ** 2))),
                "odd": sides(inside[chosen].mean() - 0.9) > 2 * np.sqrt(0.09 / chosen.sum()) + 0.02,
            }
            for label, chosen in region["parts"]
            if chosen.any()
        ]
    return [region for region in found if len(region["parts"]) > 1]


def _quarters(values: np.ndarray, said: Any) -> list[tuple[str, np.ndarray]]:
    """Parts of equal numbers of rows, by value; fewer where values repeat."""
    present = values[~np.isnan(values)]
    if len(present) == 0:
        return []
    edges = np.unique(np.quantile(present, np.linspace(0, 1, PARTS + 1), method="inverted_cdf"))
    if len(edges) == 1:
        return []
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    parts = []
    for part in range(len(edges) - 1):
        chosen = (place == part) & ~np.isnan(values)
        if chosen.any():
            parts.append((f"{said(values[chosen].min())} to {said(values[chosen].max())}", chosen))
    return [*parts, *([("missing", np.isnan(values))] if np.isnan(values).any() else [])]


def _categories(held: HeldOut, column: int, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The most common categories, each, and the others together."""
    missing = np.isnan(values)
    present, counts = np.unique(values[~missing], return_counts=True)
    common = present[np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]]
    parts = [(held.said(column, value), values == value) for value in common]
    parts += [(f"{len(present) - len(common)} others", ~np.isin(values, common) & ~missing), ("missing", missing)]
    return [part for part in parts if part[1].any()]


@torch.no_grad()
def dependence(held: HeldOut, of_class: int | None = None) -> list[dict[str, Any]]:
    """For each main column, the prediction by its value, averaged over rows of training, with a 90 % band.

    The band is of the average itself: functions drawn from q(f) at all of these rows together are averaged one by one.
    With `of_class`, it is of the probability of that class.
    """
    estimator = held.estimator
    if not estimator.model_.posterior.has_natural_form:
        return []
    reference = estimator._gaps.reference
    rows = reference[np.unique(np.linspace(0, len(reference) - 1, AVERAGED_ROWS).astype(int))]
    generator = torch.Generator(estimator.model_.device).manual_seed(0)
    curves = []
    for column in held.main_columns(CURVES):
        place = held.place(column)
        grid = _grid(reference[:, place], held.categories(column))
        if len(grid) < 2:
            continue
        x = np.repeat(rows[None], len(grid), axis=0)  # [G, R, C]
        x[:, :, place] = grid[:, None]
        flat = torch.from_numpy(x.reshape(-1, x.shape[-1])).to(estimator.model_.device)
        f = _functions(estimator.model_, flat, generator)  # [S, G R, Q]
        y = estimator.model_.likelihood.conditional_moments(f)[0].double()
        if estimator.target_scaler_ is not None:
            y = estimator.target_scaler_.inverse_mean(y)
        y = y[..., 0] if of_class is None else y[..., min(of_class, y.shape[-1] - 1)]
        average = y.unflatten(1, (len(grid), len(rows))).mean(-1).cpu().numpy()  # [S, G]
        low, high = np.quantile(average, [0.05, 0.95], axis=0)
        labels = [held.said(column, value) for value in grid]
        number = len(curves)
        named = bool(held.categories(column))
        figure = dependence_figure(number, held.names[column], grid, labels, average.mean(0), low, high, named)
        curves.append({"name": held.names[column], "figure": figure})
    return curves


def _functions(model: SparseGP, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Functions drawn from the Gaussian q(f) at rows x [R, C], [S, R, Q]; rows that say the same do it no harm."""
    _, mean, covariance = model.joint(x)  # [1, Q, R], [1, Q, R, R]
    values, vectors = torch.linalg.eigh(covariance[0].double())
    root = vectors * values.clamp_min(0).sqrt()[:, None]  # covariance = root root'
    noise = torch.randn((DRAWS, len(root), len(x), 1), dtype=torch.float64, device=mean.device, generator=generator)
    return (mean[0].double() + (root @ noise).squeeze(-1)).mT


def _grid(values: np.ndarray, categories: list[str] | None) -> np.ndarray:
    """Values to put into a column: evenly between its quantiles of 2 and 98 %, or the most common categories."""
    present, counts = np.unique(values, return_counts=True)
    if categories:
        present, counts = present[present >= 0], counts[present >= 0]
        return np.sort(present[np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]])
    if len(present) <= GRID:
        return present
    low, high = np.quantile(values, [0.02, 0.98])
    return np.linspace(low, high, GRID)
