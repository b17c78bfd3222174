"""C classes through the softmax of C latent functions."""

from numbers import Integral

import torch
from torch import Tensor

from autogp.likelihoods.base import Likelihood, chunks

__all__ = ["Softmax"]


class Softmax(Likelihood):
    """p(y = c | f) = exp(f_c) / sum_j exp(f_j); targets are labels 0 to C - 1.

    >>> import torch
    >>> Softmax(4).log_prob(torch.zeros(1, 4), torch.tensor([2])).exp().item()
    0.25
    """

    finite_loo = True

    def __init__(self, num_classes: int):
        super().__init__()
        if not isinstance(num_classes, Integral) or num_classes < 2:
            raise ValueError(f"num_classes must be an integer of at least 2, got {num_classes!r}")
        self.num_classes = self.num_latents = int(num_classes)

    @property
    def sampled(self) -> frozenset[str]:
        return frozenset({"elbo", "predictive"})

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return _pick(torch.log_softmax(f.mT, -2).mT, y)  # not f_y - logsumexp(f): that loses digits where p is near 1

    def log_expected_inverse_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        if noise is not None:
            return super().log_expected_inverse_prob(mean, variance, y, noise)
        # 1/p = 1 + sum_{c != y} exp(f_c - f_y), a sum of log-normals
        exponent = mean + 0.5 * variance + (0.5 * _pick(variance, y) - _pick(mean, y))[..., None]
        own = torch.arange(self.num_latents, device=y.device) == y[:, None]  # [B, C]
        return torch.logsumexp(torch.where(own, 0.0, exponent), -1)

    def expected_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        nodes = self._nodes(mean)[0] if noise is None else noise
        first, second = torch.zeros_like(mean), torch.zeros_like(mean)
        for part in chunks(nodes):
            p = _softmax(mean + variance.sqrt() * part)  # [S, ..., B, C]
            first += p.sum(0) / len(nodes)
            second += p.square().sum(0) / len(nodes)
        own = torch.arange(self.num_latents, device=y.device) == y[:, None]
        return own.to(mean.dtype) - first, 0.5 * (second - first)

    def expected_curvature(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        nodes = self._nodes(mean)[0] if noise is None else noise
        p = _softmax(mean + variance.sqrt() * nodes)  # [S, B, C]
        return torch.diag_embed(p.mean(0)) - p.permute(1, 2, 0) @ p.transpose(0, 1) / len(p)  # E[diag(p) - p p']

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        p = _softmax(f)
        return p, p * (1 - p)

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        p = self._expect(lambda f, _: _softmax(f), mean, variance, mean)
        return p, p * (1 - p)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        uniform = torch.rand(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        gumbel = -(-uniform.clamp_min(torch.finfo(f.dtype).tiny).log()).clamp_min(torch.finfo(f.dtype).tiny).log()
        return (f + gumbel).argmax(-1)


def _softmax(f: Tensor) -> Tensor:
    """Over the last axis, which is too short for PyTorch to be fast along it: rows vary fastest in memory."""
    return torch.softmax(f.mT, -2).mT


def _pick(values: Tensor, y: Tensor) -> Tensor:
    """values[..., b, y_b]: [..., B] from [..., B, C]."""
    return values.gather(-1, y[:, None].expand(*values.shape[:-1], 1)).squeeze(-1)
