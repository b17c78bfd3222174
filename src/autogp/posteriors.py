"""Approximate posteriors over the whitened inducing values v = L^-1 u, whose prior is N(0, I)."""

import math

import torch
from torch import Tensor, nn

from autogp.linalg import row_blocks
from autogp.moments import (
    DenseMoments,
    DiagonalMoments,
    FactoredMoments,
    HeldMoments,
    Moments,
    RootMoments,
    log_determinant,
)

__all__ = ["LARGE", "GaussianPosterior", "HeldPosterior", "MixturePosterior"]

LARGE = 700  # inducing inputs from which a step is quicker without the inverse of the precision
PROBES = 16


class GaussianPosterior(nn.Module):
    """q(v) = N(S b, S), S = Lambda^-1, in natural form: for training by natural gradients, which are linear in it."""

    precision: Tensor  # Lambda, [Q, M, M]
    shift: Tensor  # b, [Q, M]

    def __init__(self, num_latents: int, num_inducing: int):
        super().__init__()
        eye = torch.eye(num_inducing, dtype=torch.float64)
        self.register_buffer("precision", eye.repeat(num_latents, 1, 1))
        self.register_buffer("shift", torch.zeros(num_latents, num_inducing, dtype=torch.float64))

    @torch.no_grad()
    def set_moments(self, mean: Tensor, covariance: Tensor) -> None:
        """q(v) = N(mean, covariance), from [1, Q, M] and [1, Q, M, M]."""
        self.precision.copy_(torch.cholesky_inverse(torch.linalg.cholesky(covariance[0])))
        self.shift.copy_((self.precision @ mean[0][..., None]).squeeze(-1))

    def moments(self, prior_inverse: Tensor) -> DenseMoments:
        covariance, mean = torch.empty_like(self.precision), torch.empty_like(self.shift)
        log_det = self.shift.new_empty(len(self.shift))
        for q, precision in enumerate(self.precision):  # one latent at a time: its matrices stay in the cache
            factor, info = torch.linalg.cholesky_ex(precision)
            inverse = math.nan if info else torch.cholesky_inverse(factor)
            covariance[q].mT[:] = inverse  # LAPACK's order of a symmetric matrix
            torch.mv(covariance[q], self.shift[q], out=mean[q])
            log_det[q] = -log_determinant(factor)
        return DenseMoments(self.shift.new_zeros(1), mean[None], log_det[None], covariance[None])

    def factored(self, dtype: torch.dtype) -> FactoredMoments:
        """The same moments for one step with many inducing inputs, on rows in this precision."""
        count, size = self.shift.shape
        signs = torch.randint(2, (size, PROBES), generator=torch.Generator().manual_seed(0))
        probes = (2 * signs - 1).to(self.shift)
        factors = self.precision.new_empty(count, size, size, dtype=dtype)
        mean, (log_det, trace) = torch.empty_like(self.shift), self.shift.new_empty(2, count)
        for q in range(count):  # one latent at a time: its matrices stay in the cache
            factor, info = torch.linalg.cholesky_ex(self.precision[q])
            if info:
                factor.fill_(math.nan)
            factors[q] = factor
            log_det[q] = -log_determinant(factor)
            sides = torch.linalg.solve_triangular(factor, torch.column_stack([self.shift[q], probes]), upper=False)
            mean[q] = torch.linalg.solve_triangular(factor.mT, sides[:, :1], upper=True).squeeze(-1)
            trace[q] = sides[:, 1:].square().sum() / PROBES
        return FactoredMoments(self.shift.new_zeros(1), mean[None], log_det[None], factors[None], trace[None])

    @torch.no_grad()
    def natural_step(
        self, basis: Tensor, mean: Tensor, alpha: Tensor, beta: Tensor, rate: float, weights: Tensor | float = 1.0
    ) -> None:
        """One natural-gradient step on the evidence lower bound, of step size `rate` in (0, 1].

        `basis` A is [G, M, B]; `mean` and the derivatives alpha = dE[log p]/dmean, beta = dE[log p]/dvariance are
        [B, Q]; `weights`, a number or [B], scales the rows (N / B for a minibatch).

            Lambda <- (1 - rate) Lambda + rate (I + A diag(-2 beta) A')
            b      <- (1 - rate) b      + rate A (alpha - 2 beta mean)

        Where log p is not concave -2 beta can be negative; it is clipped at 0, so that Lambda >= I stays.
        """
        weights = torch.as_tensor(weights, dtype=basis.dtype, device=basis.device)
        curvature = (-2 * beta.mT.contiguous()).clamp_min_(0) * weights  # [Q, B]
        slope = alpha.mT * weights + curvature * mean.mT
        added = torch.stack([basis[q % len(basis)] @ row for q, row in enumerate(slope)])
        if rate == 1:  # nothing stays of what was before, even if it was not finite
            self.shift.zero_()
            self.precision.zero_()
        self.shift.mul_(1 - rate).add_(added, alpha=rate)
        weighted = basis * curvature[:, None]  # [Q, M, B]
        basis = basis.expand_as(weighted)
        self.precision.mul_(1 - rate).diagonal(dim1=-2, dim2=-1).add_(rate)
        for start, stop in row_blocks(basis.shape[1]):  # the product is symmetric: its lower half is enough
            rows = torch.bmm(weighted[:, start:stop], basis[:, :stop].mT)
            corner = rows[..., start:]
            corner.copy_(corner.tril() + corner.tril(-1).mT)  # symmetric to the last bit
            self.precision[:, start:stop, :stop].add_(rows, alpha=rate)
            self.precision[:, :start, start:stop] = self.precision[:, start:stop, :start].mT


