"""Rows as a training step takes them, and the score of a model on rows that it does not learn from."""

import copy
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from autogp.data import Source, TargetScaler, blocks, check_finite
from autogp.data.sources import as_tensor
from autogp.features.base import as_map
from autogp.likelihoods import Likelihood
from autogp.model import Marginals, SparseGP
from autogp.objectives import log_predictive
from autogp.posteriors import Variational
from autogp.training.distributed import ALONE, Processes
from autogp.training.step import Batch

__all__ = ["Feed", "device_named", "divided", "log_densities", "row_values", "validation_score"]


class Feed:
    """Makes batches of rows: on the model's device, with checked targets and weights."""

    def __init__(self, model: SparseGP, num_data: int, weights: np.ndarray | None, target_scaler: TargetScaler | None):
        self.device, self.dtype = model.device, model.dtype
        self.likelihood = model.likelihood
        self.missing_inputs = model.features is not None and as_map(model.features).allows_missing
        self.num_data = num_data
        self.weights = None if weights is None else _checked_weights(weights, num_data).to(self.dtype)
        self.total_weight = float(num_data) if self.weights is None else self.weights.double().sum().item()
        # A copy: the caller's stays where it is.
        self.target_scaler = None if target_scaler is None else copy.deepcopy(target_scaler).to(self.device)

    def nlp(self, score: float) -> float:
        """Minus the mean log probability of a row, in the units of the targets."""
        return -score + (0.0 if self.target_scaler is None else self.target_scaler.scale.log().sum().item())

    def check(self, source: Source, among: Processes = ALONE) -> None:
        """Raises ValueError, with the row, where a number is not finite or a target not what the likelihood takes.

        Each process checks its part of the rows; what one finds, all raise.
        """
        among.gather(lambda: self._check_part(source, among))

    def _check_part(self, source: Source, among: Processes) -> None:
        try:
            self._check(among.part(source))
        except ValueError:
            self._check(source)  # for the row's number among all
            raise

    def _check(self, source: Source) -> None:
        several = np.ndim(source.rows(np.zeros(1, np.int64))[1]) > 1
        check_finite(
            source,
            allow_missing_inputs=self.missing_inputs,
            allow_missing_targets=several and self.likelihood.allows_missing,
            check_targets=self.targets,
        )

    def check_loo(self, source: Source) -> None:
        """Raises InfiniteLOOError now, not hours later, for a likelihood that has no leave-one-out for any q."""
        batch = self.read(source, np.zeros(1, np.int64))
        mean = batch.weights.new_zeros(1, 1, self.likelihood.num_latents)
        with torch.no_grad():
            self.likelihood.log_expected_inverse_prob(mean, torch.full_like(mean, 1e-6), batch.y)

    def targets(self, y: Tensor) -> Tensor:
        """Targets as the likelihood takes them, in the precision of the model."""
        y = y.to(self.device, non_blocking=True)
        y = self.likelihood.check_targets(y if self.target_scaler is None else self.target_scaler(y))
        return y.to(self.dtype) if y.is_floating_point() else y

    def read(self, source: Source, indices: np.ndarray) -> Batch:
        """These rows of the source, whatever their weights."""
        x, y = map(as_tensor, source.rows(indices))
        return self.batch(x, y, None)

    def batch(self, x: Tensor, y: Tensor, indices: np.ndarray | None, size: int | None = None) -> Batch:
        """These rows of the training data, by their numbers; `size` rows are in the whole batch, where they are a part.

        Without numbers weights are left out. A row that has no number does not count.
        """
        weights = torch.full((len(x),), self.num_data / (size or len(x)), dtype=self.dtype, device=self.device)
        if indices is not None and not len(indices):
            weights.zero_()
        elif indices is not None and self.weights is not None:
            weights = weights * self.weights[torch.from_numpy(indices)].to(self.device)
        return Batch(x.to(self.device, non_blocking=True), self.targets(y), weights)


def divided(
    among: Processes,
    model: SparseGP,
    feed: Feed,
    source: Source,
    validation: Source | None,
    alike: object,
) -> list[Source]:
    """This process's part of the rows, and of those for validation where there are any, checked.

    All processes begin with the model of process 0, and with `alike`, which must be equal in all of them.
    """
    among.agree("settings or data", (feed.num_data, feed.total_weight, validation is None, alike))
    if len(source) < among.count:
        raise ValueError(f"{among.count} processes need as many rows at least, got {len(source)}: start fewer")
    rows = [source] if validation is None else [source, validation]
    for each in rows:
        feed.check(each, among)
    model.load_state_dict(among.from_first(lambda: {name: each.cpu() for name, each in model.state_dict().items()}))
    return [among.part(each) for each in rows]


@torch.no_grad()
def row_values(
    function: Callable[[Likelihood, Marginals, Tensor], Tensor],
    model: SparseGP,
    q: Variational,
    feed: Feed,
    source: Source,
) -> Iterator[tuple[slice, Tensor]]:
    """`log_predictive` or `expected_log_prob` of each row, some rows at a time: which they are, and their values."""
    predictor = model.predictor(q)
    for block, x, y in blocks(source):
        targets = feed.targets(as_tensor(y))
        for chunk, marginals in predictor.chunks(as_tensor(x)):
            rows = slice(block.start + chunk.start, block.start + chunk.stop)
            yield rows, function(model.likelihood, marginals, targets[chunk])


def log_densities(model: SparseGP, q: Variational, feed: Feed, source: Source) -> Tensor:
    """log p(y) of each row under q, [N]."""
    return torch.cat([found for _, found in row_values(log_predictive, model, q, feed, source)]).double().cpu()


def validation_score(
    model: SparseGP, q: Variational, feed: Feed, validation: Source, among: Processes = ALONE
) -> float:
    """Mean log predictive probability of held-out rows; each process has a part of them."""
    total = sum(found.sum().item() for _, found in row_values(log_predictive, model, q, feed, validation))
    total, count = among.sum(torch.tensor([total, len(validation)], dtype=torch.float64, device=feed.device)).tolist()
    return total / count


def device_named(name: str) -> torch.device:
    """Where to compute: "auto" is CUDA where there is one."""
    if name == "auto":  # several processes have chosen a device each
        name = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # not a device, or not one that this torch was built for
        raise ValueError(f"device {name!r} is not there: use 'cpu', or 'auto' for whatever there is") from None
    return device


def _checked_weights(weights: np.ndarray, count: int) -> Tensor:
    found = torch.as_tensor(weights, dtype=torch.float64)
    if found.shape != (count,) or not torch.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ValueError(f"weights must be {count} finite numbers, one per row, none negative and not all zero")
    return found
