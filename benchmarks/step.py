"""One training step at MNIST size and its parts, beside the rate of a plain float32 matrix product in the same run.

    python -m benchmarks.step [--large] [--gpflow PYTHON] [--against FOLDER]

`--large` adds M = 1000. `--gpflow` names a Python that has GPflow (tests/proofs/reference/README.md says how to set one
up), `--against` the `src` folder of another version of autogp. Each contender is a process of its own; they take their
steps strictly in turns, so that a noisy minute does not meet one of them alone. OMP_NUM_THREADS sets their threads.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from autogp.inference.optimisers import Adam
from autogp.inference.steps import Batch, natural_step
from autogp.kernels import RBF
from autogp.likelihoods import Softmax
from autogp.model import SparseGP, condition
from autogp.posteriors import GaussianPosterior

B, D, Q = 1000, 784, 10
NUM_DATA = 60_000
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def best(function: Callable[[], Any], seconds: float = 1.0) -> float:
    """The shortest of as many calls as fit in the time, in seconds."""
    function()
    shortest, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        started = time.perf_counter()
        function()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest


def flops(num_inducing: int, groups: int) -> float:
    """What a step needs, at least: products count 2 per multiply-add."""
    m, g = num_inducing, groups
    cross = 2 * g * B * D * m * 2  # Kzx, and the gradient of Z and lengthscales
    prior = 2 * g * m * m * D * 2 + 3 * g * m**3  # Kzz and back; factor, inverse and back
    basis = 2 * g * m * m * B * 3  # A = L^-1 Kzx and back to both
    posterior = Q * m**3  # factor and inverse of Lambda
    marginals = 2 * Q * m * m * B  # S A, which serves the gradient too
    update = 2 * Q * m * m * B  # A diag(w) A'
    return cross + prior + basis + posterior + marginals + update


class Step:
    """A model of MNIST's size on random rows."""

    def __init__(self, num_inducing: int, groups: int, samples: int):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(B, D, generator=generator)
        y = torch.randint(0, Q, (B,), generator=generator)
        z = torch.randn(groups, num_inducing, D, generator=generator)
        self.batch = Batch(x, y, torch.full((B,), NUM_DATA / B))
        self.model = SparseGP(RBF(torch.full((groups, D), 28.0), torch.full((groups,), 5.0)), Softmax(Q), z)
        self.optimiser = Adam(self.model.parameters())
        self.samples = samples
        self.generator = generator

    def __call__(self) -> None:
        self.optimiser.zero_grad()
        natural_step(self.model, self.batch, "elbo", 0.01, self.samples, self.generator)
        self.optimiser.step(1e-3)

    def parts(self) -> dict[str, float]:
        """Times of the parts, each by itself; they overlap a little, so they need not add up to the whole."""
        model, x = self.model, self.batch.x
        posterior = model.posterior
        assert isinstance(posterior, GaussianPosterior)
        self()
        prepared = model.prepare()
        basis, variance = model.basis(x, prepared)
        marginals = condition(basis, variance, prepared.moments)
        alpha, beta = torch.randn(2, 1, B, Q) * 1e-3
        fixed = basis.detach()
        graph = [marginals.mean, marginals.variance]
        return {
            "prior and posterior, M x M": best(lambda: model.prepare()),
            "basis L^-1 Kzx": best(lambda: model.basis(x, prepared)),
            "marginals, S A": best(lambda: condition(basis, variance, prepared.moments)),
            "natural-gradient update": best(
                lambda: posterior.natural_step(fixed, marginals.mean[0].detach(), alpha[0], beta[0], 1e-9)
            ),
            "gradients of kernel and Z": best(lambda: torch.autograd.backward(graph, [alpha, beta], retain_graph=True)),
            "Adam": best(lambda: self.optimiser.step(1e-3)),
        }


def answer(function: Callable[[], Any], clock: Callable[[], float]) -> None:
    """For each line that arrives, one call and the seconds that it took."""
    function()
    function()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = clock()
        function()
        print(clock() - started, flush=True)