class MixturePosterior(nn.Module):
    """q(v) = sum_k pi_k prod_q N(m_kq, S_kq), full or diagonal, for training by ordinary gradients.

    Starts at m = 0, S = I, pi = 1 / K. Components that start equal stay equal, so for K > 1 the means start at random,
    with standard deviation `spread`.

    >>> MixturePosterior(num_latents=3, num_inducing=5, num_components=2).mean.shape
    torch.Size([2, 3, 5])
    """

    def __init__(
        self,
        num_latents: int,
        num_inducing: int,
        num_components: int = 1,
        diagonal: bool = False,
        spread: float = 0.1,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        shape = (num_components, num_latents, num_inducing)
        if min(shape) < 1:
            raise ValueError(f"num_components, num_latents and num_inducing must be positive, got {shape}")
        generator = generator or torch.Generator().manual_seed(0)
        start = torch.randn(shape, dtype=torch.float64, generator=generator) * (spread if num_components > 1 else 0.0)
        self.logits = nn.Parameter(torch.zeros(num_components, dtype=torch.float64))
        self.mean = nn.Parameter(start)
        self.log_scale = nn.Parameter(torch.zeros(shape, dtype=torch.float64))  # log of the diagonal of the root
        self.lower = None if diagonal else nn.Parameter(torch.zeros(*shape, num_inducing, dtype=torch.float64))

    @torch.no_grad()
    def set_moments(self, mean: Tensor, covariance: Tensor) -> None:
        """Components N(mean, covariance), from [K, Q, M] and [K, Q, M, M]; a diagonal posterior takes the diagonals."""
        self.mean.copy_(mean)
        if self.lower is None:
            self.log_scale.copy_(0.5 * torch.diagonal(covariance, dim1=-2, dim2=-1).log())
        else:
            root = torch.linalg.cholesky(covariance)
            self.log_scale.copy_(torch.diagonal(root, dim1=-2, dim2=-1).log())
            self.lower.copy_(root.tril(-1))

    def moments(self, prior_inverse: Tensor) -> Moments:
        log_weights, log_det = torch.log_softmax(self.logits, 0), 2 * self.log_scale.sum(-1)
        if self.lower is None:
            return DiagonalMoments(log_weights, self.mean, log_det, (2 * self.log_scale).exp())
        root = torch.diag_embed(self.log_scale.exp()) + self.lower.tril(-1)
        return RootMoments(log_weights, self.mean, log_det, root)


class HeldPosterior(nn.Module):
    """A posterior held fixed over u = L v instead of v: as the kernel moves L, q(v) follows.

    Leave-one-out learning holds q(u), as the paper does; holding q(v) gives up what it gains.
    """

    log_weights: Tensor  # [K]
    mean: Tensor  # L m, [K, Q, M]
    log_det: Tensor  # log |L S L'|, [K, Q]
    covariance: Tensor  # L S L', [K, Q, M, M]

    def __init__(self, moments: Moments, prior_factor: Tensor):
        super().__init__()
        self.register_buffer("log_weights", moments.log_weights.detach())
        self.register_buffer("mean", (prior_factor @ moments.mean[..., None]).squeeze(-1).detach())
        self.register_buffer("log_det", (moments.log_det + log_determinant(prior_factor)).detach())
        self.register_buffer("covariance", (prior_factor @ moments.covariance() @ prior_factor.mT).detach())

    def moments(self, prior_inverse: Tensor) -> HeldMoments:
        return HeldMoments(self.log_weights, self.mean, self.log_det, self.covariance, prior_inverse)
