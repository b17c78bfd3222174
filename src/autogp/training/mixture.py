"""A mixture of Gaussians as the posterior, from one Gaussian that was trained."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autogp.data import Batches, Source, TargetScaler
from autogp.data.sources import as_tensor
from autogp.model import SparseGP
from autogp.objectives import expected_log_prob
from autogp.posteriors import Natural, Posterior
from autogp.training.feed import Feed, row_values
from autogp.training.loop import BATCH_SIZE, train
from autogp.training.optimisers import Adam
from autogp.training.schedule import PARTS, Phase, Settings
from autogp.training.state import History
from autogp.training.step import FAILURES, apply, draw, natural_statistics

__all__ = ["mix"]

TRIES = 4  # for each further component
START_SPREAD = 0.1  # standard deviations of the prior, of a component that starts anywhere
STEPS, NATURAL_RATE = 100, 0.1  # of a try, and of its natural gradients
FEWEST_EPOCHS = 2  # in which all components learn together, or as many as make 100 steps
DIFFERENT = 1.0  # Bhattacharyya distance from which two components are not the same,
FAR_BELOW = 10.0  # nats of the ELBO below the best at which one has no weight
APART = 1.0  # length of the step, in standard deviations of q, from a component to its copy
TUNING_RATE = 0.005


def mix(
    model: SparseGP,
    source: Source,
    settings: Settings,
    components: int,
    *,
    weights: np.ndarray | None = None,
    target_scaler: TargetScaler | None = None,
    folder: Path | None = None,
    **options: Any,
) -> History | None:
    """Puts a mixture in the place of the model's Gaussian q, and trains it; its ELBO is never below that of q.

    The ELBO of a mixture is sum_k pi_k ELBO_k + I, and I, the information of v on its component, is at most log K. So
    each component is trained by itself, from a start of its own, with the hyper-parameters as they are: it ends in a
    mode of the posterior. Far apart ones have the weights pi_k ~ exp(ELBO_k). Where fewer modes are found than there
    are components, the others start beside the best. Then all learn together, for as long as that is a gain.
    """
    feed = Feed(model, len(source), weights, target_scaler)
    batches = Batches(source, min(settings.batch_size or BATCH_SIZE, len(source)), settings.seed)
    found = [(_elbo(model, model.posterior, feed, source), model.posterior)]
    for number in range(TRIES * (components - 1)):
        posterior = _anywhere(model.posterior, settings.seed + number // 2, sign=1 - 2 * (number % 2))
        try:
            _settle(model, posterior, feed, batches, settings)
            found.append((_elbo(model, posterior, feed, source), posterior))
        except FAILURES:
            continue  # from where it started nothing can be computed
    values, modes = zip(*_modes(found, components), strict=True)
    missing = components - len(modes)
    values += (values[0],) * missing
    same = _joined([*modes, *[modes[0]] * missing], values)
    one = _joined([modes[0]] * components, [0.0] * components)
    start = max((same, one), key=lambda posterior: _elbo(model, posterior, feed, source))
    before, reached = _state(model, start), _elbo(model, start, feed, source)
    # Hyper-parameters that followed another objective stay.
    learnt = PARTS if settings.objective == "elbo" else ("posterior",)
    tuned = _joined([*modes, *(_beside(modes[0], settings.seed + number) for number in range(missing))], values)
    model.posterior = tuned
    epochs = max(FEWEST_EPOCHS, math.ceil(STEPS / batches.steps_per_epoch))
    phase = Phase("elbo", epochs, rates=dict.fromkeys(PARTS, TUNING_RATE), trainable=learnt)
    common = {"weights": weights, "target_scaler": target_scaler, "folder": folder, "resume": folder is not None}
    try:
        history = train(model, source, replace(settings, plan=[phase], patience=None), **common, **options)
        gained = _elbo(model, tuned, feed, source) > reached
    except FAILURES:
        history, gained = None, False
    if not gained:
        model.posterior = start
        model.load_state_dict(before)
        return None
    return history


def _settle(model: SparseGP, posterior: Posterior, feed: Feed, batches: Batches, settings: Settings) -> None:
    """Natural gradients of the ELBO; nothing but this posterior learns."""
    q, generator = Natural.of(posterior), torch.Generator(feed.device)
    for step in range(STEPS):
        x, y = map(as_tensor, batches.load(step))
        batch = feed.batch(x, y, batches.indices(step))
        if "elbo" in model.likelihood.sampled:
            generator.manual_seed((settings.seed << 32) + step)
            batch = batch._replace(noise=draw(model, len(batch.x), settings.samples, generator))
        apply(natural_statistics(model, batch, "elbo", [], q), Adam([]), [], q, NATURAL_RATE)
    posterior.set_natural(q)


@torch.no_grad()
def _elbo(model: SparseGP, posterior: Posterior, feed: Feed, source: Source) -> float:
    """Of all rows."""
    total = 0.0
    for rows, values in row_values(expected_log_prob, model, posterior, feed, source):
        weights = 1.0 if feed.weights is None else feed.weights[rows].to(values)
        total += (weights * values).sum().item()
    return total - posterior.moments().kl().item()


def _state(model: SparseGP, posterior: Posterior) -> dict[str, Tensor]:
    """A copy of the model's state, with this posterior."""
    model.posterior = posterior
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _anywhere(like: Posterior, seed: int, sign: int) -> Posterior:
    """A Gaussian about a function drawn from the prior, or about the same with its sign turned."""
    _, latents, size = like.mean.shape
    posterior = Posterior(latents, size).to(like.mean.device)
    mean = torch.randn(1, latents, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    eye = torch.eye(size, dtype=torch.float64).expand(1, latents, size, size)
    posterior.set_moments((sign * mean).to(like.mean.device), (START_SPREAD**2 * eye).to(like.mean.device))
    return posterior


@torch.no_grad()
def _beside(posterior: Posterior, seed: int) -> Posterior:
    """The same Gaussian with its mean one standard deviation away, in one direction at random."""
    moments = posterior.moments()
    away = torch.randn(posterior.mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    away = (APART * away / away.norm()).to(posterior.mean.device)
    _, latents, size = posterior.mean.shape
    moved = Posterior(latents, size).to(posterior.mean.device)
    moved.set_moments(moments.mean + (moments.upper_root() @ away[..., None]).squeeze(-1), moments.covariance())
    return moved


def _modes(found: list[tuple[float, Posterior]], most: int) -> list[tuple[float, Posterior]]:
    """Those with the largest ELBO that differ from each other."""
    chosen: list[tuple[float, Posterior]] = []
    for value, posterior in sorted(found, key=lambda each: -each[0]):
        if len(chosen) == most or (chosen and value < chosen[0][0] - FAR_BELOW):
            break
        if all(_distance(posterior, other) > DIFFERENT for _, other in chosen):
            chosen.append((value, posterior))
    return chosen


@torch.no_grad()
def _joined(parts: Sequence[Posterior], values: Sequence[float]) -> Posterior:
    """A mixture with weights in proportion to exp(values)."""
    _, latents, size = parts[0].mean.shape
    posterior = Posterior(latents, size, len(parts)).to(parts[0].mean.device)
    moments = [part.moments() for part in parts]
    posterior.set_moments(
        torch.cat([each.mean for each in moments]), torch.cat([each.covariance() for each in moments])
    )
    posterior.logits.copy_(torch.tensor(values, dtype=torch.float64) - max(values))
    return posterior


@torch.no_grad()
def _distance(first: Posterior, second: Posterior) -> float:
    return _joined([first, second], [0.0, 0.0]).moments().distances()[0, 1].item()
