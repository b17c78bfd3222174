"""What classifier and regressor share: from X and y to a trained model, and from the model to predictions."""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from autogp.data import Deformations, Source, Summary, TableEncoder, TargetScaler
from autogp.data.sources import as_tensor
from autogp.estimators.augment import augmented
from autogp.estimators.files import save_estimator
from autogp.estimators.fitting import Fit
from autogp.estimators.gaps import Filled, Gaps
from autogp.estimators.inputs import WithTargets, as_source, is_source, refuse_non_finite, targets_of
from autogp.estimators.remarks import remarks_on_columns
from autogp.estimators.summary import describe, importances
from autogp.estimators.weights import checked_weights
from autogp.kernels import Kernel
from autogp.likelihoods import Likelihood
from autogp.model import Marginals, Predictor, SparseGP
from autogp.objectives import log_predictive
from autogp.printing import escaped
from autogp.training import (
    KERNELS,
    Callback,
    Settings,
    Start,
)
from autogp.training.expression import terms_of
from autogp.training.feed import Feed
from autogp.training.stream import absorb_rows

__all__ = ["GPEstimator"]


class GPEstimator(BaseEstimator):
    """Base class of `GPClassifier` and `GPRegressor`."""

    _parameter_constraints: ClassVar[dict] = {
        "n_inducing": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "kernel": [str, Kernel],
        "features": [StrOptions({"auto"}), nn.Module, None],
        "objective": [StrOptions({"auto", "elbo", "loo", "predictive"})],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "share_kernel": ["boolean", None],
        "categorical": ["array-like", None],
        "augment": [Interval(Integral, 1, None, closed="left"), Deformations, None],
        "scaling": [StrOptions({"auto", "standard", "global", "none"})],
        "weights": [StrOptions({"counts", "importance"})],
        "start": [Start, None],
        "settings": [Settings, None],
        "max_epochs": [Interval(Integral, 1, None, closed="left"), None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither"), None],
        "patience": [Interval(Integral, 1, None, closed="left"), None],
        "time_budget": [Interval(Real, 0, None, closed="neither"), None],
        "checkpoint": [str, PathLike, None],
        "random_state": ["random_state"],
        "verbose": ["boolean", StrOptions({"auto"})],
        "device": [str],
    }

    model_: SparseGP
    target_scaler_: TargetScaler | None
    encoder_: TableEncoder | None
    image_shape_: tuple[int, ...] | None
    target_names_: list[str] | None
    n_features_in_: int
    n_rows_: int  # of training, deformed copies included
    settings_: Settings
    history_: list[dict[str, Any]]
    best_epoch_: int
    converged_: bool
    stopped_: str
    elbo_: float
    loo_score_: float
    _gaps: Gaps
    _varies: np.ndarray  # of each column whether it does

    def __init__(
        self,
        n_inducing: int | str = "auto",
        *,
        kernel: str | Kernel = "auto",
        likelihood: str | Likelihood = "auto",
        features: str | nn.Module | None = "auto",
        objective: str = "auto",
        n_components: int = 1,
        share_kernel: bool | None = None,
        scaling: str = "auto",
        weights: str = "counts",
        categorical: Sequence[str] | None = None,
        augment: int | Deformations | None = None,
        start: Start | None = None,
        settings: Settings | None = None,
        max_epochs: int | None = None,
        batch_size: int | None = None,
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
        self.features = features
        self.objective = objective
        self.n_components = n_components
        self.share_kernel = share_kernel
        self.scaling = scaling
        self.weights = weights
        self.categorical = categorical
        self.augment = augment
        self.start = start
        self.settings = settings
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.time_budget = time_budget
        self.checkpoint = checkpoint
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    # -- for the subclasses ---------------------------------------------------------------------------------------

    _kernel_name = "matern52"  # what "auto" is
    _kernel_variance = 1.0  # where a kernel given by name starts
    _start_at: SparseGP | None = None  # a model in whose place training starts
    _is_trial = False  # whether it is only for a comparison, for which noise beside gaps is not worth its time

    def _check_targets(self, y: Any) -> Any:
        """Targets as the user has them, [N] or [N, P], without looking at what fit has learnt."""
        raise NotImplementedError

    def _encode_targets(self, y: Any) -> np.ndarray:
        """Targets as the likelihood takes them, checked against what fit has learnt about them."""
        raise NotImplementedError

    def _start_likelihood(self, summary: Summary) -> tuple[Likelihood, TargetScaler | None]:
        """The likelihood to train, and the scaler of its targets, from the data's summary."""
        raise NotImplementedError

    def _validate_params(self) -> None:
        super()._validate_params()
        if isinstance(self.kernel, str) and self.kernel != "auto":
            try:
                terms_of(self.kernel, KERNELS)
            except ValueError as error:
                raise InvalidParameterError(str(error)) from None

    # -- fitting --------------------------------------------------------------------------------------------------

    def _anew(self) -> Self:
        """A copy to be fitted: what this one has learnt stays until the copy is done."""
        self._validate_params()
        parameters = self.get_params(deep=False)
        fresh = copy.copy(self)
        vars(fresh).clear()
        vars(fresh).update(parameters)
        return fresh

    def _become(self, fitted: Any) -> Self:
        """Takes over what the copy has learnt; what scikit-learn keeps here during a fit stays."""
        for name in [name for name in vars(self) if name.endswith("_") and name not in vars(fitted)]:
            delattr(self, name)
        vars(self).update(vars(fitted))
        return self

    def _read(self, X: Any, y: Any, reset: bool) -> tuple[Source, Any]:
        """Rows, and their targets as the user has them, both checked; `reset` (in fit) learns names and encoding."""
        source = as_source(self, X, reset)
        if y is None:
            if not is_source(X):
                raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
            y = targets_of(source)
        if isinstance(y, np.ndarray) and getattr(X, "encoder", None) is not None:
            refuse_non_finite(y, "y", missing=True, first=1)  # rows of a file
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
        self,
        source: Source,
        weights: np.ndarray | None,
        validation: Source | None,
        strata: np.ndarray | None,
        callbacks: Sequence[Callback],
    ) -> None:
        """Trains on rows whose targets are encoded; `strata` are the classes to keep in proportion."""
        Fit(self, source, weights, validation, strata, callbacks).run()

    def _used_names(self) -> list[str] | None:
        """Of the columns that a source of rows has, where they have names."""
        if self.encoder_ is not None:
            return self.encoder_.used
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    def _remark(self, source: Source, targets: np.ndarray, every: bool = False) -> None:
        """Warns of columns from which the targets [N, P] follow."""
        for sentence in remarks_on_columns(source, targets, self._used_names(), every):
            warnings.warn(sentence, stacklevel=4)

    def _embedded_targets(self, y: np.ndarray) -> np.ndarray:
        """Numbers [N, P] by whose means categories are told apart."""
        return y.reshape(len(y), -1).astype(np.float64)

    def _given_settings(self, seed: int) -> Settings:
        """The user's: those given as such, and what the estimator's own arguments say."""
        given = {
            "objective": None if self.objective == "auto" else self.objective,
            "max_epochs": self.max_epochs,
            "batch_size": self.batch_size,
            "patience": self.patience,
            "time_budget": self.time_budget,
            "device": None if self.device == "auto" else self.device,
        }
        given = {name: value for name, value in given.items() if value is not None}
        found = replace(self.settings or Settings(), seed=seed, **given)
        if self.n_components > 1 and found.time_budget is not None:
            found = replace(found, time_budget=found.time_budget / 2)  # the other half is for the mixture
        return found

    @torch.no_grad()
    def _absorb(self, source: Source, weights: np.ndarray | None) -> None:
        """Updates q with new rows, which need not be seen again; kernel and inducing inputs stay."""
        model = self.model_
        if not model.posterior.has_natural_form:
            raise ValueError("partial_fit updates one Gaussian: set n_components=1")
        if self.augment is not None:
            source, weights = augmented(self, source, weights, self.n_rows_)  # other copies than before
        absorb_rows(model, self._feed, Filled(source, self._gaps), weights)
        self.n_rows_ += len(source)
        self.elbo_ = self.loo_score_ = math.nan  # they would need the old rows

    def _check_weights(self, sample_weight: Any, count: int) -> np.ndarray | None:
        return checked_weights(sample_weight, count, self.weights)

    # -- predicting -----------------------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __getstate__(self) -> Any:
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_kept_predictor"}

    @property
    def _predictor(self) -> Predictor:
        """Of the model as it is; kept until a tensor of the model changes."""
        model = self.model_
        tensors = [*model.parameters(), *model.buffers()]  # kept too: else a new one could have the address of an old
        state = [(id(each), each.data_ptr(), each._version) for each in tensors]
        kept = vars(self).get("_kept_predictor")
        if kept is None or kept[0] is not model or kept[2] != state:
            self._kept_predictor = kept = (model, tensors, state, model.predictor())
        return kept[3]

    @property
    def _feed(self) -> Feed:
        return Feed(self.model_, 1, None, self.target_scaler_)

    def _predicted_rows(self, X: Any) -> Source:
        check_is_fitted(self)
        return as_source(self, X, reset=False)

    @torch.no_grad()
    def _marginals(self, source: Source) -> Iterator[tuple[slice, Marginals, np.ndarray]]:
        """q(f) at each row beside its target, a block at a time; memory does not grow with the number of rows."""
        predictor, one_noise = self._predictor, self.model_.likelihood.with_row_noise() is not None
        for block, x, y in self._blocks(source):
            yield block, self._gaps.marginals(predictor, x, one_noise), y

    def _blocks(self, source: Source) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Rows beside their targets, as many at a time as the predictor takes."""
        step = self._predictor.chunk_rows
        for start in range(0, len(source), step):
            block = slice(start, min(start + step, len(source)))
            yield block, *source.rows(np.arange(block.start, block.stop))

    def _log_target_scale(self, y: np.ndarray) -> Tensor:
        """What scaling adds to the log density of each row, [B]; a missing target has no density and no scale."""
        if self.target_scaler_ is None:
            return torch.zeros(len(y))
        observed = ~np.isnan(y.reshape(len(y), -1).astype(np.float64))
        return torch.from_numpy(observed).double() @ self.target_scaler_.scale.log().cpu()

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log predictive density (for classes: log probability) of each target, [N], in the units of y."""
        return self._log_densities(self._predicted_rows(X), self._encode_targets(self._check_targets(y)))

    def _log_densities(self, source: Source, targets: np.ndarray) -> np.ndarray:
        if len(targets) != len(source):
            raise ValueError(f"X has {len(source)} rows, but y has {len(targets)}")
        found, feed = np.empty(len(source)), self._feed
        for block, marginals, _ in self._marginals(source):
            own = feed.targets(as_tensor(targets[block]))
            with torch.no_grad():
                rows = log_predictive(self.model_.likelihood, marginals, own)
            found[block] = rows.double().cpu().numpy()
        return found - self._log_target_scale(targets).numpy()

    # -- looking at the model -------------------------------------------------------------------------------------

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much each column matters, [n_features_in_], summing to 1: by how much predictions change where the
        column's values are exchanged between rows."""
        check_is_fitted(self)
        return importances(self)

    def summary(self) -> None:
        """Prints what the model is: kernel, likelihood, posterior and scores."""
        check_is_fitted(self)
        print(escaped(describe(self)))

    def save(self, path: Any) -> None:
        """Writes the model to one file, which `autogp.load_model` reads; no pickle, and never half a file."""
        check_is_fitted(self)
        save_estimator(self, path)
