"""The sparse Gaussian process: features, kernel, likelihood, inducing inputs and posterior; the marginals of q(f)."""

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autogp.kernels import Kernel
from autogp.kernels.base import check_finite, check_points
from autogp.likelihoods import Likelihood, Prediction
from autogp.linalg import (
    FIRST_JITTER,
    NotPositiveDefiniteError,
    row_blocks,
    safe_cholesky,
    safe_factor_and_inverse,
    whiten,
)
from autogp.moments import Moments
from autogp.posteriors import Posterior, Variational

__all__ = ["Joint", "Marginals", "Predictor", "Prepared", "SparseGP", "apply_map", "condition"]

CHUNK_NUMBERS = 2**22  # in the largest temporary of a prediction: 16 MiB in float32


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

    `features` is any module from rows [B, ...] to [B, D], learnt with the kernel unless its parameters are frozen;
    without it the rows are the inputs of the kernel. `inducing_inputs` live in its output space: [M, D], shared by all
    latents, or [Q, M, D]. The posterior is one full Gaussian unless another is given.

    `model(x)` gives the marginals of q(f), with gradients. Rows are computed in the precision of `inducing_inputs` as
    given, the M x M algebra in float64 always. That precision also decides the jitter on Kzz, for good: q(v) means
    something only beside the L that it was learnt with.

    >>> import torch
    >>> from autogp.kernels import RBF
    >>> from autogp.likelihoods import Softmax
    >>> model = SparseGP(RBF(lengthscale=[1.0, 2.0]), Softmax(3), torch.randn(5, 2))
    >>> model(torch.randn(4, 2)).mean.shape
    torch.Size([1, 4, 3])
    >>> model.predict(torch.randn(4, 2)).mean.shape  # class probabilities
    torch.Size([4, 3])
    """

    jitter: Tensor  # relative to the diagonal of Kzz; where the ladder starts; on the CPU, so that no step waits for it

    def __init__(
        self,
        kernel: Kernel,
        likelihood: Likelihood,
        inducing_inputs: Tensor,
        features: nn.Module | None = None,
        posterior: Posterior | None = None,
    ):
        super().__init__()
        check_points(inducing_inputs=inducing_inputs)
        check_finite(inducing_inputs=inducing_inputs)
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
        self.features = features
        self.kernel = kernel
        self.likelihood = likelihood
        self.inducing_inputs = nn.Parameter(z)
        jitter = FIRST_JITTER.get(inducing_inputs.dtype, FIRST_JITTER[torch.float32])
        self.register_buffer("jitter", torch.tensor(jitter, dtype=torch.float64))
        self.posterior = posterior or Posterior(likelihood.num_latents, z.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """The precision of blocks of rows: float32, or float64 where the inducing inputs came in float64."""
        return torch.float64 if self.jitter < FIRST_JITTER[torch.float32] else torch.float32

    @property
    def device(self) -> torch.device:
        return self.inducing_inputs.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SparseGP":
        jitter = self.jitter
        super()._apply(fn, recurse)
        self.jitter = jitter
        return self

    def forward(self, x: Tensor, q: Variational | None = None) -> Marginals:
        """q(f) at each row of x, with gradients; `q` stands in for the model's own posterior."""
        phi = self.embed(x)
        check_finite(x=phi)
        return self.marginals(phi, self.prepare(q))

    def embed(self, x: Tensor) -> Tensor:
        """The inputs of the kernel, phi(x) [B, D], in the model's precision."""
        if not isinstance(x, Tensor) or x.is_complex():
            raise TypeError(f"x must be a tensor of real numbers, got {type(x).__name__}")
        if len(x) == 0:
            raise ValueError("x must have at least one row")
        phi = x if self.features is None else apply_map(self.features, x)
        columns = self.inducing_inputs.shape[-1]
        if phi.ndim != 2 or phi.shape[1] != columns:
            what = "x must have" if self.features is None else "features must give"
            raise ValueError(f"{what} shape [N, {columns}], got {tuple(phi.shape)}")
        return phi.to(self.dtype)

    def prepare(self, q: Variational | Moments | None = None) -> Prepared:
        """Factors of the prior and moments of q, in float64; the moments may be at hand already."""
        gram = self.kernel.gram(self.inducing_inputs, self.inducing_inputs)
        try:
            factor, inverse = safe_factor_and_inverse(gram, self.jitter.item())
        except NotPositiveDefiniteError as error:
            raise NotPositiveDefiniteError(self._explain(error)) from None
        moments = q if isinstance(q, Moments) else (q or self.posterior).moments(inverse)
        if moments.mean.shape[1:] != (self.likelihood.num_latents, factor.shape[-1]):
            raise ValueError(
                f"the posterior is over {moments.mean.shape[1]} latent functions at {moments.mean.shape[2]} inducing "
                f"inputs, the model has {self.likelihood.num_latents} and {factor.shape[-1]}"
            )
        return Prepared(factor, inverse, moments, gram)

    def basis(self, phi: Tensor, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """A = L^-1 Kzx [G, M, B] and k(x, x) [G, B]."""
        return whiten(prepared.gram, prepared.inverse, self.cross(phi)), self.kernel.diag(phi)

    def marginals(self, phi: Tensor, prepared: Prepared) -> Marginals:
        """q(f) at inputs of the kernel phi [B, D]."""
        moments = prepared.moments
        found = moments.condition_cross(prepared.gram, prepared.inverse, self.cross(phi))
        return _marginals(moments.log_weights, *found, self.kernel.diag(phi))

    def predictor(self, q: Variational | None = None) -> "Predictor":
        """The model as it is now, with its M x M work done, for any number of rows."""
        return Predictor(self, q)

    def predict(self, x: Tensor) -> Prediction:
        """Mean and variance of y at the rows of x [N, ...]; for classes, their probabilities and p (1 - p)."""
        return self.predictor().predict(x)

    def joint(self, x: Tensor) -> Joint:
        """q(f) at the rows of x [R, ...] together, with their covariances: b = A'm, Kxx - A'A + A'SA, in float64."""
        phi = self.embed(x).to(torch.float64)  # the rounding of float32 can exceed what the data leave of the variance
        check_finite(x=phi)
        prepared = self.prepare()
        moments = prepared.moments
        basis, _ = self.basis(phi, prepared)
        mean, _ = moments.project(basis)
        prior = self.kernel.gram(phi, phi) - basis.mT @ basis  # [G, R, R]
        return Joint(moments.log_weights, mean, prior + basis.mT @ moments.covariance() @ basis)

    @torch.no_grad()
    def sample(self, x: Tensor, num_samples: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """Functions drawn from q, at the rows of x [R, ...]: [num_samples, R, Q]."""
        log_weights, mean, covariance = self.joint(x)
        factor, mean = safe_cholesky(covariance).to(self.dtype), mean.to(self.dtype)  # [K, Q, R, R], [K, Q, R]
        component = torch.multinomial(log_weights.exp(), num_samples, replacement=True, generator=generator)
        shape = (num_samples, *mean.shape[1:], 1)
        noise = torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=generator)
        draws = noise.new_empty(shape[:-1])  # [S, Q, R]
        for k in component.unique():
            chosen = component == k
            draws[chosen] = mean[k] + (factor[k] @ noise[chosen]).squeeze(-1)
        return draws.mT

    def cross(self, phi: Tensor) -> Tensor:
        """Kzx, [G, M, B]."""
        return self.kernel.gram(self.inducing_inputs.to(phi.dtype), phi)

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


class Predictor:
    """A model as it was when this was made: rows cost products with M x M matrices, nothing that is M x M x M.

    >>> import torch
    >>> from autogp.kernels import RBF
    >>> from autogp.likelihoods import Gaussian
    >>> predictor = SparseGP(RBF(), Gaussian(), torch.zeros(1, 2)).predictor()
    >>> predictor.quantiles(torch.zeros(3, 2), torch.tensor([0.05, 0.95])).shape
    torch.Size([2, 3, 1])
    """

    @torch.no_grad()
    def __init__(self, model: SparseGP, q: Variational | None = None):
        prepared = model.prepare(q)
        moments, inverse = prepared.moments.whitened(), prepared.inverse  # q(v) and L^-1 [G, M, M]
        self._log_weights = moments.log_weights.to(model.dtype)
        self._shape = moments.mean.shape[:2]  # K, Q
        roots, means = (_grouped(part, len(inverse)) for part in (moments.upper_root().mT, moments.mean))
        # With S = R R', R upper triangular: L^-1 and R' L^-1 are lower triangular, [G, 1 + KQ / G, M, M].
        maps = torch.cat([inverse[:, None], roots @ inverse[:, None]], 1)
        self._maps = [
            (stop, maps[:, :, start:stop, :stop].flatten(1, 2).to(model.dtype))
            for start, stop in row_blocks(inverse.shape[-1])
        ]
        self._means = (means @ inverse).to(model.dtype)  # m' L^-1, [G, KQ / G, M]
        self._model = copy.copy(model)  # with parts of its own, all but the posterior, whose moments are kept above
        self._model._modules = {
            name: None if name == "posterior" else copy.deepcopy(part) for name, part in model._modules.items()
        }
        z = model.inducing_inputs.detach().to(model.dtype, copy=True)
        self._model._parameters = {"inducing_inputs": nn.Parameter(z)}
        self._model.requires_grad_(False).eval()  # layers such as dropout and batch normalisation do not learn here
        self.likelihood: Likelihood = self._model.likelihood

    def predict(self, x: Tensor) -> Prediction:
        """Mean and variance of y at the rows of x [N, ...]; for classes, their probabilities and p (1 - p)."""
        parts = [self.likelihood.predict(*marginals[:3]) for _, marginals in self.chunks(x)]
        return Prediction(*(torch.cat(column).to(x.device) for column in zip(*parts, strict=True)))

    def quantiles(self, x: Tensor, levels: Tensor) -> Tensor:
        """Values [R, N, P] that y stays below with the probabilities `levels` [R]."""
        levels = levels.to(self._model.device)
        parts = [self.likelihood.quantiles(*marginals[:3], levels) for _, marginals in self.chunks(x)]
        return torch.cat(parts, 1).to(x.device)

    @torch.no_grad()
    def chunks(self, x: Tensor, chunk_size: int | None = None) -> Iterator[tuple[slice, Marginals]]:
        """q(f) at any number of rows, a chunk at a time: memory does not grow with the number of rows."""
        chunk_size = self.chunk_rows if chunk_size is None else chunk_size
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
        for start in range(0, max(len(x), 1), chunk_size):
            rows = slice(start, min(start + chunk_size, len(x)))
            yield rows, self(x[rows])

    @property
    def chunk_rows(self) -> int:
        """How many rows keep the largest temporary within 16 MiB."""
        groups, count, size = self._means.shape
        widest = max(groups * (1 + count) * size, self._model.inducing_inputs.shape[-1], 512 * groups * count)
        return max(1, CHUNK_NUMBERS // widest)

    def after(self, features: nn.Module) -> "Predictor":
        """The same of rows x, where this one is of rows features(x)."""
        found = copy.copy(self)
        found._model = copy.copy(self._model)
        own = self._model.features
        both = features if own is None else nn.Sequential(features, own)
        found._model._modules = {**self._model._modules, "features": both}
        return found

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Marginals:
        """q(f) at each row of x, all at once."""
        return self.at(self._embed(x))

    @torch.no_grad()
    def at(self, phi: Tensor) -> Marginals:
        """q(f) at inputs of the kernel, phi [B, D]."""
        check_finite(x=phi)
        cross = self._model.cross(phi)  # Kzx, [G, M, B]
        count = 1 + self._means.shape[1]
        products = ((rows @ cross[:, :stop]).square_().unflatten(1, (count, -1)) for stop, rows in self._maps)
        # |L^-1 Kzx|^2 = |A|^2 and |R' L^-1 Kzx|^2 = A' S A, [G, 1 + KQ / G, B]
        norms = torch.stack([block.sum(2) for block in products]).sum(0)
        mean, explained = self._latent_means(cross), _ungrouped(norms[:, 1:], self._shape)
        return _marginals(self._log_weights, mean, explained, norms[:, 0], self._model.kernel.diag(phi))

    @torch.no_grad()
    def mean(self, x: Tensor) -> Tensor:
        """E[f] at each row of x, [B, Q], all at once: a small part of the work for q(f)."""
        phi = self._embed(x)
        check_finite(x=phi)
        means = self._latent_means(self._model.cross(phi))
        return (self._log_weights.exp()[:, None, None] * means).sum(0).mT

    def _embed(self, x: Tensor) -> Tensor:
        return self._model.embed(x.to(self._model.device) if isinstance(x, Tensor) else x)

    def _latent_means(self, cross: Tensor) -> Tensor:
        """A' m = (m' L^-1) Kzx, [K, Q, B]."""
        return _ungrouped(self._means @ cross, self._shape)


def _grouped(parts: Tensor, groups: int) -> Tensor:
    """What belongs to each basis: [G, KQ / G, ...] from [K, Q, ...], where G is 1 or Q."""
    return parts.flatten(0, 1)[None] if groups == 1 else parts.transpose(0, 1)


def _ungrouped(parts: Tensor, shape: torch.Size) -> Tensor:
    """The way back, for [K, Q] = shape."""
    return parts[0].unflatten(0, shape) if len(parts) == 1 else parts.transpose(0, 1)


def apply_map(features: nn.Module, x: Tensor) -> Tensor:
    """features(x), where rows reach a module that has parameters in the precision of these."""
    parameter = None if getattr(features, "any_dtype", False) else next(features.parameters(), None)
    return features(x if parameter is None else x.to(parameter.dtype))


def condition(basis: Tensor, prior_variance: Tensor, moments: Moments) -> Marginals:
    """q(f) from the basis A [G, M, B], k(x, x) [G, B] and q(v): mean A'm, variance k - |A|^2 + A'SA."""
    return _marginals(moments.log_weights, *moments.condition(basis), prior_variance)


def _marginals(
    log_weights: Tensor, mean: Tensor, explained: Tensor, norms: Tensor, prior_variance: Tensor
) -> Marginals:
    """From A'm and diag(A'SA) [K, Q, B], |A|^2 [G, B] and k(x, x) [G, B]."""
    residual = prior_variance - norms
    floor = torch.finfo(norms.dtype).eps * prior_variance.detach()
    variance = torch.maximum(residual, floor) + explained
    return Marginals(log_weights, mean.mT, variance.mT, residual.mT)
