"""Part 3: quality at equal time, on sets from a few hundred to 50,000 rows."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import ADAM, COMMON, MANY, NATURAL, in_turns
from benchmarks.data import IMAGES, write_problem
from benchmarks.run import Run

NUM_INDUCING = 200
EXACT_ROWS = {"tiny": 1000, "quick": 1000, "full": 2000}  # for scikit-learn, whose time grows with their cube
CONTENDERS = {
    "autogp, defaults": ("autogp", {"objective": "elbo"}),
    "autogp, loo": ("autogp", {"objective": "loo"}),
    "GPflow, Adam 0.01": ("GPflow", ADAM),
    "GPflow, natural + Adam 0.01": ("GPflow", NATURAL | MANY),
    "GPflow, SGPR + L-BFGS": ("GPflow", COMMON | {"optimiser": "lbfgs"}),
    "GPyTorch, Adam 0.01": ("GPyTorch", ADAM),
    "GPyTorch, natural + Adam 0.01": ("GPyTorch", NATURAL),
    "scikit-learn, exact": ("scikit-learn", {}),
}
SIZES = {  # the sets, and the seconds after which each contender is judged
    "tiny": {"diabetes": [1.0]},
    "quick": {"diabetes": [4.0], "digits": [5.0]},
    "full": {
        "diabetes": [5.0],
        "energy": [5.0, 20.0],
        "kin8nm": [10.0, 40.0],
        "protein": [15.0, 60.0],
        "digits": [5.0, 20.0],
        "cifar10": [30.0, 150.0],
    },
}


def run(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        workers = {
            label: stack.enter_context(run.contender(library))
            for label, (library, _) in CONTENDERS.items()
            if run.takes_part(library)
        }
        for name, budgets in run.of(SIZES).items():
            try:
                problem = write_problem(name, NUM_INDUCING, run.folder)
            except FileNotFoundError:
                run.say(f"equal time: {name} is not at hand (AUTOGP_DATA names the folder of the data sets)")
                found[name] = {"skipped": "not at hand"}
                continue
            found[name] = _contest(run, workers, name, problem, budgets)
            run.say(f"equal time: {name}")
    settings = {  # the precision is each set's
        label: (library, {key: value for key, value in recipe.items() if key != "precision"})
        for label, (library, recipe) in CONTENDERS.items()
    }
    return {"inducing": NUM_INDUCING, "settings": settings, "sets": found}


def _contest(run: Run, workers: dict[str, Any], name: str, problem: Path, budgets: list[float]) -> dict[str, Any]:
    """Scores of every contender after each budget, in seconds of its own clock; in turns from budget to budget."""
    image = name in IMAGES
    with np.load(problem) as arrays:
        rows = len(arrays["y_train"])
    left_out = (
        {"GPflow, SGPR + L-BFGS"} if image else {"autogp, loo"}
    )  # the one is for regression, the other for classes
    if rows > EXACT_ROWS[run.mode]:
        left_out.add("scikit-learn, exact")
    precision = {"precision": "float32" if image else "float64"}
    curves: dict[str, list[dict[str, Any]]] = {label: [] for label in workers if label not in left_out}

    def turn(label: str, worker: Any) -> bool:
        library, recipe = CONTENDERS[label]
        curve, given = curves[label], {"problem": str(problem), "recipe": recipe | precision}
        if library == "scikit-learn":
            answer = worker.ask("exact", problem=str(problem))
        elif library == "autogp":  # its step sizes follow the budget, so each budget is a run
            answer = worker.ask("estimator", **given, seconds=budgets[len(curve)])
            answer["done"] = len(curve) + 1 == len(budgets)
        else:
            answer = worker.ask("go_on") if curve else worker.ask("train", **given, marks=budgets)
        over = answer.pop("done", False)
        curve.append(answer)
        return over

    in_turns({label: workers[label] for label in curves}, turn)
    return {"budgets": budgets, "rows": rows, **precision, "curves": curves}
