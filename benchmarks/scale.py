"""A training step shared by several processes on this machine: time of its parts, and rows per second.

    python -m benchmarks.scale [--rounds N] [--seconds S] [--out FILE.json]

Contenders take turns, each in new processes; of each the round with the most rows per second counts. CPU time is that
of one process. It does not depend on what else the machine does, so that `rows / CPU time` of a process, times the
number of processes, is the speed on as many free cores. Processes that are "apart" train a model each: what they make
together is what the cores, caches and memory of the machine allow without any communication.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from autogp.kernels import RBF
from autogp.likelihoods import Softmax
from autogp.model import SparseGP
from autogp.posteriors import Natural
from autogp.training.distributed import processes
from autogp.training.memory import kept_memory
from autogp.training.optimisers import Adam
from autogp.training.step import Batch, apply, natural_statistics

# Inducing inputs, classes, inputs; a kernel and inducing inputs for each class.
CASES = ((200, 10, 784), (200, 10, 80), (500, 10, 80), (1000, 10, 80), (200, 2, 80))
# Processes, threads of each, rows of the whole batch, and whether the processes train one model together.
CONTENDERS = (
    (1, 1, 1000, True),
    (1, 1, 500, True),
    (1, 2, 1000, True),
    (2, 1, 1000, True),
    (2, 1, 2000, True),
    (2, 1, 2000, False),
)


def worker(inducing: int, classes: int, inputs: int, rows: int, seconds: float) -> dict[str, Any]:
    """Mean seconds of the parts of a step, of which this process has its part of the rows."""
    among = processes()
    own = len(among.own(rows))
    generator = torch.Generator().manual_seed(among.rank)
    x, y = torch.randn(own, inputs, generator=generator), torch.randint(0, classes, (own,), generator=generator)
    batch = Batch(x, y, torch.full((own,), 60_000 / rows))
    z = torch.randn(classes, inducing, inputs, generator=torch.Generator().manual_seed(0))
    kernel = RBF(torch.full((classes, inputs), inputs**0.5), torch.full((classes,), 5.0))
    model = SparseGP(kernel, Softmax(classes), z)
    q, parameters = Natural.of(model.posterior), [model.inducing_inputs, *model.kernel.parameters()]
    optimiser = Adam(parameters)
    spent = dict.fromkeys(("statistics", "reduction", "apply", "cpu"), 0.0)
    steps, started = -2, time.perf_counter()  # two to warm up
    # All stop after the same step, which process 0 chooses.
    while steps < 3 or not among.from_first(lambda: time.perf_counter() - started > seconds):
        before, cpu = time.perf_counter(), time.process_time()
        found = natural_statistics(model, batch, "elbo", parameters, q)
        computed = time.perf_counter()
        found = among.sum_statistics(found, model, parameters, q, started, None)
        reduced = time.perf_counter()
        apply(found, optimiser, [1e-4] * len(parameters), q, 0.1)
        steps += 1
        if steps > 0:
            ends = (before, computed, reduced, time.perf_counter())
            for name, start, end in zip(spent, ends, ends[1:], strict=False):
                spent[name] += end - start
            spent["cpu"] += time.process_time() - cpu
    return {name: total / steps for name, total in spent.items()} | {"steps": steps}


def measured(case: tuple[int, int, int], contender: tuple[int, int, int, bool], seconds: float) -> dict[str, float]:
    count, threads, rows, together = contender
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count if together else 1),
    }
    environment |= {"OMP_NUM_THREADS": str(threads)}
    command = [
        sys.executable,
        "-m",
        "benchmarks.scale",
        "--worker",
        *map(str, (*case, rows if together else rows // count)),
        "--seconds",
        str(seconds),
    ]
    running = [
        subprocess.Popen(
            command, env=environment | {"RANK": str(rank if together else 0)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(count)
    ]
    found, *_ = [json.loads(process.communicate()[0]) for process in running]
    step = found["statistics"] + found["reduction"] + found["apply"]
    return found | {"step": step, "rows_per_second": rows / step, "rows_per_cpu_second": rows / count / found["cpu"]}


def table(results: list[dict[str, Any]]) -> str:
    """In Markdown, as docs/scale.md has it."""
    heads = (
        "M, classes, inputs",
        "processes x threads",
        "rows",
        "step",
        "of it reduction",
        "CPU time",
        "rows/s",
        "ratio",
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    alone = {tuple(each["case"]): each for each in results if tuple(each["contender"]) == CONTENDERS[0]}
    for each in results:
        count, threads, rows, together = each["contender"]
        shared = count > 1 and together
        reduction = (
            f"{1e3 * each['reduction']:.0f} ms, {100 * each['reduction'] / each['step']:.0f} %" if shared else ""
        )
        ratio = each["rows_per_second"] / alone[tuple(each["case"])]["rows_per_second"]
        name = f"{count} x {threads}" if together else f"{count} apart x {threads}"
        first = tuple(each["contender"]) == CONTENDERS[0]
        cells = (
            ", ".join(map(str, each["case"])) if first else "",
            name,
            str(rows),
            f"{1e3 * each['step']:.0f} ms",
            reduction,
            f"{1e3 * each['cpu']:.0f} ms",
            str(round(each["rows_per_second"])),
            f"{ratio:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--cases", type=int, default=len(CASES), help="so many of the cases")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=int, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        with kept_memory():
            print(json.dumps(worker(*options.worker, seconds=options.seconds)))
        return
    results = []
    for case in CASES[: options.cases]:
        best: dict[tuple[int, int, int, bool], dict[str, float]] = {}
        for _ in range(options.rounds):
            for contender in CONTENDERS:
                found = measured(case, contender, options.seconds)
                least = min(found["cpu"], best.get(contender, found)["cpu"])
                if contender not in best or found["rows_per_second"] > best[contender]["rows_per_second"]:
                    best[contender] = found
                best[contender]["cpu"] = least
        results += [{"case": case, "contender": contender, **best[contender]} for contender in CONTENDERS]
        if options.out is not None:
            options.out.write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
