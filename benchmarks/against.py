"""The training step of this source tree beside that of another one.

    python -m benchmarks.against FOLDER [--threads N ...] [--rounds N] [--problems NAME ...]

FOLDER is another checkout. Each tree has a process of its own; they take turns. A ratio is this tree's time over the
other's, the median over the rounds; on one thread of the processor's time, else of the wall clock's. Operations, waits
(of the host for a number) and bytes allocated are those of one step.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.training_steps import PROBLEMS, Ratio

HERE = Path(__file__).parent
TURN = 0.5  # seconds, or one step if it takes longer


class Tree:
    """A process that takes steps with the autogp of a checkout."""

    def __init__(self, folder: Path, problem: str, threads: int):
        if not (folder / "src" / "autogp").is_dir():
            raise SystemExit(f"{folder} is not a checkout: it has no src/autogp")
        environment = os.environ | {"PYTHONPATH": str(folder / "src"), "KINETO_LOG_LEVEL": "6"}
        command = [sys.executable, str(HERE / "worker_steps.py"), problem, str(threads), str(TURN)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        self.counts = self._answer()

    def turn(self) -> float:
        """Seconds of a step."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return statistics.median(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended: {self.process.args}")
        return json.loads(line)

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def compare(ours: Path, theirs: Path, problem: str, threads: int, rounds: int) -> list[str]:
    """A row of the table."""
    with contextlib.ExitStack() as stack:
        trees = [stack.enter_context(Tree(folder, problem, threads)) for folder in (ours, theirs)]
        times = [[tree.turn() for tree in trees] for _ in range(rounds)]
    ratio = Ratio.of([mine / other for mine, other in times])
    milliseconds = [1000 * min(column) for column in zip(*times, strict=True)]
    counts = [
        f"{trees[0].counts[name] / unit:{form}} ({trees[1].counts[name] / unit:{form}})"
        for name, unit, form in (("operations", 1, ".0f"), ("waits", 1, ".0f"), ("bytes", 2**20, ".1f"))
    ]
    return [problem, str(threads), str(ratio), "{:.1f} ({:.1f})".format(*milliseconds), *counts]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="another checkout")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS), metavar="NAME")
    options = parser.parse_args(arguments)
    head = ["problem", "threads", "ratio", "ms, this (other)", "operations", "waits", "MiB"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|", flush=True)
    for threads in options.threads:
        for problem in options.problems:
            row = compare(HERE.parent, options.folder, problem, threads, options.rounds)
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
