"""A kernel and a likelihood as a user writes them, and a run to be killed."""

import sys

import numpy as np
import torch

from autogp import GPRegressor
from autogp.kernels import Kernel
from autogp.likelihoods import Likelihood
from autogp.parameters import positive_parameter


class Wave(Kernel):
    def __init__(self, period=1.0):
        super().__init__()
        self.log_period = positive_parameter(period, "period")

    def gram(self, x, z):
        period = self.log_period.exp()[:, None, None, None].to(x.dtype)
        apart = torch.pi * (x[..., :, None, :] - z[..., None, :, :]) / period
        return torch.exp(-2 * torch.sin(apart).square().sum(-1))

    def diag(self, x):
        return torch.ones_like(x[..., 0]).expand(len(self.log_period), -1)


class Laplace(Likelihood):
    def __init__(self, scale=1.0):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.tensor(scale, dtype=torch.float64).log())

    def log_prob(self, f, y):
        scale = self.log_scale.exp().to(f.dtype)
        return -(y - f[..., 0]).abs() / scale - torch.log(2 * scale)

    def conditional_moments(self, f):
        return f, 2 * self.log_scale.exp().to(f.dtype).square().expand_as(f)


class Grades(Likelihood):
    """Three classes in order, between two thresholds on one function."""

    num_classes = 3

    def log_prob(self, f, y):
        edges = f.new_tensor([-torch.inf, -1.0, 1.0, torch.inf])
        below, above = edges[y] - f[..., 0], edges[y + 1] - f[..., 0]
        return (torch.special.ndtr(above) - torch.special.ndtr(below)).clamp_min(1e-30).log()

    def conditional_moments(self, f):
        edges = torch.special.ndtr(f.new_tensor([-1.0, 1.0]) - f)
        probabilities = torch.cat([edges[..., :1], edges[..., 1:] - edges[..., :1], 1 - edges[..., 1:]], -1)
        return probabilities, probabilities * (1 - probabilities)


def waves():
    x = np.linspace(0, 10, 1000)[:, None]
    return x, np.sin(3 * x[:, 0])


def long_run(folder):
    return GPRegressor(
        n_inducing=10, likelihood="gaussian", max_epochs=20, batch_size=50, checkpoint=folder, verbose=False
    )


if __name__ == "__main__":
    torch.set_num_threads(1)  # as the tests themselves: bits depend on it
    print("started", flush=True)
    long_run(sys.argv[1]).fit(*waves())
