"""What every likelihood is: log p(y | f), from which all expectations under a Gaussian q(f) follow."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autogp.likelihoods.quadrature import Integrand, align, diverges, expectation, gauss_hermite, lattice
from autogp.likelihoods.sampling import directions, log_mean, normal_nodes
from autogp.likelihoods.targets import check_labels, check_real_targets
from autogp.parameters import describe_parameters

__all__ = ["InfiniteLOOError", "Likelihood", "Prediction", "chunks"]

QUANTILE_DRAWS = 4096
QUANTILE_ROWS = 512  # at a time, so that the draws stay small
CHUNK_NUMBERS = 2**20  # of the noise that is worked on at a time
CACHE_NUMBERS = 2**18  # of an expectation without gradients, so that they stay in the cache


class InfiniteLOOError(ArithmeticError):
    """E_q[1 / p(y | f)] is infinite, so there is no leave-one-out score."""

    def __init__(self, likelihood: str, why: str):
        super().__init__(
            f"the leave-one-out objective is infinite for the {likelihood} likelihood: {why}. "
            "Use objective='predictive' (or 'elbo') instead."
        )


class Prediction(NamedTuple):
    """Moments of y at B rows; for a classification these are the classes' probabilities, and p (1 - p)."""

    mean: Tensor  # [B, P]; for a classification [B, C], or [B, 1] of class 1 where C = 2
    variance: Tensor  # as mean


