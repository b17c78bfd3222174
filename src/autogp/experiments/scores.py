"""Every score of a model on rows it has not seen."""

import numpy as np
import torch

from autogp.data import Source
from autogp.likelihoods import Bernoulli, Softmax
from autogp.metrics import (
    brier_score,
    error_rate,
    expected_calibration_error,
    negative_log_probability,
    standardised_squared_error,
)
from autogp.model import SparseGP
from autogp.objectives import log_predictive
from autogp.training.feed import Feed

__all__ = ["scores"]

ROWS = 2_000  # at a time


@torch.no_grad()
def scores(model: SparseGP, test: Source, feed: Feed, quick: bool = False) -> dict[str, float]:
    """For classes error, nlp, brier and calibration; for numbers and counts, in the units of the data, smse, rmse, nlp.

    The nlp of numbers may take more time than all else together: `quick` leaves it out.
    """
    scaler = feed.target_scaler
    classes = isinstance(model.likelihood, Bernoulli | Softmax)
    prepared = model.prepare()
    means, densities, targets = [], [], []
    for start in range(0, len(test), ROWS):
        indices = np.arange(start, min(start + ROWS, len(test)))
        batch = feed.read(test, indices)
        marginals = model.marginals(batch.x, prepared)
        predicted = model.likelihood.predict(*marginals[:3]).mean.double()
        means.append((predicted if scaler is None else scaler.inverse_mean(predicted)).cpu())
        if not classes and not quick:
            densities.append(log_predictive(model.likelihood, marginals, batch.y).double().cpu())
        targets.append(test.rows(indices)[1])
    mean, y = torch.cat(means).numpy(), np.concatenate(targets)
    if classes:
        probabilities = np.hstack([1 - mean, mean]) if mean.shape[1] == 1 else mean
        return {
            "error": error_rate(y, probabilities),
            "nlp": negative_log_probability(y, probabilities),
            "brier": brier_score(y, probabilities),
            "calibration": expected_calibration_error(y, probabilities),
        }
    y = y.reshape(mean.shape).astype(np.float64)
    found = {"smse": standardised_squared_error(y, mean), "rmse": float(np.sqrt(np.mean((y - mean) ** 2)))}
    if not quick:
        stretch = 0.0 if scaler is None else scaler.scale.log().sum().item()  # densities are of scaled targets
        found["nlp"] = stretch - torch.cat(densities).mean().item()
    return found
