"""Which likelihood suits the targets: small models with each are compared on rows that they have not seen."""

import copy
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.stats import nbinom, rankdata
from sklearn.exceptions import ConvergenceWarning

from autogp.data import Source, Subset
from autogp.data.sources import as_tensor
from autogp.kernels.stationary import Stationary
from autogp.likelihoods import (
    Beta,
    BoxCox,
    Gaussian,
    Heteroscedastic,
    Likelihood,
    NegativeBinomial,
    Network,
    Poisson,
    StudentT,
    ZeroInflated,
)
from autogp.model import SparseGP
from autogp.objectives import log_predictive
from autogp.training import FEWEST_INDUCING, Settings
from autogp.training.affordable import is_exact
from autogp.training.step import FAILURES

if TYPE_CHECKING:
    from autogp.estimators.regressor import GPRegressor

__all__ = ["LIKELIHOODS", "choose_likelihood", "likelihood_named"]

LIKELIHOODS = (
    "gaussian",
    "student_t",
    "heteroscedastic",
    "box_cox",
    "beta",
    "poisson",
    "negative_binomial",
    "zero_inflated",
    "network",
)
FEWEST_ROWS, FEW_ROWS = 55, 150  # from which "auto" compares, and up to which it holds out each third in turn
TRIAL_ROWS = 1_200  # of which a third is held out
TRIAL_EPOCHS, FURTHER_EPOCHS = 20, 10  # with Gaussian noise, and then with another likelihood
LEAST_CORRELATION = 3.0  # standard errors of a rank correlation
LEAST_GAIN = 0.01  # nats per row, and one standard error: below that the simpler likelihood stays
LEAST_PROMISE = 0.005  # nats per row that residuals must promise, for a trial
POWERS, DISPERSIONS = (0.0, 0.25, 0.5, 0.75, 1.5, 2.0), (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
LARGEST_COUNT = 10_000
FEW_VALUES = 10  # different targets
MOST_LOG_VARIANCE = math.log(4.0)  # of the kernel at first, where it is also that of a logarithm of noise


def likelihood_named(name: str, y: np.ndarray) -> Likelihood:
    """The likelihood as training starts with it, for targets y [N] or [N, P]."""
    y = y.reshape(len(y), -1).astype(np.float64)
    outputs = y.shape[1]
    match name:
        case "student_t":
            return StudentT(outputs, scale=0.3)
        case "heteroscedastic":
            return Heteroscedastic(outputs, variance=0.1)
        case "network":
            return Network(outputs, variance=0.1)
        case "poisson" | "negative_binomial":
            rate = torch.from_numpy(np.nanmean(y, 0)).clamp_min(1e-3)
            return Poisson(outputs, rate) if name == "poisson" else NegativeBinomial(outputs, rate, dispersion=0.5)
        case "zero_inflated":
            share = torch.from_numpy(np.nanmean(np.where(np.isnan(y), y, y == 0), 0)).clamp(0.02, 0.98) / 2
            rate = torch.from_numpy(np.nanmean(y, 0)).clamp_min(1e-3) / (1 - share)
            return ZeroInflated(outputs, rate, dispersion=0.5, odds=share / (1 - share))
        case "beta":
            if ((y <= 0) | (y >= 1)).any():
                row = int(((y <= 0) | (y >= 1)).any(1).argmax())
                raise ValueError(
                    f"likelihood='beta' is for shares above 0 and below 1, but y is {y[row].max():g} in row {row}"
                )
            mean, variance = np.nanmean(y, 0), np.nanvar(y, 0)
            odds, spread = mean / (1 - mean), mean * (1 - mean)
            # Where half of the variance is noise: spread / (1 + concentration) = variance / 2.
            concentration = np.clip(2 * spread / np.maximum(variance, 1e-12) - 1, 1.0, 1e4)
            return Beta(outputs, torch.from_numpy(odds), torch.from_numpy(concentration))
        case "box_cox":
            if (y <= 0).any():
                row = int((y <= 0).any(1).argmax())
                raise ValueError(
                    f"likelihood='box_cox' is for positive targets, but y is {y[row].min():g} in row {row}"
                )
            log_y = np.log(y)
            unit, spread = np.exp(np.nanmean(log_y, 0)), np.nanstd(log_y, 0)
            spread = torch.from_numpy(np.where(spread > 0, spread, 1.0))
            return BoxCox(outputs, variance=0.1, unit=torch.from_numpy(unit), spread=spread)
        case _:
            return Gaussian(outputs, variance=0.1)


def choose_likelihood(estimator: "GPRegressor", rows: Source, y: np.ndarray, seed: int) -> tuple[str, SparseGP | None]:
    """The name of the likelihood with the largest log predictive density of held-out rows, and where to start from.

    A likelihood other than Gaussian noise must be better by more than chance: its complexity has a price. It is tried
    only where the residuals of a model with Gaussian noise promise a gain, and starts where that model has ended.
    """
    if y.ndim > 1 or np.ptp(y) == 0:
        return "gaussian", None
    candidates = _candidates(y)
    if estimator.objective == "loo" or len(y) < FEW_ROWS:  # infinite for that likelihood; too few for two functions
        candidates = [name for name in candidates if name != "heteroscedastic"]
    if len(y) < FEWEST_ROWS or len(candidates) == 1 or estimator.time_budget is not None:
        return "gaussian", None
    order = np.random.default_rng(seed).permutation(len(y))[:TRIAL_ROWS]
    parts = [np.sort(part) for part in np.array_split(order, 3)]
    splits = [(np.sort(np.concatenate(parts[:i] + parts[i + 1 :])), Subset(rows, parts[i])) for i in range(3)]
    splits = splits if len(y) < FEW_ROWS else splits[:1]  # each third is held out where rows are few
    first = best = [_trial(estimator, "gaussian", rows, kept) for kept, _ in splits]
    unseen = [held for _, held in splits]
    chosen, found = "gaussian", np.concatenate(list(map(_densities, first, unseen)))
    for name in candidates[1:]:
        if not _promising(name, first, best, unseen, found.mean()):
            continue
        try:
            trial = [_trial(estimator, name, rows, kept, start) for (kept, _), start in zip(splits, first, strict=True)]
            density = np.concatenate(list(map(_densities, trial, unseen)))
        except FAILURES:
            continue  # numbers that cannot be computed speak against it
        gain = density - found
        error = gain.std() / np.sqrt(len(gain))
        if np.isfinite(gain).all() and gain.mean() > max(LEAST_GAIN, error):
            chosen, best, found = name, trial, density
    return chosen, first[0].model_ if chosen == "gaussian" else None


def _candidates(y: np.ndarray) -> list[str]:
    """What is possible for targets y, the simplest first."""
    whole = y.min() >= 0 and y.max() <= LARGEST_COUNT and bool((y == np.round(y)).all())
    return [
        "gaussian",
        *(["box_cox"] if y.min() > 0 else []),
        *(["negative_binomial"] if whole else []),
        # Where a target has few values, rows around agree in it, and noise that varies would go to 0 there.
        *(["heteroscedastic"] if len(np.unique(y)) > FEW_VALUES else []),
    ]


def _trial(
    estimator: "GPRegressor", name: str, rows: Source, kept: np.ndarray, start: "GPRegressor | None" = None
) -> "GPRegressor":
    """A small model of the rows kept; it begins where `start` has ended."""
    epochs = TRIAL_EPOCHS if start is None else FURTHER_EPOCHS
    targets = rows.rows(kept)[1]
    exact = is_exact("auto", len(kept), likelihood_named(name, targets), Settings())
    trial = type(estimator)(
        "auto" if exact else FEWEST_INDUCING,
        kernel=estimator.kernel,
        likelihood=name,
        features=estimator.features,
        scaling=estimator.scaling,
        max_epochs=min(epochs, estimator.max_epochs or epochs),
        random_state=0,
        verbose=False,
        device=estimator.device,
    )
    for attribute in ("encoder_", "image_shape_", "n_features_in_", "n_outputs_", "_single", "target_names_"):
        setattr(trial, attribute, getattr(estimator, attribute))
    trial._is_trial = True
    if start is not None:
        trial._start_at = copy.deepcopy(start.model_)
        for part in trial._start_at.kernel.modules():
            if name == "heteroscedastic" and isinstance(part, Stationary):
                part.log_variance.data.clamp_(max=MOST_LOG_VARIANCE)
    with warnings.catch_warnings():  # a trial need not converge
        warnings.simplefilter("ignore", ConvergenceWarning)
        trial._fit_rows(Subset(rows, kept), targets, None, None, ())
    return trial


@torch.no_grad()
def _densities(trial: "GPRegressor", rows: Source) -> np.ndarray:
    """Log predictive density of each row."""
    found, feed = np.empty(len(rows)), trial._feed
    for block, marginals, y in trial._marginals(rows):
        density = log_predictive(trial.model_.likelihood, marginals, feed.targets(torch.from_numpy(y)))
        found[block] = (density.double().cpu() - trial._log_target_scale(y)).numpy()
    return found


@torch.no_grad()
def _predicted(trial: "GPRegressor", rows: Source) -> tuple[np.ndarray, np.ndarray]:
    """Targets and their predicted means, in the units of the targets."""
    _, y = rows.rows(np.arange(len(rows)))
    found = []
    for _, marginals, _ in trial._marginals(rows):
        mean = trial.model_.likelihood.predict(*marginals[:3]).mean.double()
        found.append((mean if trial.target_scaler_ is None else trial.target_scaler_.inverse_mean(mean)).cpu().numpy())
    return np.asarray(y, dtype=np.float64), np.concatenate(found)[:, 0]


def _promising(
    name: str, first: list["GPRegressor"], best: list["GPRegressor"], rows: list[Subset], found: float
) -> bool:
    """Whether residuals of held-out rows speak for a trial of another likelihood.

    `first` are models with Gaussian noise, `best` those with the largest mean log density of these rows, `found`.
    """
    if name == "heteroscedastic":
        return best[0].model_.likelihood.conjugate and _noise_varies(best, rows)
    y, mean = (np.concatenate(parts) for parts in zip(*map(_predicted, first, rows), strict=True))
    if mean.min() <= 0:  # a positive target is predicted badly
        return True
    if name == "box_cox":
        return _power_density(y, mean, POWERS) - _power_density(y, mean, [1.0]) > LEAST_PROMISE
    # A negative binomial with these means, and the variance mean + dispersion mean^2
    densities = [nbinom.logpmf(y, 1 / each, 1 / (1 + each * mean)).mean() for each in DISPERSIONS]
    return max(densities) - found > LEAST_PROMISE


def _power_density(y: np.ndarray, mean: np.ndarray, powers: Sequence[float]) -> float:
    """The largest mean log density of y where h(y) - h(mean) is normal, h(y) = y^power, or log y for 0.

    With the best variance it is, but for a constant, -log(mean (h(y) - h(mean))^2) / 2 + mean log h'(y).
    """
    log_y, log_mean, found = np.log(y), np.log(mean), []
    for power in powers:
        apart = np.exp(power * log_y) - np.exp(power * log_mean) if power else log_y - log_mean
        slope = (power - 1) * log_y.mean() + (math.log(power) if power else 0.0)
        found.append(slope - 0.5 * math.log(np.square(apart).mean()))
    return max(found)


@torch.no_grad()
def _noise_varies(trials: list["GPRegressor"], unseen: list[Subset]) -> bool:
    """Whether the size of the residuals goes with the prediction, or with an input of the kernel."""
    sizes, beside = [], []
    for trial, rows in zip(trials, unseen, strict=True):
        for block, marginals, y in trial._marginals(rows):
            mean, variance = (part.double() for part in trial.model_.likelihood.predict(*marginals[:3]))
            residual = (trial._feed.targets(torch.from_numpy(y)).view_as(mean) - mean) / variance.sqrt()
            x, _ = rows.rows(np.arange(block.start, block.stop))
            phi = trial.model_.embed(as_tensor(trial._gaps.filled(x)))
            sizes.append(residual.abs())
            beside.append(torch.cat([mean, phi.double()], 1))
    size, columns = torch.cat(sizes).cpu().numpy(), torch.cat(beside).cpu().numpy()
    ranks = rankdata(np.concatenate([size, columns], 1), axis=0)
    ranks = ranks[:, np.ptp(ranks, 0) > 0]  # a column that is constant here tells nothing
    return bool((np.abs(np.corrcoef(ranks.T)[0, 1:]) * math.sqrt(len(size)) > LEAST_CORRELATION).any())
