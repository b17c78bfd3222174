"""Figures of results, from the records of the runs."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from autogp.storage import replacing

__all__ = [
    "TITLES",
    "Record",
    "figure_by_epoch",
    "figure_by_inducing",
    "figure_by_time",
    "figure_of_depths",
    "figure_of_estimators",
    "figure_of_posteriors",
]

Record = dict[str, Any]

TITLES = {
    "error": "error",
    "nlp": "NLP",
    "brier": "Brier score",
    "calibration": "calibration error",
    "smse": "SMSE",
    "rmse": "RMSE",
    "noise": "noise of the gradient",
    "elbo": "ELBO",
}
COLOURS = {"elbo": "#d95f02", "loo": "#1b9e77", "predictive": "#7570b3"}
MARKERS = {"rbf": "o", "arccosine": "s"}
OTHER_MARKERS = ("D", "^", "v", "P", "X")  # of presets beside ours and the paper's
KERNELS = {"rbf": "RBF-ARD", "arccosine": "arc-cosine"}
SHADES = ("#fdae6b", "#e6550d", "#9e3d00", "#3f1a00")  # from few samples to many


def figure_by_inducing(records: list[Record], folder: Path) -> Path | None:
    """Each metric by the number of inducing inputs, a line for each kernel, objective and preset; peers lie level."""
    peers = [record for record in records if not record["inducing"] and not _depths(record)]
    records = [record for record in records if record["inducing"]]
    sizes = sorted({record["inducing"] for record in records})
    if len({(record["preset"], record["inducing"]) for record in records}) == len({r["preset"] for r in records}):
        return None  # no preset has more than one
    metrics = [name for name in records[0]["metrics"] if name in ("error", "nlp", "smse", "rmse")]
    several = {key for key in ("kernel", "preset") if len({record[key] for record in records}) > 1}
    lines: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in records:
        lines[record["data"]["set"], record["kernel"], record["objective"], record["preset"]].append(record)
    others = sorted({record["preset"] for record in records} - {"ours", "paper"})
    figure, axes = _canvas(len(metrics))
    for axis, metric in zip(axes, metrics, strict=True):
        for (data, kernel, objective, preset), group in sorted(lines.items()):
            own = sorted({record["inducing"] for record in group})
            means = [np.mean([r["scores"][metric] for r in group if r["inducing"] == size]) for size in own]
            ours = preset == "ours"
            style = {"color": COLOURS[objective]}
            style |= {"marker": OTHER_MARKERS[others.index(preset)] if preset in others else MARKERS.get(kernel, "o")}
            style |= {"linestyle": "-" if kernel == "rbf" else ":"} if ours else {"linestyle": "--"}
            style |= {"mfc": style["color"] if ours else "white"}
            words = (data, KERNELS.get(kernel, kernel) if "kernel" in several else "", objective)
            label = ", ".join(part for part in (*words, preset if "preset" in several else "") if part)
            axis.plot(own, means, label=label, **style)
            known = {r["inducing"]: r["published"][metric] for r in group if metric in (r["published"] or {})}
            label = ", ".join(part for part in (*words, "as published") if part)
            if known and label not in axis.get_legend_handles_labels()[1]:  # once, whatever the presets
                axis.plot(known.keys(), known.values(), "x", color=style["color"], label=label)
        levels: dict[str, list[float]] = defaultdict(list)
        for peer in peers:
            if peer["scores"].get(metric) is not None:
                levels[_words(peer)].append(peer["scores"][metric])
        for label, values in levels.items():
            axis.axhline(np.mean(values), color="0.4", linestyle="-.", linewidth=1.2)
            axis.annotate(label, (sizes[0], np.mean(values)), (0, 4), textcoords="offset points", color="0.3")
        low, high = axis.get_ylim()
        axis.set(xscale="log", xlabel="inducing inputs", ylabel=TITLES[metric])
        if low < high / 2:  # else the axis would be mostly empty
            axis.set_ylim(bottom=0)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        if metric == "error":
            axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes[-1].legend(fontsize=8, frameon=False)
    return _save(figure, folder / "by-inducing.svg")


def figure_by_epoch(records: list[Record], folder: Path) -> Path | None:
    """The first metric over the epochs, a panel for each data set, a line for each preset and number of samples; and
    where the number of samples varies, the time of an update by it."""
    curves = [record for record in records if record["curve"] and record.get("curve_over", "epoch") == "epoch"]
    curves = [record for record in curves if "epoch" in record["curve"][0]]
    if not curves:
        return None
    metric = curves[0]["metrics"][0]
    sets = sorted({record["data"]["set"] for record in curves})
    counts = sorted({record["samples"] for record in curves if record["samples"]})
    figure, axes = _canvas(len(sets) + bool(counts))
    for axis, name in zip(axes, sets, strict=False):
        own = [record for record in curves if record["data"]["set"] == name]
        seeds = len({record["seed"] for record in own})
        lines: dict[str, list[Record]] = defaultdict(list)
        for record in sorted(own, key=lambda record: (record["preset"] == "independent", record["samples"] or 0)):
            lines[_words(record)].append(record)
        for words, group in lines.items():
            epochs, means = _mean_curve(group, "epoch", metric)
            label = words if len(group) == seeds else f"{words} ({len(group)} of {seeds} seeds)"
            axis.plot(epochs, means, label=label, **_style(group[0], counts))
        axis.set(title=name, xlabel="epoch", ylabel=TITLES[metric], yscale="log")
        _plain_ticks(axis.yaxis)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    limits = [axis.get_ylim() for axis in axes[: len(sets)]]
    for axis in axes[: len(sets)]:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    axes[0].legend(fontsize=8, frameon=False)
    if counts:
        axis = axes[-1]
        timed = [record for record in curves if record["preset"] != "paper"] or curves  # its steps are of another kind
        counts = sorted({record["samples"] for record in timed if record["samples"]})
        times = [np.mean([r["seconds"]["update"] for r in timed if r["samples"] == count]) for count in counts]
        axis.plot(counts, times, "o-", color=SHADES[1])
        axis.set(title="CPU time of an update", xlabel="samples", ylabel="seconds", xscale="log", yscale="log")
        axis.set_xticks(counts, [f"{count:,}" for count in counts])
        axis.xaxis.minorticks_off()
        _plain_ticks(axis.yaxis)
    return _save(figure, folder / "by-epoch.svg")


def figure_by_time(records: list[Record], folder: Path) -> Path | None:
    """Each metric over the seconds of training, a line for each run of the first seed, and the paper's results."""
    curves = [record for record in records if record["curve"] and record.get("curve_over") == "time"]
    if not curves:
        return None
    curves = [record for record in curves if record["seed"] == min(each["seed"] for each in curves)]
    metrics = [name for name in curves[0]["metrics"] if name in ("error", "nlp")]
    figure, axes = _canvas(len(metrics))
    for axis, metric in zip(axes, metrics, strict=True):
        for number, record in enumerate(sorted(curves, key=lambda record: record["name"])):
            label = ", ".join(filter(None, [record["kernel"], record["preset"], record["objective"]]))
            label = f"{label}, M = {record['inducing']}"
            style = {"color": f"C{number % 10}", "label": label}
            axis.plot([p["seconds"] for p in record["curve"]], [p[metric] for p in record["curve"]], **style)
        known = [record["published"] for record in curves if metric in (record["published"] or {})]
        for point in [each for number, each in enumerate(known) if each not in known[:number]]:
            if "seconds" in point:
                axis.plot(point["seconds"], point[metric], "kx", label="as published")
            else:  # the paper gives no time
                axis.axhline(point[metric], color="k", linestyle=":", label="as published")
        axis.set(xlabel="seconds", ylabel=TITLES[metric], xscale="log", yscale="log")
        _plain_ticks(axis.yaxis)
    axes[-1].legend(fontsize=8, frameon=False)
    return _save(figure, folder / "by-time.svg")


