"""One call of fit: from rows whose targets are encoded to a trained model."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import nn

from autogp.data import Source, Subset, Summary, summarise
from autogp.data.sources import as_tensor
from autogp.estimators.augment import augmented, variants
from autogp.estimators.gaps import Filled, Gaps
from autogp.estimators.inputs import WithTargets, targets_of
from autogp.estimators.weights import merged
from autogp.features import Chain, Columns, Convolutional, Scaling, apply_once
from autogp.features.base import Mapped, as_map
from autogp.features.cache import worth_keeping
from autogp.kernels import RBF, Kernel
from autogp.likelihoods import InfiniteLOOError, Likelihood
from autogp.model import SparseGP
from autogp.objectives import expected_log_prob
from autogp.training import (
    BATCH_SIZE,
    Callback,
    History,
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
from autogp.training.feed import Feed, device_named
from autogp.training.progress import RowsDone, checkpoints_in, showing
from autogp.training.step import FAILURES
from autogp.training.threads import threads_for

if TYPE_CHECKING:
    from autogp.estimators.base import GPEstimator

__all__ = ["Fit"]

SCORE_ROWS = 20_000  # of the training data, for elbo_ and loo_score_
SCALED_ROWS = 20_000  # enough to scale the outputs of a feature map by
FEW_COLUMNS = 50  # up to here float64: inducing inputs lie dense, and float32 loses what is between them
RIVAL_ROWS = 5_000  # from which the RBF kernel is tried beside the Matérn
FEWEST_REFINED, FEWEST_IMAGES = 1_000, 50  # rows, and images, from which "auto" tries the predictive density,
REFINED_SHARE = 0.5  # for so many epochs beside the ELBO's,
IMAGE_STEPS = 150  # and for images so many steps at least: on few the ELBO takes too few to count by


class Fit:
    """The rows, and what has been made of them so far; what is learnt becomes attributes of the estimator.

    Arguments:
        estimator: Whose arguments say what to do.
        source: Rows with targets as the likelihood takes them.
        weights: What each row counts, [N]; by default the same.
        validation: Rows to choose the best state by.
        strata: The classes [N] that parts of the rows keep in proportion.
        callbacks: Called in training.
    """

    def __init__(
        self,
        estimator: "GPEstimator",
        source: Source,
        weights: np.ndarray | None,
        validation: Source | None,
        strata: np.ndarray | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self.estimator, self.rows, self.weights = estimator, source, weights
        self.validation, self.strata, self.callbacks = validation, strata, list(callbacks)
        # A run that may be interrupted must start again as it did: its seed is never left to chance.
        chance = None if estimator.checkpoint is None else 0
        state = chance if estimator.random_state is None else estimator.random_state
        self.seed = processes().from_first(lambda: int(check_random_state(state).randint(2**31 - 1)))
        self.given = estimator._given_settings(self.seed)
        self.of_images = False  # whether the kernel's inputs are features of images

    def run(self) -> None:
        """Trains, and scores the rows of training."""
        own, seed = self.estimator, self.seed
        self._choose_rows()
        count = len(self.rows)
        if count <= ONE_BATCH:
            self.rows, self.weights = merged(self.rows, self.weights)
        if own.augment is not None:
            self.rows, self.weights = augmented(own, self.rows, self.weights, seed)
        own._gaps = gaps = Gaps.of(self.rows, own.encoder_, seed)
        self.validation = None if self.validation is None else Filled(self.validation, gaps)
        encoding = None if own.encoder_ is None else Columns.of(own.encoder_)
        if encoding is not None:
            y = own._embedded_targets(np.asarray(targets_of(self.rows)))
            encoding.fit(WithTargets(self.rows, y), seed=seed)
            self.rows = encoding.cross_fitted(self.rows, seed)
        before, features, summary = self._fit_features(encoding)
        if before is not None:
            own._gaps = Gaps.of(self.rows, None, seed)
            self.validation = None if self.validation is None else self._applied(before, self.validation)
            self.callbacks = [_after(before, callback) for callback in self.callbacks]
        likelihood, own.target_scaler_ = own._start_likelihood(summary)
        own.model_ = self.model = self._start_model(features, likelihood)
        own.history_ = []
        with threads_for(self.model, count), checkpoints_in(self._folder()):
            self._train()
            if own._gaps.flagged.any() and not own._is_trial:
                self._train_beside_gaps()
            if own.n_components > 1:
                self._mix()
        own.n_rows_ = count * variants(own)
        self._score()
        if encoding is not None:
            encoding.settle()
        if before is not None:  # from here on the model takes rows as they came
            self.model.features, own._gaps = Chain(*before.maps, *features.maps), gaps

    def _folder(self, *parts: str) -> Path | None:
        """The place of a checkpoint within the folder of all, where there is one."""
        return None if self.estimator.checkpoint is None else Path(self.estimator.checkpoint, *parts)

    def _choose_rows(self) -> None:
        """Takes the validation set out, and rows that do not count."""
        from sklearn.model_selection import train_test_split

        share, rows, weights = self.estimator.validation_fraction, self.rows, self.weights
        if share is not None:
            if self.validation is not None:
                raise ValueError("give either validation_fraction or eval_set, not both")
            places = np.arange(len(rows))
            kept, held = train_test_split(places, test_size=share, random_state=self.seed, stratify=self.strata)
            kept = np.sort(kept)
            rows, self.validation = Subset(rows, kept), Subset(rows, np.sort(held))
            weights = None if weights is None else weights[kept]
        if weights is not None and (weights == 0).any():
            rows, weights = Subset(rows, np.flatnonzero(weights)), weights[weights > 0]
        self.rows, self.weights = rows, weights

    # -- the model before training ---------------------------------------------------------------------------------

    def _fit_features(self, encoding: Columns | None) -> tuple[Chain | None, Chain, Summary]:
        """Maps that are applied to all rows now and stay as they are, if there are such; the maps from there to the
        kernel's inputs; and the summary of the rows as numbers."""
        own, rows, seed = self.estimator, self.rows, self.seed
        maps: list[nn.Module] = [] if encoding is None else [encoding]
        numbers = rows if encoding is None else Mapped(rows, encoding)
        summary = summarise(numbers, allow_missing_targets=True)
        own._varies = summary.x.minimum < summary.x.maximum
        features = _features_of(own)
        if features is not None and (shape := as_map(features).image_shape) is not None:
            own.image_shape_, self.of_images = own.image_shape_ or tuple(shape), True
        if features is not None and as_map(features).scaled_outputs:
            with showing(own.verbose) as displays:
                as_map(features).watch = RowsDone(displays, "learning features from")
                as_map(features).fit(numbers, seed=seed)
                as_map(features).watch = None
            before = Chain(*maps, features)
            frozen = encoding is None and not any(parameter.requires_grad for parameter in features.parameters())
            # Of several processes each applies it to its own rows, when it trains.
            at_once = frozen and processes().count == 1 and worth_keeping([features], rows)
            outputs = self._applied(before, rows) if at_once else Mapped(rows, before)
            scaled = summarise(outputs, allow_missing_targets=True, max_rows=SCALED_ROWS)
            scaling = Scaling.from_summary(scaled, own.scaling if own.scaling != "auto" else "global")  # pyright: ignore
            if at_once:
                self.rows = outputs
                return before, Chain(scaling), summary
            return None, Chain(*before.maps, scaling), summary
        joint = [] if encoding is None else encoding.joint
        maps.append(Scaling.from_summary(summary, own.scaling, joint))  # pyright: ignore
        if features is not None:
            as_map(features).fit(Mapped(numbers, maps[-1]), seed=seed)
            maps.append(features)
        return None, Chain(*maps), summary

    def _applied(self, features: Chain, rows: Source) -> Source:
        """What frozen maps give for all rows, computed once."""
        device = device_named(self.given.device)
        with showing(self.estimator.verbose) as displays:
            return apply_once(features.to(device), rows, device, watch=RowsDone(displays))

    def _start_model(self, features: Chain, likelihood: Likelihood) -> SparseGP:
        own, rows, seed = self.estimator, self.rows, self.seed
        start = own.start or Start()
        shared = likelihood.start_values is None if own.share_kernel is None else own.share_kernel
        groups = 1 if shared else likelihood.num_latents
        if isinstance(own.kernel, Kernel):
            kernel = copy.deepcopy(own.kernel)
        else:
            name = own._kernel_name if own.kernel == "auto" else own.kernel
            variance = own._kernel_variance if start.variance is None else start.variance
            columns, first = self._columns_of(features), features.maps[0]
            joint = first.joint if isinstance(first, Columns) and columns else ()  # unless other features mix them
            kernel = start_kernel(
                name, rows, features, groups, variance, seed, start.lengthscale, columns, joint, start.prior
            )
        learns = any(each.requires_grad for each in features.parameters())  # then rows do not stay where they are
        exact = not learns and is_exact(own.n_inducing, len(rows), likelihood, self.given)
        if exact:
            z = all_inputs(rows, features).expand(groups, -1, -1)
        else:
            by_class = self.strata is not None and start.by_class is not False
            size = first_inducing(own.n_inducing, len(rows), likelihood, self.given)
            z = start_inducing_inputs(rows, size, features, seed, by_class, torch.float64, groups)
        if start.dtype == "float32" or (start.dtype is None and z.shape[-1] > FEW_COLUMNS and not exact):
            z = z.to(torch.float32)
        model = SparseGP(kernel, likelihood, z, features)
        model.inducing_inputs.requires_grad_(not exact)
        if own._start_at is not None:
            start_from(model, own._start_at)
        if start.latents:
            start_latents(model, seed)
        return model

    def _columns_of(self, features: Chain) -> dict[str, tuple[int, list[int]]]:
        """Of each column by name its place in a source, and the features that come from it."""
        own = self.estimator
        names = own._used_names() or [f"x{i}" for i in range(own.n_features_in_)]
        origins = features.origins(list(range(len(names))))
        if origins is None:
            return {}
        return {
            name: (place, [output for output, origin in enumerate(origins) if origin == place])
            for place, name in enumerate(names)
        }

    # -- training --------------------------------------------------------------------------------------------------

    def _train(self, part: str = "") -> None:
        """Trains from where the model is; `part` is the folder of its checkpoints within that of all."""
        own, model, count = self.estimator, self.model, len(self.rows)
        settings = settings_for(self.given, count, model.likelihood, own_rates=own.settings is not None)
        common: dict[str, Any] = {"callbacks": self.callbacks, "verbose": own.verbose}
        rows = {"weights": self.weights, "validation": self.validation, "target_scaler": own.target_scaler_}
        histories = []
        at_once = all_at_once(own.n_inducing, count, model.likelihood, self.given)
        if own.augment is not None and not at_once and settings.plan is None:  # as many steps as without copies
            steps = math.ceil(count / variants(own) / (settings.batch_size or BATCH_SIZE))
            settings = replace(settings, max_epochs=max(2, round(settings.epochs(steps) / variants(own))))
        own.settings_ = settings
        if at_once:
            if settings.objective != "elbo" and settings.time_budget is not None:
                settings = replace(settings, time_budget=settings.time_budget / 2)  # of each of the two runs
            if settings.objective == "loo":
                Feed(model, count, self.weights, own.target_scaler_).check_loo(self.rows)
            most = 0 if part else most_inducing(own.n_inducing, count, model.likelihood)  # gaps: there are enough
            histories += converge_growing(
                model,
                self.rows,
                replace(settings, objective="elbo"),
                most,
                open_end=own.n_inducing == "auto",
                rival=RBF if self._tries_rbf() and not part else None,
                folder=self._folder(part, "elbo"),
                **rows,
                **common,
            )
            own.converged_ = histories[-1].converged
        if not histories or settings.objective != "elbo":
            folder = self._folder(part)
            histories.append(
                train(model, self.rows, settings, **rows, **common, folder=folder, resume=folder is not None)
            )
        if not part and self._may_refine():
            assert self.strata is not None
            epochs = REFINED_SHARE * sum(len(each.rows) for each in histories)
            if self.of_images:
                epochs = max(epochs, IMAGE_STEPS * (settings.batch_size or BATCH_SIZE) / count)
            refined = refine(
                model, self.rows, settings, epochs, self.strata, own.target_scaler_, self._folder(), **common
            )
            histories += [] if refined is None else [refined]
        for history in histories:
            self._append(history)
            own.stopped_ = history.stopped

    def _tries_rbf(self) -> bool:
        """Whether the ELBO chooses between the Matérn kernel and the RBF: with rows enough to pay for it."""
        shared = self.model.likelihood.shared_noise is not None
        return self.estimator.kernel == "auto" and shared and len(self.rows) >= RIVAL_ROWS

    def _may_refine(self) -> bool:
        """Whether "auto" may go on by the predictive density: with classes, and rows enough to decide by."""
        own, settings = self.estimator, self.estimator.settings_
        return (
            own.objective == "auto"
            and own.n_components == 1
            and self.strata is not None
            and self.weights is None
            and self.validation is None
            and len(self.strata) >= (FEWEST_IMAGES if self.of_images else FEWEST_REFINED)
            and settings.optimiser == "natural"
            and settings.objective == "elbo"
            and settings.plan is None
            and settings.time_budget is None
        )

    def _append(self, history: History) -> None:
        """A run goes on where the one before has ended."""
        own = self.estimator
        last = own.history_[-1] if own.history_ else {}
        before = {name: last.get(name, 0) for name in ("epoch", "step", "seconds")}
        own.best_epoch_ = before["epoch"] + history.best_epoch
        own.history_ += [row | {name: before[name] + row[name] for name in before} for row in history.rows]

    def _mix(self) -> None:
        """Puts a mixture in the place of the Gaussian q that was trained."""
        own = self.estimator
        history = mix(
            self.model,
            self.rows,
            own.settings_,
            own.n_components,
            weights=self.weights,
            target_scaler=own.target_scaler_,
            folder=self._folder("mixture"),
            callbacks=self.callbacks,
            verbose=own.verbose,
        )
        if history is not None:
            self._append(history)

    def _train_beside_gaps(self) -> None:
        """Goes on with what the gaps of a row hide as noise of that row alone, where all rows share the same noise."""
        own, model = self.estimator, self.model
        likelihood, beside = model.likelihood, model.likelihood.with_row_noise()
        if beside is None or own.settings_.time_budget is not None:
            return
        plain = self.rows, self.validation, own.target_scaler_
        self.rows = self._beside_gaps(self.rows)
        self.validation = None if self.validation is None else self._beside_gaps(self.validation)
        own.target_scaler_ = None  # these rows are scaled
        before = copy.deepcopy(model.state_dict())
        try:
            model.likelihood = beside
            self._train("gaps")
        except FAILURES:  # such as where the targets have no noise
            model.load_state_dict(before)
        finally:
            model.likelihood = likelihood
            self.rows, self.validation, own.target_scaler_ = plain

    @torch.no_grad()
    def _beside_gaps(self, source: Source) -> Source:
        """Rows with targets as the likelihood takes them, and beside these the variance of what their gaps hide."""
        own, targets = self.estimator, []
        for _, x, y in own._blocks(source):
            y = own._feed.targets(as_tensor(y))
            targets.append(torch.cat([y, own._gaps.spread(own._predictor, x).to(y)], -1).cpu().numpy())
        return WithTargets(source, np.concatenate(targets))

    @torch.no_grad()
    def _score(self) -> None:
        """elbo_ and loo_score_, from all rows or an even sample of them."""
        own, likelihood, weights, count = self.estimator, self.model.likelihood, self.weights, len(self.rows)
        chosen = np.arange(count) if count <= SCORE_ROWS else np.linspace(0, count - 1, SCORE_ROWS).astype(np.int64)
        weight = torch.ones(len(chosen)) if weights is None else torch.from_numpy(weights[chosen])
        expected = left_out = scale = 0.0
        for block, marginals, y in own._marginals(Subset(self.rows, chosen)):
            of_row = weight[block].to(marginals.mean)
            scale += (of_row * own._log_target_scale(y).to(of_row)).sum().item()
            targets = own._feed.targets(as_tensor(y))
            expected += (of_row * expected_log_prob(likelihood, marginals, targets)).sum().item()
            try:
                left_out += (of_row * likelihood.log_left_out(*marginals, targets)).sum().item()
            except InfiniteLOOError:
                left_out = math.nan
        total = 1.0 * count if weights is None else float(weights.sum())
        counted = weight.sum().item()
        own.elbo_ = total * (expected - scale) / counted - self.model.posterior.moments().kl().item()
        # A row whose copies are still there is not left out.
        own.loo_score_ = (left_out - scale) / counted if own.augment is None else math.nan


def _features_of(estimator: "GPEstimator") -> nn.Module | None:
    """A copy of the features that were given; "auto" is patches for images, and none for other rows."""
    given, shape = estimator.features, estimator.image_shape_
    if isinstance(given, nn.Module):
        return copy.deepcopy(given)
    suits = given == "auto" and shape is not None and Convolutional.suits(shape)
    return Convolutional(shape) if suits else None  # pyright: ignore[reportArgumentType]


def _after(features: Chain, callback: Callback) -> Callback:
    """A callback whose predictor takes rows as the user has them, not what `features` gives for them."""
    return lambda progress: callback(replace(progress, predictor=lambda: progress.predictor().after(features)))
