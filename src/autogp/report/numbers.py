"""What a report says about a regressor."""

import math
from typing import Any

import numpy as np
from scipy.stats import poisson

from autogp.data import Subset
from autogp.data.sources import evenly_spaced
from autogp.metrics import number_scores
from autogp.report.figures import coverage_figure, fit_figure
from autogp.report.heldout import HeldOut, figure_of, percent, score_of
from autogp.report.regions import coverage_by_region, dependence

__all__ = ["number_content"]

LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
DIAGRAM_ROWS = 5_000
DRAWN_ROWS = 400
MOST_OUTPUTS = 12  # drawn
HARD_ROWS = 12


def number_content(held: HeldOut) -> dict[str, Any]:
    """Scores, calibration, predictions against the truth and hard rows, for the template."""
    estimator, y = held.estimator, held.y
    if not (~np.isnan(y)).any():
        raise ValueError("y has no value at all: a report needs true values to compare with")
    mean, deviation = (_two_dimensional(array) for array in estimator.predict(held.source, return_std=True))
    low, high = np.moveaxis(_quantiles(held, held.source, [0.05, 0.95]), -1, 0)  # [N, P]
    names = _names(held)
    counts = estimator.model_.likelihood.counts
    table = [_output_scores(names[p], y[:, p], mean[:, p], low[:, p], high[:, p]) for p in range(len(names))]
    log_density = estimator.log_density(held.source, y if len(names) > 1 else y[:, 0])
    what = "counts" if counts else "numbers"
    return {
        "task": f"predicts {what}" if len(names) == 1 else f"predicts {len(names)} {what} at once",
        "scores": _scores(y, number_scores(y, mean, log_density, (low, high)), table, counts),
        "outputs": table if len(names) > 1 else None,
        "calibration": _calibration(held, counts),
        "regions": coverage_by_region(held, y[:, 0], mean[:, 0], low[:, 0], high[:, 0]) if len(names) == 1 else None,
        "dependence": dependence(held) if len(names) == 1 else [],
        "dependence_of": names[0],
        "fit": _fit(names, y, mean, low, high),
        "hard": [
            _hard(held, names, mean, low, high, (high - low) / _spread(y), "Least certain",
                  "The predictions with the widest 90 % intervals."),
            _hard(held, names, mean, low, high, np.abs(y - mean) / deviation, "Farthest off",
                  "The true values that lie farthest from their predictions, in standard deviations of these: worth a "
                  "look for wrong values and missing columns."),
        ],
        "at_inducing": _at_inducing(held, mean[:, 0], names),
    }  # fmt: skip


def _quantiles(held: HeldOut, rows: Any, levels: Any) -> np.ndarray:
    found = held.estimator.predict(rows, quantiles=levels)
    return found[:, None] if found.ndim == 2 else found  # [N, P, R]


def _two_dimensional(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)


def _names(held: HeldOut) -> list[str]:
    outputs = held.y.shape[1]
    names = held.estimator.target_names_
    if names is not None and len(names) == outputs:
        return [str(name) for name in names]
    return ["the target"] if outputs == 1 else [f"output {number + 1}" for number in range(outputs)]


def _spread(y: np.ndarray) -> np.ndarray:
    """Standard deviations of the targets, [P]; 1 where there is none."""
    spread = np.array([np.std(column[~np.isnan(column)]) if (~np.isnan(column)).any() else 0.0 for column in y.T])
    return np.where(spread > 0, spread, 1.0)


