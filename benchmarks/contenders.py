"""Who takes part, with which settings, and how one is asked to do something."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("AUTOGP_PEERS", ".peers"))
LIBRARIES = {
    "autogp": [sys.executable, str(HERE / "worker_autogp.py")],
    "GPflow": [str(PEERS / "gpflow/bin/python"), str(HERE / "peer_gpflow.py")],
    "GPyTorch": [str(PEERS / "gpytorch/bin/python"), str(HERE / "peer_gpytorch.py")],
    "scikit-learn": [sys.executable, str(HERE / "peer_sklearn.py")],
}
Recipe = dict[str, Any]
COMMON: Recipe = {"precision": "float32", "samples": 10, "batch": 1000}
ADAM: Recipe = COMMON | {"optimiser": "adam", "learning_rate": 0.01}
NATURAL: Recipe = COMMON | {"optimiser": "natural", "learning_rate": 0.01, "natural_rate": 0.1}

MANY: Recipe = {"samples": 100}  # GPflow's default; with fewer, its natural gradients break down on MNIST


class Contender:
    """A library in a process of its own: it does what it is asked, and answers in JSON."""

    def __init__(self, library: str, threads: int):
        names = ("OMP", "MKL", "OPENBLAS")  # TensorFlow's and torch's follow the first
        environment = os.environ | {f"{name}_NUM_THREADS": str(threads) for name in names}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(LIBRARIES[library], env=environment, stdin=pipe, stdout=pipe, text=True)
        self.library = library
        self.hello = self._answer()
        if "failure" in self.hello:
            raise SystemExit(f"a contender stopped: {self.process.args}")

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One that has died, for want of memory say, fails in whatever it is asked."""
        assert self.process.stdin
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"done": True, "failure": "its process ended"}

    def __enter__(self) -> "Contender":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


@cache
def at_hand(library: str) -> bool:
    """Whether its Python is there and has it."""
    program = f"from importlib.metadata import version; version({library.lower()!r})"
    try:
        return subprocess.run([LIBRARIES[library][0], "-c", program], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def in_turns(contenders: Mapping[str, Contender], turn: Callable[[str, Contender], bool]) -> None:
    """Round after round, one turn each, until each has said that it is done."""
    going = dict(contenders)
    while going:
        for name in list(going):
            if turn(name, going[name]):
                del going[name]
