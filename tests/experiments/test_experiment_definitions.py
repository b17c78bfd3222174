"""Experiments as they are declared: their runs, names, presets, starts, and the programs that they print."""

import ast
import functools
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch

from autogp import SparseGP
from autogp.datasets import Dataset
from autogp.experiments import EXPERIMENTS, Run, execute
from autogp.experiments.call import code, imports
from autogp.experiments.figures import TITLES
from autogp.experiments.record import plain
from autogp.experiments.run import hold_out
from autogp.experiments.scores import scores
from autogp.features import PrincipalComponents
from autogp.kernels import RBF, ArcCosine
from autogp.likelihoods import Network
from autogp.posteriors import Natural
from autogp.training import Phase, Settings, Start
from autogp.training.step import Batch, draw, natural_statistics

CASES = [(name, preset) for name, experiment in EXPERIMENTS.items() for preset in experiment.presets or ("ours",)]


@pytest.mark.parametrize(("name", "preset"), CASES)
def test_every_run_has_a_name_of_its_own_and_settings_that_hold(name: str, preset: str) -> None:
    experiment = EXPERIMENTS[name]
    runs = experiment.runs(preset)
    assert runs
    assert len({run.name for run in runs}) == len(runs)
    assert set(experiment.metrics) <= set(TITLES)
    for run in (run for run in runs if not run.is_peer):
        arguments = run.arguments(time_budget=5.0)
        assert (arguments["objective"], arguments["random_state"]) == (run.objective, run.seed)
        assert (arguments["n_inducing"], arguments["time_budget"]) == (run.inducing, 5.0)
        settings = replace(arguments["settings"], objective=run.objective)
        assert settings.phases(steps_per_epoch=10)[-1].objective == run.objective
        assert run.samples in (None, settings.samples)


def test_a_run_is_named_after_what_is_varied() -> None:
    assert "mnist-ours-loo-200-seed0" in {run.name for run in EXPERIMENTS["mnist"].runs("ours")}
    assert "mnist-images-large-predictive-600-seed0" in {run.name for run in EXPERIMENTS["mnist"].runs("images, large")}
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
        for settings in [run.arguments()["settings"]]
    }
    assert found == {("rbf", 0.1, 0.05), ("arccosine", 0.0, 0.01)}


def test_a_preset_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="uci has no preset 'paper'"):
        EXPERIMENTS["uci"].runs("paper")


def shortened(run: Run, settings: Settings) -> Run:
    """The run with other settings in its preset."""
    preset = run.experiment.presets[run.preset_name]
    preset = replace(preset, arguments={**preset.arguments, "settings": settings}, by_kernel={})
    return replace(run, experiment=replace(run.experiment, presets={run.preset_name: preset}))


def started(name: str, preset: str, kernel: str = "rbf", columns: int = 60, classes: int = 10) -> SparseGP:
    """The model after one epoch in which only q learns."""
    run = next(run for run in EXPERIMENTS[name].runs(preset) if run.kernel == kernel and run.inducing == 10)
    run = shortened(run, Settings(plan=[Phase(epochs=1, trainable=())]))
    x = np.random.default_rng(0).normal(size=(200, columns))
    return run.experiment.estimator(**run.arguments()).fit(x, np.arange(200) % classes).model_


def test_the_papers_start_has_separate_kernels_of_lengthscale_10_and_learns_by_ordinary_gradients() -> None:
    model = started("mnist", "paper")
    assert model.inducing_inputs.shape == (10, 10, 60)
    torch.testing.assert_close(model.kernel.lengthscale, torch.full((10, 60), 10.0, dtype=torch.float64))
    for run in EXPERIMENTS["mnist"].runs("paper"):
        assert run.arguments()["settings"].optimiser == "rmsprop"


@pytest.mark.parametrize(("preset", "groups"), [("ours", 10), ("one kernel", 1)])
def test_our_start_has_one_kernel_or_one_per_class_and_learns_by_natural_gradients(preset: str, groups: int) -> None:
    experiment = EXPERIMENTS["mnist"]
    model = started("mnist", preset)
    assert model.posterior.has_natural_form
    assert experiment.presets[preset].arguments["settings"].optimiser == "natural"
    assert model.inducing_inputs.shape == (groups, 10, 60)
    assert model.kernel.lengthscale.shape == (groups, 60)
    assert model.dtype == torch.float32


