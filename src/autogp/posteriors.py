"""Approximate posteriors over the whitened inducing values v = L^-1 u, whose prior is N(0, I)."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from autogp.linalg import row_blocks

__all__ = [
    "DenseMoments",
    "DiagonalMoments",
    "GaussianPosterior",
    "HeldMoments",
    "HeldPosterior",
    "MixturePosterior",
    "Moments",
    "RootMoments",
    "squared_norms",
]


@dataclass(frozen=True)
class Moments(ABC):
    """A mixture of K Gaussians over v, independent between the Q latents: sum_k pi_k prod_q N(mean_kq, S_kq)."""

    log_weights: Tensor  # [K]
    mean: Tensor  # [K, Q, M]
    log_det: Tensor  # log |S|, [K, Q]

    @abstractmethod
    def covariance(self) -> Tensor:
        """S, [K, Q, M, M]."""

    @abstractmethod
    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """A' mean and diag(A' S A), both [K, Q, B], for a basis A [G, M, B] with G = 1 or Q."""

    def kl(self) -> Tensor:
        """KL(q || N(0, I)): exact for one component, else the smaller of two upper bounds.

        The first is convexity's, sum_k pi_k KL(q_k || p). The second is the paper's: Jensen's inequality on the
        entropy and the exact cross entropy.
        """
        weights = self.log_weights.exp()
        size = self.mean.shape[-1]
        # E_k[-2 log p(v)] without its constant, [K, Q]
        cross = self._trace() + self.mean.square().sum(-1)
        convexity = 0.5 * (weights * (cross - size - self.log_det).sum(-1)).sum()
        if len(weights) == 1:
            return convexity
        cross_entropy = 0.5 * (weights * (cross + size * math.log(2 * math.pi)).sum(-1)).sum()
        overlap = torch.logsumexp(self.log_weights + self._log_overlaps(), -1)  # [K]
        return torch.minimum(convexity, (weights * overlap).sum() + cross_entropy)

    def _trace(self) -> Tensor:
        """tr S, [K, Q]."""
        return torch.diagonal(self.covariance(), dim1=-2, dim2=-1).sum(-1)

    def _log_overlaps(self) -> Tensor:
        """log N(m_k; m_l, S_k + S_l), summed over the latents, [K, K]."""
        difference = self.mean[:, None] - self.mean[None]  # [K, K, Q, M]
        covariance = self.covariance()
        factor = torch.linalg.cholesky(covariance[:, None] + covariance[None])
        solved = torch.linalg.solve_triangular(factor, difference[..., None], upper=False)
        mahalanobis = solved.square().sum((-2, -1))
        return -0.5 * (mahalanobis + _log_det(factor) + difference.shape[-1] * math.log(2 * math.pi)).sum(-1)


@dataclass(frozen=True)
class RootMoments(Moments):
    """Covariances by a root R, S = R R', for gradients with respect to R."""

    root: Tensor  # [K, Q, M, M]

    def covariance(self) -> Tensor:
        return self.root @ self.root.mT

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        return _weigh(self.mean, basis), _apply(self.root.mT.to(basis.dtype), basis).square().sum(-2)

    def _trace(self) -> Tensor:
        return self.root.square().sum((-2, -1))


@dataclass(frozen=True)
class DiagonalMoments(Moments):
    """Diagonal covariances."""

    variance: Tensor  # [K, Q, M]

    def covariance(self) -> Tensor:
        return torch.diag_embed(self.variance)

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        return _weigh(self.mean, basis), _weigh(self.variance, basis.square())

    def _log_overlaps(self) -> Tensor:
        difference = self.mean[:, None] - self.mean[None]
        total = self.variance[:, None] + self.variance[None]
        return -0.5 * (difference.square() / total + (2 * math.pi * total).log()).sum((-2, -1))


@dataclass(frozen=True)
class DenseMoments(Moments):
    """Covariances as they are, constants: gradients flow to the basis alone, and S A is computed once for both ways."""

    dense: Tensor  # S, [K, Q, M, M]

    def covariance(self) -> Tensor:
        return self.dense

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        return _Projection.apply(basis, self.mean.to(basis.dtype), self.dense)


