"""Approximate posteriors over the whitened inducing values v = L^-1 u, whose prior is N(0, I).

`Posterior` is the module that a model owns: ordinary parameters, which any optimiser of PyTorch can learn. `Natural`,
`Held` and `Unwhitened` are what training passes in its place. All have `moments(prior_inverse)`, which is what a step
or a prediction asks of q.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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

__all__ = ["LARGE", "Held", "Natural", "Posterior", "Sites", "Unwhitened", "Variational"]

LARGE = 700  # inducing inputs from which a step is quicker without the inverse of the precision
PROBES = 16


class Variational(Protocol):
    """q: whatever has moments, given L^-1 [G, M, M]."""

    def moments(self, prior_inverse: Tensor, /) -> Moments: ...


class Posterior(nn.Module):
    """q(v) = sum_k pi_k prod_q N(m_kq, S_kq): one Gaussian, or a mixture of K; full covariances or diagonal ones.

    S = U U' with U upper triangular. It starts at the prior, m = 0 and S = I, pi = 1 / K. Components that start equal
    stay equal, so for K > 1 the means start at random, with standard deviation `spread`.

    >>> Posterior(num_latents=3, num_inducing=5, num_components=2).mean.shape
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
        self.log_scale = nn.Parameter(torch.zeros(shape, dtype=torch.float64))  # log of the diagonal of U
        self.upper = None if diagonal else nn.Parameter(torch.zeros(*shape, num_inducing, dtype=torch.float64))

    @property
    def has_natural_form(self) -> bool:
        """Whether natural gradients can train it: one Gaussian with a full covariance."""
        return self.upper is not None and len(self.logits) == 1

    def moments(self, prior_inverse: Tensor | None = None) -> Moments:
        log_weights, log_det = torch.log_softmax(self.logits, 0), 2 * self.log_scale.sum(-1)
        if self.upper is None:
            return DiagonalMoments(log_weights, self.mean, log_det, (2 * self.log_scale).exp())
        root = torch.diag_embed(self.log_scale.exp()) + self.upper.triu(1)
        return RootMoments(log_weights, self.mean, log_det, root)

    @torch.no_grad()
    def set_moments(self, mean: Tensor, covariance: Tensor) -> None:
        """Components N(mean, covariance), from [K, Q, M] and [K, Q, M, M]; a diagonal posterior takes the diagonals."""
        if self.upper is None:
            self.mean.copy_(mean)
            self.log_scale.copy_(0.5 * torch.diagonal(covariance, dim1=-2, dim2=-1).log())
        else:  # an upper triangular root: that of the matrix turned around, turned back
            self._set_root(mean, torch.linalg.cholesky(covariance.flip(-2, -1)).flip(-2, -1))

    @torch.no_grad()
    def set_natural(self, q: "Natural") -> None:
        """The Gaussian N(S b, S): with S^-1 = C C', the root is U = C^-T."""
        factor = torch.linalg.cholesky(q.precision)
        eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
        inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
        mean = inverse.mT @ (inverse @ q.shift[..., None])
        self._set_root(mean.squeeze(-1), inverse.mT)

    def _set_root(self, mean: Tensor, root: Tensor) -> None:
        assert self.upper is not None
        self.mean.copy_(mean)
        self.log_scale.copy_(torch.diagonal(root, dim1=-2, dim2=-1).log())
        self.upper.copy_(root.triu(1))


