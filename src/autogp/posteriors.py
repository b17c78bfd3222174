"""Approximate posteriors over the whitened inducing values v = L^-1 u, whose prior is N(0, I)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["GaussianPosterior", "HeldPosterior", "MixturePosterior", "Moments"]


@dataclass(frozen=True)
class Moments:
    """A mixture of K Gaussians over v, independent between the Q latents: sum_k pi_k prod_q N(mean_kq, S_kq).

    `root` is any R with S = R R'; for diagonal covariances only R's diagonal is kept.
    """

    log_weights: Tensor  # [K]
    mean: Tensor  # [K, Q, M]
    root: Tensor  # [K, Q, M, M], or [K, Q, M] where S is diagonal
    log_det: Tensor  # log |S|, [K, Q]

    @property
    def diagonal(self) -> bool:
        return self.root.ndim == 3

    def covariance(self) -> Tensor:  # [K, Q, M, M]
        return torch.diag_embed(self.root.square()) if self.diagonal else self.root @ self.root.mT

    def project(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """A' mean and diag(A' S A), both [K, Q, B], for a basis A [G, M, B] with G = 1 or Q."""
        mean, root = self.mean.to(basis.dtype), self.root.to(basis.dtype)
        if self.diagonal:
            return _apply(mean[..., None, :], basis).squeeze(-2), _apply(
                root.square()[..., None, :], basis.square()
            ).squeeze(-2)
        return _apply(mean[..., None, :], basis).squeeze(-2), _apply(root.mT, basis).square().sum(-2)

    def kl(self) -> Tensor:
        """KL(q || N(0, I)): exact for one component, else the smaller of two upper bounds.

        The first is convexity's, sum_k pi_k KL(q_k || p). The second is the paper's: Jensen's inequality on the
        entropy and the exact cross entropy.
        """
        weights = self.log_weights.exp()
        size = self.mean.shape[-1]
        trace = self.root.square().flatten(2).sum(-1)  # [K, Q]
        # E_k[-2 log p(v)] without its constant
        cross = trace + self.mean.square().sum(-1)
        convexity = 0.5 * (weights * (cross - size - self.log_det).sum(-1)).sum()
        if len(weights) == 1:
            return convexity
        cross_entropy = 0.5 * (weights * (cross + size * math.log(2 * math.pi)).sum(-1)).sum()
        overlap = torch.logsumexp(self.log_weights + self._log_overlaps(), -1)  # [K]
        return torch.minimum(convexity, (weights * overlap).sum() + cross_entropy)

    def _log_overlaps(self) -> Tensor:
        """log N(m_k; m_l, S_k + S_l), summed over the latents, [K, K]."""
        difference = self.mean[:, None] - self.mean[None]  # [K, K, Q, M]
        if self.diagonal:
            total = self.root.square()[:, None] + self.root.square()[None]
            mahalanobis, log_det = (difference.square() / total).sum(-1), total.log().sum(-1)
        else:
            covariance = self.covariance()
            factor = torch.linalg.cholesky(covariance[:, None] + covariance[None])
            solved = torch.linalg.solve_triangular(factor, difference[..., None], upper=False)
            mahalanobis, log_det = solved.square().sum((-2, -1)), _log_det(factor)
        return -0.5 * (mahalanobis + log_det + difference.shape[-1] * math.log(2 * math.pi)).sum(-1)


class GaussianPosterior(nn.Module):
    """q(v) = N(S b, S), S = Lambda^-1, in natural form: for training by natural gradients, which are linear in it."""

    precision: Tensor  # Lambda, [Q, M, M]
    shift: Tensor  # b, [Q, M]

    def __init__(self, num_latents: int, num_inducing: int):
        super().__init__()
        eye = torch.eye(num_inducing, dtype=torch.float64)
        self.register_buffer("precision", eye.repeat(num_latents, 1, 1))
        self.register_buffer("shift", torch.zeros(num_latents, num_inducing, dtype=torch.float64))

    def moments(self, prior_factor: Tensor | None = None) -> Moments:
        """Mean, root and determinant; the prior's factor L plays no part in whitened coordinates."""
        factor = torch.linalg.cholesky(self.precision)
        eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)  # C^-1, so S = C^-T C^-1
        root = inverse.mT
        mean = (root @ (inverse @ self.shift[..., None])).squeeze(-1)
        return Moments(self.shift.new_zeros(1), mean[None], root[None], -_log_det(factor)[None])

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
        curvature = (-2 * beta).clamp_min(0).mT * weights  # [Q, B]
        slope = alpha.mT * weights + curvature * mean.mT
        if basis.shape[0] == 1:  # one product instead of Q
            size = basis.shape[1]
            product = ((basis * curvature[:, None]).flatten(0, 1) @ basis[0].mT).unflatten(0, (-1, size))
            shift = slope @ basis[0].mT
        else:
            product = (basis * curvature[:, None]) @ basis.mT
            shift = (basis @ slope[..., None]).squeeze(-1)
        target = product.to(self.precision.dtype)
        target.diagonal(dim1=-2, dim2=-1).add_(1.0)
        self.precision.lerp_(0.5 * (target + target.mT), rate)
        self.shift.lerp_(shift.to(self.shift.dtype), rate)


