"""Experiments as they are declared: their runs, names, presets and starts."""

import numpy as np
import pytest
import torch
from autogp.experiments.sampled import SampledNetwork

from autogp.data import ArraySource, InputScaler, summarise
from autogp.datasets import Dataset
from autogp.experiments import EXPERIMENTS
from autogp.experiments.figures import TITLES
from autogp.experiments.run import hold_out, principal_components, start_model
from autogp.kernels import ArcCosine
from autogp.likelihoods import Network
from autogp.posteriors import GaussianPosterior, MixturePosterior
from autogp.training import phases

CASES = [(name, preset) for name, experiment in EXPERIMENTS.items() for preset in experiment.presets or ("ours",)]


@pytest.mark.parametrize(("name", "preset"), CASES)
def test_every_run_has_a_name_of_its_own_and_settings_that_hold(name: str, preset: str) -> None:
    experiment = EXPERIMENTS[name]
    runs = experiment.runs(preset)
    assert runs
    assert len({run.name for run in runs}) == len(runs)
    assert set(experiment.metrics) <= set(TITLES)
    for run in (run for run in runs if not run.is_peer):
        settings = run.settings(time_budget=5.0)
        assert (settings.objective, settings.seed, settings.time_budget) == (run.objective, run.seed, 5.0)
        assert phases(settings, steps_per_epoch=10)[-1].objective == run.objective


def test_a_run_is_named_after_what_is_varied() -> None:
    assert "mnist-ours-loo-200-seed0" in {run.name for run in EXPERIMENTS["mnist"].runs("ours")}
    assert "rectangles-arccosine-paper-elbo-1000-seed3" in {
        run.name for run in EXPERIMENTS["rectangles"].runs("paper", seed=3)
    }
    assert "sarcos-ias-clean-paper-elbo-50-100samples-seed0" in {
        run.name for run in EXPERIMENTS["sarcos"].runs("paper")
    }


def test_the_runs_of_mnist_are_three_sizes_by_three_objectives() -> None:
    runs = EXPERIMENTS["mnist"].runs("ours")
    assert {(run.inducing, run.objective) for run in runs} == {
        (size, objective) for size in (10, 200, 1000) for objective in ("elbo", "loo", "predictive")
    }


def test_what_is_compared_runs_along_with_ours() -> None:
    runs = EXPERIMENTS["sarcos"].runs("ours")
    own = [(run.preset_name, run.samples) for run in runs if run.data == "ias"]
    sampled = [("sampled", samples) for samples in (10, 100, 1000, 10_000)]
    assert own == [("ours", None), *sampled, ("independent", None)]
    assert "rectangles-svm-seed0" in {run.name for run in EXPERIMENTS["rectangles"].runs("ours")}
    assert not any(run.is_peer for run in EXPERIMENTS["rectangles"].runs("paper"))


def test_the_seeds_of_uci_are_published_splits() -> None:
    runs = EXPERIMENTS["uci"].runs("ours")
    assert {run.seed for run in runs if run.data == "boston"} == {0, 1, 2}
    assert {run.seed for run in EXPERIMENTS["uci"].runs("ours", seed=19)} == {19}


def test_a_kernel_may_have_settings_of_its_own() -> None:
    found = {
        (run.kernel, settings.held_prior, settings.held_learning_rate)
        for run in EXPERIMENTS["rectangles"].runs("ours")
        if not run.is_peer
        for settings in [run.settings(None)]
    }
    assert found == {("rbf", 0.1, 0.05), ("arccosine", 0.0, 0.01)}


def test_a_preset_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="uci has no preset 'paper'"):
        EXPERIMENTS["uci"].runs("paper")


def source_of(columns: int, classes: int) -> ArraySource:
    rng = np.random.default_rng(0)
    return ArraySource(rng.normal(size=(200, columns)), np.arange(200) % classes)


def started(name: str, preset: str, kernel: str = "rbf", columns: int = 60, classes: int = 10):
    run = next(run for run in EXPERIMENTS[name].runs(preset) if run.kernel == kernel and run.inducing == 10)
    source = source_of(columns, classes)
    return start_model(run, source, InputScaler.from_summary(summarise(source)))


