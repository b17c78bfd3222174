"""What so many rows can afford: how many inducing inputs, all rows at once or batches, and how long the steps are."""

import math
from dataclasses import replace

from autogp.likelihoods import Likelihood
from autogp.training.grow import FEWEST_INDUCING
from autogp.training.schedule import Settings

__all__ = ["ONE_BATCH", "all_at_once", "first_inducing", "is_exact", "most_inducing", "settings_for"]

ONE_BATCH = 2_000  # rows
NOISELESS_RATES = (0.2, 0.2)  # of natural gradients, where steps have no noise; 0.5 is too long where log p has kinks
NETWORK_RATE = 0.1  # of latent functions that start away from 0; at 0.05 the noise is still too large at the end
SETTLED_EPOCHS = 50  # of one step each, without a better score: then a run of open length ends
AFFORDABLE_PASS, CHEAP_PASS = 1e10, 1.5e8  # multiplications: for as many inducing inputs as were asked for, for "auto",
CHEAP_SUMS = 7e9  # and for "auto" where all rows share Gaussian noise
EXACT_ROWS, EXACT_OTHERS = 400, 100  # up to which "auto" takes every row: with noise that rows share, and without
MOST_INDUCING = 400  # that "auto" takes, and
BATCH_INDUCING, BATCH_ROWS_EACH = 200, 5  # where it learns from batches: at most, and rows for each of them
COUPLED_PASSES = 5  # over the rows, until q has settled where a row couples latent functions


def all_at_once(n_inducing: int | str, count: int, likelihood: Likelihood, given: Settings) -> bool:
    """Whether a pass over all rows is affordable: then training ends when it converges. `given` is what the user said.

    Not where the ELBO has no closed form, as for a softmax: it converges slowly, and to worse probabilities than
    batches find.
    """
    work = count * _passes(likelihood) * most_inducing(n_inducing, count, likelihood) ** 2
    return (
        "elbo" not in likelihood.sampled
        and not any(likelihood.start_values or ())
        and given.optimiser == "natural"
        and given.plan is None
        and given.batch_size is None
        and work <= (_cheap_pass(likelihood) if n_inducing == "auto" else AFFORDABLE_PASS)
    )


def most_inducing(n_inducing: int | str, count: int, likelihood: Likelihood) -> int:
    """As many as were asked for, or with "auto" as a pass over all rows can afford."""
    if n_inducing != "auto":
        return int(n_inducing)
    passes = _passes(likelihood)
    affordable = math.isqrt(int(_cheap_pass(likelihood) / (count * passes)))
    fewest = FEWEST_INDUCING if passes > likelihood.num_latents else 2 * FEWEST_INDUCING
    return min(MOST_INDUCING, max(fewest, affordable), count)


def is_exact(n_inducing: int | str, count: int, likelihood: Likelihood, given: Settings) -> bool:
    """Whether every row is an inducing input and stays one: for few rows the cheapest model, and an exact one."""
    few = count <= (EXACT_OTHERS if likelihood.shared_noise is None else EXACT_ROWS)
    return n_inducing == "auto" and few and all_at_once(n_inducing, count, likelihood, given)


def first_inducing(n_inducing: int | str, count: int, likelihood: Likelihood, given: Settings) -> int:
    """How many training starts with; all rows at once, they become more."""
    if all_at_once(n_inducing, count, likelihood, given):
        return min(FEWEST_INDUCING, most_inducing(n_inducing, count, likelihood))
    most = min(BATCH_INDUCING, max(FEWEST_INDUCING, count // BATCH_ROWS_EACH))
    return most if n_inducing == "auto" else int(n_inducing)


def settings_for(given: Settings, count: int, likelihood: Likelihood, own_rates: bool) -> Settings:
    """`given` with a batch for so many rows. Where it holds all rows and nothing is sampled, steps have no noise: they
    may be long, unless the user has chosen their rates."""
    found = given
    if found.batch_size is None:
        found = replace(found, batch_size=count if count <= ONE_BATCH else None)
    if found.batch_size is None or found.batch_size < count:
        return found
    nodes = sum(map(bool, likelihood.start_values or ()))
    if not own_rates and not likelihood.sampled & {"elbo", found.objective}:
        found = replace(found, natural_rates=NOISELESS_RATES)
        found = replace(found, learning_rate=NETWORK_RATE) if nodes else found
    if found.patience is None and found.max_epochs is None:
        found = replace(found, patience=SETTLED_EPOCHS)
        if nodes > 1:  # until the noise is learnt: before, intervals are too wide
            found = replace(found, max_epochs=nodes * found.epochs(1))
    return found


def _cheap_pass(likelihood: Likelihood) -> float:
    return CHEAP_PASS if likelihood.shared_noise is None else CHEAP_SUMS


def _passes(likelihood: Likelihood) -> int:
    """How much work a row is, by the latent functions."""
    return likelihood.num_latents * (COUPLED_PASSES if likelihood.couples else 1)