class Unwhitened(Posterior):
    """The same parameters for q(u), u = L v, as the paper has them: q(v) follows as L moves.

    It starts at N(0, I), as in the paper, where the posterior has its first covariance, I; else at the posterior's q.
    """

    def __init__(self, posterior: Posterior, prior_factor: Tensor):
        components, latents, size = posterior.mean.shape
        super().__init__(latents, size, components, diagonal=posterior.upper is None)
        self.to(posterior.mean.device).load_state_dict(posterior.state_dict())
        if any(part is not None and part.any() for part in (posterior.log_scale, posterior.upper)):
            moments = posterior.moments()
            self.set_whitened(moments.mean, moments.covariance(), prior_factor)

    def moments(self, prior_inverse: Tensor | None = None) -> Moments:
        """Of v = L^-1 u."""
        assert prior_inverse is not None
        root = torch.diag_embed(self.log_scale.exp())
        root = prior_inverse @ (root if self.upper is None else root + self.upper.triu(1))
        mean = (prior_inverse @ self.mean[..., None]).squeeze(-1)
        log_det = 2 * self.log_scale.sum(-1) + log_determinant(prior_inverse)
        return RootMoments(torch.log_softmax(self.logits, 0), mean, log_det, root)

    @torch.no_grad()
    def set_whitened(self, mean: Tensor, covariance: Tensor, prior_factor: Tensor) -> None:
        """From the moments of v: L m and L S L'."""
        self.set_moments((prior_factor @ mean[..., None]).squeeze(-1), prior_factor @ covariance @ prior_factor.mT)


class Sites(NamedTuple):
    """What rows add to the natural form of q, sums over the rows: A diag(-2 beta) A' and A (alpha - 2 beta mean)."""

    precision: tuple[Tensor, ...]  # the lower triangle of [Q, M, M] in blocks of rows, [Q, stop - start, stop]
    shift: Tensor  # [Q, M]

    @classmethod
    @torch.no_grad()
    def of_rows(cls, basis: Tensor, mean: Tensor, alpha: Tensor, beta: Tensor, weights: Tensor) -> "Sites":
        """From the basis A [G, M, B], the means of q(f) and alpha = dE[log p]/dmean, beta = dE[log p]/dvariance, all
        [B, Q], and the weights of the rows [B].

        Where log p is not concave -2 beta can be negative; it is clipped at 0, so that q stays proper.
        """
        curvature = (-2 * beta.mT.contiguous()).clamp_min_(0) * weights  # [Q, B]
        return cls.of(basis, alpha.mT * weights + curvature * mean.mT, curvature)

    @classmethod
    @torch.no_grad()
    def of(cls, basis: Tensor, slope: Tensor, curvature: Tensor) -> "Sites":
        """A diag(curvature) A' and A slope, from the basis A [G, M, B] and two numbers for each row, [Q, B]."""
        blocks = []
        for start, stop in row_blocks(basis.shape[1]):  # the product is symmetric: its lower half is enough
            weighted = basis[:, start:stop] * curvature[:, None]  # [Q, stop - start, B]
            if len(basis) == 1:  # one product for all
                blocks.append((weighted.flatten(0, 1) @ basis[0, :stop].mT).unflatten(0, weighted.shape[:2]))
            else:
                blocks.append(weighted @ basis[:, :stop].mT)
        return cls(tuple(blocks), cls.shift_of(basis, slope))

    @staticmethod
    def shift_of(basis: Tensor, slope: Tensor) -> Tensor:
        """A slope, [Q, M]."""
        return slope @ basis[0].mT if len(basis) == 1 else (basis @ slope[..., None]).squeeze(-1)

    def add_to(self, precision: Tensor, factor: float = 1.0) -> None:
        """Adds `factor` times the whole of A diag(curvature) A' to [Q, M, M], in place."""
        for (start, stop), rows in zip(row_blocks(precision.shape[-1]), self.precision, strict=True):
            below, corner = rows[..., :start], rows[..., start:]
            # Symmetric to the last bit.
            precision[:, start:stop, start:stop].add_(corner + corner.mT, alpha=0.5 * factor)
            if start:
                precision[:, start:stop, :start].add_(below, alpha=factor)
                precision[:, :start, start:stop].add_(below.mT, alpha=factor)

    def __add__(self, other: "Sites") -> "Sites":  # pyright: ignore[reportIncompatibleMethodOverride]
        blocks = (mine + theirs for mine, theirs in zip(self.precision, other.precision, strict=True))
        return Sites(tuple(blocks), self.shift + other.shift)


