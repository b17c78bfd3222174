"""What classifier and regressor share: from X and y to a trained model, and from the model to predictions."""

import copy
import math
from collections.abc import Iterator
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from autogp.data import InputScaler, Moments, Source, Subset, Summary, TableEncoder, TargetScaler, summarise
from autogp.estimators.files import save_estimator
from autogp.estimators.inputs import WithTargets, as_source, is_source, refuse_non_finite, targets_of
from autogp.estimators.summary import describe, relevance
from autogp.kernels import Kernel
from autogp.likelihoods import Gaussian, InfiniteLOOError, Likelihood
from autogp.model import CHUNK_NUMBERS, Marginals, SparseGP
from autogp.objectives import expected_log_prob, leave_out, log_predictive
from autogp.posteriors import GaussianPosterior, MixturePosterior
from autogp.printing import escaped
from autogp.training import (
    KERNELS,
    Settings,
    absorb,
    start_inducing_inputs,
    start_kernel,
    train,
    train_exact,
)

__all__ = ["GPEstimator"]

SCORE_ROWS = 20_000  # of the training data, for elbo_ and loo_score_
STREAM_ROWS = 1_000  # absorbed at a time by partial_fit
FEW_COLUMNS = 50  # up to here float64: inducing inputs lie dense, and float32 loses what is between them
SAME_UNIT_COLUMNS = 16
ONE_BATCH = 2_000  # rows
NOISELESS_RATES = (0.5, 0.5)  # of natural gradients, where steps have no noise
SETTLED_EPOCHS = 50  # of one step each, without a better score: then a run of open length ends
SHORT_PASS = 1e9  # multiplications


