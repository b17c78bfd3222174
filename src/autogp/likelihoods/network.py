"""Gaussian process regression network: outputs that mix a few nodes with weights that vary over the inputs."""

import math
from numbers import Integral

import torch
from torch import Tensor

from autogp.likelihoods.base import InfiniteLOOError, Likelihood, chunks
from autogp.likelihoods.quadrature import expectation
from autogp.likelihoods.sampling import log_mean
from autogp.likelihoods.targets import check_real_targets
from autogp.parameters import describe_range, positive_parameter

__all__ = ["Network"]


class Network(Likelihood):
    """y_i = sum_j W_ij g_j + noise_i, noise_i ~ N(0, variance_i), i = 1 .. P, j = 1 .. nodes (Wilson et al., 2012).

    Weights W and nodes g are latent functions, Q = nodes (P + 1): f holds W row by row, then g. A target that is NaN
    is missing: it adds nothing.

    >>> import torch
    >>> Network(num_outputs=7, num_nodes=1).num_latents
    8
    """

    allows_missing = True
    affine_targets = True

    def __init__(self, num_outputs: int, num_nodes: int = 1, variance: float | Tensor = 1.0):
        super().__init__()
        for name, value in (("num_outputs", num_outputs), ("num_nodes", num_nodes)):
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        self.num_outputs = int(num_outputs)
        self.num_nodes = int(num_nodes)
        self.num_latents = self.num_nodes * (self.num_outputs + 1)
        self.log_variance = positive_parameter(variance, "variance", size=num_outputs)

    @property
    def start_values(self) -> list[float]:
        return [0.0] * (self.num_outputs * self.num_nodes) + [1.0] * self.num_nodes

    @property
    def sampled(self) -> frozenset[str]:
        return frozenset()  # given the nodes the weights are integrated exactly

    @property
    def variance(self) -> Tensor:  # [P]
        return self.log_variance.exp()

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return _log_normal(y, *self.conditional_moments(f))

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is not None:
            return super().expected_log_prob(mean, variance, y, noise)
        expected, spread = self._signal(mean, variance)
        return _log_normal(y, expected, self.variance.to(mean.dtype), spread)

    def expected_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if noise is None:
            return super().expected_derivatives(mean, variance, y)
        # With r_i = y_i - sum_j W_ij g_j the slopes of log p are r_i g_j / s_i by W_ij and sum_i r_i W_ij / s_i by g_j,
        # the second derivatives -g_j^2 / s_i and -sum_i W_ij^2 / s_i. Autograd takes ten times as long.
        missing = torch.isnan(y)
        y, precision = torch.where(missing, 0.0, y), torch.where(missing, 0.0, 1 / self.variance.to(mean.dtype))
        alpha, beta = torch.zeros_like(mean), torch.zeros_like(mean)
        for part in chunks(noise):
            weights, nodes = self._split(mean + variance.sqrt() * part)  # [S, ..., B, P, nodes], [S, ..., B, 1, nodes]
            slope = ((y - (weights * nodes).sum(-1)) * precision)[..., None]
            curvature = nodes.square().sum(0) * precision[..., None]  # [..., B, P, nodes]
            by_weights, by_nodes = (slope * nodes).sum(0), (slope * weights).sum((0, -2))
            alpha += torch.cat([by_weights.flatten(-2), by_nodes], -1)
            beta -= torch.cat([curvature.flatten(-2), (weights.square().sum(0) * precision[..., None]).sum(-2)], -1)
        return alpha.detach() / len(noise), 0.5 * beta.detach() / len(noise)

    def log_expected_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is not None:
            return super().log_expected_prob(mean, variance, y, noise)
        # Given the nodes the outputs are independent Gaussians, so only the nodes need points.
        weights, nodes = (part.flatten(0, -3).double() for part in self._split(mean))  # [N, P, nodes], [N, 1, nodes]
        weight_variance, node_variance = (part.flatten(0, -3).double() for part in self._split(variance))
        noise_variance = self.variance
        targets = y.double()

        def log_prob(z: Tensor, rows: Tensor) -> Tensor:  # [H, n] from z [H, n, nodes]
            g = nodes[rows] + node_variance[rows].sqrt() * z[..., None, :]
            spread = (weight_variance[rows] * g.square()).sum(-1) + noise_variance
            return _log_normal(targets[rows % len(y)], (weights[rows] * g).sum(-1), spread)

        if self.num_nodes == 1:
            value = expectation(lambda z, rows: log_prob(z[..., None], rows)[..., None], len(nodes), y.device, log=True)
        else:
            value = log_mean(log_prob, len(nodes), self.num_nodes, y.device)
        return value.reshape(mean.shape[:-1]).to(mean.dtype)

    def log_expected_inverse_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        raise InfiniteLOOError("Network", "1 / p(y | f) grows with the fourth power of f in the exponent")

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        weights, nodes = self._split(f)
        signal = (weights * nodes).sum(-1)
        return signal, self.variance.to(f.dtype).expand_as(signal)

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        expected, spread = self._signal(mean, variance)
        return expected, spread + self.variance.to(mean.dtype)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        signal, variance = self.conditional_moments(f)
        noise = torch.randn(signal.shape, dtype=f.dtype, device=f.device, generator=generator)
        return signal + variance.sqrt() * noise

    def check_targets(self, y: Tensor) -> Tensor:
        return check_real_targets(y, self.num_outputs, missing=True)

    def describe(self, unit: Tensor | float = 1.0) -> str:
        return f"{type(self).__name__}, noise of standard deviation {describe_range(self.variance.sqrt() * unit)}"

    def _split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """W [..., B, P, nodes] and g [..., B, 1, nodes] from f [..., B, Q]."""
        weights, nodes = f.split([self.num_outputs * self.num_nodes, self.num_nodes], -1)
        return weights.unflatten(-1, (self.num_outputs, self.num_nodes)), nodes[..., None, :]

    def _signal(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of sum_j W_ij g_j, [..., B, P]."""
        weights, nodes = self._split(mean)
        weight_variance, node_variance = self._split(variance)
        spread = weights.square() * node_variance + weight_variance * (nodes.square() + node_variance)
        return (weights * nodes).sum(-1), spread.sum(-1)


def _log_normal(y: Tensor, mean: Tensor, variance: Tensor, spread: Tensor | float = 0.0) -> Tensor:
    """E[log N(y; signal, variance)] for a signal of this mean and spread, summed over the outputs that are there."""
    missing = torch.isnan(y)
    residual = torch.where(missing, 0.0, y) - mean
    terms = -0.5 * (math.log(2 * math.pi) + variance.log() + (residual.square() + spread) / variance)
    return torch.where(missing, 0.0, terms).sum(-1)
