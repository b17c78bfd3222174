"""Steps that `train` takes on random rows, one problem for each kind of step; of this source tree or of another one.

What a step costs does not depend on what the rows mean.
"""

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch

from autogp.data import ArraySource
from autogp.kernels import RBF, ArcCosine, Kernel, Matern52
from autogp.likelihoods import Gaussian, Softmax
from autogp.model import SparseGP

training = import_module("autogp.training" if find_spec("autogp.training") else "autogp.inference")  # its older name

BATCH, BATCHES = 1000, 23  # rows of a batch, batches of an epoch; the step at the end of an epoch is not one to time


@dataclass(frozen=True)
class Problem:
    inputs: int = 784
    inducing: int = 200
    latents: int = 10  # 1 for regression, else one for each class
    separate: bool = False  # a kernel for each latent function
    kernel: str = "rbf"
    dtype: type = np.float32
    held: bool = False  # leave-one-out, with q(u) held

    @property
    def objective(self) -> str:
        return "loo" if self.held else "elbo"


PROBLEMS = {
    "MNIST": Problem(),
    "MNIST, kernel per class": Problem(separate=True),
    "MNIST, M = 1000": Problem(inducing=1000),
    "MNIST, held": Problem(held=True),
    "MNIST, arc-cosine": Problem(kernel="arccosine"),
    "80 columns, kernel per class": Problem(inputs=80, separate=True),
    "80 columns, kernel per class, held": Problem(inputs=80, separate=True, held=True),
    "table, regression, M = 50": Problem(10, 50, 1, kernel="matern52", dtype=np.float64),
    "table, regression, M = 200": Problem(10, 200, 1, kernel="matern52", dtype=np.float64),
    "table, 3 classes": Problem(10, 100, 3, dtype=np.float64),
    "table, arc-cosine": Problem(10, 100, 3, kernel="arccosine", dtype=np.float64),
}


class Ratio(NamedTuple):
    """A median, with its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Ratio":
        """The error is that of normal values whose spread is told by the median of their deviations."""
        middle = statistics.median(values)
        spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
        return cls(middle, 1.2533 * spread / len(values) ** 0.5)

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.error:.3f}"


def clock() -> float:
    """Of one thread its own time, which does not run while another process has the core."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def stepwise(steps: Generator[None, Any, None]) -> Callable[[Any], bool]:
    """A callback of `train` from a generator that is sent the progress after each step; training ends with it."""
    next(steps)

    def callback(progress: Any) -> bool:
        try:
            steps.send(progress)
        except StopIteration:
            return True
        return False

    return callback


def run(problem: Problem, callback: Callable[[Any], bool | None], **settings: Any) -> None:
    """Trains a model until the callback returns True; it is told the progress after each step of the objective."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH * BATCHES, problem.inputs)).astype(problem.dtype)
    near = x[: problem.inducing] + 0.1 * rng.standard_normal((problem.inducing, problem.inputs))
    groups = problem.latents if problem.separate else 1
    z = torch.from_numpy(near.astype(problem.dtype)).repeat(groups, 1, 1)
    if problem.latents == 1:
        likelihood, y = Gaussian(variance=0.1), np.sin(x.sum(1)) + 0.3 * rng.standard_normal(len(x))
    else:
        likelihood, y = Softmax(problem.latents), rng.integers(0, problem.latents, len(x))
    chosen = training.Settings(
        objective=problem.objective,
        max_epochs=1000,
        batch_size=BATCH,
        learning_rate=1e-3,
        held_learning_rate=1e-3,
        held_share=0.999 if problem.held else None,
        **settings,
    )
    model = SparseGP(_kernel(problem, groups), likelihood, z)

    def told(progress: Any) -> bool | None:
        if progress.skipped:
            raise RuntimeError(f"step {progress.step} failed")
        return callback(progress) if progress.objective == problem.objective else None

    training.train(model, ArraySource(x, y), chosen, callbacks=[told], verbose=False)


def _kernel(problem: Problem, groups: int) -> Kernel:
    wide = torch.full((groups, problem.inputs), problem.inputs**0.5)
    if problem.kernel == "arccosine":
        return ArcCosine(degree=1, depth=3, weight_variance=1 / wide.square(), bias=1.0)
    return {"rbf": RBF, "matern52": Matern52}[problem.kernel](wide, torch.full((groups,), 2.0))