class Worker:
    """A contender in a process of its own, which takes one step when asked."""

    def __init__(self, *command: str, **environment: str):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=os.environ | environment, stdin=pipe, stdout=pipe, text=True)
        self.times: list[float] = []

    def turn(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.times.append(float(self.read()))

    def read(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"a contender stopped: {self.process.args}")
        return line

    def stop(self) -> None:
        self.process.communicate()


def contest(options: argparse.Namespace, num_inducing: int, groups: int) -> tuple[dict[str, Worker], list[float]]:
    """The times of all contenders' steps, taken in turns, and of a 2000 x 2000 float32 product."""
    setting = [str(number) for number in (num_inducing, groups, options.samples)]
    ours = [sys.executable, "-m", "benchmarks.step", "--clock", options.clock, "--worker", *setting]
    workers = {"autogp": Worker(*ours)}
    if options.against:
        workers[options.against] = Worker(*ours, PYTHONPATH=options.against)
    if options.gpflow:
        script, threads = Path(__file__).with_name("peer_gpflow_step.py"), str(torch.get_num_threads())
        command = [options.gpflow, str(script), *setting, threads, options.clock]
        workers["GPflow Adam"] = Worker(*command, TF_CPP_MIN_LOG_LEVEL="3")
    for worker in workers.values():
        while worker.read() != "ready":
            pass
    matrix, clock, products = torch.randn(2000, 2000), CLOCKS[options.clock], []
    order, stop = list(workers.values()), time.perf_counter() + options.seconds
    while time.perf_counter() < stop:
        for worker in order:
            worker.turn()
        order.reverse()  # whoever comes after the product finds the cache cold
        started = clock()
        torch.mm(matrix, matrix)
        products.append(clock() - started)
    for worker in workers.values():
        worker.stop()
    return workers, products


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="M = 1000 too")
    parser.add_argument("--gpflow", metavar="PYTHON", help="a Python that has GPflow")
    parser.add_argument("--against", metavar="FOLDER", help="the src folder of another version")
    parser.add_argument("--samples", type=int, default=10, help="Monte Carlo samples of a step (default 10)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of turns at each size (default 30)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: of all threads, for a busy machine")
    parser.add_argument("--parts", action="store_true", help="time the parts of our step too")
    parser.add_argument("--worker", nargs=3, type=int, help=argparse.SUPPRESS)  # M, groups, samples
    options = parser.parse_args()
    if options.worker:
        answer(Step(*options.worker), CLOCKS[options.clock])
        return
    console = Console(width=max(120, Console().width))
    console.print(
        f"B = {B}, D = {D}, Q = {Q}, S = {options.samples}, {torch.get_num_threads()} threads, {options.clock} time, "
        f"torch {torch.__version__}; milliseconds, ratios to ours"
    )
    table = Table("M", "kernels", "contender", "best", "median", "ratio of best", "median ratio", "turns", box=None)
    for m in [200, 1000] if options.large else [200]:
        for groups in (1, Q):
            workers, products = contest(options, m, groups)
            ours = workers["autogp"].times
            for name, worker in workers.items():
                table.add_row(
                    str(m),
                    "shared" if groups == 1 else "separate",
                    name,
                    f"{1e3 * min(worker.times):.1f}",
                    f"{1e3 * statistics.median(worker.times):.1f}",
                    f"{min(ours) / min(worker.times):.2f}",
                    f"{statistics.median(a / b for a, b in zip(ours, worker.times, strict=True)):.2f}",
                    str(len(ours)),
                )
            rate, need = 2 * 2000**3 / min(products), flops(m, groups)
            share = f"{need / 1e9:.1f} GFLOP at {100 * need / min(ours) / rate:.0f} % of {rate / 1e9:.0f} GFLOP/s"
            table.add_row("", "", f"[dim]{share}[/dim]")
            for name, seconds in Step(m, groups, options.samples).parts().items() if options.parts else ():
                table.add_row("", "", f"[dim]{name}[/dim]", f"{1e3 * seconds:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
