"""Ordered classes: one latent function, cut into intervals at points that are learnt."""

import math
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor, nn

from autogp.likelihoods.base import Likelihood
from autogp.parameters import positive_parameter

__all__ = ["Ordinal"]


class Ordinal(Likelihood):
    """p(rank r | f) = Phi(cut_{r+1} - f) - Phi(cut_r - f), with cut_0 = -inf and cut_C = inf: an ordered probit.

    A class is the interval that f lies in after standard normal noise. Targets are labels 0 to C - 1; `order` holds the
    rank of each label, by default the label itself. The first cut and the gaps between the cuts are learnt.

    >>> import torch
    >>> model = Ordinal(3, first_cut=-1.0, gaps=2.0)  # cuts at -1 and 1
    >>> model.conditional_moments(torch.zeros(1, 1))[0].detach()
    tensor([[0.1587, 0.6827, 0.1587]])
    """

    order: Tensor

    def __init__(
        self,
        num_classes: int,
        first_cut: float | Tensor = 0.0,
        gaps: float | Tensor = 1.0,
        order: Sequence[int] | Tensor | None = None,
    ):
        super().__init__()
        if not isinstance(num_classes, Integral) or num_classes < 3:
            raise ValueError(f"num_classes must be an integer of at least 3, got {num_classes!r}")
        self.num_classes = int(num_classes)
        self.first_cut = nn.Parameter(torch.as_tensor(first_cut, dtype=torch.float64).detach().clone().reshape(1))
        self.log_gaps = positive_parameter(gaps, "gaps", size=self.num_classes - 2)
        ranks = torch.arange(self.num_classes) if order is None else torch.as_tensor(order)
        if ranks.shape != (self.num_classes,) or ranks.sort().values.tolist() != list(range(self.num_classes)):
            raise ValueError(f"order must hold each rank from 0 to {self.num_classes - 1} once, got {order}")
        self.register_buffer("order", ranks.to(torch.int64))

    @property
    def cuts(self) -> Tensor:  # [C - 1], increasing
        return torch.cat([self.first_cut, self.first_cut + self.log_gaps.exp().cumsum(0)])

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        low, high = self._ends(f)
        return _log_interval(low[y], high[y], f[..., 0])

    def expected_log_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is not None or not torch.is_grad_enabled():
            return super().expected_log_prob(mean, variance, y, noise)
        nodes, log_weights = self._nodes(mean)  # without kinks, in training: Gauss-Hermite needs few points
        return (log_weights[..., 0].exp() * self.log_prob(mean + variance.sqrt() * nodes, y)).sum(0)

    def log_expected_prob(self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is not None:
            return super().log_expected_prob(mean, variance, y, noise)
        # E[Phi(cut - f)] = Phi((cut - mean) / sqrt(1 + variance))
        low, high = self._ends(mean)
        return _log_interval(low[y], high[y], mean[..., 0], (1 + variance[..., 0]).sqrt())

    def conditional_moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self.predictive_moments(f, torch.zeros_like(f))

    def predictive_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        p = _log_interval(*self._ends(mean), mean, (1 + variance).sqrt()).exp()  # [..., B, C]
        return p, p * (1 - p)

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        rank = (f + noise > self.cuts.to(f.dtype)).sum(-1)
        return self.order.argsort()[rank]

    def describe(self, unit: Tensor | float = 1.0) -> str:
        return f"{type(self).__name__}, cuts at {', '.join(f'{cut:.3g}' for cut in self.cuts.tolist())}"

    def _ends(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Ends of the interval of each label, [C] twice; the outermost are infinite."""
        cuts, end = self.cuts.to(like.dtype), like.new_full((1,), math.inf)
        return torch.cat([-end, cuts])[self.order], torch.cat([cuts, end])[self.order]


def _log_interval(low: Tensor, high: Tensor, mean: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """log(Phi((high - mean) / scale) - Phi((low - mean) / scale)) with all digits in both tails, in float64."""
    below, above = torch.isinf(low), torch.isinf(high)  # without an end there
    low, high = torch.where(below, high - 1, low), torch.where(above, low + 1, high)  # any numbers: they are not used
    a, b = ((end - mean).double() / scale for end in (low, high))
    upper = above | (~below & (a + b > 0))  # then from the other side: Phi(-a) - Phi(-b)
    a, b = torch.where(upper, -b, a), torch.where(upper, -a, b)
    # log Phi(b) + log(1 - exp(-drop)), drop = log Phi(b) - log Phi(a)
    tail = b < -1  # where Phi(x) = exp(-x^2 / 2) erfcx(-x / sqrt 2) / 2 keeps the digits of the difference
    a_tail, b_tail = torch.where(tail, a, -2.0), torch.where(tail, b, -1.0)
    in_tail = 0.5 * (b_tail - a_tail) * -(a_tail + b_tail) + _log_erfcx(b_tail) - _log_erfcx(a_tail)
    log_b = torch.special.log_ndtr(b)
    drop = torch.where(tail, in_tail, log_b - torch.special.log_ndtr(torch.where(tail, -2.0, a)))
    inside = torch.log(-torch.expm1(-torch.where(below | above, 1.0, drop)))
    return (log_b + torch.where(below | above, 0.0, inside)).to(mean.dtype)


def _log_erfcx(x: Tensor) -> Tensor:
    return torch.special.erfcx(x / -math.sqrt(2)).log()
