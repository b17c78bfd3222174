"""Counts with more zeros than a negative binomial has."""

import torch
from torch import Tensor
from torch.nn import functional

from autogp.likelihoods.negative_binomial import NegativeBinomial
from autogp.parameters import describe_range, positive_parameter

__all__ = ["ZeroInflated"]


class ZeroInflated(NegativeBinomial):
    """y_p is 0 with the probability s_p = odds_p / (1 + odds_p), else negative binomial.

    Such as cigarettes a day, where some never smoke. Rates, dispersions and odds are learnt; the odds are the same for
    all rows. Targets are those of `Poisson`.

    >>> import torch
    >>> model = ZeroInflated(dispersion=1.0, odds=1.0)  # geometric, 1/2, 1/4, 1/8, ..., for half of the rows
    >>> model.log_prob(torch.zeros(2, 1), model.check_targets(torch.tensor([0, 2]))).exp()
    tensor([0.7500, 0.0625], dtype=torch.float64, grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        num_outputs: int = 1,
        rate: float | Tensor = 1.0,
        dispersion: float | Tensor = 1.0,
        odds: float | Tensor = 0.25,
    ):
        super().__init__(num_outputs, rate, dispersion)
        self.log_odds = positive_parameter(odds, "odds", size=num_outputs)

    @property
    def share(self) -> Tensor:  # [P], s
        return torch.sigmoid(self.log_odds)

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """log((1 - s) NB(y)), or log(s + (1 - s) NB(0)) where y = 0."""
        log_odds = self.log_odds.to(f.dtype)
        counted = functional.logsigmoid(-log_odds) + super().log_density(f, y)
        extra = functional.logsigmoid(log_odds).expand_as(counted)
        return torch.where(y[..., 0] == 0, torch.logaddexp(extra, counted), counted)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self._inflated(*super().conditional_moments(f))

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return self._inflated(*super().predictive_moments(mean, variance))

    def _inflated(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """E[y] = (1 - s) m and Var[y] = (1 - s) (v + s m^2), from the m and v of the negative binomial."""
        s = self.share.to(mean.dtype)
        return (1 - s) * mean, (1 - s) * (variance + s * mean.square())

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        kept = torch.rand(f.shape, dtype=f.dtype, device=f.device, generator=generator) >= self.share.to(f.dtype)
        return super().sample(f, generator) * kept

    def describe(self, unit: Tensor | float = 1.0) -> str:
        return f"{super().describe(unit)}, share of further zeros {describe_range(self.share)}"
