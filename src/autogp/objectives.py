"""What is optimised: the ELBO, leave-one-out and the predictive density, as plain functions.

`elbo`, `loo` and `predictive` take a model and a batch, and estimate a total over all `num_data` rows in nats: the
batch's rows are scaled by num_data / B, where B is the batch's true size. Nothing is divided by the number of rows.
Each sums a value of every row, `ROWS[name]`; training steps sum the same values.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from autogp.kernels.base import check_finite
from autogp.likelihoods import Likelihood
from autogp.model import Marginals, Prepared, SparseGP
from autogp.posteriors import Variational

__all__ = ["ROWS", "elbo", "expected_log_prob", "log_leave_one_out", "log_predictive", "loo", "pareto_k", "predictive"]


def elbo(
    model: SparseGP,
    x: Tensor,
    y: Tensor,
    *,
    q: Variational | None = None,
    num_data: int | None = None,
    weights: Tensor | None = None,
    samples: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Evidence lower bound: num_data / B * sum_b weights_b E_q[log p(y_b | f_b)] - KL(q || p), equation 11.

    Exact where the likelihood has a closed form, else by quadrature; with `samples` by as many Monte Carlo samples
    per row, as in the paper. `num_data` is B unless it is given; `q` stands in for the model's own posterior.
    """
    data_term, prepared = _data_term("elbo", model, x, y, q, num_data, weights, samples, generator)
    return data_term - prepared.moments.kl()


def loo(
    model: SparseGP,
    x: Tensor,
    y: Tensor,
    *,
    q: Variational | None = None,
    num_data: int | None = None,
    weights: Tensor | None = None,
    samples: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Leave-one-out: num_data / B * sum_b weights_b log p(y_b | all other rows), equation 17 without its 1 / N.

    Raises InfiniteLOOError where the integral is infinite.
    """
    return _data_term("loo", model, x, y, q, num_data, weights, samples, generator)[0]


def predictive(
    model: SparseGP,
    x: Tensor,
    y: Tensor,
    *,
    q: Variational | None = None,
    num_data: int | None = None,
    weights: Tensor | None = None,
    samples: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Log predictive density: num_data / B * sum_b weights_b log E_q[p(y_b | f_b)]."""
    return _data_term("predictive", model, x, y, q, num_data, weights, samples, generator)[0]


def expected_log_prob(likelihood: Likelihood, marginals: Marginals, y: Tensor, noise: Tensor | None = None) -> Tensor:
    """sum_k pi_k E_k[log p(y | f)] for each row, [B]; `noise` is [S, K, B, Q]."""
    values = likelihood.expected_log_prob(marginals.mean, marginals.variance, y, noise)  # [K, B]
    return (marginals.log_weights.exp().to(values.dtype)[:, None] * values).sum(0)


def log_leave_one_out(likelihood: Likelihood, marginals: Marginals, y: Tensor, noise: Tensor | None = None) -> Tensor:
    """log p(y | all other rows) for each row, [B], from q with the row's own term taken out."""
    return likelihood.log_leave_one_out(*marginals, y, noise)


def log_predictive(likelihood: Likelihood, marginals: Marginals, y: Tensor, noise: Tensor | None = None) -> Tensor:
    """log sum_k pi_k E_k[p(y | f)] for each row, [B]; its mean over test rows, with the sign turned, is the NLP."""
    values = likelihood.log_expected_prob(marginals.mean, marginals.variance, y, noise)
    return torch.logsumexp(marginals.log_weights.to(values.dtype)[:, None] + values, 0)


# The value of each row, [B], of (likelihood, marginals, y, noise).
ROWS: dict[str, Callable[..., Tensor]] = {
    "elbo": expected_log_prob,
    "loo": log_leave_one_out,
    "predictive": log_predictive,
}


def pareto_k(log_ratios: Tensor) -> Tensor:
    """Shape k of the Pareto tail of importance ratios [S, ...], for each column: above 0.7 an average is not reliable.

    For leave-one-out by Monte Carlo the log ratios are -log p(y | f_s). Zhang and Stephens' (2009) estimate from the
    largest min(S / 5, 3 sqrt(S)) ratios, with the weak prior that PSIS uses.
    """
    count = log_ratios.shape[0]
    tail = math.ceil(min(count / 5, 3 * math.sqrt(count)))
    if tail < 5:
        raise ValueError(f"log_ratios must hold at least 21 samples, got {count}")
    log_ratios = log_ratios.double()
    ordered = (log_ratios - log_ratios.amax(0)).sort(0).values.exp()
    excess = (ordered[-tail:] - ordered[-tail - 1]).clamp_min(1e-300)  # [T, ...]; equal ratios would divide by 0
    grid = 30 + int(math.sqrt(tail))
    j = torch.arange(1, grid + 1, dtype=torch.float64, device=excess.device).reshape(-1, *(1,) * (excess.ndim - 1))
    largest, quartile = excess[-1], excess[int(tail / 4 + 0.5) - 1]
    theta = 1 / largest + (1 - torch.sqrt(grid / (j - 0.5))) / (3 * quartile)  # [grid, ...]
    shape = torch.log1p(-theta[:, None] * excess).mean(1)
    log_likelihood = tail * (torch.log(-theta / shape) - shape - 1)
    theta = (torch.softmax(log_likelihood, 0) * theta).sum(0)
    k = torch.log1p(-theta * excess).mean(0)
    k = (tail * k + 5) / (tail + 10)  # ten pseudo-observations at k = 1/2
    return torch.nan_to_num(k, nan=math.inf)  # a ratio that is infinite


def _data_term(
    name: str,
    model: SparseGP,
    x: Tensor,
    y: Tensor,
    q: Variational | None,
    num_data: int | None,
    weights: Tensor | None,
    samples: int | None,
    generator: torch.Generator | None,
) -> tuple[Tensor, Prepared]:
    """num_data / B * sum_b weights_b value_b, and the M x M work behind it."""
    phi = model.embed(x)
    check_finite(x=phi)
    y = model.likelihood.check_targets(y)
    if len(y) != len(phi):
        raise ValueError(f"y must have one row per row of x, got {len(y)} and {len(phi)}")
    y = y.to(phi.device, phi.dtype if y.is_floating_point() else y.dtype)
    prepared = model.prepare(q)
    marginals = model.marginals(phi, prepared)
    noise = None
    if samples is not None:
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        shape = (samples, *marginals.mean.mT.shape)  # rows vary fastest in memory, as in the means
        noise = torch.randn(shape, dtype=phi.dtype, device=phi.device, generator=generator).mT
    rows = ROWS[name](model.likelihood, marginals, y, noise)
    if weights is not None:
        if weights.shape != rows.shape or not torch.isfinite(weights).all() or (weights < 0).any():
            raise ValueError(f"weights must be {len(rows)} finite numbers, none negative")
        rows = rows * weights.to(rows)
    if num_data is not None and num_data < len(rows):
        raise ValueError(f"num_data must be at least the size of the batch, {len(rows)}, got {num_data}")
    return rows.sum() * ((num_data or len(rows)) / len(rows)), prepared