def _output_scores(name: str, y: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    known = y[~np.isnan(y)]
    scores = number_scores(y, mean, interval=(low, high))
    return {"name": name, "rows": len(known), "spread": np.std(known) if len(known) else math.nan, **scores}


def _scores(y: np.ndarray, scores: dict[str, float], table: list[dict[str, Any]], counts: bool) -> list[dict[str, str]]:
    if len(table) == 1:
        first = {
            "name": "RMSE",
            "value": score_of(table[0]["rmse"]),
            "words": "Root of the mean squared error: how far off a prediction typically is, in the target’s own unit. "
            f"Always predicting the mean would be off by {figure_of(table[0]['spread'])}.",
        }
    else:
        relative = [row["rmse"] / row["spread"] for row in table if row["spread"] > 0]
        first = {
            "name": "Relative RMSE",
            "value": score_of(np.mean(relative) if relative else math.nan),
            "words": "Root of the mean squared error over the standard deviation of the output, averaged over the "
            "outputs: always predicting the mean would score 1.",
        }
    on_average = "" if len(table) == 1 else ", averaged over the outputs"
    unit = "" if counts else ", can be negative, and depends on the unit of the targets"
    return [
        first,
        {
            "name": "R²",
            "value": score_of(scores["r2"]),
            "words": f"Share of the targets’ variance that the predictions explain{on_average}: 1 is perfect, 0 is no "
            "better than the mean.",
        },
        {
            "name": "NLP",
            "value": score_of(scores["nlp"]),
            "words": f"Negative log {'probability' if counts else 'density'} of the true values per row, in nats: "
            f"smaller is better{unit}. {_base_words(y, counts)}",
        },
        {
            "name": "90 % intervals",
            "value": percent(scores["coverage"]),
            "words": _coverage_words(scores["coverage"], int((~np.isnan(y)).sum()), counts),
        },
    ]


def _base_words(y: np.ndarray, counts: bool) -> str:
    """What a model without inputs would score."""
    total = 0.0
    for column in y.T:
        column = column[~np.isnan(column)]
        if len(column) == 0 or (not counts and np.std(column) == 0):
            continue
        if counts:
            total -= poisson.logpmf(column, max(column.mean(), 1e-12)).sum()
        else:
            total += len(column) * (0.5 + math.log(np.std(column)) + 0.5 * math.log(2 * math.pi))
    kind = "A Poisson distribution with their mean" if counts else "A normal distribution with their mean and spread"
    return f"{kind} would score {score_of(total / len(y))}."


def _coverage_words(coverage: float, total: int, counts: bool) -> str:
    chance = 2 * math.sqrt(0.9 * 0.1 / total)
    inside = round(coverage * total)
    words = f"{inside:,} of {total:,} true values lie within the intervals that should hold 90 % of them: "
    if abs(coverage - 0.9) <= chance:
        return words + "as promised, within chance."
    if coverage < 0.9:
        return words + "the intervals are too narrow."
    return words + ("intervals of whole numbers hold a little more." if counts else "they are wider than need be.")


def _calibration(held: HeldOut, counts: bool) -> dict[str, Any]:
    rows = evenly_spaced(len(held), DIAGRAM_ROWS)
    quantiles = _quantiles(held, Subset(held.source, rows), np.concatenate([(1 - LEVELS) / 2, (1 + LEVELS) / 2]))
    y = held.y[rows][..., None]
    low, high = np.split(quantiles, 2, axis=-1)  # [N, P, levels]
    inside = ((low <= y) & (y <= high))[~np.isnan(y[..., 0])].mean(axis=0)
    whole = " Those of counts end at whole numbers, so they hold somewhat more than asked." if counts else ""
    gap = inside[:-1] - LEVELS[:-1]
    chance = 2 * math.sqrt(0.25 / (~np.isnan(y)).sum())
    if np.abs(gap).max() <= chance:
        words = "The intervals hold what they should, within chance."
    elif counts and gap.min() > -chance:
        words = "The intervals hold at least what they should."
    elif gap.mean() < 0:
        words = "The intervals hold less than they should: the model is surer than it ought to be."
    else:
        words = "The intervals hold more than they should: the model is more modest than it need be."
    return {
        "title": "Can its intervals be trusted?",
        "figure": coverage_figure(LEVELS, inside),
        "words": words,
        "reading": "For central intervals of every size, the share of true values that lie within. On the dashed line "
        f"they hold what they should; below, the model is overconfident.{whole}",
    }


def _fit(names: list[str], y: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    panels = []
    for p, name in enumerate(names[:MOST_OUTPUTS]):
        known = np.flatnonzero(~np.isnan(y[:, p]))
        if len(known):
            rows = known[evenly_spaced(len(known), DRAWN_ROWS)]
            small = len(names) > 1
            figure = fit_figure(p, name, y[rows, p], mean[rows, p], low[rows, p], high[rows, p], small)
            panels.append({"name": name, "figure": figure})
    left_out = len(names) - MOST_OUTPUTS
    return {"panels": panels, "left_out": max(left_out, 0), "thinned": (~np.isnan(y)).sum(axis=0).max() > DRAWN_ROWS,
            "drawn": DRAWN_ROWS}  # fmt: skip


def _hard(
    held: HeldOut, names: list[str], mean: np.ndarray, low: np.ndarray, high: np.ndarray, measure: np.ndarray,
    title: str, words: str,
) -> dict[str, Any]:  # fmt: skip
    order = np.argsort(-np.where(np.isnan(held.y), -np.inf, measure), axis=None, kind="stable")
    rows, outputs = np.unravel_index(order, held.y.shape)
    if len(names) == 1:
        rows = held.distinct(rows, HARD_ROWS)
    rows, outputs = rows[:HARD_ROWS], outputs[:HARD_ROWS][: len(rows)]
    found = [
        {
            "number": int(row) + 1,
            "output": names[p] if len(names) > 1 else None,
            "true": figure_of(held.y[row, p]),
            "said": figure_of(mean[row, p]),
            "low": figure_of(low[row, p]),
            "high": figure_of(high[row, p]),
            "right": bool(low[row, p] <= held.y[row, p] <= high[row, p]),
        }
        for row, p in zip(rows, outputs, strict=True)
        if not np.isnan(held.y[row, p])
    ]
    return {"title": title, "words": words, "rows": found, "indices": rows[: len(found)]}


def _at_inducing(held: HeldOut, mean: np.ndarray, names: list[str]) -> dict[str, Any]:
    """The rows nearest to inducing inputs, in the order of what the model says of their first output."""
    rows = np.unique(held.nearest_to_inducing())
    rows = rows[np.argsort(mean[rows], kind="stable")]
    heading = "says" if len(names) == 1 else names[0]
    return {"rows": rows, "said": [figure_of(value) for value in mean[rows]], "heading": heading}
