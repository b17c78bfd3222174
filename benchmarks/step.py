"""One training step of autogp at MNIST size and its parts, with the operations that it needs at least."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autogp.kernels import RBF
from autogp.likelihoods import Softmax
from autogp.model import Prepared, SparseGP, condition
from autogp.posteriors import LARGE, Natural, Sites
from autogp.training.optimisers import Adam
from autogp.training.step import Batch, apply, draw, gradients_of, natural_statistics

B, D, Q = 1000, 784, 10
NUM_DATA = 60_000


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
        self.q = Natural.of(self.model.posterior)
        self.optimiser = Adam(each for part, each in self.model.named_parameters() if not part.startswith("posterior."))
        self.rates = [1e-3] * len(self.optimiser.parameters)
        self.samples = samples
        self.generator = generator

    def __call__(self) -> None:
        batch = self.batch._replace(noise=draw(self.model, B, self.samples, self.generator))
        statistics = natural_statistics(self.model, batch, "elbo", self.optimiser.parameters, self.q)
        apply(statistics, self.optimiser, self.rates, self.q, 0.01)

    def parts(self) -> dict[str, float]:
        """Times of the parts, each by itself; they overlap a little, so they need not add up to the whole."""
        model, q, x = self.model, self.q, self.batch.x
        self()

        def prepare() -> Prepared:  # as a step does
            return model.prepare(q.factored(x.dtype) if q.shift.shape[-1] >= LARGE else q)

        prepared = prepare()
        basis, variance = model.basis(x, prepared)
        marginals = condition(basis, variance, prepared.moments)
        alpha, beta = torch.randn(2, 1, B, Q) * 1e-3
        fixed, mean = basis.detach(), marginals.mean[0].detach()

        def update() -> None:
            q.blend(Sites.of_rows(fixed, mean, alpha[0], beta[0], self.batch.weights), 1e-9)

        def gradients() -> list[Tensor]:
            value = (alpha * marginals.mean + beta * marginals.variance).sum()
            return gradients_of(value, self.optimiser.parameters, retain=True)

        found = gradients()
        return {
            "prior and posterior, M x M": best(prepare),
            "basis L^-1 Kzx": best(lambda: model.basis(x, prepared)),
            "marginals, S A": best(lambda: condition(basis, variance, prepared.moments)),
            "natural-gradient update": best(update),
            "gradients of kernel and Z": best(gradients),
            "Adam": best(lambda: self.optimiser.step(found, self.rates)),
        }
