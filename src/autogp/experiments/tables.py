"""Tables and figures of results, from the files of the runs and nothing else."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from autogp.experiments.figures import (
    COLOURS,
    TITLES,
    Record,
    figure_by_epoch,
    figure_by_inducing,
    figure_by_time,
    figure_of_depths,
    figure_of_estimators,
    figure_of_posteriors,
)
from autogp.experiments.record import plain, read_records
from autogp.storage import replacing
from autogp.training import Settings

__all__ = ["make_tables", "shown"]

AXES: dict[str, Callable[[Record], Any]] = {  # what may be varied: how a record tells it
    "data": lambda record: record["data"]["set"],
    "kernel": lambda record: record["kernel"],
    "preset": lambda record: record["preset"],
    "objective": lambda record: record["objective"],
    "inducing inputs": lambda record: record["inducing"] or "",
    "samples": lambda record: record["samples"] or "",
}
INTRODUCTION = """# Results

An experiment's folder holds a JSON file for each run: settings, seed, versions, machine, times, every score and the
course of the training. The tables and figures below are made from these files alone, by
`autogp.experiments.make_tables`.

NLP is the mean of -log p(y) over the test rows, in nats; SMSE is the mean squared error over the variance of the
targets. Numbers after ± are standard errors over the seeds. Times are of training alone.
"""

BENCHMARKS = {  # pages of benchmarks/
    "benchmarks/README.md": "speed and quality beside GPflow, GPyTorch and scikit-learn",
    "benchmarks/uci.md": "`GPRegressor()` and `GPClassifier()` beside GPflow",
    "objectives/README.md": 'what `objective="auto"` chooses, and what each objective is worth',
}
FIGURES = (
    figure_by_inducing,
    figure_by_epoch,
    figure_by_time,
    figure_of_depths,
    figure_of_estimators,
    figure_of_posteriors,
)
DEFAULTS = plain(asdict(Settings()))
VARIED = {"objective", "samples", "seed", "max_epochs", "time_budget", "checkpoint_seconds", "device"}  # shown, or free
COMPARED = (
    "Models that were trained with more than one objective; `docs/leave-one-out.md` discusses them. The best NLP is "
    "bold where it is better than the others by more than two standard errors of the difference."
)


def make_tables(folder: str | Path) -> Path:
    """Writes README.md with a table for each experiment into the folder of the results, and figures beside the runs."""
    folder = Path(folder)
    experiments: dict[str, list[Record]] = defaultdict(list)
    for record in read_records(folder):
        experiments[record["experiment"]].append(record)
    parts = [INTRODUCTION, _contents(folder, experiments)]
    for name, records in experiments.items():
        newest = max(records, key=lambda record: record["date"])
        title, note = newest["title"], newest.get("note")
        parts.append(f"## {title}\n\n{_command(name, records)}\n\n{_sizes(records)}\n")
        parts += [f"{note}\n"] if note else []
        several = len({record["data"]["set"] for record in records}) > 1
        metrics = [metric for metric in records[0]["metrics"] if metric != "smse"]
        by_objective = _by_objective(records, {axis: AXES[axis] for axis in ("data", "kernel")}, metrics)
        parts.append(by_objective if several and by_objective else _table(records))
        parts += [f"Other settings than in the newest run: {others}.\n"] if (others := _deviations(records)) else []
        for figure in FIGURES:
            path = figure(records, folder / name)
            if path is not None:
                parts.append(f"![{title}]({name}/{path.name})\n")
    everything = [record for records in experiments.values() for record in records]
    axes = {"experiment": lambda record: f"{record['experiment']} {record['data']['set']}".strip()}
    axes |= {axis: AXES[axis] for axis in ("kernel", "preset", "inducing inputs")}
    compared = _by_objective(everything, axes, ("nlp", "error", "calibration"))
    parts += [f"## Which objective\n\n{COMPARED}\n\n{compared}"] if compared else []
    readme = folder / "README.md"
    with replacing(readme) as temporary:
        temporary.write_text("\n".join(parts))
    return readme


def _contents(folder: Path, experiments: Mapping[str, list[Record]]) -> str:
    """A line for each experiment, with its folder, and for each page of the benchmarks that is there."""
    lines = [f"- [{name}]({name}): {records[0]['title']}" for name, records in experiments.items()]
    lines += [f"- [{page}]({page}): {title}" for page, title in BENCHMARKS.items() if (folder / page).exists()]
    return "\n".join(lines) + "\n"


def shown(record: Record) -> str:
    """The scores of one run, in words."""
    scores = ", ".join(
        f"{TITLES[name]} {_number(name, [record])}" for name in record["metrics"] if name in record["scores"]
    )
    return f"{scores}; {_duration(record['seconds']['training'])}, {record['epochs']} epochs"


def _command(name: str, records: list[Record]) -> str:
    """What makes these runs."""
    seeds = ", ".join(str(seed) for seed in sorted({record["seed"] for record in records}))
    budgets = sorted({record["settings"].get("time_budget") or 0.0 for record in records} - {0.0})
    options = ["`--preset paper`"] if any(record["preset"] == "paper" for record in records) else []
    options += [f"`--time {seconds / 60:g}m`" for seconds in budgets]
    some = f"; some with {', '.join(options)}, as their files say" if options else ""
    return f"`autogp reproduce {name}`, seed{'s' * (',' in seeds)} {seeds} (`--seed`){some}."


def _deviations(records: list[Record]) -> str:
    """Runs whose settings are not those of the newest of their kind, and how; what a file does not say is a default."""
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for record in records:
        if record["objective"]:
            groups[record["data"]["set"], record["preset"], record["objective"]].append(record)
    found: dict[str, list[str]] = defaultdict(list)
    for (_, _, objective), group in groups.items():
        names = [key for key in DEFAULTS if key not in VARIED and not (objective == "elbo" and key.startswith("held_"))]
        newest = max(group, key=lambda record: record["date"])
        for record in group:
            own, other = (DEFAULTS | each["settings"] for each in (record, newest))
            differing = [f"{key} {own[key]} instead of {other[key]}" for key in names if own[key] != other[key]]
            if differing:
                found[", ".join(differing)].append(f"[{record['name']}]({record['experiment']}/{record['name']}.json)")
    return "; ".join(f"{how} in {', '.join(names)}" for how, names in found.items())


def _sizes(records: list[Record]) -> str:
    parts = dict.fromkeys(
        f"{data['name']}: {data['train']:,} training rows, {data['test']:,} test rows, {data['inputs']} inputs"
        for data in (record["data"] for record in records)
    )
    machines = {f"{record['machine']['processor']} (threads: {record['machine']['threads']})" for record in records}
    return "; ".join(parts) + f". On {' and '.join(sorted(machines))}."


def _table(records: list[Record]) -> str:
    """One line for each combination, the mean over its seeds; columns that say the same everywhere are left out."""
    axes = {name: tell for name, tell in AXES.items() if len({tell(record) for record in records}) > 1}
    groups: dict[tuple, list[Record]] = defaultdict(list)
    for record in records:
        groups[tuple(tell(record) for tell in AXES.values())].append(record)
    metrics = records[0]["metrics"]
    published = [name for name in metrics if any(name in (record["published"] or {}) for record in records)]
    heads = [*axes, *(TITLES[name] for name in metrics), *(f"{TITLES[name]} in the paper" for name in published)]
    by_samples = any(record["samples"] and "update" in record["seconds"] for record in records)
    heads += ["seeds", "epochs", "time", *(["CPU time of an update"] if by_samples else [])]
    lines = [heads, ["---"] * len(heads)]
    for _, group in sorted(groups.items(), key=lambda item: [(isinstance(part, str), part) for part in item[0]]):
        first = group[0]
        lines.append(
            [
                *(str(tell(first)) for tell in axes.values()),
                *(_number(name, group) for name in metrics),
                *(_published(name, first["published"] or {}) for name in published),
                str(len(group)),
                _epochs(group),
                _duration(float(np.mean([record["seconds"]["training"] for record in group]))),
                *([f"{np.mean([record['seconds']['update'] for record in group]):.3f} s"] if by_samples else []),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _by_objective(records: list[Record], axes: Mapping[str, Callable[[Record], Any]], metrics: Sequence[str]) -> str:
    """The objectives side by side, for what was learnt by several; the best NLP in bold if it is surely so."""
    objectives = [name for name in COLOURS if any(record["objective"] == name for record in records)]
    groups: dict[tuple, dict[str, list[Record]]] = defaultdict(lambda: {name: [] for name in objectives})
    for record in records:
        if record["objective"]:
            groups[tuple(tell(record) for tell in axes.values())][record["objective"]].append(record)
    groups = {key: own for key, own in sorted(groups.items()) if sum(map(bool, own.values())) > 1}
    if not groups:
        return ""
    heads = [*axes, *(f"{TITLES[metric]}, {name}" for metric in metrics for name in objectives), "seeds"]
    lines = [heads, ["---"] * len(heads)]
    for key, own in groups.items():
        known = {name: group for name, group in own.items() if group}
        best = _best({name: [record["scores"]["nlp"] for record in group] for name, group in known.items()})
        cells = [
            f"**{_number(metric, own[name])}**" if metric == "nlp" and name == best else _number(metric, own[name])
            for metric in metrics
            for name in objectives
        ]
        seeds = sorted({len(group) for group in known.values()})
        lines.append([*map(str, key), *cells, " or ".join(map(str, seeds))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _best(values: Mapping[str, Sequence[float]]) -> str | None:
    """The name with the smallest mean, if all others are above it by two standard errors; from two seeds each."""
    if min(map(len, values.values())) < 2:
        return None
    means = {name: float(np.mean(own)) for name, own in values.items()}
    errors = {name: float(np.var(own, ddof=1)) / len(own) for name, own in values.items()}  # squared
    best, *others = sorted(means, key=means.__getitem__)
    surely = all(means[name] - means[best] > 2 * np.sqrt(errors[name] + errors[best]) for name in others)
    return best if surely else None


def _number(metric: str, records: list[Record]) -> str:
    """The mean of a score, and its standard error where there are several; nothing if the method has no such score."""
    values = [record["scores"][metric] for record in records if record["scores"].get(metric) is not None]
    if not values:
        return ""
    scale, digits, unit = (100, 2, " %") if metric == "error" else (1, 4 if np.mean(np.abs(values)) > 0.01 else 6, "")
    mean = f"{scale * np.mean(values):.{digits}f}"
    if len(values) > 1:
        mean += f" ± {scale * np.std(values, ddof=1) / np.sqrt(len(values)):.{digits}f}"
    return mean + unit


def _published(metric: str, values: dict[str, float]) -> str:
    if metric not in values:
        return ""
    return f"{100 * values[metric]:g} %" if metric == "error" else f"{values[metric]:g}"


def _epochs(group: list[Record]) -> str:
    """How many, and of how many if the run was cut short."""
    epochs, wanted = np.mean([record["epochs"] for record in group]), group[0]["settings"]["max_epochs"]
    return f"{epochs:.0f} of {wanted}" if wanted and epochs < wanted else f"{epochs:.0f}"


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 600
        else f"{seconds / 60:.0f} min"
        if seconds < 36_000
        else f"{seconds / 3600:.0f} h"
    )
