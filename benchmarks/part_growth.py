"""Part 4: how time and memory of a step, of an epoch from disk and of a prediction grow with the sizes."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import ADAM, COMMON, in_turns
from benchmarks.run import Run

CONTENDERS = {
    "autogp, natural + Adam": ("autogp", COMMON),
    "GPflow, Adam": ("GPflow", ADAM),
    "GPyTorch, Adam": ("GPyTorch", ADAM),
}
NAMES = {"rows": "B", "inducing": "M", "classes": "Q", "samples": "S", "inputs": "D"}
BASE = {"rows": 500, "inducing": 100, "classes": 5, "samples": 10, "inputs": 50}
SIZES = {
    "tiny": {
        "base": dict.fromkeys(BASE, 5),
        "grow": ["rows"],
        "doublings": 1,
        "rounds": 1,
        "files": [1000, 2000],
    },
    "quick": {"base": BASE, "grow": ["rows", "inducing"], "doublings": 2, "rounds": 2, "files": [62_500, 125_000]},
    "full": {"base": BASE, "grow": NAMES, "doublings": 3, "rounds": 5, "files": [62_500 * 2**i for i in range(5)]},
}
FILE_INPUTS = 20
REGRESSION = {"inducing": 100, "lengthscale": 3.0, "variance": 1.0, "noise": 0.1, "kernel": "rbf"}


def run(run: Run) -> dict[str, Any]:
    sizes = run.of(SIZES)
    chosen = {
        label: (library, recipe)
        for label, (library, recipe) in CONTENDERS.items()
        if run.takes_part(library) and (run.mode == "full" or library == "autogp")
    }
    steps = {}
    with contextlib.ExitStack() as stack:
        workers = {label: stack.enter_context(run.contender(library)) for label, (library, _) in chosen.items()}
        for name in sizes["grow"]:
            settings = [sizes["base"] | {name: sizes["base"][name] * 2**i} for i in range(sizes["doublings"] + 1)]
            steps[NAMES[name]] = {
                "sizes": [setting[name] for setting in settings],
                "seconds": _seconds(workers, chosen, settings, sizes["rounds"]),
                "bytes": {label: [_bytes(run, *of, setting) for setting in settings] for label, of in chosen.items()},
            }
            run.say(f"growth: step by {NAMES[name]}")
    epochs: dict[str, list[dict[str, Any]]] = {label: [] for label in chosen}
    for count in sizes["files"]:
        folder = _write_rows(run.folder / f"rows-{count}", count)
        for label, (library, recipe) in chosen.items():
            epochs[label].append({})
            for what in ("epoch", "prediction"):
                with run.contender(library) as worker:
                    answer = worker.ask(what, folder=str(folder), recipe=recipe, problem=REGRESSION)
                if "seconds" in answer:
                    epochs[label][-1] |= {what: answer["seconds"], f"{what}_bytes": answer["bytes"]}
        run.say(f"growth: epoch of {count:,} rows")
    return {
        "base": {NAMES[name]: value for name, value in sizes["base"].items()},
        "settings": chosen,
        "steps": steps,
        "files": {"sizes": sizes["files"], "inputs": FILE_INPUTS, **REGRESSION, "curves": epochs},
    }


def _sizes(setting: dict[str, int]) -> dict[str, Any]:
    return {name: value for name, value in setting.items() if name != "samples"} | {"separate": False}


def _seconds(workers: dict, chosen: dict, settings: list[dict[str, int]], rounds: int) -> dict[str, list[float | None]]:
    """The shortest step of each contender at each size; in turns at every size."""
    found: dict[str, list[float | None]] = {label: [] for label in chosen}
    for setting in settings:
        built = {
            label: worker
            for label, worker in workers.items()
            if "failure"
            not in worker.ask("build", sizes=_sizes(setting), recipe=chosen[label][1] | {"samples": setting["samples"]})
        }
        times: dict[str, list[float]] = {label: [] for label in built}

        def turn(label: str, worker: Any, times: dict[str, list[float]] = times) -> bool:
            times[label].append(worker.ask("steps", seconds=0.2).get("seconds", float("inf")))
            return len(times[label]) == rounds

        in_turns(built, turn)
        for label in chosen:
            shortest = min(times.get(label, [float("inf")]))
            found[label].append(shortest if shortest < float("inf") else None)
    return found


def _bytes(run: Run, library: str, recipe: dict[str, Any], setting: dict[str, int]) -> float | None:
    """The most memory that building the model and two steps take, in a fresh process."""
    with run.contender(library) as worker:
        answer = worker.ask("step_memory", sizes=_sizes(setting), recipe=recipe | {"samples": setting["samples"]})
    return answer.get("bytes")


def _write_rows(folder: Path, count: int) -> Path:
    """A regression of `count` rows in two files, written in pieces."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (count, FILE_INPUTS))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (count,))
    for start in range(0, count, 50_000):
        rows = rng.standard_normal((min(50_000, count - start), FILE_INPUTS), np.float32)
        x[start : start + len(rows)] = rows
        y[start : start + len(rows)] = np.sin(rows[:, 0]) + 0.3 * rng.standard_normal(len(rows), np.float32)
    x.flush()
    y.flush()
    return folder
