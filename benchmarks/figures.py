"""Figures of the benchmarks as SVG, from the JSON file alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

Part = dict[str, Any]
COLOURS = {"autogp": "#1b9e77", "GPflow": "#d95f02", "GPyTorch": "#7570b3", "scikit-learn": "#666666"}
# A library's settings: a colour, a dash and a mark for each.
SHADES = {
    "autogp": ["#1b9e77", "#0b5c43", "#7bccb5", "#12805f", "#b5c334"],
    "GPflow": ["#d95f02", "#8f3e00", "#fdae6b"],
    "GPyTorch": ["#7570b3", "#3f3a7a", "#b8b4e0"],
    "scikit-learn": ["#666666"],
}
DASHES, MARKS = ["-", "--", ":", "-."], ["o", "s", "^", "D", "v"]
PANEL_COLUMNS = 4


def slope(sizes: list[float], values: list[float | None]) -> str:
    """The exponent of growth, by least squares on logarithms; nothing where a value is missing or not positive."""
    known = [(size, value) for size, value in zip(sizes, values, strict=True) if value and value > 0]
    if len(known) < 2:
        return "–"
    x, y = np.log(known).T
    return f"{round(np.polyfit(x, y, 1)[0], 2) + 0.0:.2f}"  # never -0.00


def write_figures(parts: dict[str, Part], folder: Path) -> dict[str, Path]:
    """A file for each figure that the parts have numbers for."""
    found = {}
    for name, (part, draw) in FIGURES.items():
        if part in parts and "skipped" not in parts[part]:
            folder.mkdir(parents=True, exist_ok=True)
            figure = draw(parts[part])
            for axis in figure.axes:
                axis.spines[["top", "right"]].set_visible(False)
                for scale in (axis.xaxis, axis.yaxis):
                    if scale.get_scale() == "log":
                        _plain_numbers(scale)
            with matplotlib.rc_context({"svg.hashsalt": "autogp"}):  # the same bytes from the same results
                figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            found[name] = folder / f"{name}.svg"
    return found


def _canvas(rows: int, columns: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _plain_numbers(axis: Any) -> None:
    """0.1, 0.2, 0.5, 1, 2, 5 on a logarithmic axis; over many decades their powers of ten alone."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _styles(names: Any) -> dict[str, dict[str, str]]:
    """A hue for each library; a shade, a dash and a mark for each of its settings."""
    seen: dict[str, int] = {}
    found = {}
    for name in names:
        library = name.split(",")[0]
        number = seen[library] = seen.get(library, -1) + 1
        own = {"linestyle": DASHES, "color": SHADES[library], "marker": MARKS}
        found[name] = {key: choices[number % len(choices)] for key, choices in own.items()}
    return found


