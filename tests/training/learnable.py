"""Small problems that every likelihood can learn something from."""

import copy

import numpy as np
import torch
from torch import Tensor

from autogp.data import ArraySource
from autogp.kernels import RBF, Kernel
from autogp.likelihoods import Bernoulli, Gaussian, Likelihood, Network, Poisson, Softmax, StudentT
from autogp.model import SparseGP
from autogp.objectives import predictive

__all__ = ["LIKELIHOODS", "Heteroscedastic", "Laplace", "Problem", "held_out_score"]

TRAIN, TEST, INDUCING = 260, 140, 12


class Laplace(Likelihood):
    """One latent function, and nothing but `log_prob`."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return -(y - f[..., 0]).abs() / 0.3 - np.log(0.6)


class Heteroscedastic(Likelihood):
    """Two latent functions, the mean and the log standard deviation, and nothing but `log_prob`."""

    num_latents = 2

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        mean, log_scale = f[..., 0], f[..., 1]
        return -log_scale - 0.5 * ((y - mean) / log_scale.exp()).square() - 0.5 * np.log(2 * np.pi)


LIKELIHOODS = {
    "gaussian": Gaussian,
    "logit": Bernoulli,
    "probit": lambda: Bernoulli(link="probit"),
    "softmax": lambda: Softmax(3),
    "poisson": Poisson,
    "student-t": StudentT,
    "network": lambda: Network(2),
    "user's, one latent": Laplace,
    "user's, two latents": Heteroscedastic,
}


class Problem:
    """Training rows and test rows, for the likelihood of this name."""

    def __init__(self, name: str, seed: int = 0):
        generator = np.random.default_rng(seed)
        x = generator.uniform(-2, 2, size=(TRAIN + TEST, 2))
        signal = np.stack([2 * np.sin(1.5 * x[:, 0]), x[:, 1] * x[:, 0], 1.5 * np.cos(2 * x[:, 1])], 1)
        noise = generator.normal(size=signal.shape)
        match name:
            case "logit" | "probit":
                y = (signal[:, 0] + 0.3 * noise[:, 0] > 0).astype(np.int64)
            case "softmax":
                y = (2 * signal + 0.3 * noise).argmax(1)
            case "poisson":
                y = generator.poisson(np.exp(signal[:, 0]))
            case "student-t":
                y = signal[:, 0] + 0.1 * generator.standard_t(3, size=len(x))
            case "network":
                y = signal[:, 1:] + 0.2 * noise[:, 1:]
            case "user's, two latents":
                y = signal[:, 0] + np.exp(x[:, 1] - 1.5) * noise[:, 0]
            case _:
                y = signal[:, 0] + 0.2 * noise[:, 0]
        self.likelihood: Likelihood = LIKELIHOODS[name]()
        self.source, self.test = ArraySource(x[:TRAIN], y[:TRAIN]), ArraySource(x[TRAIN:], y[TRAIN:])
        self.z = torch.from_numpy(x[:INDUCING].astype(np.float32))

    def model(self, shared: bool = True, dtype: torch.dtype = torch.float32, **options) -> SparseGP:
        """At its start; one kernel and inducing inputs for all latent functions, or one of each for each."""
        latents = self.likelihood.num_latents
        kernel: Kernel = RBF([1.0, 1.0]) if shared else RBF(torch.ones(latents, 2), torch.ones(latents))
        z = self.z if shared else torch.stack([self.z.roll(q, 0) + 0.1 * q for q in range(latents)])
        return SparseGP(kernel, copy.deepcopy(self.likelihood), z.to(dtype), **options)


def held_out_score(model: SparseGP, rows: ArraySource) -> float:
    """Mean log predictive probability of a row."""
    x = torch.from_numpy(rows.x)
    with torch.no_grad():
        return predictive(model, x, torch.from_numpy(rows.y)).item() / len(rows)