@pytest.mark.parametrize("preset", ["ours", "paper"])
def test_the_arc_cosine_kernel_has_three_layers_of_degree_1(preset: str) -> None:
    kernel = started("rectangles", preset, "arccosine", classes=2).kernel
    assert isinstance(kernel, ArcCosine)
    assert (kernel.degree, kernel.depth) == (1, 3)
    assert (kernel.log_bias is None) == (preset == "paper")


def test_the_sampled_preset_estimates_what_ours_has_in_closed_form() -> None:
    """The statistics of a step of a regression network, by samples and exactly."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 2, generator=generator), torch.randn(5, 3, generator=generator)
    model = SparseGP(RBF(lengthscale=[1.0, 1.0]), Network(3, variance=0.5), torch.randn(4, 2, generator=generator))
    q = Natural.prior(model.likelihood.num_latents, 4)

    def shifts(noise: torch.Tensor | None) -> torch.Tensor:
        batch = Batch(x, y, torch.ones(5), noise, monte_carlo=noise is not None)
        sites = natural_statistics(model, batch, "elbo", [], q).sites
        assert sites is not None
        return sites.shift

    assert "elbo" not in model.likelihood.sampled
    found = torch.stack([shifts(draw(model, 5, 200, generator)) for _ in range(200)]).double()
    z = (found.mean(0) - shifts(None)) / (found.std(0) / 200**0.5)
    assert 0 < z.abs().max() < 5


def test_rows_held_out_are_training_rows_that_are_not_trained_on() -> None:
    x = np.arange(100.0)[:, None]
    data = Dataset("example", x, x[:, 0], -x, -x[:, 0])
    held = hold_out(data, seed=0)
    assert (len(held.x_train), len(held.x_test)) == (80, 20)
    np.testing.assert_array_equal(np.sort(np.concatenate([held.y_train, held.y_test])), x[:, 0])
    np.testing.assert_array_equal(held.x_test[:, 0], held.y_test)
    assert not np.array_equal(held.y_test, hold_out(data, seed=1).y_test)


ALL_RUNS = {run.name: run for name, preset in CASES for run in EXPERIMENTS[name].runs(preset) if not run.is_peer}


@pytest.mark.parametrize("name", ALL_RUNS)
def test_every_run_prints_a_program_that_compiles_and_whose_imports_exist(name: str) -> None:
    run = ALL_RUNS[name]
    tree = ast.parse(run.call(time_budget=60.0))
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    available = {
        alias.name: getattr(import_module(node.module or ""), alias.name) for node in imported for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"data", "model"}
    assert used == set(available)
    (made,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "model"
    )
    assert isinstance(made, ast.Call)
    for keyword in made.keywords:  # each argument, evaluated, is the run's own
        found = eval(ast.unparse(keyword.value), dict(available))
        assert code(found) == code(run.arguments(60.0)[keyword.arg or ""])


@pytest.mark.parametrize(
    ("preset", "objective"), [("ours", "elbo"), ("ours", "loo"), ("ours", "predictive"), ("paper", "loo")]
)
def test_a_printed_program_and_its_experiment_give_the_same_bits(
    preset: str, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = next(run for run in EXPERIMENTS["digits"].runs(preset) if (run.objective, run.inducing) == (objective, 10))
    run = shortened(run, replace(run.arguments()["settings"], max_epochs=2, batch_size=500))
    data, fitted = run.load(), []
    kind = run.experiment.estimator
    monkeypatch.setattr(kind, "fit", lambda self, *rest, fit=kind.fit, **more: fitted.append(fit(self, *rest, **more)))
    record = execute(run, data)
    exec(record["call"], {})
    ours, printed = fitted
    np.testing.assert_array_equal(printed.predict_proba(data.x_test), ours.predict_proba(data.x_test))
    for name, tensor in ours.model_.state_dict().items():
        assert torch.equal(tensor, printed.model_.state_dict()[name]), name
    assert plain(scores(printed, data.x_test, data.y_test)) == record["scores"]


def test_code_makes_the_value_again() -> None:
    values = [
        Start(variance=5.0, by_class=False),
        Settings(plan=[Phase("loo", epochs=2.5, hold=True, rates={"kernel": 0.1}), Phase()], natural_rates=(0.2, 0.1)),
        [1, (2.0,), {"text": None}],
    ]
    namespace = {"Phase": Phase, "Settings": Settings, "Start": Start}
    assert eval(code(values), namespace) == values
    assert code(functools.partial(hold_out, seed=1)) == "hold_out(seed=1)"
    assert imports(PrincipalComponents(2), values[1]) == [
        "from autogp.features import PrincipalComponents",
        "from autogp.training import Phase, Settings",
    ]