class Likelihood(nn.Module):
    """p(y | f) for Q latent functions: write `log_prob`, declare what it can do, and it trains, predicts and is scored.

    Shapes: latent values f, and the means and variances of q(f), are [..., B, Q] with any leading axes; targets y are
    what `check_targets` returns, first axis B; results are [..., B]. Expectations are exact where a subclass knows a
    closed form, else by a rule: adaptive quadrature over one latent, Sobol points over several, refined until an error
    estimate is met. With `noise`, standard normal draws [S, ..., B, Q], they are the Monte Carlo averages of the paper.

    >>> import torch
    >>> class Laplace(Likelihood):
    ...     def log_prob(self, f, y):
    ...         return -(y - f[..., 0]).abs() - torch.tensor(2.0).log()
    >>> Laplace().expected_log_prob(torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(3)).shape
    torch.Size([3])
    """

    # What a subclass declares, as an attribute of the class or of the object.
    num_latents: int = 1  # Q
    num_outputs: int = 1  # P, columns of y
    num_classes: int | None = None  # C where y is a class: targets are labels 0 to C - 1
    allows_missing: bool = False  # a target that is NaN is missing, and adds nothing
    affine_targets: bool = False  # the family is closed under y -> a y + b: estimators scale the targets
    counts: bool = False  # targets are counts 0, 1, 2, ...
    takes_exposure: bool = False  # targets [B, P + 1] hold the row's exposure last; its log is added to f
    mean_is_latent: bool = False  # E[y | f] = f: an expected target needs no variance
    conjugate: bool = False  # the optimal q(u) is a Gaussian in closed form
    finite_loo: bool = False  # E_q[1 / p(y | f)] is finite for every Gaussian q

    @property
    def shared_noise(self) -> Tensor | None:
        """The variance [P] of Gaussian noise that is the same for all rows, where w(y) = f + noise."""
        return None

    def transform(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """w(y) of `shared_noise`, and the log of its derivative, [B, P] twice; y itself, unless a subclass differs."""
        return y, torch.zeros_like(y)

    @property
    def start_values(self) -> list[float] | None:
        """Where the latent functions start, [Q], if not at 0."""
        return None

    @property
    def sampled(self) -> frozenset[str]:
        """Which of "elbo", "loo" and "predictive" have no exact or nearly exact rule, so that training samples them."""
        return frozenset() if self.num_latents == 1 else frozenset({"elbo", "loo", "predictive"})

    @property
    def couples(self) -> bool:
        """Whether the log density of a row is more than a sum of terms of one latent function each."""
        return self.num_latents > 1

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y | f): [..., B] from f [..., B, Q] and y [B, ...]."""
        raise NotImplementedError(f"{type(self).__name__} must define log_prob(f, y)")

    def check_targets(self, y: Tensor) -> Tensor:
        """The targets in the form that `log_prob` takes, or an error that names the row and what is expected."""
        if self.num_classes is not None:
            return check_labels(y, self.num_classes)
        return check_real_targets(y, None if self.num_outputs == 1 else self.num_outputs, self.allows_missing)

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        """E_q[log p(y | f)], the data term of the evidence lower bound.

        Where gradients are recorded, which is in training, over one latent by points that stay where they are: value
        and gradients then belong to one function, smooth where log p has kinks. Values alone are adaptive.
        """
        if noise is None and self.num_latents == 1:
            if not torch.is_grad_enabled():
                return self._integrate(self._column, mean, variance, y, log=False).squeeze(-1)
            f, weights = lattice(mean, variance)
            return (weights.squeeze(-1) * self.log_prob(f, y)).sum(0)
        parts = self._parts(lambda values, log_weights: (log_weights.exp() * values).sum(0), mean, variance, y, noise)
        return parts.sum(0)

    def log_expected_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        """log E_q[p(y | f)], the log predictive density of y."""
        if noise is None:
            return self._log_expectation(self.log_prob, mean, variance, y)
        parts = self._parts(lambda values, log_weights: (log_weights + values).logsumexp(0), mean, variance, y, noise)
        return torch.logsumexp(parts, 0)

    def log_expected_inverse_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """log E_q[1 / p(y | f)], what `log_leave_one_out` is made of; infinity where the integral is infinite.

        An average of samples is finite even where the integral is not: it must not pass for an estimate. So 1 / p is
        followed to where q(f) has died away, unless the likelihood declares `finite_loo`.
        """
        if noise is None:
            value = self._log_expectation(lambda f, y: -self.log_prob(f, y), mean, variance, y)
        else:
            parts = self._parts(lambda log_p, log_weights: (log_weights - log_p).logsumexp(0), mean, variance, y, noise)
            value = torch.logsumexp(parts, 0)
        return value if self.finite_loo else torch.where(self._diverges(mean, variance, y), math.inf, value)

    def log_leave_one_out(
        self,
        log_weights: Tensor,
        mean: Tensor,
        variance: Tensor,
        residual: Tensor,
        y: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        """log p(y | all other rows) = -log sum_k pi_k E_k[1 / p(y | f)], [B], for the q(f) of `model(x)`.

        log_weights are [K], mean and variance [K, B, Q], and residual [B, G] is what q(u) leaves of the variance, for
        likelihoods that take a row out of q(u) instead. Raises InfiniteLOOError where the integral is infinite.
        """
        values = self.log_expected_inverse_prob(mean, variance, y, noise)  # [K, B]
        self._refuse_infinite(torch.isinf(values).any(0), variance)
        return -torch.logsumexp(log_weights.to(values.dtype)[:, None] + values, 0)

    def log_left_out(self, log_weights: Tensor, mean: Tensor, variance: Tensor, residual: Tensor, y: Tensor) -> Tensor:
        """log p(y | all other rows), [B], as log E[p(y | f)] under q(u) without the row's own site.

        At q's optimum a row adds the curvature c = -2 dE[log p]/dvariance and the slope dE[log p]/dmean + c mean to the
        natural parameters of what q(u) says of f, N(mean, spread). Unlike E[1 / p] this exists for every likelihood
        that is log-concave, and has little bias where a likelihood couples latents that q takes as independent. For
        several components it is `log_leave_one_out`.
        """
        if len(log_weights) > 1:
            return self.log_leave_one_out(log_weights, mean, variance, residual, y)
        alpha, beta = self.expected_derivatives(mean[0], variance[0], y)  # [B, Q]
        curvature, residual = (-2 * beta).clamp_min(0), residual.clamp_min(0)
        spread = (variance[0] - residual).clamp_min(0)
        rest = 1 - spread * curvature
        self._refuse_infinite((rest <= 0).any(-1), variance)
        centre = (mean[0] - spread * (alpha + curvature * mean[0])) / rest
        return self.log_expected_prob(centre, spread / rest + residual, y)

    def expected_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """dE_q[log p]/dmean and dE_q[log p]/dvariance, both [..., B, Q].

        With `noise` as E[d log p / df] and E[d^2 log p / df^2] / 2 (Bonnet, Price): far less noise in the second than
        differentiating through the samples gives.
        """
        with torch.enable_grad():
            if noise is None:
                mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
                value = self.expected_log_prob(mean, variance, y).sum()
                alpha, beta = torch.autograd.grad(value, (mean, variance))
                return alpha, beta
            alpha, beta = torch.zeros_like(mean), torch.zeros_like(mean)
            for part in chunks(noise):
                f = (mean + variance.sqrt() * part).detach().requires_grad_()
                (slope,) = torch.autograd.grad(self.log_prob(f, y).sum(), f, create_graph=True)
                alpha += slope.detach().sum(0)
                if slope.requires_grad:  # else log p is linear in f, as it may be through a parameter too
                    for q in range(f.shape[-1]):
                        (row,) = torch.autograd.grad(slope[..., q].sum(), f, retain_graph=True, materialize_grads=True)
                        beta[..., q] += row[..., q].sum(0)
        return alpha / len(noise), 0.5 * beta / len(noise)

    def expected_curvature(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        """Minus the second derivatives of E_q[log p] by the means, [B, Q, Q], for means and variances [B, Q]."""
        with torch.enable_grad():
            mean = mean.detach().requires_grad_()
            value = self.expected_log_prob(mean, variance.detach(), y, noise).sum()
            (slope,) = torch.autograd.grad(value, mean, create_graph=True)
            columns = [torch.zeros_like(mean)] * mean.shape[-1]
            if slope.requires_grad:  # else log p is linear in f
                columns = [
                    torch.autograd.grad(each.sum(), mean, retain_graph=True, materialize_grads=True)[0]
                    for each in slope.unbind(-1)
                ]
        return -torch.stack(columns, -1)

    def with_row_noise(self) -> "Likelihood | None":
        """The same with a known variance on top of each row's noise, given beside its targets, [B, 2 P]; None where
        there is no such likelihood."""
        return None

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """E[y | f] and Var[y | f], [..., B, P]; of classes p(y = c | f) and p (1 - p), [..., B, C].

        A likelihood of numbers that does not define it predicts f itself.
        """
        if self.num_classes is None:
            return f, torch.zeros_like(f)
        labels = torch.arange(self.num_classes, device=f.device)[:, None].expand(-1, f.shape[-2])  # [C, B]
        p = torch.stack([self.log_prob(f, label).exp() for label in labels], -1)
        return p, p * (1 - p)

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """E[y] and Var[y] under q(f), [..., B, P], by the law of total variance."""
        expected = self._expect(lambda f, _: self.conditional_moments(f)[0], mean, variance, mean)
        if self.num_classes is not None:
            return expected, expected * (1 - expected)

        def around(f: Tensor, expected: Tensor) -> Tensor:
            centre, spread = self.conditional_moments(f)
            return spread + (centre - expected).square()

        return expected, self._expect(around, mean, variance, expected)

    def predict(self, log_weights: Tensor, mean: Tensor, variance: Tensor) -> Prediction:
        """Moments of y under the mixture sum_k exp(log_weights_k) N(mean_k, variance_k); [K], [K, B, Q] twice."""
        centre, spread = self.predictive_moments(mean, variance)
        weights = log_weights.exp().to(centre.dtype)[:, None, None]
        expected = (weights * centre).sum(0)
        return Prediction(expected, (weights * (spread + (centre - expected).square())).sum(0))

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A draw of y for each f [..., B, Q]: [..., B, P], or labels [..., B]. Quantiles are found from draws."""
        raise NotImplementedError(f"{type(self).__name__} must define sample(f, generator) to draw targets")

    def quantiles(self, log_weights: Tensor, mean: Tensor, variance: Tensor, levels: Tensor) -> Tensor:
        """Values [R, B, P] that y stays below with the probabilities `levels` [R], under the mixture of `predict`.

        By as many draws as put a level of 5 % within 0.3 %; the same draws at every call.
        """
        generator = torch.Generator(mean.device).manual_seed(0)
        found = []
        for start in range(0, mean.shape[1], QUANTILE_ROWS):
            rows = slice(start, start + QUANTILE_ROWS)
            component = torch.multinomial(log_weights.exp(), QUANTILE_DRAWS, replacement=True, generator=generator)
            shape = (QUANTILE_DRAWS, *mean[0, rows].shape)
            noise = torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=generator)
            f = mean[component, rows] + variance[component, rows].sqrt() * noise  # [S, B, Q]
            # Without interpolation: quantiles of counts are counts.
            place = (levels.clamp(0, 1) * (QUANTILE_DRAWS - 1)).round().long()
            found.append(self.sample(f, generator).sort(0).values[place])
        return torch.cat(found, 1)

    def describe(self, unit: Tensor | float = 1.0) -> str:
        """A line for summaries; targets were divided by `unit` [P], so that noise is that many times larger in y."""
        of_what = " (of scaled targets)" if self.affine_targets else ""
        return ", ".join([type(self).__name__, *describe_parameters(self, "output")]) + of_what

    def _refuse_infinite(self, infinite: Tensor, variance: Tensor) -> None:
        """Raises InfiniteLOOError that names the first of the rows [B] which are infinite."""
        if infinite.any():
            first = int(infinite.nonzero()[0])
            raise InfiniteLOOError(
                type(self).__name__,
                f"at {int(infinite.sum())} of {len(infinite)} rows q(f) is too wide (the first is row {first}, with "
                f"variance {variance[:, first].max().item():.3g})",
            )

    @property
    def _one_each(self) -> bool:
        """Whether every expectation is over one latent."""
        return self.num_latents == 1

    def _column(self, f: Tensor, y: Tensor) -> Tensor:
        return self.log_prob(f, y)[..., None]

    def _integrate(
        self,
        values: Callable[[Tensor, Tensor], Tensor],
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        log: bool,
    ) -> Tensor:
        """E_q[values(f, y)] or log E_q[exp(values(f, y))], each over one latent: [..., B, C] from values [H, n, C]."""
        integrand, rows = self._integrand(values, mean, variance, y), mean[..., 0].numel()
        result = expectation(integrand, rows, mean.device, log, _targets_at(mean, variance, y))
        return result.unflatten(0, mean.shape[:-1]).to(mean.dtype)

    def _expect(self, values: Callable[[Tensor, Tensor], Tensor], mean: Tensor, variance: Tensor, at: Tensor) -> Tensor:
        """E_q[values(f, at)], [..., B, C], for values [H, ..., B, C] and at [..., B, C]."""
        if self._one_each:
            return self._integrate(values, mean, variance, at.flatten(0, -2), log=False)
        nodes, log_weights = self._nodes(mean)
        some = max(1, CACHE_NUMBERS // max(1, mean.numel()))  # nodes at a time
        parts = zip(nodes.split(some), log_weights.exp().split(some), strict=True)
        spread = variance.sqrt()
        # Not by a product with the weights, whose rounding would depend on the place of a row.
        found = [(weights * values(torch.addcmul(mean, spread, part), at)).sum(0) for part, weights in parts]
        return torch.stack(found).sum(0)

    def _log_expectation(
        self, log_values: Callable[[Tensor, Tensor], Tensor], mean: Tensor, variance: Tensor, y: Tensor
    ) -> Tensor:
        """log E_q[exp(log_values(f, y))] of values [H, n] that may depend on all latents: [..., B]."""
        if self.num_latents == 1:
            return self._integrate(lambda f, y: log_values(f, y)[..., None], mean, variance, y, log=True).squeeze(-1)
        integrand = self._integrand(log_values, mean, variance, y)
        result = log_mean(integrand, mean[..., 0].numel(), self.num_latents, mean.device)
        return result.unflatten(0, mean.shape[:-1]).to(mean.dtype)

    @torch.no_grad()
    def _diverges(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Whether E_q[1 / p(y | f)] is infinite, [..., B]: along some direction 1 / p outgrows what q(f) falls by."""
        found = torch.zeros(mean.shape[:-1], dtype=torch.bool, device=mean.device)
        for direction in directions(self.num_latents).to(mean.device):
            integrand = self._integrand(lambda f, y: -self._column(f, y), mean, variance, y)
            along = partial(_along, integrand, direction)
            found |= diverges(along, found.numel(), mean.device).any(-1).unflatten(0, mean.shape[:-1])
        return found

    def _integrand(
        self, values: Callable[[Tensor, Tensor], Tensor], mean: Tensor, variance: Tensor, y: Tensor
    ) -> Integrand:
        """The integrand of quadrature.py: values at z [H, n] or [H, n, Q] of some of the rows, in float64."""
        flat_mean, flat_scale = mean.flatten(0, -2).double(), variance.flatten(0, -2).double().sqrt()
        targets = y.double() if y.is_floating_point() else y

        def integrand(z: Tensor, rows: Tensor) -> Tensor:
            f = flat_mean[rows] + flat_scale[rows] * (z if z.ndim == 3 else z[..., None])
            return values(f, targets[rows % len(targets)])

        return integrand

    def _nodes(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Points [H, 1, ..., Q] and log weights [H, 1, ..., 1] of the default rule for a standard normal."""
        return align(gauss_hermite() if self.num_latents == 1 else normal_nodes(self.num_latents), mean)

    def _parts(
        self,
        reduce: Callable[[Tensor, Tensor], Tensor],
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor | None,
    ) -> Tensor:
        """What `reduce` makes of log p at the points of a rule [H, ..., B] and of their log weights, [1, ..., B].

        Much noise goes in chunks, a part for each; the backward pass computes a chunk again, so that memory holds one.
        """
        if noise is None:
            nodes, log_weights = self._nodes(mean)
        else:
            nodes, log_weights = noise, mean.new_full((1,) * (mean.ndim + 1), -math.log(len(noise)))

        def part(mean: Tensor, variance: Tensor, nodes: Tensor) -> Tensor:
            return reduce(self.log_prob(mean + variance.sqrt() * nodes, y), log_weights.squeeze(-1))

        if noise is None or noise.numel() <= CHUNK_NUMBERS:
            return part(mean, variance, nodes)[None]
        again = partial(checkpoint, part, mean, variance, use_reentrant=False, preserve_rng_state=False)
        return torch.stack([again(chunk) for chunk in chunks(noise)])


@torch.no_grad()
def _targets_at(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor | None:
    """z [n, P] at which f is the target: where a likelihood of numbers may have a peak. None for other targets."""
    if not y.is_floating_point() or y.numel() != mean.shape[-2:].numel():
        return None
    z = (y.reshape(mean.shape[-2:]).double() - mean) / variance.double().sqrt()
    return z.nan_to_num(0.0, 0.0, 0.0).flatten(0, -2)


def _along(integrand: Callable[[Tensor, Tensor], Tensor], direction: Tensor, z: Tensor, rows: Tensor) -> Tensor:
    """An integrand over several latents, at distances z along a direction [Q]."""
    return integrand(z[..., None] * direction, rows)


def chunks(noise: Tensor) -> tuple[Tensor, ...]:
    """Draws [S, ...] in parts that a cache can hold what is made of them."""
    return noise.split(max(1, CHUNK_NUMBERS // max(1, noise[0].numel())))
