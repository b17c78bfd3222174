"""Training steps of whatever autogp is imported: counts of one step, then times, a turn for each line of input.

Answers are JSON lines. `benchmarks/against.py` runs it on two source trees.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from training_steps import PROBLEMS, clock, run, stepwise

WARM_STEPS = 3
# Their result is a number, or has a shape that depends on numbers: on a GPU the host would wait. `tolist` is not seen.
WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::_unique2")


class Operations(TorchDispatchMode):
    """Counts what is dispatched, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name().split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def turns(seconds: float) -> Generator[None, Any, None]:
    for _ in range(WARM_STEPS):
        yield
    while True:
        with Operations() as operations:
            progress = yield
        if not progress.epoch_end:
            break
    while True:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            progress = yield
        if not progress.epoch_end:
            break
    counts = {
        "operations": operations.counts.total(),
        "waits": sum(operations.counts[name] for name in WAITS),
        "bytes": _allocated(profiler),
    }
    print(json.dumps(counts), flush=True)
    while sys.stdin.readline():
        taken: list[float] = []
        stop = time.perf_counter() + seconds
        while not taken or time.perf_counter() < stop:
            started = clock()
            progress = yield
            if not progress.epoch_end:
                taken.append(clock() - started)
        print(json.dumps({"seconds": taken}), flush=True)


def _allocated(profiler: profile) -> int:
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    events: list[Any] = profiler.profiler.kineto_results.events()
    return sum(max(0, event.nbytes()) for event in events if event.name() == "[memory]")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("threads", type=int)
    parser.add_argument("seconds", type=float, help="of a turn")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run(PROBLEMS[options.problem], stepwise(turns(options.seconds)))
