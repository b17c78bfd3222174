"""Regression with predictive distributions."""

import copy
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_array

from autogp.data import Source, Summary, TargetScaler
from autogp.data.columns import texts_of
from autogp.data.sources import as_tensor
from autogp.data.written import Written, number_form, written_numbers
from autogp.estimators.base import GPEstimator
from autogp.estimators.choice import LIKELIHOODS, choose_likelihood, likelihood_named
from autogp.estimators.inputs import WithTargets, refuse_non_finite, targets_of
from autogp.estimators.remarks import remarks_on_numbers
from autogp.likelihoods import Likelihood
from autogp.training import Callback

__all__ = ["GPRegressor"]


class GPRegressor(RegressorMixin, GPEstimator):
    """Gaussian process regressor: a predictive distribution for every row, for any number of rows.

    Inputs and targets are scaled inside, and predictions are in the units of y. Several outputs y [N, P] may have
    missing values (NaN).

    Parameters
    ----------
    n_inducing : int or "auto"
        Number of inducing inputs, the model's size: accuracy and time grow with it. "auto": all rows up to 400; else 50
        at first, and more while they promise to raise the ELBO by 0.02 nats per row (400 at most, fewer for many rows).
        Where training uses batches, as with three classes and more: 200, or fewer for few rows.
    kernel : str or Kernel
        "rbf", "matern12", "matern32", "matern52", "rational_quadratic", "periodic", "linear", "arccosine", a kernel
        object, or an expression of columns: "rbf(age) * categorical(country) + periodic(month, period=12)". By name it
        has one lengthscale per column, all learnt. "auto" is "matern52", or from 5,000 rows on "rbf" if its
        ELBO is higher.
    likelihood : str or Likelihood
        "gaussian" noise, "student_t" (outliers), "heteroscedastic" (noise that varies with the inputs),
        "box_cox" (positive, skewed targets), "beta" (shares between 0 and 1), "poisson", "negative_binomial" or
        "zero_inflated" (counts), "network" (a Gaussian process regression network: outputs that share latent
        functions), or a likelihood object. "auto": for one output small models are compared on held-out rows; Gaussian
        noise unless another likelihood is better.
    features : "auto", torch.nn.Module or None
        A map from rows to the inputs of the kernel, such as `PrincipalComponents` or a network of your own, which is
        trained with the kernel. None: the columns as they are. "auto": `Convolutional` if X is images [N, H, W] or
        [N, H, W, C] of at least 8 x 8 pixels, else None.
    objective : {"auto", "elbo", "loo", "predictive"}
        What kernel, noise and inducing inputs maximise; "auto" is "elbo". "loo" and "predictive" may overfit
        (docs/leave-one-out.md).
    n_components : int
        Number of Gaussians in the posterior, which is a mixture.
    share_kernel : bool or None
        Whether all outputs share kernel and inducing inputs; by default they do, except in a network.
    scaling : {"auto", "standard", "global", "none"}
        Of the inputs: "standard" divides each column by its standard deviation, "global" all by one number, "none"
        leaves them as they are. "auto" is "global" if most columns have the same range, as pixels do, else "standard".
    weights : {"counts", "importance"}
        What `sample_weight` means. "counts": a row of weight 2 counts as two rows, as in scikit-learn. "importance":
        only ratios matter, and the model is as certain as without weights.
    categorical : list of str or None
        Columns of a DataFrame that are categories, whatever they look like.
    augment : int, Deformations or None
        For images: number of deformed copies of each training image that are added to the training rows. They are
        shifted and bent by up to about a pixel (see `autogp.data.Deformations`). The number of steps stays the same.
    start : Start or None
        Initial values of the hyper-parameters; None: from the data.
    settings : Settings or None
        How to train. Those of the arguments below that are not None take precedence.
    max_epochs : int or None
        Passes over the data. None: 30, or up to 500 if a pass is short.
    batch_size : int or None
        Rows per training step. None: all rows up to 2,000, else 1,000.
    validation_fraction : float or None
        Share of the rows that is the validation set; training then keeps its best state on it.
    patience : int or None
        Number of epochs without a better score after which training stops. None: 50 if each step sees all rows and
        max_epochs is None, else no such stop.
    time_budget : float or None
        Seconds after which training ends, wherever it is.
    checkpoint : str or None
        Folder in which training is saved at intervals. An interrupted `fit` continues from there.
    random_state : int, RandomState or None
        Seed of everything random.
    verbose : bool or "auto"
        Progress: "auto" on a terminal only, True elsewhere too, False never.
    device : str
        "auto", "cpu", "cuda", ...

    Attributes
    ----------
    elbo_, loo_score_ : lower bound on the log evidence; leave-one-out log density per row, of training rows
    history_, best_epoch_ : one dictionary per epoch; the epoch whose state was kept
    feature_importances_ : share of each column in what the predictions vary by
    model_ : the `SparseGP` behind it all

    Examples
    --------
    >>> import numpy as np
    >>> from autogp import GPRegressor
    >>> X = np.linspace(0, 6, 50)[:, None]
    >>> model = GPRegressor(max_epochs=200, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.05)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **GPEstimator._parameter_constraints,
        "likelihood": [StrOptions({"auto", *LIKELIHOODS}), Likelihood],
    }

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.target_tags.multi_output = True
        return tags

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        eval_set: Any = None,
        callbacks: Sequence[Callback] = (),
        exposure: Any = None,
    ) -> "GPRegressor":
        """Learns from X [N, D], or images [N, H, W] or [N, H, W, C], and targets y [N] or [N, P].

        `eval_set=(X, y)` are held-out rows to choose the best state by. X may also be a source with targets, such as
        `autogp.data.open_source` gives for files of any size. Where y are counts, `exposure` [N] says over which time,
        area or number they were counted: their mean is the exposure times a rate, and the rate is what is learnt.
        `eval_set` is then (X, y, exposure).
        """
        return self._become(self._anew()._fit_numbers(X, y, sample_weight, eval_set, callbacks, exposure))

    def _fit_numbers(
        self, X: Any, y: Any, sample_weight: Any, eval_set: Any, callbacks: Sequence[Callback], exposure: Any
    ) -> "GPRegressor":
        source, y = self._read(X, y, reset=True)
        exposure = _checked_exposure(exposure, len(y))
        weights = self._check_weights(sample_weight, len(source))
        self._single = y.ndim == 1
        self.n_outputs_ = 1 if self._single else y.shape[1]
        for sentence in remarks_on_numbers(y):
            warnings.warn(sentence, stacklevel=3)
        self._remark(source, y.reshape(len(y), -1))
        if exposure is None:
            self._fit_rows(WithTargets(source, y), y, weights, self._validation(eval_set), callbacks)
            return self
        eval_set, held_out = _without_exposure(eval_set)
        validation = self._validation(eval_set)
        if validation is not None:
            validation = WithTargets(validation, _beside(np.asarray(targets_of(validation)), held_out))
        self._likelihood = self._counting(y, exposure)
        self._fit(WithTargets(source, _beside(y, exposure)), weights, validation, None, callbacks)
        return self

    def _counting(self, y: np.ndarray, exposure: np.ndarray) -> Likelihood:
        """The likelihood of counts y with these exposures, as training starts with it."""
        if not isinstance(self.likelihood, Likelihood):
            name = "negative_binomial" if self.likelihood == "auto" else self.likelihood
            likelihood = likelihood_named(name, y / exposure.mean())  # the mean of which is counts per exposure
        else:
            likelihood = copy.deepcopy(self.likelihood)
        if not likelihood.takes_exposure:
            raise ValueError(
                f"exposure is for counts, likelihood 'poisson' or 'negative_binomial', not {type(likelihood).__name__}"
            )
        return likelihood

    def _fit_rows(
        self,
        rows: Source,
        y: np.ndarray,
        weights: np.ndarray | None,
        validation: Source | None,
        callbacks: Sequence[Callback],
    ) -> None:
        """Chooses the likelihood, where that is left to us, and trains."""
        if isinstance(self.likelihood, Likelihood):
            self._likelihood = copy.deepcopy(self.likelihood)
        else:
            name = self.likelihood
            if name == "auto":
                seed = 0 if self.random_state is None else self.random_state
                seed = int(check_random_state(seed).randint(2**31 - 1))
                name, self._start_at = choose_likelihood(self, rows, y, seed)
            self._likelihood = likelihood_named(name, y)
        self._fit(rows, weights, validation, None, callbacks)
        self._start_at = None

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None, exposure: Any = None) -> "GPRegressor":
        """Learns from more rows, without seeing the old ones again.

        The first call is a `fit`; it settles scaling, kernel and inducing inputs, so it should hold typical rows. The
        next ones update the posterior, exactly so for Gaussian noise.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, sample_weight, exposure=exposure)
        source, y = self._read(X, y, reset=False)
        weights = self._check_weights(sample_weight, len(source))
        self._absorb(WithTargets(source, self._targets(y, exposure)), weights)
        return self

    def _targets(self, y: Any, exposure: Any) -> np.ndarray:
        """As the likelihood takes them: y, and beside it the exposure where there is one."""
        y = self._encode_targets(y)
        return y if exposure is None else _beside(y, self._exposure(exposure, len(y)))

    def _exposure(self, exposure: Any, count: int) -> np.ndarray:
        if not self.model_.likelihood.takes_exposure:
            raise ValueError(f"exposure is for counts, but {type(self).__name__} was fitted to other targets")
        found = _checked_exposure(exposure, count)
        assert found is not None
        return found

    def log_density(self, X: Any, y: Any, exposure: Any = None) -> np.ndarray:
        """Log predictive density of each target, [N], in the units of y; of counts with their `exposure`, if given."""
        return self._log_densities(self._predicted_rows(X), self._targets(self._check_targets(y), exposure))

    def predict(
        self, X: Any, return_std: bool = False, quantiles: Sequence[float] | None = None, exposure: Any = None
    ) -> Any:
        """Expected targets, [N] or [N, P].

        With `return_std` also the standard deviations of the targets (noise included), as a second array. With
        `quantiles`, levels between 0 and 1, the values that targets stay below with these probabilities, [N, R] or
        [N, P, R]: instead of the expected targets, or with `return_std` as a third array. Counts are those of one unit
        of exposure, or of the `exposure` [N] that is given.
        """
        source = self._predicted_rows(X)
        shift = None if exposure is None else np.log(self._exposure(exposure, len(source)))
        levels = None if quantiles is None else _checked_levels(quantiles).to(self.model_.device)
        likelihood, scaler = self.model_.likelihood, self.target_scaler_
        if likelihood.mean_is_latent and levels is None and not return_std:
            mean = np.empty((len(source), self.n_outputs_))
            for block, x, _ in self._blocks(source):
                centre = self._gaps.mean(self._predictor, x).double()
                mean[block] = (centre if scaler is None else scaler.inverse_mean(centre)).cpu().numpy()
            return mean[:, 0] if self._single else mean
        mean, variance = np.empty((2, len(source), self.n_outputs_))
        below = np.empty((len(source), self.n_outputs_, 0 if levels is None else len(levels)))
        for block, marginals, _ in self._marginals(source):
            centre = marginals.mean  # E[y | f] = exposure exp(f): an exposure is a shift of f by its log
            if shift is not None:
                centre = centre + torch.from_numpy(shift[block]).to(centre)[:, None]
            parts = marginals.log_weights, centre, marginals.variance
            with torch.no_grad():
                if levels is None or return_std:
                    centre, spread = (moment.double() for moment in likelihood.predict(*parts))
                    if scaler is not None:
                        centre, spread = scaler.inverse_mean(centre), scaler.inverse_variance(spread)
                    mean[block], variance[block] = centre.cpu().numpy(), spread.cpu().numpy()
                if levels is not None:
                    values = likelihood.quantiles(*parts, levels).double()  # [R, B, P]
                    values = values if scaler is None else scaler.inverse_mean(values)
                    below[block] = np.moveaxis(values.cpu().numpy(), 0, -1)
        found = [mean, np.sqrt(variance)] if return_std else [] if levels is not None else [mean]
        found += [] if levels is None else [below]
        found = [values[:, 0] if self._single else values for values in found]
        return tuple(found) if return_std else found[0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None) -> float:
        """R^2, the mean over the outputs; of each output the rows whose target is not missing."""
        from sklearn.metrics import r2_score

        y, mean = np.asarray(y, dtype=np.float64), self.predict(X, exposure=exposure)
        if y.ndim < 2 or not np.isnan(y).any():
            return float(r2_score(y, mean, sample_weight=sample_weight))
        weights = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
        known = ~np.isnan(y)
        columns = [r2_score(a[k], b[k], sample_weight=weights[k]) for a, b, k in zip(y.T, mean.T, known.T, strict=True)]
        return float(np.mean(columns))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0, exposure: Any = None) -> np.ndarray:
        """Targets drawn from the predictive distribution, rows together: [N, n_samples] or [N, P, n_samples].

        The functions are drawn at all rows at once, which takes memory as the square of their number.
        """
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        source = self._predicted_rows(X)
        x = self._gaps.filled(source.rows(np.arange(len(source)))[0])
        x = as_tensor(x)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        generator = torch.Generator(self.model_.device).manual_seed(seed)
        functions = self.model_.sample(x.to(self.model_.device), n_samples, generator)  # [S, N, Q]
        if exposure is not None:
            shift = np.log(self._exposure(exposure, len(source)))
            functions = functions + torch.from_numpy(shift).to(functions)[:, None]
        with torch.no_grad():
            y = self.model_.likelihood.sample(functions, generator).double()
            if self.target_scaler_ is not None:
                y = self.target_scaler_.inverse_mean(y)
        found = np.moveaxis(y.cpu().numpy(), 0, -1)  # [N, P, S]
        return found[:, 0] if self._single else found

    def _check_targets(self, y: Any) -> np.ndarray:
        """Numbers [N] or [N, P]; some may be missing (NaN) where there are several outputs."""
        y = check_array(_numbers_in(y), ensure_2d=False, ensure_all_finite=False, input_name="y", dtype="numeric")
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        refuse_non_finite(y if y.ndim == 1 else np.where(np.isnan(y), 0.0, y), "y")
        return y

    def _encode_targets(self, y: Any) -> np.ndarray:
        outputs = 1 if y.ndim == 1 else y.shape[1]
        if outputs != self.n_outputs_:
            raise ValueError(f"y has {outputs} outputs, but {type(self).__name__} was fitted with {self.n_outputs_}")
        return y

    def _embedded_targets(self, y: np.ndarray) -> np.ndarray:
        y = super()._embedded_targets(y)
        counts, exposure = y[:, : self.n_outputs_], y[:, self.n_outputs_ :]
        return counts / exposure if exposure.shape[1] else counts

    def _start_likelihood(self, summary: Summary) -> tuple[Likelihood, TargetScaler | None]:
        outputs, likelihood = self.n_outputs_, self._likelihood
        del self._likelihood  # the model has it
        if likelihood.num_outputs != outputs:
            name = type(likelihood).__name__
            raise ValueError(
                f"y has {outputs} outputs, but the likelihood {name} has num_outputs={likelihood.num_outputs}"
            )
        return likelihood, TargetScaler.from_summary(summary) if likelihood.affine_targets else None


