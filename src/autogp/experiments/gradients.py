"""Estimates of the ELBO's gradient by samples: how noisy they are, and how far q gets by them.

A regression network whose kernel, noise and inducing inputs stay as they are; q learns by Adam from one estimate or
another, everything else being equal.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autogp.data import ArraySource, TargetScaler, summarise
from autogp.datasets import Dataset
from autogp.features import Scaling
from autogp.likelihoods import Likelihood, Network
from autogp.likelihoods.base import chunks
from autogp.metrics import number_scores
from autogp.model import SparseGP
from autogp.training import start_inducing_inputs, start_kernel, start_latents
from autogp.training.feed import Feed
from autogp.training.optimisers import Adam

__all__ = [
    "BATCH",
    "INDUCING",
    "MEASURED_AFTER",
    "STEPS",
    "measure",
    "score_function",
    "through_samples",
    "with_control_variate",
]

BATCH, INDUCING = 100, 50
STEPS, LEARNING_RATE, CURVE_EVERY = 400, 0.03, 20
NOISE = 0.02  # about what such a network learns
REPEATS = 20  # of the gradient, for its variance
MEASURED_AFTER = 100  # exact steps

# dE[log p]/dmean and dE[log p]/dvariance, [1, B, Q], from a likelihood, mean and variance, targets and noise.
Estimator = Callable[[Likelihood, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def through_samples(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """The paper's: f = mean + sd noise is differentiated (Kingma and Welling, 2014)."""
    with torch.enable_grad():
        mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
        value = likelihood.expected_log_prob(mean, variance, y, noise).sum()
        by_mean, by_variance = torch.autograd.grad(value, (mean, variance))
    return by_mean, by_variance


def score_function(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor, control: bool = False
) -> tuple[Tensor, Tensor]:
    """Dezfouli and Bonilla (2015): E[log p d log q], which needs no derivative of the likelihood.

    With `control` less its control variate, d log q, whose mean is 0, times Cov(log p d log q, d log q) / Var(d log q).
    """
    found = []
    for score in (lambda z: z / variance.sqrt(), lambda z: (z.square() - 1) / (2 * variance)):
        sums = torch.zeros(4, *mean.shape, dtype=mean.dtype)
        for part in chunks(noise):
            values = likelihood.log_prob(mean + variance.sqrt() * part, y)[..., None]  # [S, 1, B, 1]
            slope = score(part)
            sums += torch.stack([part.sum(0) for part in (values * slope, slope, values * slope**2, slope**2)])
        plain, slope, product, square = sums / len(noise)
        weight = (product - plain * slope) / (square - slope**2) if control else 0.0
        found.append(plain - weight * slope)
    return found[0], found[1]


def with_control_variate(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    return score_function(likelihood, mean, variance, y, noise, control=True)


def exact(likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    return likelihood.expected_derivatives(mean, variance, y)


class Problem:
    """The model at its start, its training rows and its test rows."""

    def __init__(self, data: Dataset, seed: int):
        self.source, self.test = ArraySource(data.x_train, data.y_train), ArraySource(data.x_test, data.y_test)
        summary = summarise(self.source)
        scaling = Scaling.from_summary(summary)
        likelihood = Network(num_outputs=data.y_train.shape[1], variance=NOISE)
        z = start_inducing_inputs(self.source, INDUCING, scaling, seed)
        kernel = start_kernel("rbf", self.source, scaling, groups=likelihood.num_latents)
        self.model = SparseGP(kernel, likelihood, z.expand(likelihood.num_latents, *z.shape), scaling)
        start_latents(self.model)
        self.model.requires_grad_(False).posterior.requires_grad_(True)
        self.feed = Feed(self.model, len(self.source), None, TargetScaler.from_summary(summary))
        self.generator = torch.Generator().manual_seed(seed)
        self.order = np.random.default_rng(seed)
        self.optimiser = Adam(self.model.posterior.parameters())

    def gradient(self, estimator: Estimator, samples: int, indices: np.ndarray) -> tuple[Tensor, ...]:
        """Of minus the ELBO's data term, by the parameters of q."""
        model, batch = self.model, self.feed.read(self.source, indices)
        parameters = self.optimiser.parameters
        marginals = model(batch.x)
        constant = marginals.mean.detach(), marginals.variance.detach()
        noise = torch.randn(samples, *constant[0].shape, generator=self.generator)
        alpha, beta = estimator(model.likelihood, *constant, batch.y, noise)
        weights = -batch.weights[:, None]
        outputs, slopes = [marginals.mean, marginals.variance], [weights * alpha, weights * beta]
        return torch.autograd.grad(outputs, parameters, slopes, allow_unused=True, materialize_grads=True)

    def learn(self, estimator: Estimator, samples: int, steps: int) -> list[dict[str, float]]:
        """A curve: how far the steps have led."""
        points = []
        for step in range(steps):
            if step % CURVE_EVERY == 0:
                points.append({"step": step, **self.scores()})
            data_term = self.gradient(estimator, samples, self.order.choice(len(self.source), BATCH, replace=False))
            kl = self.model.posterior.moments().kl()
            prior = torch.autograd.grad(kl, self.optimiser.parameters, allow_unused=True, materialize_grads=True)
            gradients = [mine + own for mine, own in zip(data_term, prior, strict=True)]
            self.optimiser.step(gradients, [LEARNING_RATE] * len(gradients))
        return [*points, {"step": steps, **self.scores()}]

    def scores(self) -> dict[str, float]:
        assert self.feed.target_scaler is not None
        x = torch.from_numpy(self.test.rows(np.arange(len(self.test)))[0])
        mean = self.model.predict(x).mean.double()
        return number_scores(self.test.y, self.feed.target_scaler.inverse_mean(mean))

    def noise(self, estimator: Estimator, samples: int) -> float:
        """The variance of the gradient over the square of its length, both of the data term and summed over q."""
        indices = np.arange(BATCH)
        truth = _flat(self.gradient(exact, 1, indices))
        errors = [
            (_flat(self.gradient(estimator, samples, indices)) - truth).square().sum().item() for _ in range(REPEATS)
        ]
        return float(np.mean(errors)) / truth.square().sum().item()


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def measure(estimator: Estimator) -> Callable[[Dataset, int | None, int], dict[str, Any]]:
    def run(data: Dataset, samples: int | None, seed: int) -> dict[str, Any]:
        assert samples is not None
        problem = Problem(data, seed)
        problem.learn(exact, 1, MEASURED_AFTER)
        noise = problem.noise(estimator, samples)
        problem = Problem(data, seed)
        started = time.process_time()
        curve = problem.learn(estimator, samples, STEPS)
        return {
            "settings": {"steps": STEPS, "batch_size": BATCH, "learning_rate": LEARNING_RATE, "max_epochs": None},
            "scores": {"noise": noise, "smse": curve[-1]["smse"]},
            "seconds": {"training": time.process_time() - started},
            "epochs": math.ceil(STEPS * BATCH / len(data.x_train)),
            "curve": curve,
        }

    return run