class GPEstimator(BaseEstimator):
    """Base class of `GPClassifier` and `GPRegressor`."""

    _parameter_constraints: ClassVar[dict] = {
        "n_inducing": [Interval(Integral, 1, None, closed="left")],
        "kernel": [StrOptions(set(KERNELS)), Kernel],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "share_kernel": ["boolean"],
        "scaling": [StrOptions({"auto", "standard", "global", "none"})],
        "max_epochs": [Interval(Integral, 1, None, closed="left"), None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "patience": [Interval(Integral, 1, None, closed="left"), None],
        "time_budget": [Interval(Real, 0, None, closed="neither"), None],
        "checkpoint": [str, PathLike, None],
        "random_state": ["random_state"],
    }

    model_: SparseGP
    input_scaler_: InputScaler
    target_scaler_: TargetScaler | None
    encoder_: TableEncoder | None
    target_names_: list[str] | None
    n_features_in_: int

    def __init__(
        self,
        n_inducing: int = 200,
        *,
        kernel: str | Kernel = "rbf",
        likelihood: str | Likelihood = "auto",
        objective: str = "elbo",
        n_components: int = 1,
        share_kernel: bool = True,
        scaling: str = "auto",
        max_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 0.05,
        validation_fraction: float | None = None,
        patience: int | None = None,
        time_budget: float | None = None,
        checkpoint: str | None = None,
        random_state: Any = None,
        verbose: bool | str = "auto",
        device: str = "auto",
    ):
        self.n_inducing = n_inducing
        self.kernel = kernel
        self.likelihood = likelihood
        self.objective = objective
        self.n_components = n_components
        self.share_kernel = share_kernel
        self.scaling = scaling
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.time_budget = time_budget
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    # -- for the subclasses ---------------------------------------------------------------------------------------

    _kernel_variance = 1.0  # where a kernel given by name starts

    def _check_targets(self, y: Any) -> np.ndarray:
        """Targets as the user has them, [N] or [N, P], without looking at what fit has learnt."""
        raise NotImplementedError

    def _encode_targets(self, y: Any) -> np.ndarray:
        """Targets as the likelihood takes them, checked against what fit has learnt about them."""
        raise NotImplementedError

    def _start_likelihood(self, summary: Summary) -> tuple[Likelihood, TargetScaler | None]:
        """The likelihood to train, and the scaler of its targets, from the data's summary."""
        raise NotImplementedError

    # -- fitting --------------------------------------------------------------------------------------------------

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[Source, np.ndarray]:
        """Rows, and their targets as the user has them, both checked; `reset` (in fit) forgets what was learnt."""
        if reset:
            self._validate_params()
            vars(self).pop("model_", None)  # not fitted until training has come to its end
        source = as_source(self, X, reset)
        if y is None:
            if not is_source(X):
                raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
            y = targets_of(source)
        y = self._check_targets(y)
        if len(y) != len(source):
            raise ValueError(f"X has {len(source)} rows, but y has {len(y)}")
        return source, y

    def _validation(self, eval_set: Any) -> Source | None:
        if eval_set is None:
            return None
        if is_source(eval_set):
            eval_set = eval_set, None
        if not isinstance(eval_set, (tuple, list)) or len(eval_set) != 2:
            raise ValueError("eval_set must be a pair (X, y), or a source with targets")
        source, y = self._read(*eval_set, reset=False)
        return WithTargets(source, self._encode_targets(y))

    def _fit(
        self, source: Source, weights: np.ndarray | None, validation: Source | None, strata: np.ndarray | None
    ) -> None:
        """Trains on rows whose targets are encoded; `strata` are the classes to keep in proportion."""
        # A run that may be interrupted must start again as it did: its seed is never left to chance.
        random_state = 0 if self.random_state is None and self.checkpoint is not None else self.random_state
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        rows: Source = source
        if self.validation_fraction is not None:
            if validation is not None:
                raise ValueError("give either validation_fraction or eval_set, not both")
            kept, held = self._held_out(len(source), strata, seed)
            rows, validation = Subset(source, kept), Subset(source, held)
            weights = None if weights is None else weights[kept]
        if weights is not None and (weights == 0).any():
            rows, weights = Subset(rows, np.flatnonzero(weights)), weights[weights > 0]

        summary = summarise(rows, allow_missing_targets=True)
        likelihood, self.target_scaler_ = self._start_likelihood(summary)
        self.input_scaler_ = InputScaler.from_summary(summary, self._scaling_of(summary.x))
        model = self._start_model(rows, likelihood, seed, by_class=strata is not None)
        arguments: dict[str, Any] = {
            "weights": weights,
            "validation": validation,
            "input_scaler": self.input_scaler_,
            "target_scaler": self.target_scaler_,
            "verbose": self.verbose,
        }
        settings = self._settings(len(rows), likelihood, seed)
        if self._all_at_once(model, len(rows)):
            history = train_exact(model, rows, settings, **arguments)
        else:
            folder = self.checkpoint
            history = train(model, rows, settings, **arguments, folder=folder, resume=folder is not None)
        self.model_ = model
        self.history_, self.best_epoch_ = history.rows, history.best_epoch
        self.n_rows_ = summary.rows
        self._varies = summary.x.minimum < summary.x.maximum
        self._score_training_rows(rows, weights)

    def _all_at_once(self, model: SparseGP, count: int) -> bool:
        """Whether q has a closed form and a pass over all rows is short: then nothing beats L-BFGS, and a run takes so
        little time that none of it needs to be saved."""
        work = count * model.likelihood.num_latents * model.inducing_inputs.shape[-2] ** 2
        return (
            isinstance(model.likelihood, Gaussian)
            and isinstance(model.posterior, GaussianPosterior)
            and model.precision == torch.float64
            and self.objective == "elbo"
            and self.batch_size is None
            and work <= SHORT_PASS
        )

    def _settings(self, count: int, likelihood: Likelihood, seed: int) -> Settings:
        """Settings for so many rows. Where one batch holds them all and nothing is sampled, steps have no noise: they
        may be long."""
        batch_size, rates, patience = self.batch_size, Settings.natural_rates, self.patience
        if batch_size is None:
            batch_size = count if count <= ONE_BATCH else Settings.batch_size
        if batch_size >= count and not likelihood.sampled & {"elbo", self.objective}:
            rates = NOISELESS_RATES
        if batch_size >= count and patience is None and self.max_epochs is None:
            patience = SETTLED_EPOCHS
        return Settings(
            objective=self.objective,
            max_epochs=self.max_epochs,
            batch_size=batch_size,
            learning_rate=self.learning_rate,
            natural_rates=rates,
            patience=patience,
            time_budget=self.time_budget,
            device=self.device,
            seed=seed,
        )

    def _held_out(self, count: int, strata: np.ndarray | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.model_selection import train_test_split

        kept, held = train_test_split(
            np.arange(count), test_size=self.validation_fraction, random_state=seed, stratify=strata
        )
        return np.sort(kept), np.sort(held)

    def _scaling_of(self, x: Moments) -> Any:
        """Columns that share a unit, such as pixels, are scaled by one number; others each by its own."""
        if self.scaling != "auto":
            return self.scaling
        varying = x.minimum < x.maximum
        if varying.sum() < SAME_UNIT_COLUMNS:
            return "standard"
        low, high = x.minimum[varying], x.maximum[varying]
        span = high.max() - low.min()
        shared = (np.abs(low - low.min()) <= 0.1 * span) & (np.abs(high - high.max()) <= 0.1 * span)
        return "global" if shared.mean() > 0.5 else "standard"

    def _start_model(self, rows: Source, likelihood: Likelihood, seed: int, by_class: bool) -> SparseGP:
        groups = 1 if self.share_kernel else likelihood.num_latents
        if isinstance(self.kernel, Kernel):
            kernel = copy.deepcopy(self.kernel)
        else:
            kernel = start_kernel(self.kernel, rows, self.input_scaler_, groups, self._kernel_variance, seed)
        dtype = torch.float64 if len(self.input_scaler_.shift) <= FEW_COLUMNS else torch.float32
        z = start_inducing_inputs(rows, self.n_inducing, self.input_scaler_, seed, by_class, dtype, groups)
        posterior = None
        if self.n_components > 1:
            generator = torch.Generator().manual_seed(seed)
            posterior = MixturePosterior(likelihood.num_latents, z.shape[-2], self.n_components, generator=generator)
        return SparseGP(kernel, likelihood, z, posterior)

    @torch.no_grad()
    def _score_training_rows(self, rows: Source, weights: np.ndarray | None) -> None:
        """elbo_ and loo_score_, from all rows or an even sample of them."""
        count = len(rows)
        chosen = np.arange(count) if count <= SCORE_ROWS else np.linspace(0, count - 1, SCORE_ROWS).astype(np.int64)
        weight = torch.ones(len(chosen)) if weights is None else torch.from_numpy(weights[chosen])
        expected = left_out = scale = 0.0
        likelihood, prepared = self.model_.likelihood, self.model_.prepare()
        for block, x, y in self._blocks(Subset(rows, chosen)):
            marginals = self.model_.marginals(x, prepared)
            of_row = weight[block].to(marginals.mean)
            scale += (of_row * self._log_target_scale(y).to(of_row)).sum().item()
            targets = self._targets(y, marginals)
            expected += (of_row * expected_log_prob(likelihood, marginals, targets)).sum().item()
            try:
                left_out += (of_row * leave_out(likelihood, marginals, targets)).sum().item()
            except InfiniteLOOError:
                left_out = math.nan
        total = 1.0 * count if weights is None else float(weights.sum())
        counted = weight.sum().item()
        self.elbo_ = total * (expected - scale) / counted - prepared.moments.kl().item()
        self.loo_score_ = (left_out - scale) / counted

    def _absorb(self, source: Source, weights: np.ndarray | None) -> None:
        """Updates q with new rows, which need not be seen again; kernel and inducing inputs stay."""
        if not isinstance(self.model_.posterior, GaussianPosterior):
            raise ValueError("partial_fit updates one Gaussian: set n_components=1")
        for start in range(0, len(source), STREAM_ROWS):
            indices = np.arange(start, min(start + STREAM_ROWS, len(source)))
            x, y = source.rows(indices)
            y = torch.from_numpy(np.ascontiguousarray(y)).to(self._device)
            if self.target_scaler_ is not None:
                y = self.target_scaler_(y, self.model_.precision)
            absorb(self.model_, self._scaled(x), y, None if weights is None else torch.from_numpy(weights[indices]))
        self.n_rows_ += len(source)
        self.elbo_ = self.loo_score_ = math.nan  # they would need the old rows

    def _check_weights(self, sample_weight: Any, count: int) -> np.ndarray | None:
        if sample_weight is None:
            return None
        weights = np.asarray(sample_weight, dtype=np.float64)
        weights = np.full(count, weights) if weights.ndim == 0 else weights
        if weights.shape != (count,):
            raise ValueError(f"sample_weight must be one number per row, [{count}], got the shape {weights.shape}")
        refuse_non_finite(weights, "sample_weight")
        if (weights < 0).any():
            row = int(np.argmax(weights < 0))
            raise ValueError(f"sample_weight must not be negative, got {weights[row]:g} in row {row} (counted from 0)")
        if not weights.any():
            raise ValueError("sample_weight must not be zero for every row")
        return weights

    # -- predicting -----------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    @property
    def _device(self) -> torch.device:
        return self.model_.inducing_inputs.device

    def _scaled(self, x: np.ndarray) -> Tensor:
        rows = torch.from_numpy(np.require(x, requirements=["C", "W"])).to(self._device)
        return self.input_scaler_(rows, self.model_.precision)

    def _predicted_rows(self, X: Any) -> Source:
        check_is_fitted(self)
        return as_source(self, X, reset=False)

    def _blocks(self, source: Source) -> Iterator[tuple[slice, Tensor, np.ndarray]]:
        """Scaled inputs and encoded targets, a block at a time; memory does not grow with the number of rows."""
        latents, size = self.model_.likelihood.num_latents, self.model_.inducing_inputs.shape[-2]
        widest = max(size, len(self.input_scaler_.shift), 512)
        step = max(1, CHUNK_NUMBERS // (self.n_components * latents * widest))
        for start in range(0, len(source), step):
            block = slice(start, min(start + step, len(source)))
            x, y = source.rows(np.arange(block.start, block.stop))
            yield block, self._scaled(x), y

    @torch.no_grad()
    def _marginals(self, source: Source) -> Iterator[tuple[slice, Marginals]]:
        """q(f) at each row, a block at a time."""
        prepared = self.model_.prepare()
        for block, x, _ in self._blocks(source):
            yield block, self.model_.marginals(x, prepared)

    def _targets(self, y: np.ndarray, marginals: Marginals) -> Tensor:
        """Encoded targets as the likelihood takes them, beside these marginals."""
        targets = torch.from_numpy(np.require(y, requirements=["C", "W"])).to(marginals.mean.device)
        if self.target_scaler_ is not None:
            targets = self.target_scaler_(targets, marginals.mean.dtype)
        targets = self.model_.likelihood.check_targets(targets)
        return targets.to(marginals.mean.dtype) if targets.is_floating_point() else targets

    def _log_target_scale(self, y: np.ndarray) -> Tensor:
        """What scaling adds to the log density of each row, [B]; a missing target has no density and no scale."""
        if self.target_scaler_ is None:
            return torch.zeros(len(y))
        observed = ~np.isnan(y.reshape(len(y), -1).astype(np.float64))
        return torch.from_numpy(observed).double() @ self.target_scaler_.scale.log().cpu()

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log predictive density (for classes: log probability) of each target, [N], in the units of y."""
        source = self._predicted_rows(X)
        targets = self._encode_targets(self._check_targets(y))
        if len(targets) != len(source):
            raise ValueError(f"X has {len(source)} rows, but y has {len(targets)}")
        found = np.empty(len(source))
        for block, marginals in self._marginals(source):
            with torch.no_grad():
                rows = log_predictive(self.model_.likelihood, marginals, self._targets(targets[block], marginals))
            found[block] = rows.double().cpu().numpy()
        return found - self._log_target_scale(targets).numpy()

    # -- looking at the model -------------------------------------------------------------------------------------

    @property
    def feature_relevance_(self) -> np.ndarray:
        """How much each column matters, [n_features_in_], summing to 1: the inverse lengthscales of scaled inputs."""
        check_is_fitted(self)
        return relevance(self)

    def summary(self) -> None:
        """Prints what the model is: kernel, likelihood, posterior and scores."""
        check_is_fitted(self)
        print(escaped(describe(self)))

    def save(self, path: Any) -> None:
        """Writes the model to one file, which `autogp.load_model` reads; no pickle, and never half a file."""
        check_is_fitted(self)
        save_estimator(self, path)
