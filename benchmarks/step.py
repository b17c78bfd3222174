"""One training step at MNIST size and its parts, beside the rate of a plain float32 matrix product in the same run.

    python -m benchmarks.step [--large] [--gpflow PYTHON]

`--large` adds M = 1000. `--gpflow` names a Python that has GPflow (tests/proofs/reference/README.md says how to set one
up): its Adam step in float32 is then timed in turns with ours. Times are the best of many, in milliseconds.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from autogp.inference.steps import Batch, natural_step
from autogp.kernels import RBF
from autogp.likelihoods import Softmax
from autogp.model import SparseGP, condition
from autogp.posteriors import GaussianPosterior

B, D, Q = 1000, 784, 10
NUM_DATA = 60_000


def best(function: Callable[[], Any], seconds: float = 2.0) -> float:
    """The shortest of as many calls as fit in the time, in seconds."""
    function()
    shortest, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        started = time.perf_counter()
        function()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest


def gemm_rate() -> float:
    """Floating-point operations per second of a float32 product of 2000 x 2000 matrices."""
    a = torch.randn(2000, 2000)
    return 2 * 2000**3 / best(lambda: a @ a, 1.0)


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
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)
        self.samples = samples
        self.generator = generator

    def __call__(self) -> None:
        self.optimiser.zero_grad()
        natural_step(self.model, self.batch, "elbo", 0.01, self.samples, self.generator)
        self.optimiser.step()

    def parts(self) -> dict[str, float]:
        """Times of the parts, each by itself; they overlap a little, so they need not add up to the whole."""
        model, x = self.model, self.batch.x
        posterior = model.posterior
        assert isinstance(posterior, GaussianPosterior)
        prepared = model.prepare()
        basis, variance = model.basis(x, prepared)
        marginals = condition(basis, variance, prepared.moments)
        alpha, beta = torch.randn(2, 1, B, Q) * 1e-3
        fixed = basis.detach()
        graph = [marginals.mean, marginals.variance]
        return {
            "prior and posterior, M x M": best(lambda: model.prepare(), 1.0),
            "basis L^-1 Kzx": best(lambda: model.basis(x, prepared), 1.0),
            "marginals, S A": best(lambda: condition(basis, variance, prepared.moments), 1.0),
            "natural-gradient update": best(
                lambda: posterior.natural_step(fixed, marginals.mean[0].detach(), alpha[0], beta[0], 1e-9), 1.0
            ),
            "gradients of kernel and Z": best(
                lambda: torch.autograd.backward(graph, [alpha, beta], retain_graph=True), 1.0
            ),
            "Adam": best(self.optimiser.step, 1.0),
        }


def gpflow_times(python: str, num_inducing: int, groups: int, samples: int) -> dict[str, float]:
    """GPflow's Adam step in float32, timed by a process of its own."""
    script = Path(__file__).with_name("peer_gpflow_step.py")
    command = [python, str(script), str(num_inducing), str(groups), str(samples), str(torch.get_num_threads())]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="M = 1000 too")
    parser.add_argument("--gpflow", metavar="PYTHON", help="a Python that has GPflow")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    options = parser.parse_args()
    console = Console(width=max(120, Console().width))
    console.print(f"B = {B}, D = {D}, Q = {Q}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    table = Table("M", "kernels", "S", "step", "GFLOP", "GFLOP/s", "of GEMM rate", "GPflow Adam", "ratio", box=None)
    configurations = [
        (m, groups, samples)
        for m in ([200, 1000] if options.large else [200])
        for groups in (1, Q)
        for samples in (10, 100)
    ]
    for m, groups, samples in configurations:
        step, ours, rate, theirs = Step(m, groups, samples), float("inf"), 0.0, float("inf")
        for _ in range(options.rounds):  # in turns, so that a noisy minute does not meet one contender alone
            rate = max(rate, gemm_rate())
            ours = min(ours, best(step))
            if options.gpflow:
                theirs = min(theirs, gpflow_times(options.gpflow, m, groups, samples)["step"])
        need = flops(m, groups)
        table.add_row(
            str(m),
            "shared" if groups == 1 else "separate",
            str(samples),
            f"{1e3 * ours:.1f}",
            f"{need / 1e9:.2f}",
            f"{need / ours / 1e9:.0f}",
            f"{100 * need / ours / rate:.0f} %",
            f"{1e3 * theirs:.1f}" if options.gpflow else "-",
            f"{ours / theirs:.2f}" if options.gpflow else "-",
        )
        if samples == 10:
            for name, seconds in step.parts().items():
                table.add_row("", "", "", f"{1e3 * seconds:.1f}", f"[dim]{name}[/dim]")
    console.print(table)


if __name__ == "__main__":
    main()
