"""One likelihood of each kind with targets, a Gaussian q(f), and the density written with scipy alone."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from autogp.likelihoods import (
    Bernoulli,
    Beta,
    BoxCox,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    NegativeBinomial,
    Network,
    Ordinal,
    Poisson,
    Softmax,
    StudentT,
)

__all__ = ["ELEMENTWISE", "INFINITE_LOO", "KINDS", "Case", "make", "reference_log_prob"]

ROWS = 5
VARIANCES = (0.3, 2.0, 0.05)
SCALES = (0.2, 1.5)
DF = 4.5
POWERS, UNITS, SPREADS = (0.4, 1.3), (2.0, 0.5), (0.7, 1.2)
DISPERSIONS = (0.3, 2.5)
ODDS, CONCENTRATIONS = (0.5, 3.0), (4.0, 30.0)
FIRST_CUT, GAPS, ORDER = -0.4, (0.9, 0.3), (2, 0, 3, 1)
ELEMENTWISE = (
    "gaussian",
    "logit",
    "probit",
    "poisson",
    "student-t",
    "box-cox",
    "negative-binomial",
    "heteroscedastic",
    "beta",
)
KINDS = (*ELEMENTWISE, "softmax", "ordinal", "network")
INFINITE_LOO = ("poisson", "network", "heteroscedastic")


@dataclass(frozen=True)
class Case:
    """A likelihood, targets that it has checked, and the means and variances [B, Q] of q(f)."""

    likelihood: Likelihood
    y: Tensor
    mean: Tensor
    variance: Tensor

    def latents(self, *leading: int, seed: int = 1) -> Tensor:
        """Standard normal latent values [*leading, B, Q]."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*leading, *self.mean.shape, dtype=torch.float64, generator=generator).to(self.mean.dtype)


def make(kind: str, dtype: torch.dtype = torch.float64, rows: int = ROWS) -> Case:
    """The same numbers for every precision."""
    generator, others = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)

    def normal(*shape: int, generator: torch.Generator = generator) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    def number(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    likelihood, y = {
        "gaussian": (Gaussian(2, variance=number(VARIANCES[:2])), normal(rows, 2)),
        "logit": (Bernoulli(2), (normal(rows, 2) > 0).double()),
        "probit": (Bernoulli(2, link="probit"), (normal(rows, 2) > 0).double()),
        "poisson": (Poisson(2), torch.stack([(3 * normal(rows, 2)).abs().round(), normal(rows, 2).exp()], -1)),
        "student-t": (StudentT(2, df=DF, scale=number(SCALES)), 2 * normal(rows, 2)),
        "box-cox": (
            BoxCox(2, variance=number(VARIANCES[:2]), power=number(POWERS), unit=number(UNITS), spread=number(SPREADS)),
            (0.3 * normal(rows, 2, generator=others)).exp(),
        ),
        "negative-binomial": (
            NegativeBinomial(2, dispersion=number(DISPERSIONS)),
            torch.stack(
                [(3 * normal(rows, 2, generator=others)).abs().round(), normal(rows, 2, generator=others).exp()], -1
            ),
        ),
        "heteroscedastic": (Heteroscedastic(2, variance=number(VARIANCES[:2])), normal(rows, 2, generator=others)),
        "beta": (
            Beta(2, odds=number(ODDS), concentration=number(CONCENTRATIONS)),
            normal(rows, 2, generator=others).sigmoid(),
        ),
        "ordinal": (
            Ordinal(4, first_cut=FIRST_CUT, gaps=number(GAPS), order=ORDER),
            (2 * normal(rows, generator=others)).abs().long() % 4,
        ),
        "softmax": (Softmax(4), (2 * normal(rows)).abs().long() % 4),
        "network": (Network(3, num_nodes=2, variance=number(VARIANCES)), normal(rows, 3)),
    }[kind]
    y = y.to(dtype) if y.is_floating_point() else y
    mean = normal(rows, likelihood.num_latents)
    variance = 0.05 + 0.2 * normal(rows, likelihood.num_latents).square().clamp_max(1)
    return Case(likelihood, likelihood.check_targets(y), mean.to(dtype), variance.to(dtype))


def reference_log_prob(kind: str, f: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log p(y | f), [B], of the likelihood that `make` gives, from f [B, Q]."""
    sd = np.sqrt(VARIANCES)
    match kind:
        case "gaussian":
            return stats.norm.logpdf(y, f, sd[:2]).sum(-1)
        case "logit":
            return stats.bernoulli.logpmf(y, special.expit(f)).sum(-1)
        case "probit":
            return stats.bernoulli.logpmf(y, special.ndtr(f)).sum(-1)
        case "poisson":
            return stats.poisson.logpmf(y[..., 0], y[..., 1] * np.exp(f)).sum(-1)
        case "student-t":
            return stats.t.logpdf(y, DF, loc=f, scale=SCALES).sum(-1)
        case "box-cox":
            power, unit, spread = map(np.array, (POWERS, UNITS, SPREADS))
            transformed = ((y / unit) ** power - 1) / (power * spread)
            slope = (y / unit) ** (power - 1) / (unit * spread)
            return (stats.norm.logpdf(transformed, f, sd[:2]) + np.log(slope)).sum(-1)
        case "negative-binomial":
            shape, expected = 1 / np.array(DISPERSIONS), y[..., 1] * np.exp(f)
            return stats.nbinom.logpmf(y[..., 0], shape, shape / (shape + expected)).sum(-1)
        case "heteroscedastic":
            return stats.norm.logpdf(y, f[:, :2], sd[:2] * np.exp(0.5 * f[:, 2:])).sum(-1)
        case "beta":
            mean, total = special.expit(f + np.log(ODDS)), np.array(CONCENTRATIONS)
            return stats.beta.logpdf(y, total * mean, total * (1 - mean)).sum(-1)
        case "ordinal":
            ends = np.array([-np.inf, *np.cumsum([FIRST_CUT, *GAPS]), np.inf])
            rank = np.array(ORDER)[y]
            return np.log(special.ndtr(ends[rank + 1] - f[:, 0]) - special.ndtr(ends[rank] - f[:, 0]))
        case "softmax":
            return np.array(
                [row[label] - math.log(sum(math.exp(v) for v in row)) for row, label in zip(f, y, strict=True)]
            )
        case "network":  # output i: W_i1 g_1 + W_i2 g_2
            return sum(
                stats.norm.logpdf(y[:, i], f[:, 2 * i] * f[:, 6] + f[:, 2 * i + 1] * f[:, 7], sd[i]) for i in range(3)
            )
        case _:
            raise KeyError(kind)
