"""What classifier and regressor share: from X and y to a trained model, and from the model to predictions."""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from autogp.data import Deformations, Deformed, Source, Subset, Summary, TableEncoder, TargetScaler, summarise
from autogp.data.sources import as_tensor
from autogp.estimators.files import save_estimator
from autogp.estimators.gaps import Filled, Gaps
from autogp.estimators.inputs import WithTargets, as_source, is_source, refuse_non_finite, targets_of
from autogp.estimators.remarks import remarks_on_columns
from autogp.estimators.summary import describe, importances
from autogp.estimators.weights import checked_weights, merged
from autogp.features import Chain, Columns, Convolutional, Scaling, apply_once
from autogp.features.base import Mapped, as_map
from autogp.features.cache import worth_keeping
from autogp.kernels import RBF, Kernel
from autogp.likelihoods import InfiniteLOOError, Likelihood
from autogp.model import Marginals, Predictor, SparseGP
from autogp.objectives import expected_log_prob, log_predictive
from autogp.printing import escaped
from autogp.training import (
    BATCH_SIZE,
    KERNELS,
    Callback,
    History,
    Settings,
    Start,
    all_inputs,
    converge_growing,
    mix,
    refine,
    start_from,
    start_inducing_inputs,
    start_kernel,
    start_latents,
    train,
)
from autogp.training.affordable import (
    ONE_BATCH,
    all_at_once,
    first_inducing,
    is_exact,
    most_inducing,
    settings_for,
)
from autogp.training.distributed import processes
from autogp.training.expression import terms_of
from autogp.training.feed import Feed, device_named
from autogp.training.progress import RowsDone, checkpoints_in, showing
from autogp.training.stream import absorb_rows
from autogp.training.threads import threads_for

__all__ = ["GPEstimator"]

