"""Part 5: the share of the machine's rate of matrix products that a step reaches, and where its time goes."""

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from autogp.training.memory import kept_memory
from benchmarks.run import Run
from benchmarks.step import Q, Step, best, flops

PROFILED_STEPS = 10
SHOWN = 15  # operations
SIZES = {"tiny": [(10, 1)], "quick": [(200, 1), (200, Q)], "full": [(200, 1), (200, Q), (1000, 1)]}


@kept_memory()  # as `train` does
def run(run: Run) -> dict[str, Any]:
    torch.set_num_threads(run.threads)
    a = torch.randn(2000, 2000)
    rates = {"float32": 2 * 2000**3 / best(lambda: a @ a)}
    double = a.double()
    rates["float64"] = 2 * 2000**3 / best(lambda: double @ double)
    found = []
    for inducing, groups in run.of(SIZES):
        step = Step(inducing, groups, samples=10)
        seconds = best(step, 5.0 if run.mode == "full" else 2.0)
        need = flops(inducing, groups)
        found.append(
            {
                "inducing": inducing,
                "separate": groups > 1,
                "seconds": seconds,
                "flops": need,
                "share": need / seconds / rates["float32"],
                "parts": step.parts(),
                "operations": _operations(step),
            }
        )
        run.say(f"limit: M = {inducing}, {groups} kernels")
    return {"rates": rates, "configurations": found}


def _operations(step: Step) -> dict[str, float]:
    """Seconds per step of the operations that take most of it, by torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED_STEPS):
            step()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return {event.key: event.self_cpu_time_total / 1e6 / PROFILED_STEPS for event in events[:SHOWN]}
