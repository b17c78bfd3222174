"""The figures of a report."""

from itertools import groupby
from typing import Any

import numpy as np
from markupsafe import Markup

from autogp.printing import escaped
from autogp.report.svg import ACCENT, INK, LINE, MUTED, PAPER, WARN, canvas, in_page

__all__ = ["coverage_figure", "dependence_figure", "fit_figure", "reliability_figure", "training_figure"]

SHORT_NAMES = {"elbo": "ELBO", "loo": "leave-one-out", "predictive": "predictive density"}
WIDTH = 5.0  # inches; as wide as a phone


def training_figure(history: list[dict[str, Any]]) -> Markup:
    """Objective and score by epoch, with the phases of the objective marked."""
    epoch = np.array([row["epoch"] for row in history])
    value, score = (np.array([row[name] for row in history], dtype=np.float64) for name in ("value", "score"))
    both = np.concatenate([value, score])
    both = both[np.isfinite(both)]
    # For classes, 0 is perfect: where the distance to it shrinks a lot, only a log scale shows how.
    losses = len(both) > 0 and both.max() < 0 and both.min() / both.max() > 20
    figure, axis = canvas(WIDTH, 3.0)
    sign = -1.0 if losses else 1.0
    axis.plot(epoch, sign * value, color=ACCENT, linewidth=1.8, label="objective", marker=_dots(epoch), markersize=3)
    if not np.array_equal(value, score, equal_nan=True):
        axis.plot(epoch, sign * score, color=WARN, linewidth=1.4, label="score", marker=_dots(epoch), markersize=3)
        axis.legend(frameon=False, labelcolor=INK, loc="best")
    if losses:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
        axis.yaxis.set_minor_formatter(lambda tick, _: "")
        axis.set_ylabel("nats lost per row (log scale)")
        axis.tick_params(which="minor", length=0)
    else:
        axis.set_ylabel("nats per row")
        if len(both):  # the first steps are far off, and what matters happens later
            low, high = np.quantile(both, 0.08), both.max()
            room = 0.08 * (high - low) or 0.5
            axis.set_ylim(low - room, high + room)
    axis.set_xlabel("epoch")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlim(epoch[0] - 0.5, epoch[-1] + 0.5)
    names = []
    for name, rows in groupby(history, key=lambda row: row["objective"]):
        start = next(rows)["epoch"] - 0.5
        names.append(SHORT_NAMES.get(name, name))
        if len(names) > 1:
            axis.axvline(start, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        axis.annotate(
            SHORT_NAMES.get(name, name),
            (start, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, 3),
            textcoords="offset points",
            color=MUTED,
            fontsize=8.5,
        )
    alt = f"Objective by epoch, {len(history)} epochs; phases: {', '.join(names)}. It ends at {value[-1]:.4g} per row."
    return in_page(figure, "training", alt)


def reliability_figure(confidence: np.ndarray, right: np.ndarray, classes: int) -> Markup:
    """How often the model is right, by how sure it is; below, how many rows each point stands for."""
    low = 0.5 if classes == 2 else 0.0
    edges = np.linspace(low, 1, 11)
    place = np.clip(((confidence - low) / (1 - low) * 10).astype(int), 0, 9)
    count = np.bincount(place, minlength=10)
    some = np.flatnonzero(count)
    sure = np.bincount(place, confidence, minlength=10)[some] / count[some]
    share = np.bincount(place, right, minlength=10)[some] / count[some]
    below, above = _chance_range(share, count[some])
    figure, (axis, bars) = canvas(WIDTH, 4.2, nrows=2, sharex=True, height_ratios=[3, 1])
    axis.plot([low, 1], [low, 1], color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
    axis.vlines(sure, below, above, color=ACCENT, linewidth=5, alpha=0.25)
    axis.plot(sure, share, "o", color=ACCENT, markersize=7, markeredgecolor=PAPER)
    axis.set(xlim=(low - 0.01, 1.01), ylim=(-0.03, 1.03), ylabel="how often it is right")
    bars.bar(edges[:-1], count, width=edges[1] - edges[0], align="edge", color=ACCENT, edgecolor=PAPER, alpha=0.75)
    for place in some:
        bars.text(edges[place] + (edges[1] - edges[0]) / 2, count[place], f"{count[place]:,}", ha="center", va="bottom",
                  fontsize=8, color=MUTED)  # fmt: skip
    bars.set(xlabel="how sure the model is", ylabel="rows", yticks=[], ylim=(0, 1.25 * count.max()))
    bars.grid(False)
    axis.tick_params(bottom=False)
    for each in (axis.yaxis, bars.xaxis):
        each.set_major_formatter(lambda tick, _: f"{100 * tick:.0f} %")
    points = [
        f"{100 * claimed:.0f} % sure, {100 * found:.0f} % right ({rows:,} rows)"
        for claimed, found, rows in zip(sure, share, count[some], strict=True)
    ]
    return in_page(figure, "reliability", f"Reliability diagram. {'; '.join(points)}.")


def coverage_figure(levels: np.ndarray, held: np.ndarray) -> Markup:
    """The share of targets that lie in the central intervals, by the share that should."""
    figure, axis = canvas(WIDTH, 3.6)
    axis.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
    axis.plot(levels, held, "o-", color=ACCENT, linewidth=1.6, markersize=6, markeredgecolor=PAPER)
    axis.set(xlim=(0, 1.01), ylim=(0, 1.03), xlabel="targets that an interval should hold", ylabel="that it does hold")
    for each in (axis.yaxis, axis.xaxis):
        each.set_major_formatter(lambda tick, _: f"{100 * tick:.0f} %")
    points = "; ".join(f"{100 * a:.0f} %: {100 * b:.1f} %" for a, b in zip(levels, held, strict=True))
    return in_page(figure, "coverage", f"Targets within central intervals, wanted and found. {points}.")


def fit_figure(
    number: int, name: str, true: np.ndarray, predicted: np.ndarray, low: np.ndarray, high: np.ndarray, small: bool
) -> Markup:
    """Predictions with their 90 % intervals against the truth; those that miss it in another colour."""
    figure, axis = canvas(3.4, 3.1) if small else canvas(WIDTH, 4.2)
    inside = (low <= true) & (true <= high)
    ends = np.array([min(true.min(), predicted.min()), max(true.max(), predicted.max())])
    margin = 0.06 * (ends[1] - ends[0]) or 0.5
    for chosen, colour, words in ((inside, ACCENT, "interval holds the truth"), (~inside, WARN, "misses it")):
        gaps = np.full(3 * chosen.sum(), np.nan)  # one line of many pieces is smaller than many lines
        gaps[0::3], gaps[1::3] = low[chosen], high[chosen]
        axis.plot(np.repeat(true[chosen], 3), gaps, color=colour, linewidth=0.9, alpha=0.45)
        axis.plot(true[chosen], predicted[chosen], "o", color=colour, markersize=3.2, markeredgewidth=0, label=words)
    axis.plot(ends, ends, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
    axis.set(xlabel="true", ylabel="predicted", xlim=(ends[0] - margin, ends[1] + margin))
    floor, ceiling = np.quantile(low, 0.02), np.quantile(high, 0.98)  # a few endless intervals must not set the scale
    axis.set_ylim(min(ends[0] - margin, floor), max(ends[1] + margin, ceiling))
    if not small:
        axis.legend(
            frameon=False, labelcolor=INK, loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, handletextpad=0.1
        )
    axis.spines["bottom"].set_color(LINE)
    alt = (
        f"Predicted against true values of {name}, {len(true)} rows; "
        f"the 90 % intervals hold {100 * inside.mean():.0f} % of them."
    )
    return in_page(figure, f"fit{number}", alt)


def dependence_figure(
    number: int,
    name: str,
    values: np.ndarray,
    labels: list[str],
    average: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    named: bool,
) -> Markup:
    """The average prediction by the value of a column, with its band; a point each where the values have names."""
    figure, axis = canvas(3.4, 2.8)
    x = np.arange(len(values)) if named else values
    if named:
        axis.vlines(x, low, high, color=ACCENT, linewidth=6, alpha=0.25)
        axis.plot(x, average, "o", color=ACCENT, markersize=6, markeredgecolor=PAPER)
        axis.set_xlim(-0.6, len(x) - 0.4)
        shown = range(len(labels))
    else:
        axis.fill_between(x, low, high, color=ACCENT, alpha=0.2, linewidth=0)
        axis.plot(x, average, color=ACCENT, linewidth=1.8)
        shown = np.unique(np.linspace(0, len(labels) - 1, 4).astype(int))
    axis.set_xticks([x[place] for place in shown], [_short(labels[place]) for place in shown])
    axis.set_ylabel("prediction")
    ends = f"from {average[0]:.4g} at {labels[0]} to {average[-1]:.4g} at {labels[-1]}"
    return in_page(figure, f"dependence{number}", f"Average prediction by {name}: {ends}.")


def _short(text: str) -> str:
    """For an axis; $ would start a formula."""
    text = escaped(text)
    return (text if len(text) <= 10 else text[:9] + "…").replace("$", r"\$")


def _chance_range(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 90 % intervals of shares."""
    z = 1.645
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return centre - half, centre + half


def _dots(epoch: np.ndarray) -> str:
    return "o" if len(epoch) < 15 else ""