class MixturePosterior(nn.Module):
    """q(v) = sum_k pi_k prod_q N(m_kq, S_kq), full or diagonal, for training by ordinary gradients.

    Starts at m = 0, S = I, pi = 1 / K. Components that start equal stay equal, so for K > 1 the means start at random,
    with standard deviation `spread`.

    >>> MixturePosterior(num_latents=3, num_inducing=5, num_components=2).moments().mean.shape
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
        generator = generator or torch.Generator().manual_seed(0)
        start = torch.randn(shape, dtype=torch.float64, generator=generator) * (spread if num_components > 1 else 0.0)
        self.logits = nn.Parameter(torch.zeros(num_components, dtype=torch.float64))
        self.mean = nn.Parameter(start)
        self.log_scale = nn.Parameter(torch.zeros(shape, dtype=torch.float64))  # log of the diagonal of the root
        self.lower = None if diagonal else nn.Parameter(torch.zeros(*shape, num_inducing, dtype=torch.float64))

    def moments(self, prior_factor: Tensor | None = None) -> Moments:
        scale = self.log_scale.exp()
        root = scale if self.lower is None else torch.diag_embed(scale) + self.lower.tril(-1)
        return Moments(torch.log_softmax(self.logits, 0), self.mean, root, 2 * self.log_scale.sum(-1))


class HeldPosterior(nn.Module):
    """A posterior held fixed over u = L v instead of v: as the kernel moves L, q(v) follows.

    Leave-one-out learning holds q(u), as the paper does; holding q(v) gives up what it gains.
    """

    log_weights: Tensor
    mean: Tensor
    root: Tensor
    log_det: Tensor

    def __init__(self, moments: Moments, prior_factor: Tensor):
        super().__init__()
        root = torch.diag_embed(moments.root) if moments.diagonal else moments.root
        self.register_buffer("log_weights", moments.log_weights.detach())
        self.register_buffer("mean", (prior_factor @ moments.mean[..., None]).squeeze(-1).detach())  # L m
        self.register_buffer("root", (prior_factor @ root).detach())  # L R
        self.register_buffer("log_det", (moments.log_det + _log_det(prior_factor)).detach())

    def moments(self, prior_factor: Tensor) -> Moments:
        mean = torch.linalg.solve_triangular(prior_factor, self.mean[..., None], upper=False).squeeze(-1)
        root = torch.linalg.solve_triangular(prior_factor, self.root, upper=False)
        return Moments(self.log_weights, mean, root, self.log_det - _log_det(prior_factor))


def _log_det(factor: Tensor) -> Tensor:
    """log |C C'| of triangular factors."""
    return 2 * torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1)


def _apply(matrix: Tensor, basis: Tensor) -> Tensor:
    """matrix [K, Q, R, M] times basis [G, M, B]: [K, Q, R, B], as one product where the basis is shared."""
    if basis.shape[0] == 1:
        return (matrix.flatten(0, 2) @ basis[0]).unflatten(0, matrix.shape[:3])
    return matrix @ basis
