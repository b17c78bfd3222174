"""What a model is, in words and numbers that a person understands."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from autogp.kernels import Kernel, Linear, Product, Sum
from autogp.posteriors import MixturePosterior

if TYPE_CHECKING:
    from autogp.estimators.base import GPEstimator

__all__ = ["describe", "described_facts", "relevance"]

MOST_COLUMNS = 8  # named in a summary
SMALL_SHARE = 0.03  # such as a pixel's of an image


def relevance(estimator: "GPEstimator") -> np.ndarray:
    """Share of each column of X in the variation of the functions, by lengthscales or weights of scaled inputs."""
    columns = len(estimator.input_scaler_.shift)
    total = np.zeros(columns)
    for kernel in _parts(estimator.model_.kernel):
        if hasattr(kernel, "lengthscale"):
            weight = 1 / kernel.lengthscale
        elif hasattr(kernel, "weight_variance"):
            weight = kernel.weight_variance.sqrt()
        elif isinstance(kernel, Linear):
            weight = kernel.variance.sqrt()
        else:
            continue
        total = total + weight.detach().mean(0).cpu().numpy()
    if not total.any():
        raise AttributeError(
            f"the kernel {type(estimator.model_.kernel).__name__} has no lengthscales to read feature_relevance_ from"
        )
    total = np.where(estimator._varies, total, 0.0)
    encoder = estimator.encoder_
    if encoder is not None:  # a text column is as relevant as its one-hot columns together
        columns = encoder.features()
        origins = range(len(encoder.used)) if columns is None else columns.origins
        owners = [encoder.inputs.index(encoder.used[origin]) for origin in origins]
        total = np.bincount(owners, weights=total, minlength=estimator.n_features_in_)
    return total / total.sum() if total.any() else np.full(len(total), 1 / len(total))


def describe(estimator: "GPEstimator") -> str:
    """A table of kernel, likelihood, posterior and scores."""
    rows = described_facts(estimator)
    width = max(len(name) for name, _ in rows)
    return "\n".join([type(estimator).__name__, *(f"  {name:<{width}}  {text}" for name, text in rows)])


def described_facts(estimator: "GPEstimator") -> list[tuple[str, str]]:
    """What `describe` shows, line by line: a name and a text."""
    rows = [("data", _data(estimator)), ("kernel", "; ".join(_kernel(estimator.model_.kernel)))]
    rows += [("relevance", text) for text in _relevance(estimator)]
    return [
        *rows,
        ("likelihood", _likelihood(estimator)),
        ("posterior", _posterior(estimator)),
        ("training", _training(estimator)),
        *_scores(estimator),
    ]


def _data(estimator: "GPEstimator") -> str:
    text = f"{_counted(estimator.n_rows_, 'row')}, {_counted(estimator.n_features_in_, 'column')}"
    if hasattr(estimator, "classes_"):
        labels = [str(label) for label in estimator.classes_]  # pyright: ignore[reportAttributeAccessIssue]
        shown = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
        return f"{text}, {len(labels)} classes ({shown})"
    return f"{text}, {_counted(estimator.n_outputs_, 'output')}"  # pyright: ignore[reportAttributeAccessIssue]


def _kernel(kernel: Any) -> Iterator[str]:
    if isinstance(kernel, (Sum, Product)):
        sign = " + " if isinstance(kernel, Sum) else " * "
        yield sign.join("; ".join(_kernel(part)) for part in kernel.kernels)
        return
    name = type(kernel).__name__
    facts = []
    for attribute, word in (("degree", "degree"), ("depth", "depth")):
        if hasattr(kernel, attribute):
            facts.append(f"{word} {getattr(kernel, attribute)}")
    if hasattr(kernel, "lengthscale"):
        values = kernel.lengthscale.detach()
        several = values.shape[1] > 1
        text = f"one lengthscale per column ({_range(values)})" if several else f"lengthscale {_range(values)}"
        facts.append(text + (" and function" if len(values) > 1 else "") + " of the scaled inputs")
    if hasattr(kernel, "variance") and kernel.variance is not None:
        facts.append(f"variance {_range(kernel.variance.detach())}")
    yield f"{name}: {', '.join(facts)}" if facts else name


def _relevance(estimator: "GPEstimator") -> list[str]:
    try:
        shares = relevance(estimator)
    except AttributeError:
        return []
    names = getattr(estimator, "feature_names_in_", np.array([f"x{i}" for i in range(len(shares))]))
    if estimator.encoder_ is not None:  # columns that were left out have no share
        used = [i for i, name in enumerate(names) if name not in estimator.encoder_.ignored]
        names, shares = names[used], shares[used]
    order = np.argsort(-shares)[:MOST_COLUMNS]
    if shares[order[0]] < SMALL_SHARE:
        return [f"spread over many columns; the first, {names[order[0]]}, has {100 * shares[order[0]]:.1f} %"]
    text = ", ".join(f"{names[i]} {100 * shares[i]:.0f} %" for i in order)
    return [text + (", ..." if len(shares) > MOST_COLUMNS else "")]


def _likelihood(estimator: "GPEstimator") -> str:
    likelihood: Any = estimator.model_.likelihood
    scaler = estimator.target_scaler_
    text = type(likelihood).__name__
    unit = 1.0 if scaler is None else scaler.scale
    if hasattr(likelihood, "link"):
        text += f", {likelihood.link} link"
    if hasattr(likelihood, "variance"):
        text += f", noise of standard deviation {_range(likelihood.variance.detach().sqrt() * unit)}"
    elif hasattr(likelihood, "scale"):
        text += (
            f", noise of scale {_range(likelihood.scale.detach() * unit)}, {likelihood.df.item():g} degrees of freedom"
        )
    elif hasattr(likelihood, "rate"):
        text += f", base rate {_range(likelihood.rate.detach())}"
    return text


def _posterior(estimator: "GPEstimator") -> str:
    model = estimator.model_
    size, latents = model.inducing_inputs.shape[-2], model.likelihood.num_latents
    kind = "a Gaussian"
    if isinstance(model.posterior, MixturePosterior) and len(model.posterior.logits) > 1:
        kind = f"a mixture of {len(model.posterior.logits)} Gaussians"
    return f"{kind} over {_counted(latents, 'function')} at {_counted(size, 'inducing input')}"


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
    bound, left_out = estimator.elbo_, estimator.loo_score_
    kind = "log probability" if hasattr(estimator, "classes_") else "log density"
    return [
        ("evidence", f"log evidence of at least {bound:.1f} ({bound / estimator.n_rows_:.3f} per row)"),
        (
            "leave-one-out",
            "infinite" if math.isnan(left_out) else f"mean {kind} of a row given the others {left_out:.3f}",
        ),
    ]


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _range(values) -> str:
    low, high = values.min().item(), values.max().item()
    return f"{low:.3g}" if math.isclose(low, high, rel_tol=1e-3) else f"{low:.3g} to {high:.3g}"


def _parts(kernel: Any) -> Iterator[Any]:
    """The kernels that a kernel is made of."""
    if isinstance(kernel, (Sum, Product)):
        for part in kernel.kernels:
            yield from _parts(part)
    elif isinstance(kernel, Kernel):
        yield kernel
