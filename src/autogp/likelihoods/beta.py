"""Shares between 0 and 1: a beta distribution whose log odds are a Gaussian process."""

import torch
from torch import Tensor
from torch.nn import functional

from autogp.likelihoods.elementwise import Elementwise
from autogp.parameters import positive_parameter

__all__ = ["Beta"]


class Beta(Elementwise):
    """y_p ~ Beta(c m, c (1 - m)) with the mean m = sigmoid(f_p + log odds_p) and the concentration c = concentration_p.

    Odds, where f = 0, and concentrations are learnt. The variance is m (1 - m) / (1 + c). Targets are above 0 and
    below 1.

    >>> import torch
    >>> Beta(concentration=2.0).log_prob(torch.zeros(1, 1), torch.full((1, 1), 0.3)).exp().item()  # uniform
    1.0
    """

    finite_loo = True  # 1 / p(y | f) grows as exp(|f|), slower than a Gaussian decays

    def __init__(self, num_outputs: int = 1, odds: float | Tensor = 1.0, concentration: float | Tensor = 10.0):
        super().__init__(num_outputs)
        self.log_odds = positive_parameter(odds, "odds", size=num_outputs)
        self.log_concentration = positive_parameter(concentration, "concentration", size=num_outputs)

    @property
    def odds(self) -> Tensor:  # [P]
        return self.log_odds.exp()

    @property
    def concentration(self) -> Tensor:  # [P]
        return self.log_concentration.exp()

    def check_targets(self, y: Tensor) -> Tensor:
        y = super().check_targets(y)
        bad = (y <= 0) | (y >= 1)
        if bad.any():
            row, output = bad.nonzero()[0].tolist()
            raise ValueError(
                f"y contains {y[row, output].item():g} at row {row}; the targets of {type(self).__name__} are above 0 "
                "and below 1"
            )
        return y

    def log_density(self, f: Tensor, y: Tensor) -> Tensor:
        """log Gamma(a + b) / (Gamma(a) Gamma(b)) + (a - 1) log y + (b - 1) log(1 - y), a = c m, b = c (1 - m).

        In float64, as the terms cancel where c is large; log Gamma(a) = log Gamma(a + 1) - log a is finite at a = 0.
        """
        y = torch.where(y > 0, y, 0.5).double()  # a missing target comes as 0
        u, c = f.double() + self.log_odds, self.concentration
        log_a, log_b = (self.log_concentration + functional.logsigmoid(side) for side in (u, -u))
        a, b = log_a.exp(), log_b.exp()
        constant = torch.lgamma(c) + log_a + log_b - torch.lgamma(a + 1) - torch.lgamma(b + 1)
        return (constant + (a - 1) * y.log() + (b - 1) * torch.log1p(-y)).to(f.dtype)

    def expected_log_density(self, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().expected_log_density(mean, variance, y)
        nodes, log_weights = self._nodes(mean)  # without kinks, in training: Gauss-Hermite needs few points
        return (log_weights.exp() * self.log_density(mean + variance.sqrt() * nodes, y)).sum(0)

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        m = torch.sigmoid(f + self.log_odds.to(f.dtype))
        return m, m * (1 - m) / (1 + self.concentration.to(f.dtype))

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        m = self.conditional_moments(f.double())[0]
        both = self.concentration[:, None] * torch.stack([m, 1 - m], -1)
        draws = torch._sample_dirichlet(both, generator)  # pyright: ignore[reportPrivateImportUsage]
        return draws[..., 0].to(f.dtype)
