"""Figures of results, from the records of the runs."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

__all__ = ["TITLES", "Record", "figure_by_epoch", "figure_by_inducing"]

Record = dict[str, Any]

TITLES = {
    "error": "error",
    "nlp": "NLP",
    "brier": "Brier score",
    "calibration": "calibration error",
    "smse": "SMSE",
    "rmse": "RMSE",
}
COLOURS = {"elbo": "#d95f02", "loo": "#1b9e77", "predictive": "#7570b3"}
MARKERS = {"rbf": "o", "arccosine": "s"}


def figure_by_inducing(records: list[Record], path: Path) -> Path | None:
    """Each metric by the number of inducing inputs, a line for each kernel, objective and preset."""
    sizes = sorted({record["inducing"] for record in records})
    if len(sizes) < 2:
        return None
    metrics = [name for name in records[0]["metrics"] if name in ("error", "nlp", "smse", "rmse")]
    several_kernels = len({record["kernel"] for record in records}) > 1
    lines: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records:
        lines[record["data"]["set"], record["kernel"], record["objective"], record["preset"]].append(record)
    figure, axes = _canvas(len(metrics))
    for axis, metric in zip(axes, metrics, strict=True):
        for (data, kernel, objective, preset), group in sorted(lines.items()):
            own = sorted({record["inducing"] for record in group})
            means = [np.mean([r["scores"][metric] for r in group if r["inducing"] == size]) for size in own]
            ours = preset == "ours"
            style = {"color": COLOURS[objective], "marker": MARKERS.get(kernel, "o")}
            style |= {"linestyle": "-", "mfc": style["color"]} if ours else {"linestyle": "--", "mfc": "white"}
            label = ", ".join(part for part in (data, kernel if several_kernels else "", objective, preset) if part)
            axis.plot(own, means, label=label, **style)
            known = {r["inducing"]: r["published"][metric] for r in group if metric in (r["published"] or {})}
            if known:
                axis.plot(known.keys(), known.values(), "x", color=style["color"], label=f"{objective}, as published")
        axis.set(xscale="log", xlabel="inducing inputs", ylabel=TITLES[metric], ylim=(0, None))
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        if metric == "error":
            axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes[-1].legend(fontsize=8, frameon=False)
    return _save(figure, path.with_name(f"{path.name}-by-inducing.svg"))


def figure_by_epoch(records: list[Record], path: Path) -> Path | None:
    """The first metric over the epochs, a panel for each data set, a line for each preset and number of samples."""
    curves = [record for record in records if record["curve"]]
    if not curves:
        return None
    metric = curves[0]["metrics"][0]
    sets = sorted({record["data"]["set"] for record in curves})
    figure, axes = _canvas(len(sets))
    for axis, name in zip(axes, sets, strict=True):
        own = [record for record in curves if record["data"]["set"] == name]
        for record in sorted(own, key=lambda record: record["samples"] or 0):
            label = record["preset"] + (f", {record['samples']:,} samples" if record["samples"] else "")
            epochs = [point["epoch"] for point in record["curve"]]
            axis.plot(epochs, [point[metric] for point in record["curve"]], label=label)
        axis.set(title=name, xlabel="epoch", ylabel=TITLES[metric], yscale="log")
        axis.legend(fontsize=8, frameon=False)
    return _save(figure, path.with_name(f"{path.name}-by-epoch.svg"))


def _canvas(panels: int) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(4.5 * panels, 3.6), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _save(figure: Figure, path: Path) -> Path:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    with matplotlib.rc_context({"svg.hashsalt": "autogp"}):  # the same bytes from the same results
        figure.savefig(path, metadata={"Date": None})
    return path