@dataclass(frozen=True)
class HeldMoments(DenseMoments):
    """q(u) = N(m_u, S_u) held fixed: q(v) follows through v = L^-1 u. The fields are those of u."""

    prior_inverse: Tensor  # L^-1, [G, M, M]

    def covariance(self) -> Tensor:
        return self.prior_inverse @ self.dense @ self.prior_inverse.mT

    def whitened_mean(self) -> Tensor:  # L^-1 m_u, [K, Q, M]
        return (self.prior_inverse @ self.mean[..., None]).squeeze(-1)

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        return super().project(self.prior_inverse.mT.to(basis.dtype) @ basis)  # Kzz^-1 Kzx

    def kl(self) -> Tensor:
        log_det = self.log_det + _log_det(self.prior_inverse)
        return DenseMoments(self.log_weights, self.whitened_mean(), log_det, self.covariance()).kl()


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
            log_det[q] = -_log_det(factor)
        return DenseMoments(self.shift.new_zeros(1), mean[None], log_det[None], covariance[None])

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
        weighted = basis * curvature[:, None]  # [Q, M, B]
        basis = basis.expand_as(weighted)
        self.precision.mul_(1 - rate).diagonal(dim1=-2, dim2=-1).add_(rate)
        for start, stop in row_blocks(basis.shape[1]):  # the product is symmetric: its lower half is enough
            rows = torch.bmm(weighted[:, start:stop], basis[:, :stop].mT)
            corner = rows[..., start:]
            corner.copy_(corner.tril() + corner.tril(-1).mT)  # symmetric to the last bit
            self.precision[:, start:stop, :stop].add_(rows, alpha=rate)
            self.precision[:, :start, start:stop] = self.precision[:, start:stop, :start].mT
        self.shift.mul_(1 - rate).add_(torch.bmm(basis, slope[..., None]).squeeze(-1), alpha=rate)


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
        self.register_buffer("log_det", (moments.log_det + _log_det(prior_factor)).detach())
        self.register_buffer("covariance", (prior_factor @ moments.covariance() @ prior_factor.mT).detach())

    def moments(self, prior_inverse: Tensor) -> HeldMoments:
        return HeldMoments(self.log_weights, self.mean, self.log_det, self.covariance, prior_inverse)


class _Projection(torch.autograd.Function):
    """A' m and diag(A' S A), both [K, Q, B], for constants m and S: S A serves the value and its gradient, 2 S A."""

    @staticmethod
    def forward(ctx: Any, basis: Tensor, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        products = (covariance.to(basis.dtype) @ basis.expand(covariance.shape[1], -1, -1)).contiguous()
        value = (products * basis).sum(-2)
        ctx.save_for_backward(products, mean)
        ctx.groups = len(basis)
        return _weigh(mean, basis), value.clamp_min_(0)

    @staticmethod
    @once_differentiable  # S A is a constant to autograd: a second derivative would be wrong in silence
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None, None]:
        products, mean = ctx.saved_tensors
        slope, weights = (part.contiguous() for part in grad_outputs)  # [K, Q, B]
        weights = 2 * weights
        if ctx.groups == 1:
            gradient = (mean.flatten(0, 1).mT @ slope.flatten(0, 1))[None]
        else:
            gradient = torch.zeros_like(products[0])
            for k in range(len(products)):
                gradient.addcmul_(mean[k][..., None], slope[k][:, None])
        for k in range(len(products)):
            for q, product in enumerate(products[k]):
                gradient[q % ctx.groups].addcmul_(product, weights[k, q])
        return gradient, None, None


def squared_norms(basis: Tensor) -> Tensor:
    """Of the columns of A [G, M, B]: [G, B]."""
    return _SquaredNorms.apply(basis)


class _SquaredNorms(torch.autograd.Function):
    """sum_m A_mb^2; as autograd has it, with fewer passes over A."""

    @staticmethod
    def forward(ctx: Any, basis: Tensor) -> Tensor:
        ctx.save_for_backward(basis)
        return torch.stack([block.square().sum(-2) for block in basis])

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> Tensor:
        (basis,) = ctx.saved_tensors
        return basis * (2 * grad_outputs[0].contiguous()[..., None, :])


def _log_det(factor: Tensor) -> Tensor:
    """log |C C'| of triangular factors."""
    return 2 * torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1)


def _apply(matrix: Tensor, basis: Tensor) -> Tensor:
    """matrix [K, Q, R, M] times basis [G, M, B]: [K, Q, R, B], as one product where the basis is shared."""
    if basis.shape[0] == 1:
        return (matrix.flatten(0, 2) @ basis[0]).unflatten(0, matrix.shape[:3])
    return matrix @ basis


def _weigh(weights: Tensor, basis: Tensor) -> Tensor:
    """A' w [K, Q, B] for w [K, Q, M]."""
    return _apply(weights[..., None, :].to(basis.dtype), basis).squeeze(-2)