@dataclass(frozen=True)
class Natural:
    """One Gaussian in natural form, q(v) = N(S b, S) with S = Lambda^-1: natural gradients are linear in it.

    >>> Natural.prior(num_latents=1, num_inducing=2).moments().covariance()[0, 0].diagonal().tolist()
    [1.0, 1.0]
    """

    precision: Tensor  # Lambda, [Q, M, M]
    shift: Tensor  # b, [Q, M]

    @classmethod
    def prior(cls, num_latents: int, num_inducing: int, device: torch.device | None = None) -> "Natural":
        eye = torch.eye(num_inducing, dtype=torch.float64, device=device)
        return cls(eye.repeat(num_latents, 1, 1), eye.new_zeros(num_latents, num_inducing))

    @classmethod
    @torch.no_grad()
    def of(cls, posterior: Posterior) -> "Natural":
        """From m and S = U U': Lambda = U^-T U^-1 and b = Lambda m."""
        if not posterior.has_natural_form:
            raise TypeError("natural gradients need one Gaussian with a full covariance: num_components=1")
        moments = posterior.moments()
        assert isinstance(moments, RootMoments)
        root, mean = moments.root[0], moments.mean[0]
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
        inverse = torch.linalg.solve_triangular(root, eye, upper=True)
        precision = inverse.mT @ inverse
        return cls(0.5 * (precision + precision.mT), (precision @ mean[..., None]).squeeze(-1))

    @classmethod
    @torch.no_grad()
    def of_moments(cls, mean: Tensor, covariance: Tensor) -> "Natural":
        """From m [1, Q, M] and S [1, Q, M, M]."""
        precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance[0]))
        return cls(precision, (precision @ mean[0][..., None]).squeeze(-1))

    @torch.no_grad()
    def blend(self, sites: Sites, rate: float, scale: float = 1.0) -> None:
        """One natural-gradient step on the ELBO, of step size `rate` in (0, 1], in place.

            Lambda <- (1 - rate) Lambda + rate (I + scale A diag(-2 beta) A')
            b      <- (1 - rate) b      + rate      scale A (alpha - 2 beta mean)

        `scale` is N / B for a minibatch of B out of N rows.
        """
        if rate == 1:  # nothing stays of what was before, even if it was not finite
            self.shift.zero_()
            self.precision.zero_()
        self.shift.mul_(1 - rate).add_(sites.shift, alpha=rate * scale)
        self.precision.mul_(1 - rate).diagonal(dim1=-2, dim2=-1).add_(rate)
        sites.add_to(self.precision, rate * scale)

    @torch.no_grad()
    def plus(self, sites: Sites) -> "Natural":
        """The natural form with what rows add to it."""
        precision = self.precision.clone()
        sites.add_to(precision)
        return Natural(precision, self.shift + sites.shift)

    def moments(self, prior_inverse: Tensor | None = None) -> DenseMoments:
        factor, info = torch.linalg.cholesky_ex(self.precision)
        factor[:, -1, -1].add_(torch.where(info > 0, math.nan, 0.0))  # what follows from a factor that failed is NaN
        covariance = torch.cholesky_inverse(factor)
        mean = torch.bmm(self.shift[:, None], covariance).squeeze(1)  # b' S, half the time of S b
        return DenseMoments(self.shift.new_zeros(1), mean[None], -log_determinant(factor)[None], covariance[None])

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


@dataclass(frozen=True)
class Held:
    """q(u) held fixed, u = L v: as the kernel moves L, q(v) follows.

    Leave-one-out learning holds q(u), as the paper does; holding q(v) gives up what it gains.
    """

    log_weights: Tensor  # [K]
    mean: Tensor  # L m, [K, Q, M]
    log_det: Tensor  # log |L S L'|, [K, Q]
    covariance: Tensor  # L S L', [K, Q, M, M]

    @classmethod
    @torch.no_grad()
    def of(cls, moments: Moments, prior_factor: Tensor) -> "Held":
        """What the moments of q(v) say of u, for this L."""
        return cls(
            moments.log_weights.detach(),
            (prior_factor @ moments.mean[..., None]).squeeze(-1).detach(),
            (moments.log_det + log_determinant(prior_factor)).detach(),
            (prior_factor @ moments.covariance() @ prior_factor.mT).detach(),
        )

    def moments(self, prior_inverse: Tensor) -> HeldMoments:
        return HeldMoments(self.log_weights, self.mean, self.log_det, self.covariance, prior_inverse)