def figure_of_estimators(records: list[Record], folder: Path) -> Path | None:
    """Noise of the gradient by samples; the error over the steps with the fewest samples; the error reached, by
    samples; a line for each estimator."""
    own = [record for record in records if "noise" in record["scores"]]
    if not own:
        return None
    counts = sorted({record["samples"] for record in own})
    figure, axes = _canvas(3)
    for number, name in enumerate(dict.fromkeys(record["preset"] for record in own)):
        group = [record for record in own if record["preset"] == name]
        samples = sorted({record["samples"] for record in group})
        style = {"color": ("#1b9e77", "#d95f02", "#7570b3")[number % 3], "marker": "os^"[number % 3], "label": name}
        for axis, metric in ((axes[0], "noise"), (axes[2], "smse")):
            axis.plot(
                samples, [np.mean([r["scores"][metric] for r in group if r["samples"] == n]) for n in samples], **style
            )
        fewest = [record for record in group if record["samples"] == samples[0]]
        axes[1].plot(*_mean_curve(fewest, "step", "smse"), **style | {"marker": ""})
    few = counts[0]
    axes[0].set(
        title="noise of the gradient", xlabel="samples", ylabel="variance / length²", xscale="log", yscale="log"
    )
    axes[1].set(title=f"learning with {few} samples", xlabel="step", ylabel="SMSE", yscale="log")
    highest = max(record["scores"]["smse"] for record in own)
    axes[2].set(title="after the last step", xlabel="samples", ylabel="SMSE", xscale="log", ylim=(0, 1.1 * highest))
    for axis in (axes[0], axes[2]):
        axis.set_xticks(counts, [f"{count:,}" for count in counts])
        axis.xaxis.minorticks_off()
    _plain_ticks(axes[1].yaxis)
    axes[1].legend(fontsize=8, frameon=False)
    return _save(figure, folder / "estimators.svg")


