"""Classification with calibrated probabilities."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.sparse import issparse
from scipy.special import ndtri
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d
from torch import nn

from autogp.data import Deformations, Labels, Source, Summary, TargetScaler
from autogp.estimators.base import GPEstimator
from autogp.estimators.inputs import WithTargets, refuse_non_finite
from autogp.kernels import Kernel
from autogp.likelihoods import Bernoulli, Likelihood, Ordinal, Softmax
from autogp.training import Callback, Settings, Start

__all__ = ["GPClassifier"]


class GPClassifier(ClassifierMixin, GPEstimator):
    """Gaussian process classifier: calibrated class probabilities, for any number of rows.

    Inputs are scaled inside, labels may be of any type, DataFrames may hold text columns and missing values.

    Parameters
    ----------
    n_inducing : int or "auto"
        Number of inducing inputs, the model's size: accuracy and time grow with it. "auto": all rows up to 100; else 50
        at first, and more while they promise to raise the ELBO by 0.02 nats per row (400 at most, fewer for many rows).
        Where training uses batches, as with three classes and more: 200, or fewer for few rows.
    kernel : str or Kernel
        "rbf", "matern12", "matern32", "matern52", "rational_quadratic", "periodic", "linear", "arccosine", a kernel
        object, or an expression of columns: "rbf(age) * categorical(country) + periodic(month, period=12)". By name it
        has one lengthscale per column, all learnt; the default is "rbf".
    likelihood : str or Likelihood
        "auto" (logistic for two classes, softmax for more, "ordinal" where y is an ordered categorical of pandas),
        "logit", "probit", "softmax", "ordinal" (ordered classes: numbers, or an ordered categorical), or a likelihood
        object.
    features : "auto", torch.nn.Module or None
        A map from rows to the inputs of the kernel, such as `PrincipalComponents` or a network of your own, which is
        trained with the kernel. None: the columns as they are. "auto": `Convolutional` if X is images [N, H, W] or
        [N, H, W, C] of at least 8 x 8 pixels, else None.
    objective : {"auto", "elbo", "loo", "predictive"}
        What kernel and inducing inputs maximise. "auto": the ELBO; from 1,000 rows or 50 images on it then tries
        the predictive density, and keeps it only if held-out rows gain more than three standard errors. With weights, a
        validation set, a time budget or several components it is "elbo". "loo" and "predictive" overfit small or noisy
        data (docs/leave-one-out.md).
    n_components : int
        Number of Gaussians in the posterior, which is a mixture.
    share_kernel : bool or None
        Whether all classes share kernel and inducing inputs, which is the default. False, as in the paper, is slower.
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
    class_weight : dict, "balanced" or None
        Weights of the classes. Only their ratios matter: the sum over all rows stays the same.
    random_state : int, RandomState or None
        Seed of everything random.
    verbose : bool or "auto"
        Progress: "auto" on a terminal only, True elsewhere too, False never.
    device : str
        "auto", "cpu", "cuda", ...

    Attributes
    ----------
    classes_ : the labels, sorted, as the columns of `predict_proba` are; for several labels at once their numbers
    elbo_, loo_score_ : lower bound on the log evidence; leave-one-out log probability per row, of training rows
    history_, best_epoch_ : one dictionary per epoch; the epoch whose state was kept
    feature_importances_ : share of each column in what the predictions vary by
    model_ : the `SparseGP` behind it all

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from autogp import GPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = GPClassifier(n_inducing=20, max_epochs=100, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:1]).argmax().item(), model.score(X, y) > 0.95
    (0, True)
    """

    _parameter_constraints: ClassVar[dict] = {
        **GPEstimator._parameter_constraints,
        "likelihood": [StrOptions({"auto", "logit", "probit", "softmax", "ordinal"}), Likelihood],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }
    _kernel_name = "rbf"
    _kernel_variance = 10.0

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
        class_weight: dict | str | None = None,
        random_state: Any = None,
        verbose: bool | str = "auto",
        device: str = "auto",
    ):
        super().__init__(
            n_inducing,
            kernel=kernel,
            likelihood=likelihood,
            features=features,
            objective=objective,
            n_components=n_components,
            share_kernel=share_kernel,
            scaling=scaling,
            weights=weights,
            categorical=categorical,
            augment=augment,
            start=start,
            settings=settings,
            max_epochs=max_epochs,
            batch_size=batch_size,
            validation_fraction=validation_fraction,
            patience=patience,
            time_budget=time_budget,
            checkpoint=checkpoint,
            random_state=random_state,
            verbose=verbose,
            device=device,
        )
        self.class_weight = class_weight

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.classifier_tags.multi_label = True
        return tags

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        eval_set: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> "GPClassifier":
        """Learns from X [N, D], or images [N, H, W] or [N, H, W, C], and labels y [N].

        Where a row may have several labels at once, y [N, P] holds 1 in the columns of those that it has, else 0; NaN
        where that is not known.

        `eval_set=(X, y)` are held-out rows to choose the best state by. X may also be a source with targets, such as
        `autogp.data.open_source` gives for files of any size.
        """
        return self._become(self._anew()._fit_labels(X, y, None, sample_weight, eval_set, callbacks))

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> "GPClassifier":
        """Learns from more rows, without seeing the old ones again.

        The first call is a `fit`, with all `classes` that may come; it settles scaling, kernel and inducing inputs, so
        it should hold typical rows. The next ones update the posterior.
        """
        if not self.__sklearn_is_fitted__():
            return self._become(self._anew()._fit_labels(X, y, classes, sample_weight, None, ()))
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes must be those of the first call, {self.classes_}, got {np.unique(classes)}")
        source, labels = self._read(X, y, reset=False)
        targets = self._encode_targets(labels)
        weights = self._all_weights(targets, self._check_weights(sample_weight, len(source)))
        self._absorb(WithTargets(source, targets), weights)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, [N, C], in the order of `classes_`; of several labels at once [N, P]."""
        source = self._predicted_rows(X)
        found = np.empty((len(source), len(self.classes_)))
        for block, marginals, _ in self._marginals(source):
            # Integrals over q(f) are by rules of a few digits, for which float32 is enough.
            mean = self.model_.likelihood.predict(*(part.float() for part in marginals[:3])).mean
            mean = mean.detach().double().cpu().numpy()
            found[block] = np.hstack([1 - mean, mean]) if mean.shape[1] == 1 else mean
        return found if self._several_labels else found / found.sum(1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of `predict_proba`."""
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, [N]; of several labels at once 1 where it is above 1/2, [N, P]."""
        probabilities = self.predict_proba(X)
        if self._several_labels:
            return (probabilities > 0.5).astype(np.int64)
        return self.classes_[probabilities.argmax(1)]

    @property
    def _several_labels(self) -> bool:
        """Whether a row may have several labels at once."""
        return self.model_.likelihood.num_classes is None

    def _check_targets(self, y: Any) -> Labels | np.ndarray:
        """Labels [N] of any one type; where a row may have several, 0 and 1 for each, [N, P]."""
        if isinstance(y, Labels):
            return y
        shape = y.shape if issparse(y) else np.asarray(y).shape
        if len(shape) == 2 and shape[1] > 1:
            return _indicators(y)
        dtype = getattr(y, "dtype", None)
        order = list(dtype.categories) if getattr(dtype, "ordered", False) else None  # pyright: ignore
        y = column_or_1d(y, warn=True)
        refuse_non_finite(y, "y")
        if y.dtype.kind == "O":
            missing = [label is None or label != label for label in y]
            if any(missing):
                raise ValueError(f"Input y contains a missing label, first in row {missing.index(True)}")
            if len({isinstance(label, str) for label in y}) > 1:
                kinds = sorted({type(label).__name__ for label in y})
                raise ValueError(f"y holds labels of different types ({', '.join(kinds)}): make them all texts")
        check_classification_targets(y)
        return replace(Labels.of(y), order=order)

    def _fit_labels(
        self, X: Any, y: Any, classes: Any, sample_weight: Any, eval_set: Any, callbacks: Sequence[Callback]
    ) -> "GPClassifier":
        source, labels = self._read(X, y, reset=True)
        if isinstance(labels, np.ndarray):
            return self._fit_indicators(source, labels, sample_weight, eval_set, callbacks)
        self.classes_ = labels.classes if classes is None else np.unique(classes)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs rows of at least 2 classes, got 1 class: {self.classes_.tolist()}")
        targets = self._encode_targets(labels)
        weights = self._check_weights(sample_weight, len(source))
        if classes is None and weights is not None and len(np.unique(targets[weights > 0])) < 2:
            raise ValueError("a classifier needs rows of at least 2 classes, but sample_weight leaves 1 class")
        weights = self._all_weights(targets, weights)
        self._likelihood = self._likelihood_of(labels, targets)
        self._remark(source, self._embedded_targets(targets), every=True)
        self._fit(WithTargets(source, targets), weights, self._validation(eval_set), targets, callbacks)
        return self

    def _fit_indicators(
        self, source: Source, y: np.ndarray, sample_weight: Any, eval_set: Any, callbacks: Sequence[Callback]
    ) -> "GPClassifier":
        """Learns several labels at once, each with a latent function of its own."""
        if self.class_weight is not None:
            raise ValueError("class_weight is for one label a row; y has several columns: use sample_weight")
        self.classes_ = np.arange(y.shape[1])
        if isinstance(self.likelihood, Likelihood):
            self._likelihood = _copied(self.likelihood, "num_outputs", y.shape[1])
        elif self.likelihood in ("auto", "logit", "probit"):
            self._likelihood = Bernoulli(y.shape[1], link="logit" if self.likelihood == "auto" else self.likelihood)
        else:
            raise ValueError(f"likelihood={self.likelihood!r} is for one label a row; y has {y.shape[1]} columns")
        weights = self._check_weights(sample_weight, len(source))
        self._remark(source, y)
        self._fit(WithTargets(source, y), weights, self._validation(eval_set), None, callbacks)
        return self

    def _all_weights(self, targets: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """What each row counts: its own weight, times that of its class."""
        if self.class_weight is None:
            return weights
        labels, there = self.classes_.tolist(), np.unique(targets)
        found = np.ones(len(labels))
        if isinstance(self.class_weight, dict):
            for label, weight in self.class_weight.items():
                if label not in labels:
                    raise ValueError(f"class_weight names {label!r}, which is not among the classes {labels}")
                if not (isinstance(weight, (int, float, np.number)) and 0 <= weight < np.inf):
                    raise ValueError(f"class_weight must hold finite numbers from 0, got {weight!r} for {label!r}")
                found[labels.index(label)] = weight
        else:
            found[there] = compute_class_weight("balanced", classes=there, y=targets)
        weights = np.ones(len(targets)) if weights is None else weights
        total = (found[targets] * weights).sum()
        if not total:
            raise ValueError("class_weight must not be zero for every row")
        return found[targets] * weights * (weights.sum() / total)

    def _encode_targets(self, y: Any) -> np.ndarray:
        """Labels as numbers from 0; several labels at once as they are."""
        if isinstance(y, np.ndarray):
            if y.shape[1] != len(self.classes_):
                raise ValueError(f"y has {y.shape[1]} columns, but the model has {len(self.classes_)} labels")
            return y
        places = {label: place for place, label in enumerate(self.classes_.tolist())}
        labels = y.classes.tolist()
        found = np.array([places.get(label, -1) for label in labels], dtype=np.int64)[y.codes]
        if (found < 0).any():
            row = int(np.argmax(found < 0))
            label = labels[y.codes[row]]
            raise ValueError(f"y holds the label {label!r} in row {row}, which is not among the classes {list(places)}")
        return found

    def _embedded_targets(self, y: np.ndarray) -> np.ndarray:
        """1 in the column of the class, else 0; for two classes one column."""
        if y.ndim == 2:
            return y
        count = len(self.classes_)
        return (y[:, None] == (np.arange(1, 2) if count == 2 else np.arange(count))).astype(np.float64)

    def _start_likelihood(self, summary: Summary) -> tuple[Likelihood, TargetScaler | None]:
        likelihood = self._likelihood
        del self._likelihood  # the model has it
        return likelihood, None

    def _likelihood_of(self, labels: Labels, targets: np.ndarray) -> Likelihood:
        """The likelihood as training starts with it, of labels that were encoded as targets [N]."""
        if isinstance(self.likelihood, Likelihood):
            return _copied(self.likelihood, "num_classes", len(self.classes_))
        count, name, order = len(self.classes_), self.likelihood, labels.order
        if name == "auto":
            name = "logit" if count == 2 else "softmax" if order is None else "ordinal"
        if name == "softmax":
            return Softmax(count)
        if name == "ordinal":
            if count == 2:
                raise ValueError("likelihood='ordinal' is for three classes or more, there are 2: use 'probit'")
            if order is None and self.classes_.dtype.kind not in "biuf":
                raise ValueError(
                    "likelihood='ordinal' must know the order of the classes: make them numbers, or a categorical of "
                    "pandas with ordered=True (--order on the command line)"
                )
            ranks = np.argsort(np.argsort([order.index(label) for label in self.classes_])) if order else None
            return _start_ordinal(targets, count, ranks, 1 + self._kernel_variance)
        if count > 2:
            raise ValueError(f"likelihood={name!r} is for two classes, there are {count}: use 'softmax'")
        return Bernoulli(link=name)


def _copied(likelihood: Likelihood, declared: str, count: int) -> Likelihood:
    """A copy to be trained, of a likelihood that must declare so many classes or outputs."""
    kind, found = type(likelihood).__name__, getattr(likelihood, declared)
    if found != count:
        raise ValueError(f"y has {count} classes, but the likelihood {kind} has {declared}={found}")
    return copy.deepcopy(likelihood)


def _indicators(y: Any) -> np.ndarray:
    """Which labels each row has, as 1 and 0, [N, P]; NaN where that is not known."""
    options: dict[str, Any] = {"accept_sparse": "csr", "ensure_all_finite": False, "dtype": None}
    y = check_array(y, input_name="y", **options)
    y = y.toarray() if issparse(y) else y
    known = y[y == y].tolist()
    if not set(known) <= {0, 1}:
        other = next(value for value in known if value not in (0, 1))
        raise ValueError(
            f"y has {y.shape[1]} columns: for several labels at once they must hold 0 and 1, but one holds {other!r}"
        )
    return y.astype(np.float64)


def _start_ordinal(targets: np.ndarray, count: int, ranks: np.ndarray | None, variance: float) -> Ordinal:
    """Cuts such that f + noise, of this variance, gives each class its share of the rows."""
    rows = np.bincount(targets if ranks is None else ranks[targets], minlength=count) + 1.0
    cuts = np.sqrt(variance) * ndtri(np.cumsum(rows)[:-1] / rows.sum())
    return Ordinal(count, cuts[0], torch.from_numpy(np.diff(cuts)), None if ranks is None else torch.from_numpy(ranks))
