"""Training learns: the exact optimum where it is known, and something from every kind of data by every objective."""

import math

import numpy as np
import pytest
import torch
from learnable import LIKELIHOODS, Problem, held_out_score

from autogp import Posterior, SparseGP, elbo
from autogp.data import ArraySource
from autogp.kernels import RBF
from autogp.likelihoods import Gaussian, InfiniteLOOError
from autogp.training import Settings, train


def settings(objective: str = "elbo", **changes) -> Settings:
    numbers = {
        "max_epochs": 12,
        "batch_size": 100,
        "samples": 10,
        "learning_rate": 0.03,
        "natural_rates": (0.3, 0.05),
        "held_share": 0.4,
        "held_learning_rate": 0.01,
    }
    return Settings(objective, **(numbers | changes))


def collapsed_elbo(x: np.ndarray, y: np.ndarray, z: np.ndarray, noise: float) -> float:
    """log N(y; 0, Qxx + noise I) - tr(Kxx - Qxx) / (2 noise) for an RBF kernel of unit scales (Titsias, 2009)."""

    def gram(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))

    nystrom = gram(x, z) @ np.linalg.solve(gram(z, z) + 1e-10 * np.eye(len(z)), gram(z, x))
    total = nystrom + noise * np.eye(len(x))
    log_density = -0.5 * (y @ np.linalg.solve(total, y) + np.linalg.slogdet(total)[1] + len(x) * math.log(2 * math.pi))
    return float(log_density - (len(x) - np.trace(nystrom)) / (2 * noise))


@pytest.mark.parametrize(("batch_size", "gap"), [(200, 1e-6), (50, 1.0)])
def test_natural_gradients_reach_the_collapsed_elbo_where_all_else_stands_still(batch_size, gap):
    generator = np.random.default_rng(0)
    x = generator.uniform(-2, 2, size=(200, 2))
    y = np.sin(2 * x[:, 0]) + 0.3 * generator.normal(size=200)
    model = SparseGP(RBF([1.0, 1.0]), Gaussian(variance=0.1), torch.from_numpy(x[:15]))
    best = collapsed_elbo(x, y, x[:15], 0.1)
    rows = torch.from_numpy(x), torch.from_numpy(y)
    before = elbo(model, *rows).item()
    still = settings(max_epochs=20, batch_size=batch_size, learning_rate=1e-12, natural_rates=(0.2, 0.02))
    train(model, ArraySource(x, y), still)
    assert before < best - 100
    assert best - gap < elbo(model, *rows).item() < best + 1e-6


SEVERAL_LATENTS = ("softmax", "network", "user's, two latents")  # which may share a kernel
ROADS = [
    (name, objective)
    for name in LIKELIHOODS
    for objective in ("elbo", "predictive", "loo")
    if objective != "loo" or name not in ("poisson", "network")  # whose leave-one-out is infinite
]


@pytest.mark.parametrize(
    ("name", "objective", "shared"),
    [(*road, True) for road in ROADS] + [(*road, False) for road in ROADS if road[0] in SEVERAL_LATENTS],
)
def test_every_likelihood_learns_by_every_objective(name, objective, shared):
    problem = Problem(name)
    model = problem.model(shared)
    if name == "probit":  # its leave-one-out is infinite where q(f) has a variance above 1
        model.kernel.log_variance.data.fill_(math.log(0.2))
    before = held_out_score(model, problem.test)
    if name == "user's, two latents" and objective == "loo":  # E[1 / p] grows with the noise's own latent without end
        with pytest.raises(InfiniteLOOError):
            train(model, problem.source, settings(objective))
        return
    history = train(model, problem.source, settings(objective))
    assert history.rows[-1]["skipped"] == 0
    assert held_out_score(model, problem.test) > before + 0.4


@pytest.mark.parametrize(
    ("objective", "components", "diagonal"),
    [
        ("elbo", 1, False),
        ("elbo", 1, True),
        ("loo", 2, True),
        *((each, 2, False) for each in ("elbo", "predictive", "loo")),
    ],
)
@pytest.mark.parametrize("name", ["logit", "softmax"])
def test_posteriors_without_natural_form_learn_and_their_components_end_apart(name, objective, components, diagonal):
    problem = Problem(name)
    latents = problem.likelihood.num_latents
    posterior = Posterior(latents, len(problem.z), num_components=components, diagonal=diagonal)
    model = problem.model(posterior=posterior)
    before = held_out_score(model, problem.test)
    train(model, problem.source, settings(objective, max_epochs=25, learning_rate=0.05))
    assert held_out_score(model, problem.test) > before + 0.4
    assert model.posterior is posterior
    if components == 2:
        moments = model.prepare().moments
        deviation = moments.covariance().diagonal(dim1=-2, dim2=-1).sqrt()
        assert ((moments.mean[0] - moments.mean[1]).abs() / deviation.amax(0)).max() > 0.3


@pytest.mark.parametrize(("components", "diagonal"), [(1, False), (2, False), (1, True)])
def test_a_product_of_functions_leaves_zero_for_any_posterior(components, diagonal):
    """At W = 0, g = 0 the ELBO of a regression network has no slope, though y = W g could explain the data."""
    problem = Problem("network")
    model = problem.model(posterior=Posterior(problem.likelihood.num_latents, len(problem.z), components, diagonal))
    before = held_out_score(model, problem.test)
    train(model, problem.source, settings(max_epochs=40))
    assert held_out_score(model, problem.test) > before + 0.4


def test_a_start_that_has_a_slope_is_left_where_it_is():
    problem = Problem("gaussian")
    model = problem.model()

    def fail(_):
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        train(model, problem.source, settings(), callbacks=[fail])
    assert not model.posterior.mean.any()  # back at the best state before the end of an epoch, which is the start


def test_longer_training_beats_shorter():
    scores = []
    for epochs in (2, 40):
        problem = Problem("softmax")
        model = problem.model()
        train(model, problem.source, settings("predictive", max_epochs=epochs))
        scores.append(held_out_score(model, problem.test))
    assert scores[1] > scores[0] + 0.02


def test_training_goes_on_from_where_a_trained_model_is():
    problem = Problem("gaussian")
    model = problem.model()
    first = train(model, problem.source, settings(max_epochs=20))
    again = train(model, problem.source, settings(max_epochs=20))
    assert again.best_score > first.best_score