def test_the_papers_start_has_separate_kernels_of_lengthscale_10_and_a_posterior_for_gradients() -> None:
    model = started("mnist", "paper")
    assert isinstance(model.posterior, MixturePosterior)
    assert model.inducing_inputs.shape == (10, 10, 60)
    assert model.kernel.lengthscale.shape == (10, 60)
    torch.testing.assert_close(model.kernel.lengthscale, torch.full((10, 60), 10.0, dtype=torch.float64))


@pytest.mark.parametrize(("preset", "groups"), [("ours", 10), ("one kernel", 1)])
def test_our_start_has_one_kernel_or_one_per_class_and_learns_by_natural_gradients(preset: str, groups: int) -> None:
    model = started("mnist", preset)
    assert isinstance(model.posterior, GaussianPosterior)
    assert model.inducing_inputs.shape == (groups, 10, 60)
    assert model.kernel.lengthscale.shape == (groups, 60)
    assert model.precision == torch.float32


def test_principal_components_are_directions_of_the_training_rows() -> None:
    rng = np.random.default_rng(0)
    plane, other = np.linalg.qr(rng.normal(size=(6, 3)))[0].T[:2], np.eye(6)[0]
    x_train = 5 + rng.normal(size=(40, 2)) @ plane
    x_test = np.stack([x_train[3], x_train[3] + other - plane.T @ (plane @ other)])  # the second leaves their plane
    found = principal_components(Dataset("flat", x_train, np.zeros(40), x_test, np.zeros(2)), 2)
    assert found.x_train.shape == (40, 2)
    distances = [np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (x_train, found.x_train)]
    np.testing.assert_allclose(distances[1], distances[0], atol=1e-4)
    np.testing.assert_allclose(found.x_test, np.repeat(found.x_train[3:4], 2, axis=0), atol=1e-4)
    assert abs(np.cov(found.x_train.T)[0, 1]) < 1e-4


@pytest.mark.parametrize("preset", ["ours", "paper"])
def test_the_arc_cosine_kernel_has_three_layers_of_degree_1(preset: str) -> None:
    kernel = started("rectangles", preset, "arccosine", classes=2).kernel
    assert isinstance(kernel, ArcCosine)
    assert (kernel.degree, kernel.depth) == (1, 3)
    assert (kernel.log_bias is None) == (preset == "paper")


def test_the_sampled_network_estimates_what_the_network_has_in_closed_form() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, variance = torch.randn(5, 8, generator=generator), torch.rand(5, 8, generator=generator)
    y = torch.randn(5, 7, generator=generator)
    sampled, exact = SampledNetwork(7), Network(7)
    assert "elbo" in sampled.sampled
    noise = torch.randn(100, 4000, 5, 8, generator=generator)
    for found, expected in zip(
        sampled.expected_derivatives(mean, variance, y, noise[0]),
        Network.expected_derivatives(sampled, mean, variance, y, noise[0]),  # by autograd
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        sampled.expected_log_prob(mean, variance, y, noise[0]),
        exact.expected_log_prob(mean, variance, y, noise[0]),
        rtol=1e-4,
        atol=1e-4,
    )
    batches = torch.stack([sampled.expected_log_prob(mean, variance, y, each) for each in noise])  # [100, B]
    z = (batches.mean(0) - exact.expected_log_prob(mean, variance, y)) / (batches.std(0) / 10)
    assert z.abs().max() < 5


def test_rows_held_out_are_training_rows_that_are_not_trained_on() -> None:
    x = np.arange(100.0)[:, None]
    data = Dataset("example", x, x[:, 0], -x, -x[:, 0])
    held = hold_out(data, seed=0)
    assert (len(held.x_train), len(held.x_test)) == (80, 20)
    np.testing.assert_array_equal(np.sort(np.concatenate([held.y_train, held.y_test])), x[:, 0])
    np.testing.assert_array_equal(held.x_test[:, 0], held.y_test)
    assert not np.array_equal(held.y_test, hold_out(data, seed=1).y_test)
