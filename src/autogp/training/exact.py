"""The ELBO where every row is an inducing input: for Gaussian noise the log evidence of an exact Gaussian process.

With targets y, C = K + diag(noise / weights) = L L' and alpha = C^-1 y it is, and has the gradient by C,

    -(y'alpha + log |C| + N log 2 pi) / 2      (alpha alpha' - C^-1) / 2

A row of weight w is w rows, whose mean has the noise of the sum; the rest of their density does not depend on f:

    N(y | f, noise)^w = N(y | f, noise / w) (2 pi noise)^((1 - w) / 2) w^(-1/2)
"""

import math

import numpy as np
import torch
from torch import Tensor

from autogp.data import Source
from autogp.linalg import safe_cholesky
from autogp.model import SparseGP
from autogp.posteriors import Natural
from autogp.training.collapsed import Collapsed, pull
from autogp.training.distributed import ALONE, Processes
from autogp.training.feed import Feed

__all__ = ["Exact"]


class Exact:
    """The ELBO of all rows, maximised over q, as a function of everything else: what `Collapsed` is for fewer
    inducing inputs, for less than a fifth of its work. The inducing inputs stay where they are.
    """

    sites: list[Tensor] | None = None  # q needs no start,
    settled, tolerance, best = True, 0.0, 0.0  # and is always at its optimum

    def __init__(self, model: SparseGP, source: Source, feed: Feed, among: Processes = ALONE):
        self.model, self.feed, self.source = model, feed, source
        self.parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and not name.startswith("posterior.")
        }
        self.slices = [np.arange(len(source))]
        x, y = (torch.from_numpy(np.require(part, requirements=["C", "W"])) for part in source.rows(self.slices[0]))
        batch = feed.batch(x, y, self.slices[0])
        with torch.no_grad():
            self.x = model.embed(batch.x)
        self.y, self.weights = batch.y, batch.weights.double()

    @staticmethod
    def suits(model: SparseGP, source: Source, among: Processes = ALONE) -> bool:
        """Whether the inducing inputs are all of the rows, and stay there, with the same noise for all."""
        z = model.inducing_inputs
        learns = model.features is not None and any(each.requires_grad for each in model.features.parameters())
        if z.requires_grad or len(z) > 1 or learns or among.count > 1 or not Collapsed.suits(model, source):
            return False
        if not len(source) // 2 <= z.shape[1] <= len(source):  # rows may be equal, but not most of them
            return False
        x = torch.from_numpy(np.require(source.rows(np.arange(len(source)))[0], requirements=["C", "W"]))
        with torch.no_grad():
            phi = model.embed(x.to(model.device))
        own = {each.tobytes() for each in z[0].detach().cpu().numpy() + 0.0}
        return all(each.tobytes() in own for each in phi.cpu().numpy() + 0.0)

    def __call__(self) -> tuple[Tensor, list[Tensor]]:
        """The value, and its gradients."""
        likelihood, weights = self.model.likelihood, self.weights
        variance = likelihood.shared_noise
        assert variance is not None
        gram = self.model.kernel.gram(self.x, self.x)  # [G, N, N]
        noise = variance.double()[:, None] / weights  # [P, N]
        y, log_slope = likelihood.transform(self.y)
        copies = 0.5 * (weights - 1).sum() * (2 * math.pi * variance.double()).log().sum()
        with torch.no_grad():
            factor = safe_cholesky(gram.double() + torch.diag_embed(noise))
            inverse = torch.cholesky_inverse(factor)
            targets = y.mT.double()
            alpha = (inverse @ targets[..., None]).squeeze(-1)  # [P, N]
            half_log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum()
            value = -0.5 * (targets * alpha).sum() - half_log_det - 0.5 * math.log(2 * math.pi) * targets.numel()
            rest = (weights * log_slope.mT).sum() - 0.5 * len(targets) * weights.log().sum()
            self.value = (value + rest - copies).item()
            slope = 0.5 * (alpha[..., None] * alpha[:, None] - inverse)
            own = slope.diagonal(dim1=-2, dim2=-1)
            slope = slope.sum(0, keepdim=True) if len(gram) == 1 else slope
            log_slopes = weights[:, None].expand_as(log_slope)
        outputs = [gram, noise, copies, y, log_slope]
        slopes = [slope, own, -torch.ones_like(copies), -alpha.mT, log_slopes]
        return gram.new_tensor(self.value), list(pull(outputs, slopes, list(self.parameters.values())))

    @property
    def q(self) -> Natural:
        """The best q with the parameters as they are."""
        sums = Collapsed(self.model, self.source, self.feed)
        sums()
        return sums.q

    def score(self) -> float:
        """The ELBO of the last evaluation, nats a row."""
        return self.value / self.feed.total_weight
