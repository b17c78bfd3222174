"""Part 6: what a fresh process and a fresh installation cost."""

import subprocess
import time
from typing import Any

from benchmarks.contenders import LIBRARIES
from benchmarks.run import Run

IMPORTS = {  # what a first fit needs: autogp and scikit-learn load their modules only when they are asked for
    "autogp": "from autogp import GPRegressor",
    "GPflow": "import gpflow",
    "GPyTorch": "import gpytorch",
    "scikit-learn": "from sklearn.gaussian_process import GaussianProcessRegressor",
}
PACKAGES = {
    "autogp": ["autogp"],
    "GPflow": ["gpflow", "tensorflow-cpu", "tf-keras"],
    "GPyTorch": ["gpytorch"],
    "scikit-learn": ["scikit-learn"],
}
ROUNDS = {"tiny": 1, "quick": 1, "full": 3}


def run(run: Run) -> dict[str, Any]:
    libraries = [name for name in LIBRARIES if run.takes_part(name)]
    found: dict[str, Any] = {name: {"import": [], "first_fit": []} for name in libraries}
    for _ in range(run.of(ROUNDS)):
        for name in libraries:
            found[name]["import"].append(_import_seconds(name))
            started = time.perf_counter()
            with run.contender(name) as worker:
                answer = worker.ask("small")
                found[name]["first_fit"].append(time.perf_counter() - started)
                if "failure" in answer:
                    raise RuntimeError(f"{name}: {answer['failure']}")
                found[name]["size"] = worker.ask("install_size", packages=PACKAGES[name])
    run.say("cold start: done")
    return {
        name: {
            "import": min(times["import"]),
            "first_fit": min(times["first_fit"]),
            "bytes": times["size"]["bytes"],
            "packages": times["size"]["packages"],
        }
        for name, times in found.items()
    }


def _import_seconds(library: str) -> float:
    """Of importing what a first fit needs, in a fresh process."""
    program = f"import time; started = time.perf_counter(); {IMPORTS[library]}; print(time.perf_counter() - started)"
    done = subprocess.run([LIBRARIES[library][0], "-c", program], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])
