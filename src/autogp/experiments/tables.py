"""Tables and figures of results, from the files of the runs and nothing else."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from autogp.experiments.figures import TITLES, Record, figure_by_epoch, figure_by_inducing
from autogp.experiments.record import read_records

__all__ = ["make_tables", "shown"]

AXES = {  # what may be varied: how a record tells it
    "data": lambda record: record["data"]["set"],
    "kernel": lambda record: record["kernel"],
    "preset": lambda record: record["preset"],
    "objective": lambda record: record["objective"],
    "inducing inputs": lambda record: record["inducing"],
    "samples": lambda record: record["samples"] or "",
}
INTRODUCTION = """# Results

Each run left a JSON file here: settings, seed, versions, machine, times, every score and the course of the training.
The tables and figures below are made from these files alone, by `autogp.experiments.make_tables`.

NLP is the mean of -log p(y) of a test row, in nats; SMSE the squared error over the variance of the targets. Numbers
after ± are standard errors over the seeds. Times are of training alone.
"""


def make_tables(folder: str | Path) -> Path:
    """Writes README.md with a table for each experiment, and its figures, into the folder of the results."""
    folder = Path(folder)
    experiments: dict[str, list[Record]] = defaultdict(list)
    for record in read_records(folder):
        experiments[record["experiment"]].append(record)
    parts = [INTRODUCTION]
    for name, records in experiments.items():
        parts.append(f"## {records[0]['title']}\n\n`autogp reproduce {name}`\n\n{_sizes(records)}\n\n{_table(records)}")
        for figure in (figure_by_inducing, figure_by_epoch):
            path = figure(records, folder / name)
            if path is not None:
                parts.append(f"![{records[0]['title']}]({path.name})\n")
    readme = folder / "README.md"
    readme.write_text("\n".join(parts))
    return readme


def shown(record: Record) -> str:
    """The scores of one run, in words."""
    scores = ", ".join(f"{TITLES[name]} {_number(name, [record['scores'][name]])}" for name in record["metrics"])
    return f"{scores}; {_duration(record['seconds']['training'])}, {record['epochs']} epochs"


def _sizes(records: list[Record]) -> str:
    sizes = {record["data"]["name"]: record["data"] for record in records}
    parts = [
        f"{name}: {data['train']:,} rows to learn from, {data['test']:,} to be judged by, {data['inputs']} inputs"
        for name, data in sizes.items()
    ]
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
    lines = [[*heads, "seeds", "epochs", "time"], ["---"] * (len(heads) + 3)]
    for _, group in sorted(groups.items(), key=lambda item: [(isinstance(part, str), part) for part in item[0]]):
        first = group[0]
        lines.append(
            [
                *(str(tell(first)) for tell in axes.values()),
                *(_number(name, [record["scores"][name] for record in group]) for name in metrics),
                *(_published(name, first["published"] or {}) for name in published),
                str(len(group)),
                _epochs(group),
                _duration(float(np.mean([record["seconds"]["training"] for record in group]))),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _number(metric: str, values: list[float]) -> str:
    """Their mean, and its standard error where there are several."""
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
