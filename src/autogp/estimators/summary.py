"""What a model is, in words and numbers that a person understands."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import is_classifier

from autogp.data import ArraySource
from autogp.data.deformed import has_planes
from autogp.features.base import as_map
from autogp.training.affordable import all_at_once, most_inducing
from autogp.training.grow import LEAST_GAIN

if TYPE_CHECKING:
    from autogp.estimators.base import GPEstimator

__all__ = ["describe", "described_facts", "importances", "label_names"]

MOST_COLUMNS = 8  # named in a summary
SMALL_SHARE = 0.03  # such as a pixel's of an image
SQUARES = 8  # of the pixels of an image, down and across
MOST_SHIFTS, SHIFTED_NUMBERS = 8, 2**15  # rows moved against each other, so many times for few columns


def importances(estimator: "GPEstimator") -> np.ndarray:
    """Share of each column of X in what predictions vary by: its total Sobol' index, estimated as by Jansen (1999).

    T_j = E[(m(x) - m(x'))^2] / 2, with m the expected targets (or probabilities of classes), x a row of training, and
    x' the same row with the value of column j from another one. A map of patches hardly sees a single pixel: for it
    squares of pixels are exchanged, eight down and across, and a pixel has its part of the square's share.
    """
    x = estimator._gaps.reference  # [R, C], without gaps
    count, width = x.shape
    shifts = np.unique(np.linspace(1, count - 1, max(1, min(MOST_SHIFTS, SHIFTED_NUMBERS // x.size))).astype(int))
    base, found = _expected(estimator, x), np.zeros(width)
    for columns in _exchanged(estimator, width):
        for shift in shifts[shifts > 0]:
            moved = x.copy()
            moved[:, columns] = np.roll(x[:, columns], shift, 0)
            if (moved != x).any():
                found[columns] += np.square(_expected(estimator, moved) - base).mean() / len(columns)
    encoder = estimator.encoder_
    columns = range(width) if encoder is None else [encoder.inputs.index(name) for name in encoder.used]
    total = np.zeros(estimator.n_features_in_)
    total[list(columns)] = found
    return total / total.sum() if total.any() else np.full(len(total), 1 / len(total))


def _exchanged(estimator: "GPEstimator", width: int) -> list[np.ndarray]:
    """Columns whose values are exchanged together: each alone, or pixels of squares with all their channels."""
    features, shape = estimator.model_.features, estimator.image_shape_
    if shape is None or features is None or as_map(features).patterns() is None:
        return list(np.arange(width)[:, None])
    places = np.indices(shape).reshape(len(shape), -1)
    down, across = places[1:] if has_planes(shape) else places[:2]
    side = math.ceil((max(down.max(), across.max()) + 1) / SQUARES)
    square = down // side * SQUARES + across // side
    return [np.flatnonzero(square == number) for number in np.unique(square)]


def _expected(estimator: "GPEstimator", x: np.ndarray) -> np.ndarray:
    """Expected targets of rows as a source has them, [R, P], scaled; of classes their probabilities."""
    likelihood = estimator.model_.likelihood
    parts = [likelihood.predict(*marginals[:3]).mean for _, marginals, _ in estimator._marginals(ArraySource(x))]
    return torch.cat(parts).detach().double().cpu().numpy()


def describe(estimator: "GPEstimator") -> str:
    """A table of kernel, likelihood, posterior and scores."""
    rows = described_facts(estimator)
    width = max(len(name) for name, _ in rows)
    return "\n".join([type(estimator).__name__, *(f"  {name:<{width}}  {text}" for name, text in rows)])


def described_facts(estimator: "GPEstimator", importance: bool = True) -> list[tuple[str, str]]:
    """What `describe` shows, line by line: a name and a text."""
    model, scaler = estimator.model_, estimator.target_scaler_
    return [
        ("data", _data(estimator)),
        *_left_out(estimator),
        ("kernel", model.kernel.describe()),
        *([("importance", _importance(estimator))] if importance else []),
        ("likelihood", model.likelihood.describe(1.0 if scaler is None else scaler.scale)),
        ("posterior", _posterior(estimator)),
        ("training", _training(estimator)),
        *_scores(estimator),
    ]


def _left_out(estimator: "GPEstimator") -> list[tuple[str, str]]:
    ignored = [] if estimator.encoder_ is None else list(estimator.encoder_.ignored)
    more = ", ..." if len(ignored) > MOST_COLUMNS else ""
    shown = ", ".join(name or "a column without a name" for name in ignored[:MOST_COLUMNS])
    return [("left out", shown + more)] if ignored else []


def _data(estimator: "GPEstimator") -> str:
    text = f"{_counted(estimator.n_rows_, 'row')}, {_counted(estimator.n_features_in_, 'column')}"
    if is_classifier(estimator):
        labels = label_names(estimator)
        shown = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
        kind = "labels" if estimator.model_.likelihood.num_classes is None else "classes"
        return f"{text}, {len(labels)} {kind} ({shown})"
    return f"{text}, {_counted(estimator.n_outputs_, 'output')}"  # pyright: ignore[reportAttributeAccessIssue]


def label_names(estimator: Any) -> list[str]:
    """The classes as texts; where a row may have several labels, their names."""
    names = estimator.target_names_ if estimator.model_.likelihood.num_classes is None else None
    return [str(label) for label in (estimator.classes_ if names is None else names)]


def _importance(estimator: "GPEstimator") -> str:
    shares = importances(estimator)
    names = getattr(estimator, "feature_names_in_", np.array([f"x{i}" for i in range(len(shares))]))
    if estimator.encoder_ is not None:  # columns that were left out have no share
        used = [i for i, name in enumerate(names) if name not in estimator.encoder_.ignored]
        names, shares = names[used], shares[used]
    order = np.argsort(-shares)[:MOST_COLUMNS]
    if shares[order[0]] < SMALL_SHARE:
        return f"spread over many columns; the first, {names[order[0]]}, has {100 * shares[order[0]]:.1f} %"
    text = ", ".join(f"{names[i]} {100 * shares[i]:.0f} %" for i in order)
    return text + (", ..." if len(shares) > MOST_COLUMNS else "")


def _posterior(estimator: "GPEstimator") -> str:
    model = estimator.model_
    size, latents = model.inducing_inputs.shape[-2], model.likelihood.num_latents
    components = estimator.n_components
    kind = "a Gaussian" if components == 1 else f"a mixture of {components} Gaussians"
    return f"{kind} over {_counted(latents, 'function')} at {_counted(size, 'inducing input')}{_chosen(estimator)}"


def _chosen(estimator: "GPEstimator") -> str:
    """Why there are so many inducing inputs, where that was left to us."""
    model, asked, rows = estimator.model_, estimator.n_inducing, estimator.n_rows_
    if asked != "auto" or not all_at_once(asked, rows, model.likelihood, estimator._given_settings(0)):
        return ""
    size = model.inducing_inputs.shape[-2]
    if size >= rows:
        return "; as many as rows"
    if size < most_inducing(asked, rows, model.likelihood):
        return f"; more would gain less than {LEAST_GAIN} nats per row"
    return "; more would take too long"


def _training(estimator: "GPEstimator") -> str:
    if not estimator.history_:
        return "none"
    last = estimator.history_[-1]
    time = f"{_counted(last['epoch'], 'epoch')} ({_counted(last['step'], 'step')}) in {last['seconds']:.1f} s"
    kept = f", best at the end of epoch {estimator.best_epoch_}" if 0 < estimator.best_epoch_ < last["epoch"] else ""
    return f"{time}, objective {last['objective']}{kept}"


def _scores(estimator: "GPEstimator") -> list[tuple[str, str]]:
    if math.isnan(estimator.elbo_):
        return [("scores", "unknown since partial_fit, which does not see the old rows")]
    elbo, left_out = estimator.elbo_, estimator.loo_score_
    kind = "log probability" if is_classifier(estimator) else "log density"
    return [
        ("evidence", f"log evidence of at least {elbo:.1f} ({elbo / estimator.n_rows_:.3f} per row)"),
        (
            "leave-one-out",
            "infinite" if math.isnan(left_out) else f"mean {kind} of a row given the others {left_out:.3f}",
        ),
    ]


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