SCORE_ROWS = 20_000  # of the training data, for elbo_ and loo_score_
SCALED_ROWS = 20_000  # enough to scale the outputs of a feature map by
FEW_COLUMNS = 50  # up to here float64: inducing inputs lie dense, and float32 loses what is between them
RIVAL_ROWS = 5_000  # from which the RBF kernel is tried beside the Matérn
FEWEST_REFINED = 1_000  # rows from which "auto" tries the predictive density,
REFINED_SHARE = 0.5  # for so many epochs beside the ELBO's


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
        # A run that may be interrupted must start again as it did: its seed is never left to chance.
        random_state = 0 if self.random_state is None and self.checkpoint is not None else self.random_state
        seed = processes().from_first(lambda: int(check_random_state(random_state).randint(2**31 - 1)))
        rows: Source = source
        if self.validation_fraction is not None:
            if validation is not None:
                raise ValueError("give either validation_fraction or eval_set, not both")
            kept, held = self._held_out(len(source), strata, seed)
            rows, validation = Subset(source, kept), Subset(source, held)
            weights = None if weights is None else weights[kept]
        if weights is not None and (weights == 0).any():
            rows, weights = Subset(rows, np.flatnonzero(weights)), weights[weights > 0]
        count = len(rows)
        if count <= ONE_BATCH:
            rows, weights = merged(rows, weights)

        if self.augment is not None:
            rows, weights = self._augmented(rows, weights, seed)
        self._gaps = gaps = Gaps.of(rows, self.encoder_, seed)
        validation = None if validation is None else Filled(validation, gaps)
        encoding = None if self.encoder_ is None else Columns.of(self.encoder_)
        if encoding is not None:
            y = targets_of(rows)
            encoding.fit(WithTargets(rows, self._embedded_targets(np.asarray(y))), seed=seed)
            rows = encoding.cross_fitted(rows, seed)
        before, features, rows, summary = self._fit_features(rows, encoding, seed)
        if before is not None:
            self._gaps = Gaps.of(rows, None, seed)
            validation = None if validation is None else self._applied(before, validation)
            callbacks = [_after(before, callback) for callback in callbacks]
        likelihood, self.target_scaler_ = self._start_likelihood(summary)
        self.model_ = model = self._start_model(rows, features, likelihood, seed, by_class=strata is not None)
        self.history_: list[dict[str, Any]] = []
        folder = None if self.checkpoint is None else Path(self.checkpoint)
        with threads_for(model, count), checkpoints_in(folder):
            self._train(model, rows, weights, validation, strata, seed, callbacks)
            if self._gaps.flagged.any() and not self._is_trial:
                self._train_beside_gaps(model, rows, weights, validation, seed, callbacks)
            if self.n_components > 1:
                self._mix(model, rows, weights, callbacks)
        self.n_rows_ = count * self._variants
        self._score_training_rows(rows, weights)
        if encoding is not None:
            encoding.settle()
        if before is not None:  # from here on the model takes rows as they came
            model.features, self._gaps = Chain(*before.maps, *features.maps), gaps

    @property
    def _variants(self) -> int:
        """Of each row of training: itself and its deformed copies."""
        return 1 + (self.augment.copies if isinstance(self.augment, Deformations) else self.augment or 0)

    def _augmented(self, rows: Source, weights: np.ndarray | None, seed: int) -> tuple[Source, np.ndarray | None]:
        """The rows, which must be images, and deformed copies of them, each with the weight of its image."""
        how = self.augment if isinstance(self.augment, Deformations) else Deformations(self._variants - 1)
        own = None if not isinstance(self.features, nn.Module) else as_map(self.features).image_shape
        shape = how.image_shape or self.image_shape_ or own
        if self.encoder_ is not None or shape is None:
            raise ValueError(
                "augment is for images: pass X as an array [N, H, W] or [N, H, W, C], or say what images the rows are "
                "by augment=Deformations(image_shape=(H, W))"
            )
        if math.prod(shape) != self.n_features_in_:
            raise ValueError(f"augment: images of {tuple(shape)} have other than {self.n_features_in_} pixels")
        return Deformed(rows, shape, how, seed), None if weights is None else np.tile(weights, self._variants)

    def _remark(self, source: Source, targets: np.ndarray, every: bool = False) -> None:
        """Warns of columns from which the targets [N, P] follow."""
        names = list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None  # pyright: ignore
        names = names if self.encoder_ is None else self.encoder_.used
        for sentence in remarks_on_columns(source, targets, names, every):
            warnings.warn(sentence, stacklevel=4)

    def _embedded_targets(self, y: np.ndarray) -> np.ndarray:
        """Numbers [N, P] by whose means categories are told apart."""
        return y.reshape(len(y), -1).astype(np.float64)

    def _fit_features(
        self, rows: Source, encoding: Columns | None, seed: int
    ) -> tuple[Chain | None, Chain, Source, Summary]:
        """Frozen maps of the rows, where there are such, those from what they give to the kernel's inputs, what they
        give for all rows, and the summary of the rows as numbers."""
        maps: list[nn.Module] = [] if encoding is None else [encoding]
        numbers = rows if encoding is None else Mapped(rows, encoding)
        summary = summarise(numbers, allow_missing_targets=True)
        self._varies = summary.x.minimum < summary.x.maximum
        own = self._own_features()
        if self.image_shape_ is None and own is not None and as_map(own).image_shape is not None:
            self.image_shape_ = tuple(as_map(own).image_shape)  # pyright: ignore[reportArgumentType]
        if own is not None and as_map(own).scaled_outputs:
            with showing(self.verbose) as displays:
                as_map(own).watch = RowsDone(displays, "learning features from")
                as_map(own).fit(numbers, seed=seed)
                as_map(own).watch = None
            before = Chain(*maps, own)
            frozen = encoding is None and not any(parameter.requires_grad for parameter in own.parameters())
            # Of several processes each applies it to its own rows, when it trains.
            at_once = frozen and processes().count == 1 and worth_keeping([own], rows)
            outputs = self._applied(before, rows) if at_once else Mapped(rows, before)
            scaled = summarise(outputs, allow_missing_targets=True, max_rows=SCALED_ROWS)
            scaling = Scaling.from_summary(scaled, self.scaling if self.scaling != "auto" else "global")  # pyright: ignore
            if at_once:
                return before, Chain(scaling), outputs, summary
            return None, Chain(*before.maps, scaling), rows, summary
        joint = [] if encoding is None else encoding.joint
        maps.append(Scaling.from_summary(summary, self.scaling, joint))  # pyright: ignore
        if own is not None:
            as_map(own).fit(Mapped(numbers, maps[-1]), seed=seed)
            maps.append(own)
        return None, Chain(*maps), rows, summary

    def _own_features(self) -> nn.Module | None:
        """A copy of the features that were given; "auto" is patches for images, and none for other rows."""
        if isinstance(self.features, nn.Module):
            return copy.deepcopy(self.features)
        shape = self.image_shape_
        return (
            Convolutional(shape)
            if self.features == "auto" and shape is not None and Convolutional.suits(shape)
            else None
        )

    def _applied(self, features: Chain, rows: Source) -> Source:
        """What frozen maps give for all rows, computed once."""
        device = device_named((self.settings or Settings()).device if self.device == "auto" else self.device)
        with showing(self.verbose) as displays:
            return apply_once(features.to(device), rows, device, watch=RowsDone(displays))

    def _train(
        self,
        model: SparseGP,
        rows: Source,
        weights: np.ndarray | None,
        validation: Source | None,
        strata: np.ndarray | None,
        seed: int,
        callbacks: Sequence[Callback],
        part: str = "",
    ) -> None:
        """Trains from where the model is; `part` is the folder of its checkpoints within that of all."""
        own = self.settings is not None
        self.settings_ = settings = settings_for(self._given_settings(seed), len(rows), model.likelihood, own_rates=own)
        common: dict[str, Any] = {
            "weights": weights,
            "validation": validation,
            "target_scaler": self.target_scaler_,
            "callbacks": callbacks,
            "verbose": self.verbose,
        }
        histories = []
        at_once = self._all_at_once(len(rows), model.likelihood)
        if self.augment is not None and not at_once and settings.plan is None:  # as many steps as without copies
            steps = math.ceil(len(rows) / self._variants / (settings.batch_size or BATCH_SIZE))
            epochs = max(2, round(settings.epochs(steps) / self._variants))
            self.settings_ = settings = replace(settings, max_epochs=epochs)
        if at_once and settings.objective != "elbo" and settings.time_budget is not None:
            settings = replace(settings, time_budget=settings.time_budget / 2)  # of each of the two runs
        if at_once:
            if settings.objective == "loo":
                Feed(model, len(rows), weights, self.target_scaler_).check_loo(rows)
            folder = None if self.checkpoint is None else Path(self.checkpoint) / part / "elbo"
            first, open_end = replace(settings, objective="elbo"), self.n_inducing == "auto"
            most = self._most_inducing(len(rows), model.likelihood) if not part else 0  # gaps: there are enough already
            rival = RBF if self._tries_rbf(len(rows), model) and not part else None
            histories += converge_growing(
                model, rows, first, most, open_end=open_end, rival=rival, folder=folder, **common
            )
            self.converged_ = histories[-1].converged
        if not histories or settings.objective != "elbo":
            folder = None if self.checkpoint is None else Path(self.checkpoint) / part
            histories.append(train(model, rows, settings, **common, folder=folder, resume=folder is not None))
        if strata is not None and weights is None and validation is None and self._may_refine(model, strata):
            folder = None if self.checkpoint is None else Path(self.checkpoint)
            epochs = REFINED_SHARE * sum(len(each.rows) for each in histories)
            common = {"callbacks": callbacks, "verbose": self.verbose}
            refined = refine(model, rows, settings, epochs, strata, self.target_scaler_, folder, **common)
            histories += [] if refined is None else [refined]
        for history in histories:
            self._append(history)
            self.stopped_ = history.stopped

    def _append(self, history: History) -> None:
        """A run goes on where the one before has ended."""
        last = self.history_[-1] if self.history_ else {}
        before = {name: last.get(name, 0) for name in ("epoch", "step", "seconds")}
        self.best_epoch_ = before["epoch"] + history.best_epoch
        self.history_ += [row | {name: before[name] + row[name] for name in before} for row in history.rows]

    def _mix(self, model: SparseGP, rows: Source, weights: np.ndarray | None, callbacks: Sequence[Callback]) -> None:
        """Puts a mixture in the place of the Gaussian q that was trained."""
        history = mix(
            model,
            rows,
            self.settings_,
            self.n_components,
            weights=weights,
            target_scaler=self.target_scaler_,
            folder=None if self.checkpoint is None else Path(self.checkpoint) / "mixture",
            callbacks=callbacks,
            verbose=self.verbose,
        )
        if history is not None:
            self._append(history)

    def _train_beside_gaps(
        self,
        model: SparseGP,
        rows: Source,
        weights: np.ndarray | None,
        validation: Source | None,
        seed: int,
        callbacks: Sequence[Callback],
    ) -> None:
        """Goes on with what the gaps of a row hide as noise of that row alone, where all rows share the same noise."""
        likelihood, beside = model.likelihood, model.likelihood.with_row_noise()
        if beside is None or self.settings_.time_budget is not None:
            return
        rows, validation = self._beside_gaps(rows), None if validation is None else self._beside_gaps(validation)
        scaler, self.target_scaler_ = self.target_scaler_, None  # these rows are scaled
        try:
            model.likelihood = beside
            self._train(model, rows, weights, validation, None, seed, callbacks, "gaps")
        finally:
            model.likelihood, self.target_scaler_ = likelihood, scaler

    @torch.no_grad()
    def _beside_gaps(self, source: Source) -> Source:
        """Rows with targets as the likelihood takes them, and beside these the variance of what their gaps hide."""
        predictor, targets = self._predictor, []
        for start in range(0, len(source), predictor.chunk_rows):
            x, y = source.rows(np.arange(start, min(start + predictor.chunk_rows, len(source))))
            y = self._feed.targets(as_tensor(y))
            targets.append(torch.cat([y, self._gaps.spread(predictor, x).to(y)], -1).cpu().numpy())
        return WithTargets(source, np.concatenate(targets))

    def _may_refine(self, model: SparseGP, strata: np.ndarray) -> bool:
        """Whether "auto" may go on by the predictive density: with classes, and rows enough to decide by."""
        return (
            self.objective == "auto"
            and self.n_components == 1
            and len(strata) >= FEWEST_REFINED
            and self.settings_.optimiser == "natural"
            and self.settings_.objective == "elbo"
            and self.settings_.plan is None
            and self.settings_.time_budget is None
        )

    def _tries_rbf(self, count: int, model: SparseGP) -> bool:
        """Whether the ELBO chooses between the Matérn kernel and the RBF: with rows enough to pay for it."""
        return self.kernel == "auto" and model.likelihood.shared_noise is not None and count >= RIVAL_ROWS

    def _most_inducing(self, count: int, likelihood: Likelihood) -> int:
        return most_inducing(self.n_inducing, count, likelihood)

    def _all_at_once(self, count: int, likelihood: Likelihood) -> bool:
        return all_at_once(self.n_inducing, count, likelihood, self._given_settings(0))

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

    def _held_out(self, count: int, strata: np.ndarray | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.model_selection import train_test_split

        kept, held = train_test_split(
            np.arange(count), test_size=self.validation_fraction, random_state=seed, stratify=strata
        )
        return np.sort(kept), np.sort(held)

    def _start_model(
        self, rows: Source, features: Chain, likelihood: Likelihood, seed: int, by_class: bool
    ) -> SparseGP:
        start = self.start or Start()
        shared = likelihood.start_values is None if self.share_kernel is None else self.share_kernel
        groups = 1 if shared else likelihood.num_latents
        if isinstance(self.kernel, Kernel):
            kernel = copy.deepcopy(self.kernel)
        else:
            name = self._kernel_name if self.kernel == "auto" else self.kernel
            variance = self._kernel_variance if start.variance is None else start.variance
            columns, first = self._columns_of(features), features.maps[0]
            joint = first.joint if isinstance(first, Columns) and columns else ()  # unless other features mix them
            lengthscale, prior = start.lengthscale, start.prior
            kernel = start_kernel(name, rows, features, groups, variance, seed, lengthscale, columns, joint, prior)
        by_class = by_class if start.by_class is None else by_class and start.by_class
        given = self._given_settings(seed)
        learns = any(each.requires_grad for each in features.parameters())  # then rows do not stay where they are
        exact = not learns and is_exact(self.n_inducing, len(rows), likelihood, given)
        if exact:
            z = all_inputs(rows, features).expand(groups, -1, -1)
        else:
            size = first_inducing(self.n_inducing, len(rows), likelihood, given)
            z = start_inducing_inputs(rows, size, features, seed, by_class, torch.float64, groups)
        if start.dtype == "float32" or (start.dtype is None and z.shape[-1] > FEW_COLUMNS and not exact):
            z = z.to(torch.float32)
        model = SparseGP(kernel, likelihood, z, features)
        model.inducing_inputs.requires_grad_(not exact)
        if self._start_at is not None:
            start_from(model, self._start_at)
        if start.latents:
            start_latents(model, seed)
        return model

    def _columns_of(self, features: Chain) -> dict[str, tuple[int, list[int]]]:
        """Of each column by name its place in a source, and the features that come from it."""
        names = list(getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)]))
        used = names if self.encoder_ is None else self.encoder_.used
        origins = features.origins(list(range(len(used))))
        if origins is None:
            return {}
        return {
            name: (place, [output for output, origin in enumerate(origins) if origin == place])
            for place, name in enumerate(used)
        }

    @torch.no_grad()
    def _score_training_rows(self, rows: Source, weights: np.ndarray | None) -> None:
        """elbo_ and loo_score_, from all rows or an even sample of them."""
        count = len(rows)
        chosen = np.arange(count) if count <= SCORE_ROWS else np.linspace(0, count - 1, SCORE_ROWS).astype(np.int64)
        weight = torch.ones(len(chosen)) if weights is None else torch.from_numpy(weights[chosen])
        expected = left_out = scale = 0.0
        likelihood = self.model_.likelihood
        for block, marginals, y in self._marginals(Subset(rows, chosen)):
            of_row = weight[block].to(marginals.mean)
            scale += (of_row * self._log_target_scale(y).to(of_row)).sum().item()
            targets = self._feed.targets(as_tensor(y))
            expected += (of_row * expected_log_prob(likelihood, marginals, targets)).sum().item()
            try:
                left_out += (of_row * likelihood.log_left_out(*marginals, targets)).sum().item()
            except InfiniteLOOError:
                left_out = math.nan
        total = 1.0 * count if weights is None else float(weights.sum())
        counted = weight.sum().item()
        self.elbo_ = total * (expected - scale) / counted - self.model_.posterior.moments().kl().item()
        # A row whose copies are still there is not left out.
        self.loo_score_ = (left_out - scale) / counted if self.augment is None else math.nan

    @torch.no_grad()
    def _absorb(self, source: Source, weights: np.ndarray | None) -> None:
        """Updates q with new rows, which need not be seen again; kernel and inducing inputs stay."""
        model = self.model_
        if not model.posterior.has_natural_form:
            raise ValueError("partial_fit updates one Gaussian: set n_components=1")
        if self.augment is not None:
            source, weights = self._augmented(source, weights, self.n_rows_)  # other copies than before
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


def _after(features: Chain, callback: Callback) -> Callback:
    """A callback whose predictor takes rows as the user has them, not what `features` gives for them."""
    return lambda progress: callback(replace(progress, predictor=lambda: progress.predictor().after(features)))