def figure_of_posteriors(records: list[Record], folder: Path) -> Path | None:
    """ELBO and NLP by components, full and diagonal, less those of one full Gaussian; a colour for each data set."""
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)  # by data, posterior and score
    for record in records:
        if "largest_weight" in record["scores"]:
            for metric in ("elbo", "nlp"):
                values[record["data"]["set"], record["preset"], metric].append(record["scores"][metric])
    if not values:
        return None
    figure, axes = _canvas(2)
    for axis, metric in zip(axes, ("elbo", "nlp"), strict=True):
        for number, name in enumerate(dict.fromkeys(data for data, _, _ in values)):
            for kind, line in (("full", "-"), ("diagonal", ":")):
                presets = [key[1] for key in values if key[0] == name and key[1].startswith(kind) and key[2] == metric]
                counts = sorted((int(preset.rpartition(" ")[2]), preset) for preset in presets)
                first = np.mean(values[name, "full 1", metric])
                differences = [np.mean(values[name, preset, metric]) - first for _, preset in counts]
                style = {"color": ("#d95f02", "#1b9e77", "#7570b3")[number % 3], "linestyle": line, "marker": "o"}
                axis.plot([count for count, _ in counts], differences, **style, label=f"{name}, {kind}")
        axis.axhline(0, color="#999999", linewidth=0.8)
        axis.set(title=f"{TITLES[metric]}, less that of one full Gaussian", xlabel="components")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize=8, frameon=False)
    return _save(figure, folder / "posteriors.svg")


def figure_of_depths(records: list[Record], folder: Path) -> Path | None:
    """The error in cross-validation by the depth of the arc-cosine kernel, with the best C, a line for each degree."""
    tried = [each for record in records if _depths(record) for each in record["tried"]]
    if not tried:
        return None
    figure, axes = _canvas(1)
    for number, degree in enumerate(sorted({each["degree"] for each in tried})):
        own = [each for each in tried if each["degree"] == degree]
        depths = sorted({each["depth"] for each in own})
        best = [min(each["error"] for each in own if each["depth"] == depth) for depth in depths]
        axes[0].plot(depths, best, color=f"C{number}", marker="os^"[number % 3], label=f"degree {degree}")
    axes[0].set(title="arc-cosine SVM", xlabel="depth", ylabel="error in cross-validation", ylim=(0, None))
    axes[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    axes[0].legend(fontsize=8, frameon=False)
    return _save(figure, folder / "by-depth.svg")


def _depths(record: Record) -> bool:
    """Whether the record is of kernels of several depths."""
    return len({each.get("depth") for each in record.get("tried", ())}) > 1


def _mean_curve(records: list[Record], over: str, metric: str) -> tuple[list[float], list[float]]:
    """The mean over the runs wherever one has been scored: two columns."""
    found: dict[float, list[float]] = defaultdict(list)
    for point in (point for record in records for point in record["curve"]):
        found[point[over]].append(point[metric])
    places = sorted(found)
    return places, [float(np.mean(found[place])) for place in places]


WORDS = {"ours": "closed form", "sampled": "", "independent": "independent outputs", "svm": "SVM"}


def _words(record: Record) -> str:
    """What a line is."""
    samples = f"{record['samples']:,} samples" if record["samples"] else ""
    return ", ".join(part for part in (WORDS.get(record["preset"], record["preset"]), samples) if part)


def _style(record: Record, counts: list[int]) -> dict[str, Any]:
    if record["samples"]:
        style = {"color": SHADES[min(counts.index(record["samples"]), len(SHADES) - 1)]}
        return style | ({"linestyle": ":"} if record["preset"] == "paper" else {})
    return {"color": "black" if record["preset"] == "ours" else "0.6", "linestyle": "--"}


def _plain_ticks(axis: Any) -> None:
    """0.015, 0.02, 0.03 on a logarithmic axis, not powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _canvas(panels: int) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(4.5 * panels, 3.6), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _save(figure: Figure, path: Path) -> Path:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    with matplotlib.rc_context({"svg.hashsalt": "autogp"}), replacing(path) as temporary:
        # The salt and no date: the same bytes from the same results.
        figure.savefig(temporary, format="svg", metadata={"Date": None})
    return path
