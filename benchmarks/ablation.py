"""What each hand-written autograd function saves: steps with its plain form in place, in turns with steps as they are.

    python -m benchmarks.ablation [--seconds N] [--threads N ...] [--problems NAME ...] [--functions NAME ...]

In each round every form takes a step. A ratio is the time of a step in plain torch over that of the step as it is in
the same round, the median over the rounds. On one thread it is the processor's time, so that other processes hardly
matter; on two it is the wall clock's.
"""

import argparse
import statistics
import time
from collections.abc import Generator
from typing import Any

import torch

from benchmarks.plain import PLAIN, replaced
from benchmarks.training_steps import PROBLEMS, Problem, Ratio, clock, run, stepwise

AS_IT_IS, TOGETHER = "as it is", "all together"
THRESHOLD = 1.03  # what a function must save
FEWEST_ROUNDS, MOST_ROUNDS = 4, 100


def measure(problem: Problem, functions: list[str], seconds: float) -> tuple[dict[str, Ratio], float]:
    """What a step takes in units of the step as it is, by the function that is in plain form; and that step's time."""
    forms = {AS_IT_IS: (), **{name: (name,) for name in functions}, TOGETHER: tuple(functions)}
    rounds: list[dict[str, float]] = []

    def turns() -> Generator[None, Any, None]:
        yield
        stop = time.perf_counter() + seconds
        while len(rounds) < MOST_ROUNDS and (time.perf_counter() < stop or len(rounds) < FEWEST_ROUNDS):
            rounds.append({})
            for name in list(forms):
                with replaced(*forms[name]) as called:
                    started = clock()
                    progress = yield
                    taken = clock() - started
                if forms[name] and not called:
                    del forms[name]  # this problem has no use for the function
                elif not progress.epoch_end:
                    rounds[-1][name] = taken

    run(problem, stepwise(turns()), **({"held_prior": 0.1} if problem.held else {}))
    rounds = [each for each in rounds[1:] if AS_IT_IS in each]
    ratios = {name: [each[name] / each[AS_IT_IS] for each in rounds if name in each] for name in forms}
    return {name: Ratio.of(ratios[name]) for name in forms}, min(each[AS_IT_IS] for each in rounds)


def table(found: dict[str, dict[str, Ratio]]) -> str:
    """In Markdown, from the ratios of each problem: a row for each function, and whether it pays."""
    head = ["function", *found, "typical", "worst", "verdict"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in (*PLAIN, TOGETHER):
        ratios = [each[name] for each in found.values() if name in each]
        if ratios:
            typical, worst = statistics.median(ratio.value for ratio in ratios), max(ratios)
            somewhere = any(ratio.value - 2 * ratio.error >= THRESHOLD for ratio in ratios)  # beyond doubt
            verdict = "stays" if typical >= THRESHOLD else "stays for some" if somewhere else "goes"
            cells = [str(each[name]) if name in each else "" for each in found.values()]
            row = [name, *cells, f"{typical:.3f}", str(worst), "" if name == TOGETHER else verdict]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=24.0, help="of a problem on a number of threads")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--functions", nargs="+", choices=PLAIN, default=list(PLAIN), metavar="NAME")
    options = parser.parse_args(arguments)
    for threads in options.threads:
        torch.set_num_threads(threads)
        found = {}
        for name in options.problems:
            found[name], shortest = measure(PROBLEMS[name], options.functions, options.seconds)
            print(f"{threads} threads, {name}: a step takes {1000 * shortest:.1f} ms", flush=True)
        print(f"\n{threads} threads\n\n{table(found)}\n", flush=True)


if __name__ == "__main__":
    main()
