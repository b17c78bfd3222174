"""Posteriors: full covariances against diagonal ones, and mixtures of 1, 2 and 5 Gaussians."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from autogp.data import ArraySource
from autogp.datasets import Dataset, load_savigp, load_uci
from autogp.estimators import GPClassifier, GPRegressor
from autogp.experiments.base import Experiment, Peer
from autogp.experiments.scores import scores
from autogp.objectives import elbo
from autogp.posteriors import Posterior
from autogp.training import Phase, Settings, train

INDUCING, EPOCHS = 30, 300  # epochs of one step each
ARGUMENTS: dict[str, dict[str, Any]] = {  # of the estimator
    "wisconsin": {},
    "mining": {"likelihood": "poisson"},
    "boston": {"likelihood": "gaussian"},
}
COMPONENTS = (1, 2, 5)
SPREAD = 0.1  # of the means of components at their start, in standard deviations of the prior


def load(data: str, seed: int) -> Any:
    """One of the sets; of coal-mine accidents there is one split only."""
    return (
        partial(load_uci, data, seed)
        if data == "boston"
        else partial(load_savigp, data, 0 if data == "mining" else seed)
    )


def measure(data: Dataset, samples: int | None, seed: int, *, components: int, diagonal: bool) -> dict[str, Any]:
    """Trains with a full Gaussian, or a mixture of such; diagonal ones go on from the optimum of one full Gaussian."""
    started = time.process_time()
    name = next(each for each in ARGUMENTS if each in data.name)
    kind = GPClassifier if name == "wisconsin" else GPRegressor
    model = kind(
        INDUCING,
        objective="elbo",
        n_components=1 if diagonal else components,
        random_state=seed,
        verbose=False,
        **ARGUMENTS[name],
    ).fit(data.x_train, data.y_train)
    y = model._encode_targets(model._check_targets(data.y_train))
    rows, scaler = ArraySource(data.x_train, y), model.target_scaler_
    if diagonal:
        model.model_.posterior = _diagonal(model.model_.posterior, components, seed)
        settings = Settings(plan=[Phase("elbo", EPOCHS)], batch_size=len(rows), seed=seed)
        train(model.model_, rows, settings, target_scaler=scaler, verbose=False)
    targets = torch.as_tensor(y)
    with torch.no_grad():
        x = torch.as_tensor(np.asarray(data.x_train))
        bound = elbo(model.model_, x, targets if scaler is None else scaler(targets)).item()
    weights = model.model_.posterior.logits.softmax(0)
    return {
        "settings": {"inducing": INDUCING, "epochs": EPOCHS, "max_epochs": None},
        "scores": scores(model, data.x_test, data.y_test) | {"elbo": bound, "largest_weight": weights.max().item()},
        "seconds": {"training": time.process_time() - started},
        "epochs": len(model.history_),
    }


@torch.no_grad()
def _diagonal(one: Posterior, components: int, seed: int) -> Posterior:
    """Diagonal Gaussians about the mean of one Gaussian, with its variances."""
    _, latents, size = one.mean.shape
    generator = torch.Generator().manual_seed(seed)
    found, moments = (
        Posterior(latents, size, components, diagonal=True, spread=SPREAD, generator=generator),
        one.moments(),
    )
    found.set_moments(found.mean + moments.mean, moments.covariance().expand(components, -1, -1, -1))
    return found


def _measured(components: int, diagonal: bool) -> Callable[..., dict[str, Any]]:
    return partial(measure, components=components, diagonal=diagonal)


EXPERIMENT = Experiment(
    name="posteriors",
    title="Full and diagonal posteriors, and mixtures",
    load=load,
    data={"wisconsin": range(3), "boston": range(1), "mining": range(1)},
    metrics=("elbo", "nlp", "error", "rmse"),
    note=(
        "The presets are the covariance and the number of components; covariances are those of the whitened "
        f"v = L^-1 u. {INDUCING} inducing inputs, the ELBO, all rows in each step. Full posteriors are trained by the "
        f"estimators; diagonal ones go on from the optimum of one full Gaussian by {EPOCHS} steps of Adam on all "
        "parameters. Boston has Gaussian noise, wisconsin two classes, mining Poisson counts (its test rows are its "
        "training rows)."
    ),
    peers={
        f"{'diagonal' if diagonal else 'full'} {components}": Peer(_measured(components, diagonal))
        for diagonal in (False, True)
        for components in COMPONENTS
    },
)
