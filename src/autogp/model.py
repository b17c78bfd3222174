"""The sparse Gaussian process: kernel, likelihood, inducing inputs and posterior, and the marginals they imply."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autogp.kernels import Kernel
from autogp.kernels.base import check_points
from autogp.likelihoods import Likelihood, Prediction
from autogp.linalg import FIRST_JITTER, NotPositiveDefiniteError, safe_cholesky, safe_factor_and_inverse, solve, whiten
from autogp.moments import HeldMoments, Moments, squared_norms
from autogp.posteriors import GaussianPosterior, HeldPosterior, MixturePosterior

__all__ = ["Joint", "Marginals", "Prepared", "SparseGP", "condition"]

CHUNK_NUMBERS = 2**24  # numbers in the largest temporary of a prediction: 64 MiB in float32


class Marginals(NamedTuple):
    """q(f_n) at B rows: for each row a mixture of K Gaussians, independent between the Q latents."""

    log_weights: Tensor  # [K]
    mean: Tensor  # [K, B, Q]
    variance: Tensor  # [K, B, Q]
    residual: Tensor  # of the variance what q(u) leaves, k(x, x) - |A|^2, [B, G]; rounding may have made it negative


class Prepared(NamedTuple):
    """The M x M work, done once for any number of rows."""

    factor: Tensor  # L, with L L' = Kzz + jitter, [G, M, M]
    inverse: Tensor  # L^-1
    moments: Moments  # of q(v), v = L^-1 u
    gram: Tensor  # Kzz


class Joint(NamedTuple):
    """q(f) at R rows together (the paper's appendix A)."""

    log_weights: Tensor  # [K]
    mean: Tensor  # [K, Q, R]
    covariance: Tensor  # [K, Q, R, R]


class SparseGP(nn.Module):
    """Q latent Gaussian processes summarised by M inducing inputs, and a likelihood.

    `inducing_inputs` are [M, D], shared by all latents, or [Q, M, D]. Blocks of B rows are computed in the precision
    of x; the M x M algebra is float64 always. The posterior is a full Gaussian unless another is given.

    The precision of `inducing_inputs` as given decides the jitter on Kzz for good, because q(v) means something only
    beside the L that it was learnt with: float32 rows of a model built in float64 are computed in float64.

    >>> import torch
    >>> from autogp.kernels import RBF
    >>> from autogp.likelihoods import Softmax
    >>> model = SparseGP(RBF(lengthscale=[1.0, 2.0]), Softmax(3), torch.randn(5, 2))
    >>> model.predict(torch.randn(4, 2)).mean.shape  # class probabilities
    torch.Size([4, 3])
    """

    jitter: Tensor  # relative to the diagonal of Kzz; where the ladder starts

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Likelihood,
        inducing_inputs: Tensor,
        posterior: GaussianPosterior | MixturePosterior | HeldPosterior | None = None,
    ):
        super().__init__()
        check_points(inducing_inputs=inducing_inputs)
        z = inducing_inputs.detach().to(torch.float64)
        z = (z[None] if z.ndim == 2 else z).clone(memory_format=torch.contiguous_format)
        if 0 in z.shape:
            raise ValueError(f"inducing_inputs must have rows and columns, got shape {tuple(inducing_inputs.shape)}")
        if z.shape[0] not in (1, likelihood.num_latents):
            raise ValueError(
                f"inducing_inputs must have shape [M, D] or [{likelihood.num_latents}, M, D] for a likelihood of "
                f"{likelihood.num_latents} latent functions, got {tuple(inducing_inputs.shape)}"
            )
        groups = kernel.gram(z[:1, :1], z[:1, :1]).shape[0]
        if groups not in (1, likelihood.num_latents):
            raise ValueError(
                f"the kernel has parameters for {groups} latent functions, "
                f"the likelihood needs 1 (shared) or {likelihood.num_latents}"
            )
        self.kernel = kernel
        self.likelihood = likelihood
        self.inducing_inputs = nn.Parameter(z)
        jitter = FIRST_JITTER.get(inducing_inputs.dtype, FIRST_JITTER[torch.float32])
        self.register_buffer("jitter", torch.tensor(jitter, dtype=torch.float64))
        self.posterior = posterior or GaussianPosterior(likelihood.num_latents, z.shape[1])

    @property
    def precision(self) -> torch.dtype:
        """Of the rows that the model was built for: float32, or float64 where the inducing inputs came in float64."""
        return torch.float64 if self.jitter < FIRST_JITTER[torch.float32] else torch.float32

    def prepare(self, moments: Moments | None = None) -> Prepared:
        """Factors of the prior and moments of the posterior, in float64; the latter may be at hand in another form."""
        gram = self.kernel.gram(self.inducing_inputs, self.inducing_inputs)
        factor, inverse = self._prior_factor(gram)
        moments = moments or self.posterior.moments(inverse)
        if moments.mean.shape[1:] != (self.likelihood.num_latents, factor.shape[-1]):
            raise ValueError(
                f"the posterior is over {moments.mean.shape[1]} latent functions at {moments.mean.shape[2]} inducing "
                f"inputs, the model has {self.likelihood.num_latents} and {factor.shape[-1]}"
            )
        return Prepared(factor, inverse, moments, gram)

    def basis(self, x: Tensor, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """A = L^-1 Kzx [G, M, B] and k(x, x) [G, B], from x [B, D]."""
        x = self._promote(x)
        return whiten(prepared.gram, prepared.inverse, self._cross(x)), self.kernel.diag(x)

    def marginals(self, x: Tensor, prepared: Prepared | None = None) -> Marginals:
        """q(f) at each row of x [B, D], with gradients."""
        self._check(x)
        prepared = prepared or self.prepare()
        moments = prepared.moments
        if not isinstance(moments, HeldMoments):
            return condition(*self.basis(x, prepared), moments)
        x = self._promote(x)
        weights, norms = solve(prepared.gram, prepared.inverse, self._cross(x))
        return _marginals(moments, moments.project_weights(weights), norms, self.kernel.diag(x))

    @torch.no_grad()
    def chunks(self, x: Tensor, chunk_size: int | None = None) -> Iterator[tuple[slice, Marginals]]:
        """Marginals of any number of rows, a chunk at a time; memory does not grow with the number of rows."""
        self._check(x)
        prepared = self.prepare()
        if chunk_size is None:
            components, latents, size = prepared.moments.mean.shape
            chunk_size = max(1, CHUNK_NUMBERS // (components * latents * max(size, x.shape[1], 512)))
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        for start in range(0, len(x), chunk_size):
            rows = slice(start, min(start + chunk_size, len(x)))
            yield rows, self.marginals(x[rows].to(self.inducing_inputs.device), prepared)

    @torch.no_grad()
    def predict(self, x: Tensor, chunk_size: int | None = None) -> Prediction:
        """Mean and variance of y at the rows of x [N, D]; for classes, their probabilities and p (1 - p)."""
        parts = [
            self.likelihood.predict(marginals.log_weights, marginals.mean, marginals.variance)
            for _, marginals in self.chunks(x, chunk_size)
        ]
        return Prediction(*(torch.cat(column).to(x.device) for column in zip(*parts, strict=True)))

    def joint(self, x: Tensor) -> Joint:
        """q(f) at the rows of x [R, D] together, with their covariances: b = A'm, Kxx - A'A + A'SA."""
        self._check(x)
        prepared = self.prepare()
        moments = prepared.moments
        basis, _ = self.basis(x, prepared)
        mean, _ = moments.project(basis)
        x = self._promote(x)
        prior = self.kernel.gram(x, x) - basis.mT @ basis  # [G, R, R]
        return Joint(moments.log_weights, mean, prior + basis.mT @ moments.covariance().to(x.dtype) @ basis)

    @torch.no_grad()
    def sample(self, x: Tensor, num_samples: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """Functions drawn from q, at the rows of x [R, D]: [num_samples, R, Q]."""
        self._check(x)
        # In float64: the rounding of float32 can be larger than what the data have left of the variance.
        log_weights, mean, covariance = self.joint(x.to(torch.float64))
        factor, mean = safe_cholesky(covariance).to(x.dtype), mean.to(x.dtype)  # [K, Q, R, R], [K, Q, R]
        component = torch.multinomial(log_weights.exp(), num_samples, replacement=True, generator=generator)
        shape = (num_samples, *mean.shape[1:], 1)
        noise = torch.randn(shape, dtype=x.dtype, device=x.device, generator=generator)
        draws = torch.empty(shape[:-1], dtype=x.dtype, device=x.device)  # [S, Q, R]
        for k in component.unique():
            chosen = component == k
            draws[chosen] = mean[k] + (factor[k] @ noise[chosen]).squeeze(-1)
        return draws.mT

    def _cross(self, x: Tensor) -> Tensor:
        """Kzx, [G, M, B]."""
        return self.kernel.gram(self.inducing_inputs.to(x.dtype), x)

    def _promote(self, x: Tensor) -> Tensor:
        """x in the precision of its block: its own, unless L^-1 would magnify its rounding."""
        return x.to(torch.float64) if FIRST_JITTER[x.dtype] > self.jitter else x

    def _prior_factor(self, gram: Tensor) -> tuple[Tensor, Tensor]:
        try:
            return safe_factor_and_inverse(gram, self.jitter.item())
        except NotPositiveDefiniteError as error:
            raise NotPositiveDefiniteError(self._explain(error)) from None

    def _check(self, x: Tensor) -> None:
        check_points(x=x)
        if x.ndim != 2 or x.shape[1] != self.inducing_inputs.shape[-1]:
            raise ValueError(f"x must have shape [N, {self.inducing_inputs.shape[-1]}], got {tuple(x.shape)}")
        if x.dtype not in FIRST_JITTER:
            raise TypeError(f"x must be float32 or float64, got {x.dtype}")
        if len(x) == 0:
            raise ValueError("x must have at least one row")

    def _explain(self, error: NotPositiveDefiniteError) -> str:
        z = self.inducing_inputs.detach()
        distance = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
        distance.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
        _, first, second = torch.unravel_index(distance.argmin(), distance.shape)
        return (
            f"{error} (kernel {type(self.kernel).__name__}; the closest inducing inputs, {first.item()} and "
            f"{second.item()}, are {distance.min().item():.3g} apart). Use fewer inducing inputs, or a kernel with "
            "shorter lengthscales or smaller parameters."
        )


def condition(basis: Tensor, prior_variance: Tensor, moments: Moments) -> Marginals:
    """q(f) from the basis A [G, M, B], k(x, x) [G, B] and q(v): mean A'm, variance k - |A|^2 + A'SA."""
    return _marginals(moments, moments.project(basis), squared_norms(basis), prior_variance)


def _marginals(moments: Moments, projected: tuple[Tensor, Tensor], norms: Tensor, prior_variance: Tensor) -> Marginals:
    """From A'm and diag(A'SA) [K, Q, B], |A|^2 [G, B] and k(x, x) [G, B]."""
    mean, explained = projected
    residual = prior_variance - norms
    floor = torch.finfo(norms.dtype).eps * prior_variance.detach()
    variance = torch.maximum(residual, floor) + explained
    return Marginals(moments.log_weights, mean.mT, variance.mT, residual.mT)
