"""Part 3: quality at equal time, on sets from a few hundred to 50,000 rows."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import ADAM, COMMON, NATURAL
from benchmarks.data import IMAGES, write_problem
from benchmarks.run import Run

NUM_INDUCING = 200
EXACT_ROWS = 2000  # scikit-learn's exact processes take no more within minutes
DEFAULTS = COMMON | {"objective": "elbo"}
CONTENDERS = {
    "autogp, defaults": ("autogp", DEFAULTS),
    "autogp, loo": ("autogp", COMMON | {"objective": "loo"}),
    "GPflow, Adam 0.01": ("GPflow", ADAM),
    "GPflow, natural + Adam 0.01": ("GPflow", NATURAL),
    "GPyTorch, Adam 0.01": ("GPyTorch", ADAM),
    "GPyTorch, natural + Adam 0.01": ("GPyTorch", NATURAL),
    "scikit-learn, exact": ("scikit-learn", {}),
}
SIZES = {  # the sets, and the seconds after which each contender is judged
    "tiny": {"diabetes": [1.0]},
    "quick": {"diabetes": [5.0], "digits": [10.0]},
    "full": {
        "diabetes": [5.0, 15.0, 45.0],
        "energy": [5.0, 15.0, 45.0],
        "kin8nm": [10.0, 30.0, 90.0],
        "protein": [20.0, 60.0, 180.0],
        "digits": [5.0, 15.0, 45.0],
        "cifar10": [60.0, 180.0, 600.0],
    },
}


def run(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, budgets in run.of(SIZES).items():
        try:
            problem = write_problem(name, NUM_INDUCING, run.folder)
        except FileNotFoundError:
            run.say(f"equal time: {name} is not at hand (AUTOGP_DATA names the folder of the data sets)")
            found[name] = {"skipped": "not at hand"}
            continue
        precision = {"precision": "float32" if name in IMAGES else "float64"}
        curves: dict[str, Any] = {}
        for label, (library, recipe) in CONTENDERS.items():
            wanted = not ("loo" in label and name not in IMAGES)  # leave-one-out is for classes here
            if run.takes_part(library) and wanted:
                curves[label] = _curve(run, library, problem, recipe | precision, budgets)
                run.say(f"equal time: {name}: {label}: {curves[label]}")
        found[name] = {"budgets": budgets, "rows": _rows(problem), **precision, "curves": curves}
    return {"inducing": NUM_INDUCING, "settings": CONTENDERS, "sets": found}


def _curve(run: Run, library: str, problem: Path, recipe: dict[str, Any], budgets: list[float]) -> Any:
    """Scores after each budget, in seconds of the contender's own clock."""
    with run.contender(library) as worker:
        if library == "scikit-learn":
            few = _rows(problem) <= EXACT_ROWS
            answers = [worker.ask("exact", problem=str(problem)) if few else {"failure": "too many rows for it"}]
        elif library == "autogp":  # its step sizes follow the budget, so each budget is a run
            answers = []
            for seconds in budgets:
                answers.append(worker.ask("estimator", problem=str(problem), recipe=recipe, seconds=seconds))
        else:
            answers = [worker.ask("train", problem=str(problem), recipe=recipe, marks=budgets)]
            while not answers[-1].get("done"):
                answers.append(worker.ask("go_on"))
    return [{key: value for key, value in answer.items() if key != "done"} for answer in answers]


def _rows(problem: Path) -> int:
    with np.load(problem) as arrays:
        return len(arrays["y_train"])