def _numbers_in(y: Any) -> Any:
    """Targets with truth values, and texts such as "$57,000", as numbers."""
    found = np.asarray(y)
    if found.dtype.kind == "b":
        return found.astype(np.float64)
    if found.dtype.kind in "mM":
        raise ValueError("y holds dates or durations: turn them into numbers, such as days since the first of them")
    text = found.dtype.kind in "UT" or (found.dtype.kind == "O" and any(isinstance(each, str) for each in found.flat))
    if not text or found.ndim != 1:
        return y
    column = texts_of(pa.array(found.astype(str)), "y", "")
    written = number_form(column)
    numbers, wrong = written_numbers(column, written or Written())
    if wrong >= 0:
        raise ValueError(
            f"y holds {str(found[wrong])[:80]!r} in row {wrong} (counted from 0), which is no number: correct it, "
            "or use GPClassifier if y are classes"
        )
    return numbers


def _checked_exposure(exposure: Any, count: int) -> np.ndarray | None:
    if exposure is None:
        return None
    found = np.asarray(exposure, np.float64)
    if found.shape != (count,):
        raise ValueError(f"exposure must be one number for each of {count} rows, got the shape {found.shape}")
    wrong = ~((found > 0) & np.isfinite(found))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"exposure must be positive and finite, got {found[row]:g} in row {row} (counted from 0)")
    return found


def _without_exposure(eval_set: Any) -> tuple[Any, Any]:
    """The pair (X, y), and the exposure that is the third part."""
    if eval_set is None:
        return None, None
    if not isinstance(eval_set, (tuple, list)) or len(eval_set) != 3:
        raise ValueError("eval_set must be (X, y, exposure), as fit has an exposure")
    return tuple(eval_set[:2]), _checked_exposure(eval_set[2], len(eval_set[1]))


def _beside(y: np.ndarray, exposure: Any) -> np.ndarray:
    """Counts and the exposure of the row, [N, P + 1]."""
    return np.column_stack([y, exposure]).astype(np.float64)


def _checked_levels(quantiles: Any) -> torch.Tensor:
    if np.ndim(quantiles) == 1 and np.isrealobj(quantiles) and len(quantiles) > 0:
        levels = torch.tensor(quantiles, dtype=torch.float64)
        if ((levels > 0) & (levels < 1)).all():
            return levels
    raise ValueError(f"quantiles must be a list of levels between 0 and 1, got {quantiles!r}")
