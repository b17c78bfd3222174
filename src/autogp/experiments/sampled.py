"""The regression network as the paper has it, by Monte Carlo."""

import torch
from torch import Tensor

from autogp.likelihoods import Network
from autogp.likelihoods.base import chunks

__all__ = ["SampledNetwork"]


class SampledNetwork(Network):
    """A network of one node with its expectations by Monte Carlo, as in the paper, although it has closed forms.

    What is averaged over the samples is written out: autograd would find the same in ten times the time.
    """

    @property
    def sampled(self) -> frozenset[str]:
        return frozenset({"elbo", "predictive"})

    def expected_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if noise is None:
            return super().expected_derivatives(mean, variance, y)
        precision = 1 / self.variance.detach().to(mean.dtype)
        alpha, beta = torch.zeros_like(mean), torch.zeros_like(mean)
        for part in chunks(noise):
            weights, node = (mean + variance.sqrt() * part).split([self.num_outputs, 1], -1)
            slope = (y - weights * node) * precision
            alpha[..., :-1] += (slope * node).sum(0)
            alpha[..., -1] += torch.einsum("s...p,s...p->...", slope, weights)
            beta[..., :-1] -= node.square().sum(0) * precision
            beta[..., -1] -= weights.square().sum(0) @ precision
        return alpha / len(noise), 0.5 * beta / len(noise)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is None or mean.requires_grad or variance.requires_grad:
            return super().expected_log_prob(mean, variance, y, noise)
        squares = torch.zeros_like(mean[..., :-1])  # only the noise learns: what it needs are the mean squares
        for part in chunks(noise):
            weights, node = (mean + variance.sqrt() * part).split([self.num_outputs, 1], -1)
            squares += (y - weights * node).square().sum(0)
        known = self.variance.to(mean.dtype)
        return -0.5 * ((2 * torch.pi * known).log() + squares / len(noise) / known).sum(-1)
