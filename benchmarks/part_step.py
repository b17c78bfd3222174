"""Part 1: one training step at MNIST size, contenders in turns."""

import contextlib
import statistics
import time
from typing import Any

from benchmarks.contenders import ADAM, COMMON, in_turns
from benchmarks.contenders import NATURAL as FULL_NATURAL
from benchmarks.run import Run

DOUBLE = {"precision": "float64"}
NATURAL = FULL_NATURAL | {"natural_rate": 1e-3}  # the rows are random: a small step costs the same, and cannot fail
CONTENDERS = {
    "autogp, natural + Adam": ("autogp", COMMON),
    "GPflow, Adam": ("GPflow", ADAM),
    "GPflow, natural + Adam": ("GPflow", NATURAL),
    "GPyTorch, Adam": ("GPyTorch", ADAM),
    "GPyTorch, natural + Adam": ("GPyTorch", NATURAL),
    "autogp, natural + Adam, float64": ("autogp", COMMON | DOUBLE),
    "GPflow, Adam, float64": ("GPflow", ADAM | DOUBLE),
    "GPflow, natural + Adam, float64": ("GPflow", NATURAL | DOUBLE),
    "GPyTorch, Adam, float64": ("GPyTorch", ADAM | DOUBLE),
    "GPyTorch, natural + Adam, float64": ("GPyTorch", NATURAL | DOUBLE),
}
MNIST = {"rows": 1000, "inputs": 784, "classes": 10}
SIZES = {
    "tiny": {"size": {"rows": 50, "inputs": 5, "classes": 3}, "inducing": [10], "samples": [2], "rounds": 2},
    "quick": {"size": MNIST, "inducing": [200], "samples": [10], "rounds": 5},
    "full": {"size": MNIST, "inducing": [200, 1000], "samples": [10, 100], "rounds": 10},
}
TURN = 0.5  # seconds of each turn, or one step if it takes longer
LONGEST, FEWEST = 60.0, 3  # seconds of a configuration, after which so many rounds are enough


def run(run: Run) -> dict[str, Any]:
    sizes = run.of(SIZES)
    chosen = {
        name: (library, recipe)
        for name, (library, recipe) in CONTENDERS.items()
        if run.takes_part(library) and (run.mode == "full" or recipe["precision"] == "float32")
    }
    found = []
    with contextlib.ExitStack() as stack:
        workers = {name: stack.enter_context(run.contender(library)) for name, (library, _) in chosen.items()}
        for inducing in sizes["inducing"]:
            for separate in (False, True):
                for samples in sizes["samples"]:
                    setting = {"inducing": inducing, "separate": separate, "samples": samples}
                    run.say(f"step: {setting}")
                    smallest = (inducing, samples) == (sizes["inducing"][0], sizes["samples"][0])
                    taking_part = {  # float64 at the smallest size only
                        name: worker
                        for name, worker in workers.items()
                        if smallest or chosen[name][1]["precision"] == "float32"
                    }
                    times = _times(taking_part, chosen, {**sizes["size"], **setting}, sizes["rounds"])
                    found.append({**setting, "times": times})
    return {**sizes["size"], "settings": chosen, "configurations": found}


def _times(workers: dict, chosen: dict, setting: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The shortest and the median step of each contender, over all rounds."""
    shape = {name: value for name, value in setting.items() if name != "samples"}
    errors, times = {}, {name: [] for name in workers}
    for name, worker in workers.items():
        recipe = chosen[name][1] | {"samples": setting["samples"]}
        answer = worker.ask("build", sizes=shape, recipe=recipe)
        if "failure" in answer:
            errors[name] = answer["failure"]

    started = time.monotonic()

    def turn(name: str, worker: Any) -> bool:
        answer = worker.ask("steps", seconds=TURN)
        if "failure" in answer:
            errors[name] = answer["failure"]
            return True
        times[name].append(answer["seconds"])
        return len(times[name]) >= (rounds if time.monotonic() < started + LONGEST else FEWEST)

    in_turns({name: worker for name, worker in workers.items() if name not in errors}, turn)
    return {
        name: {"failure": errors[name]}
        if name in errors
        else {"seconds": min(times[name]), "median": statistics.median(times[name])}
        for name in workers
    }
