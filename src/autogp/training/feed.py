"""Rows as the model takes them, and the scores of its states on them."""

import copy

import numpy as np
import torch
from torch import Tensor

from autogp.data import InputScaler, Source, TargetScaler, check_finite
from autogp.model import SparseGP
from autogp.objectives import leave_one_out, log_predictive
from autogp.training.schedule import Settings
from autogp.training.step import Batch, StepResult, draw

__all__ = ["Feed", "device_of", "training_score", "validation_score"]

SCORE_ROWS = 8192


class Feed:
    """Makes batches of rows: on the model's device, scaled, checked, and each with its weight."""

    def __init__(
        self,
        model: SparseGP,
        num_data: int,
        weights: np.ndarray | None,
        input_scaler: InputScaler | None,
        target_scaler: TargetScaler | None,
    ):
        self.device, self.dtype = model.inducing_inputs.device, model.precision
        self.likelihood = model.likelihood
        self.num_data = num_data
        self.weights = None if weights is None else _checked_weights(weights, num_data).to(self.dtype)
        self.total_weight = float(num_data) if self.weights is None else self.weights.double().sum().item()
        # Copies: the caller's stay where they are.
        self.input_scaler = None if input_scaler is None else copy.deepcopy(input_scaler).to(self.device)
        self.target_scaler = None if target_scaler is None else copy.deepcopy(target_scaler).to(self.device)

    def check(self, source: Source) -> None:
        """Raises ValueError, with the row, where a number is not finite or a target not what the likelihood takes.

        Targets of several outputs may be missing (NaN) where the likelihood knows what to do.
        """
        check_finite(source, allow_missing_targets=self._may_be_missing(source), check_targets=self._targets)

    def _may_be_missing(self, source: Source) -> bool:
        y = np.array(source.rows(np.zeros(1, np.int64))[1], dtype=np.float64)
        if y.size < 2:
            return False
        y[0, 0] = np.nan
        try:
            self._targets(torch.from_numpy(y))
        except ValueError:
            return False
        return True

    def _targets(self, y: Tensor) -> Tensor:
        y = y.to(self.device, non_blocking=True)
        return self.likelihood.check_targets(y if self.target_scaler is None else self.target_scaler(y, self.dtype))

    def read(self, source: Source, indices: np.ndarray) -> Batch:
        """These rows of the source, whatever their weights."""
        x, y = (torch.from_numpy(np.require(part, requirements=["C", "W"])) for part in source.rows(indices))
        return self.batch(x, y, None)

    def batch(self, x: Tensor, y: Tensor, indices: np.ndarray | None) -> Batch:
        """These rows of the training data; their numbers are asked for only where rows have weights."""
        x, y = x.to(self.device, non_blocking=True), self._targets(y)
        x = x.to(self.dtype) if self.input_scaler is None else self.input_scaler(x, self.dtype)
        weights = x.new_full((len(x),), self.num_data / len(x))
        if indices is not None and self.weights is not None:
            weights = weights * self.weights[torch.from_numpy(indices)].to(self.device)
        return Batch(x, y.to(self.dtype) if y.is_floating_point() else y, weights)


@torch.no_grad()
def training_score(
    model: SparseGP, batch: Batch, result: StepResult, settings: Settings, generator: torch.Generator
) -> float:
    """What states are judged by without held-out rows, an estimate of the total over all rows: the objective itself,
    and for the evidence lower bound leave-one-out where it is finite.

    Never the predictive density of rows that were learnt from, unless it is the objective: it praises a model that has
    not yet learnt its noise.
    """
    likelihood = model.likelihood
    if settings.objective != "elbo" or not likelihood.finite_loo:
        return result.value.item()
    noise = draw(likelihood.sampled & {"loo"}, result.marginals, settings.samples, generator)
    return (batch.weights * leave_one_out(likelihood, result.marginals, batch.y, noise.get("loo"))).sum().item()


@torch.no_grad()
def validation_score(model: SparseGP, feed: Feed, validation: Source) -> float:
    """Mean log predictive probability of held-out rows."""
    total, count = 0.0, len(validation)
    for start in range(0, count, SCORE_ROWS):
        batch = feed.read(validation, np.arange(start, min(start + SCORE_ROWS, count)))
        for rows, marginals in model.chunks(batch.x):
            total += log_predictive(model.likelihood, marginals, batch.y[rows]).sum().item()
    return total / count


def device_of(settings: Settings) -> torch.device:
    """Where to compute: "auto" is CUDA where there is one."""
    name = settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
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
