"""Part 2: wall time to a given quality on MNIST, contenders in turns from mark to mark of their own clocks."""

import contextlib
from typing import Any

import numpy as np

from benchmarks.contenders import ADAM, COMMON, MANY, NATURAL, in_turns
from benchmarks.data import write_problem
from benchmarks.run import Run

FAST = {"learning_rate": 0.05}  # five times what the peers' documentation uses
# A lengthscale for each of 784 pixels, shared by ten classes, is better learnt slowly (docs/training.md).
SLOW = {"kernel_rate": 0.03}
OWN = COMMON | SLOW
LOO = OWN | {"objective": "loo"}
CONTENDERS = {
    "autogp, 1 epoch": ("autogp", LOO | {"epochs": 1}),
    "autogp, 2 epochs": ("autogp", LOO | {"epochs": 2}),
    "autogp, 5 epochs": ("autogp", LOO | {"epochs": 5}),
    "autogp, 100 epochs": ("autogp", LOO | {"epochs": 100}),
    "autogp, 2 epochs of the ELBO": ("autogp", OWN | {"objective": "elbo", "epochs": 2}),  # what the peers follow
    "autogp, 20 epochs of the ELBO": ("autogp", OWN | {"objective": "elbo", "epochs": 20}),
    "GPflow, Adam 0.05": ("GPflow", ADAM | FAST),
    "GPflow, natural + Adam 0.01": ("GPflow", NATURAL | MANY),
    "GPflow, natural + Adam 0.05": ("GPflow", NATURAL | MANY | FAST),
    "GPflow, natural + Adam 0.05, slow kernel": ("GPflow", NATURAL | MANY | FAST | SLOW),
    "GPyTorch, Adam 0.05": ("GPyTorch", ADAM | FAST),
    "GPyTorch, natural + Adam 0.01": ("GPyTorch", NATURAL),
    "GPyTorch, natural + Adam 0.05": ("GPyTorch", NATURAL | FAST),
    "GPyTorch, natural + Adam 0.05, slow kernel": ("GPyTorch", NATURAL | FAST | SLOW),
}
OWN_RUN = "autogp, 2 epochs"  # whose times are compared with those of the other libraries, at all levels
QUICK = (
    OWN_RUN,
    "autogp, 2 epochs of the ELBO",
    "GPflow, natural + Adam 0.05, slow kernel",
    "GPyTorch, natural + Adam 0.05, slow kernel",
)
LEVELS = {"mnist": [0.20, 0.15, 0.12, 0.10], "digits": [0.50, 0.30, 0.20, 0.15]}
SIZES = {  # set, inducing inputs, seconds of each contender, factor between marks
    "tiny": {"sets": ["digits"], "inducing": 20, "seconds": 1.0, "factor": 3.0},
    "quick": {"sets": ["mnist", "digits"], "inducing": 200, "seconds": 30.0, "factor": 1.3},
    "full": {"sets": ["mnist", "digits"], "inducing": 200, "seconds": 600.0, "factor": 1.1},
}


def run(run: Run) -> dict[str, Any]:
    sizes, note = run.of(SIZES), ""
    for name in sizes["sets"]:
        try:
            problem = write_problem(name, sizes["inducing"], run.folder)
            break
        except FileNotFoundError:
            note = f"{name} is not at hand (AUTOGP_DATA names the folder of the data sets)"
            run.say(f"quality: {note}")
    else:
        return {"skipped": note}
    with np.load(problem) as arrays:
        started = float(arrays["start_seconds"])
    count = int(np.log(max(sizes["seconds"] / (started + 0.1), 2.0)) / np.log(sizes["factor"]))
    marks = [sizes["seconds"] / sizes["factor"] ** i for i in range(count, -1, -1)]
    chosen = {
        label: (library, recipe)
        for label, (library, recipe) in CONTENDERS.items()
        if run.takes_part(library) and (run.mode == "full" or label in QUICK)
    }
    curves: dict[str, list[dict[str, float]]] = {label: [] for label in chosen}
    errors: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        workers = {label: stack.enter_context(run.contender(library)) for label, (library, _) in chosen.items()}

        def turn(label: str, worker: Any) -> bool:
            first = {"problem": str(problem), "recipe": chosen[label][1], "marks": marks, "wall": False}
            answer = worker.ask("go_on") if curves[label] else worker.ask("train", **first)
            if "failure" in answer:
                errors[label] = answer["failure"]
            else:
                curves[label].append({key: answer[key] for key in ("seconds", "steps", "first_step", "nlp", "error")})
            over = answer.get("done", False)
            if over:
                run.say(f"quality: {label}: {curves[label][-1] if curves[label] else answer}")
            return over

        in_turns(workers, turn)
    return {
        "set": name,
        "note": note,
        "inducing": sizes["inducing"],
        "seconds": sizes["seconds"],
        "start_seconds": started,
        "levels": LEVELS[name],
        "settings": chosen,
        "own": OWN_RUN,
        "curves": curves,
        "failed": errors,
        "reached": {label: _reached(curve, LEVELS[name]) for label, curve in curves.items()},
    }


def _reached(curve: list[dict[str, float]], levels: list[float]) -> list[float | None]:
    """For each level the seconds at the first mark where the NLP is no larger."""
    return [next((point["seconds"] for point in curve if point["nlp"] <= level), None) for level in levels]