def _legend(figure: Figure, *axes: Any) -> None:
    """One for all, below; what stands in several axes is named once."""
    handles = {label: each for axis in axes for each, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def draw_step(part: Part) -> Figure:
    cases = part["configurations"]
    columns = min(4, len(cases))
    figure, axes = _canvas(-(-len(cases) // columns), columns)
    for axis, case in zip(axes.flat, cases, strict=False):
        known = {name: 1e3 * each["seconds"] for name, each in case["times"].items() if "seconds" in each}
        colours = [COLOURS[name.split(",")[0]] for name in known]
        axis.barh(list(known), list(known.values()), color=colours)
        axis.invert_yaxis()
        kind = "separate" if case["separate"] else "shared"
        axis.set(title=f"M = {case['inducing']}, {kind}, S = {case['samples']}", xlabel="milliseconds")
        axis.tick_params(axis="y", labelsize=7)
    return figure


def draw_quality(part: Part) -> Figure:
    figure, axes = _canvas(1, 2)
    for axis, (key, title) in zip(axes[0], (("nlp", "test NLP"), ("error", "test error")), strict=True):
        for name, style in _styles(part["curves"]).items():
            curve = part["curves"][name]
            seconds, values = ([point[column] for point in curve] for column in ("seconds", key))
            axis.plot(seconds, values, label=name, **style | {"marker": ""})
        axis.set(xscale="log", yscale="log", xlabel="seconds", ylabel=title)
    for level in part["levels"]:
        axes[0][0].axhline(level, color="#cccccc", linewidth=0.7, zorder=0)
    axes[0][0].set_ylim(top=2 * max(part["levels"]))  # what is above is over in a few steps
    axes[0][1].set_ylim(top=0.1)
    _legend(figure, axes[0][0])
    return figure


def draw_equal_time(part: Part) -> Figure:
    sets = {name: case for name, case in part["sets"].items() if "curves" in case}
    columns = max(1, min(3, len(sets)))
    figure, axes = _canvas(max(1, -(-len(sets) // columns)), columns)
    styles = _styles(part["settings"])
    for axis, (name, case) in zip(axes.flat, sets.items(), strict=False):
        for contender, curve in case["curves"].items():
            known = [(point["seconds"], point["nlp"]) for point in curve if "nlp" in point]
            if known:
                axis.plot(*zip(*known, strict=True), label=contender, markersize=5, **styles[contender])
        axis.set(title=f"{name}, N = {case['rows']:,}", xscale="log", xlabel="seconds", ylabel="test NLP")
    _legend(figure, *axes.flat)
    return figure


def draw_growth(part: Part) -> Figure:
    files = part["files"]
    panels = [
        (f"step by {letter}", case["sizes"], case["seconds"], case["bytes"]) for letter, case in part["steps"].items()
    ]
    for what in ("epoch", "prediction"):
        seconds, size = (
            {name: [each.get(key) for each in curve] for name, curve in files["curves"].items()}
            for key in (what, f"{what}_bytes")
        )
        panels.append((f"{what} by N", files["sizes"], seconds, size))
    rows = -(-len(panels) // PANEL_COLUMNS)
    figure, axes = _canvas(2 * rows, PANEL_COLUMNS)  # times, then memory
    for axis in axes.flat:
        axis.set_visible(False)
    for number, (title, sizes, seconds, size) in enumerate(panels):
        row, column = divmod(number, PANEL_COLUMNS)
        upper, lower = axes[row, column], axes[rows + row, column]
        for axis, values, unit, label in ((upper, seconds, 1, "seconds"), (lower, size, 2**20, "MiB")):
            axis.set_visible(True)
            for name, style in _styles(values).items():
                known = [np.nan if value is None else value / unit for value in values[name]]
                text = f"{name.split(',')[0]}, slope {slope(sizes, values[name])}"
                axis.plot(sizes, known, markersize=4, label=text, **style)
            axis.set(title=title, ylabel=label, xscale="log", yscale="log")
            axis.legend(fontsize=7, frameon=False)
    return figure


def draw_limit(part: Part) -> Figure:
    cases = part["configurations"]
    figure, axes = _canvas(1, len(cases))
    for axis, case in zip(axes[0], cases, strict=True):
        axis.barh(list(case["parts"]), [1e3 * each for each in case["parts"].values()], color=COLOURS["autogp"])
        axis.axvline(1e3 * case["seconds"] * case["share"], color="#d95f02", label="all products at the GEMM rate")
        axis.axvline(1e3 * case["seconds"], color="#666666", label="whole step")
        axis.invert_yaxis()
        kind = "separate" if case["separate"] else "shared"
        axis.set(title=f"M = {case['inducing']}, {kind}", xlabel="milliseconds")
        axis.tick_params(axis="y", labelsize=7)
    _legend(figure, axes[0][0])
    return figure


FIGURES: dict[str, tuple[str, Callable[[Part], Figure]]] = {
    "step": ("step", draw_step),
    "quality": ("quality", draw_quality),
    "equal-time": ("equal-time", draw_equal_time),
    "growth": ("growth", draw_growth),
    "limit": ("limit", draw_limit),
}
