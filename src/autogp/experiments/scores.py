"""Every score of a model on rows it has not seen."""

import numpy as np
import torch

from autogp.data import Source
from autogp.metrics import class_scores, number_scores
from autogp.model import SparseGP
from autogp.objectives import log_predictive
from autogp.training.feed import Feed

__all__ = ["scores"]

ROWS = 2_000  # at a time


@torch.no_grad()
def scores(model: SparseGP, test: Source, feed: Feed, quick: bool = False) -> dict[str, float]:
    """`metrics.class_scores` for classes; for numbers and counts `metrics.number_scores`, in the units of the data.

    The nlp of numbers may take more time than all else together: `quick` leaves it out.
    """
    scaler = feed.target_scaler
    classes = model.likelihood.num_classes is not None
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
        return class_scores(y, probabilities)
    if quick:
        return number_scores(y, mean)
    stretch = 0.0 if scaler is None else scaler.scale.log().sum().item()  # densities are of scaled targets
    return number_scores(y, mean, torch.cat(densities).numpy() - stretch)
