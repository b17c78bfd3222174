"""What a step or a prediction asks of an approximate posterior over the whitened inducing values v = L^-1 u."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from autogp.linalg import expected_log_normal, safe_cholesky, solve, whiten

__all__ = [
    "DenseMoments",
    "DiagonalMoments",
    "FactoredMoments",
    "HeldMoments",
    "Moments",
    "RootMoments",
    "log_determinant",
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

    def upper_root(self) -> Tensor:
        """An upper triangular R with S = R R', [K, Q, M, M]: the factor of the matrix turned around, turned back."""
        covariance = self.covariance()
        return safe_cholesky(covariance.flip(-2, -1), torch.finfo(covariance.dtype).eps).flip(-2, -1)

    @abstractmethod
    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """A' mean and diag(A' S A), both [K, Q, B], for a basis A [G, M, B] with G = 1 or Q."""

    def condition(self, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same, and the squared norms |A|^2 [G, B]."""
        return *self.project(basis), basis.square().sum(-2)

    def condition_cross(self, gram: Tensor, inverse: Tensor, cross: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for A = L^-1 Kzx from Kzz, L^-1 and Kzx."""
        return self.condition(whiten(gram, inverse, cross))

    def whitened(self) -> "Moments":
        """The same q by moments of v."""
        return self

    def kl(self) -> Tensor:
        """KL(q || N(0, I)): exact for one component, else an upper bound by pairs of components.

        KL(q || p) = sum_k pi_k KL(q_k || p) - I, where I, the information of v on its component, is at most log K.
        Kolchinsky and Tracey (2017): I >= -sum_k pi_k log sum_l pi_l exp(-d_kl), with the distances of `distances`. The
        bound is exact where components are equal and where they are far apart.
        """
        weights = self.log_weights.exp()
        size = self.mean.shape[-1]
        separate = 0.5 * (weights * (self._cross() - size - self.log_det).sum(-1)).sum()
        if len(weights) == 1:
            return separate
        return separate + (weights * torch.logsumexp(self.log_weights - self.distances(), -1)).sum()

    def distances(self) -> Tensor:
        """Bhattacharyya's, -log int sqrt(q_k q_l), between the components, [K, K]:

        (m_k - m_l)' (S_k + S_l)^-1 (m_k - m_l) / 4 + log(|(S_k + S_l) / 2| / |S_k|^1/2 |S_l|^1/2) / 2.
        """
        mahalanobis, log_det = self._pairs()
        log_dets = 0.5 * (self.log_det[:, None] + self.log_det[None]) + self.mean.shape[-1] * math.log(2)
        return (0.25 * mahalanobis + 0.5 * (log_det - log_dets)).sum(-1)

    def jensen_kl(self) -> Tensor:
        """The paper's bound: Jensen's inequality on the entropy, and the exact cross entropy.

        sum_k pi_k log sum_l pi_l N(m_k; m_l, S_k + S_l) - sum_k pi_k E_k[log p(v)]. Where components are far apart, or
        there is one, it is (1 - log 2) / 2 above the divergence for each number in v.
        """
        weights, constant = self.log_weights.exp(), self.mean.shape[-1] * math.log(2 * math.pi)
        mahalanobis, log_det = self._pairs()
        cross_entropy = 0.5 * (weights * (self._cross() + constant).sum(-1)).sum()
        overlaps = -0.5 * (mahalanobis + log_det + constant).sum(-1)  # [K, K]
        return (weights * torch.logsumexp(self.log_weights + overlaps, -1)).sum() + cross_entropy

    def _cross(self) -> Tensor:
        """E_k[-2 log p(v)] without its constant, [K, Q]."""
        return self._trace() + self.mean.square().sum(-1)

    def _trace(self) -> Tensor:
        """tr S, [K, Q]."""
        return torch.diagonal(self.covariance(), dim1=-2, dim2=-1).sum(-1)

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """(m_k - m_l)' (S_k + S_l)^-1 (m_k - m_l) and log |S_k + S_l|, [K, K, Q]."""
        difference = self.mean[:, None] - self.mean[None]  # [K, K, Q, M]
        covariance = self.covariance()
        factor = torch.linalg.cholesky(covariance[:, None] + covariance[None])
        solved = torch.linalg.solve_triangular(factor, difference[..., None], upper=False)
        return solved.square().sum((-2, -1)), log_determinant(factor)


@dataclass(frozen=True)
class RootMoments(Moments):
    """Covariances by a root R, S = R R', for gradients with respect to R."""

    root: Tensor  # [K, Q, M, M]

    def covariance(self) -> Tensor:
        return self.root @ self.root.mT

    def upper_root(self) -> Tensor:
        return super().upper_root() if self.root.tril(-1).any() else self.root

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        return _weigh(self.mean, basis), (self.root.mT.to(basis.dtype) @ basis).square().sum(-2)

    def _trace(self) -> Tensor:
        return self.root.square().sum((-2, -1))


@dataclass(frozen=True)
class DiagonalMoments(Moments):
    """Diagonal covariances."""

    variance: Tensor  # [K, Q, M]

    def covariance(self) -> Tensor:
        return torch.diag_embed(self.variance)

    def upper_root(self) -> Tensor:
        return torch.diag_embed(self.variance.sqrt())

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        return _weigh(self.mean, basis), _weigh(self.variance, basis.square())

    def _pairs(self) -> tuple[Tensor, Tensor]:
        difference = self.mean[:, None] - self.mean[None]
        total = self.variance[:, None] + self.variance[None]
        return (difference.square() / total).sum(-1), total.log().sum(-1)


@dataclass(frozen=True)
class DenseMoments(Moments):
    """Covariances as they are, constants: gradients flow to the basis alone, and S A is computed once for both ways."""

    dense: Tensor  # S, [K, Q, M, M]

    def covariance(self) -> Tensor:
        return self.dense

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance, _ = self.condition(basis)
        return mean, variance

    def condition(self, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        constant = basis.detach()
        covariances = self.dense.to(basis.dtype, memory_format=torch.contiguous_format)
        if len(basis) == 1:  # one product for all
            products = (covariances.flatten(0, 2) @ constant[0]).unflatten(0, self.dense.shape[:3])
        else:
            products = covariances @ constant
        return _Projection.apply(basis, self.mean.to(basis.dtype), products)


@dataclass(frozen=True)
class FactoredMoments(Moments):
    """Covariances by the factors C of their inverses, S = (C C')^-1, constants, for a step with many inducing inputs.

    Two triangular solves in the precision of A for each batch of rows, instead of an inverse in float64. The trace of S
    is estimated, as the rest of the ELBO is: as the mean of s' S s over vectors s of random signs.
    """

    factor: Tensor  # C, [K, Q, M, M], in the precision of A
    trace: Tensor  # [K, Q]

    def covariance(self) -> Tensor:
        return torch.cholesky_inverse(self.factor)

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance, _ = self.condition(basis)
        return mean, variance

    def condition(self, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = basis.detach().mT  # solving from the right is twice as fast as from the left
        products = basis.new_empty(*self.factor.shape[:2], *basis.shape[1:])
        for k, factors in enumerate(self.factor):
            for q, factor in enumerate(factors):
                half = torch.linalg.solve_triangular(factor.mT, rows[q % len(rows)], upper=True, left=False)
                products[k, q] = torch.linalg.solve_triangular(factor, half, upper=False, left=False).mT
        return _Projection.apply(basis, self.mean.to(basis.dtype), products)

    def _trace(self) -> Tensor:
        return self.trace


@dataclass(frozen=True)
class HeldMoments(DenseMoments):
    """q(u) = N(m_u, S_u) held fixed: q(v) follows through v = L^-1 u. The fields are those of u."""

    prior_inverse: Tensor  # L^-1, [G, M, M]

    def covariance(self) -> Tensor:
        return self.prior_inverse @ self.dense @ self.prior_inverse.mT

    def whitened(self) -> DenseMoments:
        """L^-1 m_u and L^-1 S_u L^-T."""
        mean = (self.prior_inverse @ self.mean[..., None]).squeeze(-1)
        log_det = self.log_det + log_determinant(self.prior_inverse)
        return DenseMoments(self.log_weights, mean, log_det, self.covariance())

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        return self.project_weights(self.prior_inverse.mT.to(basis.dtype) @ basis)

    def condition(self, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return *self.project(basis), basis.square().sum(-2)

    def project_weights(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The same from W = L^-T A = Kzz^-1 Kzx, with which the way back needs no products of M x M matrices."""
        mean, variance, _ = super().condition(weights)
        return mean, variance

    def condition_cross(self, gram: Tensor, inverse: Tensor, cross: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights, norms = solve(gram, inverse, cross)  # W, and diag(Kxz W) = |A|^2
        return *self.project_weights(weights), norms

    def log_prior(self, gram: Tensor) -> Tensor:
        """E_q[log p(u)], exact for mixtures too: all of -KL(q || p) that kernel and inducing inputs can change."""
        second = self.dense + self.mean[..., None] * self.mean[..., None, :]  # [K, Q, M, M]
        return expected_log_normal(
            gram, self.prior_inverse, (self.log_weights.exp()[:, None, None, None] * second).sum(0)
        )

    def kl(self) -> Tensor:
        return self.whitened().kl()


class _Projection(torch.autograd.Function):
    """A' m and diag(A' S A), both [K, Q, B], and |A|^2 [G, B], for constants m and S: S A serves value and gradient."""

    @staticmethod
    def forward(ctx: Any, basis: Tensor, mean: Tensor, products: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, norms = products.new_empty(mean.shape[:2] + basis.shape[2:]), basis.new_empty(basis[:, 0].shape)
        scratch = torch.empty_like(basis[0])
        for g, block in enumerate(basis):  # one at a time: it stays in the cache
            torch.sum(torch.mul(block, block, out=scratch), 0, out=norms[g])
        for k, own in enumerate(products):
            for q, product in enumerate(own):
                torch.sum(torch.mul(product, basis[q % len(basis)], out=scratch), 0, out=value[k, q])
        ctx.save_for_backward(basis, products, mean)
        return _weigh(mean, basis), value.clamp_min_(0), norms

    @staticmethod
    @once_differentiable  # S A is a constant to autograd: a second derivative would be wrong in silence
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None, None]:
        basis, products, mean = ctx.saved_tensors
        slope, weights, norm_weights = (part.contiguous() for part in grad_outputs)  # [K, Q, B] twice, [G, B]
        gradient = basis * (2 * norm_weights)[:, None]
        weights = 2 * weights
        if len(basis) == 1:
            gradient[0].addmm_(mean.flatten(0, 1).mT, slope.flatten(0, 1))
        for k, own in enumerate(products):
            for q, product in enumerate(own):
                block = gradient[q % len(basis)]
                block.addcmul_(product, weights[k, q])
                if len(basis) > 1:
                    block.addcmul_(mean[k, q, :, None], slope[k, q])
        return gradient, None, None


def log_determinant(factor: Tensor) -> Tensor:
    """log |C C'| of triangular factors."""
    return 2 * torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1)


def _weigh(weights: Tensor, basis: Tensor) -> Tensor:
    """A' w [K, Q, B] for w [K, Q, M] and A [G, M, B]; one product where the basis is shared."""
    weights = weights.to(basis.dtype)
    if len(basis) == 1:
        return (weights.flatten(0, 1) @ basis[0]).unflatten(0, weights.shape[:2])
    return (weights[..., None, :] @ basis).squeeze(-2)
