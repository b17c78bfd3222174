"""Phases: what they are, that changing between them loses nothing, and what cannot be asked of them."""

import copy
import math

import pytest
import torch
from learnable import Problem, held_out_score

from autogp import InfiniteLOOError, Posterior
from autogp.training import Phase, Settings, loop, state, train
from autogp.training.schedule import PARTS


def phases(steps_per_epoch: int = 1, **changes) -> list[tuple[str, int, bool]]:
    """Objective, steps and whether q(u) is held."""
    found = Settings(**changes).phases(steps_per_epoch)
    return [(phase.objective, phase.steps(steps_per_epoch), phase.hold) for phase in found]


@pytest.mark.parametrize("objective", ["elbo", "predictive"])
def test_elbo_and_predictive_density_have_one_phase(objective):
    assert phases(10, objective=objective, max_epochs=7) == [(objective, 70, False)]


@pytest.mark.parametrize(
    ("epochs", "share", "expected"),
    [
        (10, 0.5, (15, 15)),
        (10, 0.2, (24, 6)),
        (1, 0.75, (1, 2)),
        (2, 0.75, (2, 4)),
        (1, 0.01, (2, 1)),
        (1, 0.99, (1, 2)),
    ],
)
@pytest.mark.parametrize("objective", ["loo", "predictive"])
def test_the_objective_comes_last_and_each_phase_has_a_step(objective, epochs, share, expected):
    found = phases(3, objective=objective, max_epochs=epochs, held_share=share)
    assert found == [("elbo", expected[0], False), (objective, expected[1], True)]


@pytest.mark.parametrize(
    ("epochs", "cycle", "expected"),
    [
        (200, 100, [100, 100]),
        (400, 100, [100, 100, 100, 100]),
        (8, 2, [2, 2, 2, 2]),
        (7, 2, [5, 2]),  # not eight
        (9, 2, [3, 2, 2, 2]),
        (5, 100, [3, 2]),
        (2, 1, [1, 1]),
    ],
)
def test_turns_alternate_end_with_leave_one_out_and_take_all_epochs_and_no_more(epochs, cycle, expected):
    found = phases(objective="loo", max_epochs=epochs, loo_cycle=cycle)
    turns = [("elbo", False), ("loo", True)] * (len(expected) // 2)
    assert found == [(objective, steps, hold) for (objective, hold), steps in zip(turns, expected, strict=True)]
    assert sum(expected) == epochs


def test_turns_are_counted_in_epochs():
    found = phases(10, objective="loo", max_epochs=5, loo_cycle=1)
    assert [steps for _, steps, _ in found] == [20, 10, 10, 10]


def test_one_step_is_too_few_for_two_phases():
    with pytest.raises(ValueError, match="objective='loo' has two phases, and max_epochs=1 is one step"):
        phases(objective="loo", max_epochs=1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"objective": "map"}, "objective must be one of elbo, loo, predictive, got 'map'"),
        ({"optimiser": "sgd"}, "optimiser must be one of natural, rmsprop"),
        ({"max_epochs": 0}, "max_epochs must be positive or None, got 0"),
        ({"batch_size": -1}, "batch_size must be positive or None, got -1"),
        ({"learning_rate": math.nan}, "learning_rate must be positive, got nan"),
        ({"kernel_rate": 0.0}, "kernel_rate must be positive, got 0.0"),
        ({"patience": 0}, "patience must be positive or None, got 0"),
        ({"time_budget": -1.0}, "time_budget must be positive or None"),
        ({"natural_rates": (0.1, 0.0)}, r"natural_rates must lie in \(0, 1\]"),
        ({"natural_rates": (1.1, 0.1)}, r"natural_rates must lie in \(0, 1\]"),
        ({"batch_size": 50.5}, "batch_size must be a whole number, got 50.5"),
        ({"seed": 2**32}, "seed must lie between 0 and 2\\^31 - 1, got 4294967296"),
        ({"held_share": 1.0}, r"held_share must lie in \[0, 1\), got 1.0"),
        ({"held_prior": -1.0}, "held_prior must be a finite number, none negative, got -1.0"),
        ({"plan": []}, r"plan must be a list of phases, at least one, got \(\)"),
        ({"plan": ["elbo"]}, "plan must be a list of phases"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(change, text):
    with pytest.raises(ValueError, match=text):
        Settings(**change)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"objective": "map"}, "objective must be one of elbo, loo, predictive, got 'map'"),
        ({"epochs": 0}, "epochs must be a positive number, got 0"),
        ({"epochs": math.inf}, "epochs must be a positive number, got inf"),
        ({"rates": {"kernels": 0.1}}, "a model has the parts features, .*; 'kernels' is none of them"),
        ({"trainable": ("z",)}, "'z' is none of them"),
        ({"rates": {"kernel": 0.0}}, "rates must be positive"),
        ({"natural_rates": (0.1, 2.0)}, r"natural_rates must be two numbers in \(0, 1\]"),
        ({"prior": -1.0}, "prior must be a finite number, none negative"),
    ],
)
def test_phases_that_cannot_work_are_refused_by_name(change, text):
    with pytest.raises(ValueError, match=text):
        Phase(**change)


def test_step_sizes_rise_at_first_and_fall_to_the_end():
    settings = Settings(
        "loo", max_epochs=10, learning_rate=0.1, held_learning_rate=0.01, kernel_rate=0.5, natural_rates=(0.4, 0.1)
    )
    free, held = settings.phases(1)
    assert {part: free.rate(part) for part in PARTS} == dict.fromkeys(PARTS, 0.1) | {"kernel": 0.05}
    assert {part: held.rate(part) for part in PARTS} == dict.fromkeys(PARTS, 0.01) | {"kernel": 0.005}
    assert [free.share(progress, 99) for progress in (0, 0.5)] == pytest.approx([1, 0.5])
    assert [free.share(0.0, taken) for taken in (0, 2, 29, 30)] == pytest.approx([1 / 30, 0.1, 1, 1])
    assert free.share(0.125, 2) == pytest.approx(0.5 * 0.5 * (1 + math.cos(math.pi / 8)))  # a short phase
    assert free.share(1.0, 99) == pytest.approx(0, abs=1e-15)
    assert [free.natural_rate(progress) for progress in (0, 0.5, 1)] == pytest.approx([0.4, 0.2, 0.1])
    (constant,) = Settings(decay=False).phases(1)
    assert [constant.share(progress, 0) for progress in (0, 0.5, 1)] == [1.0] * 3


# -- q(u) is held, and released --------------------------------------------------------------------------------------

POSTERIORS = {
    "natural": lambda latents, size: Posterior(latents, size),
    "mixture": lambda latents, size: Posterior(latents, size, num_components=2),
}


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_holding_and_releasing_q_of_u_leave_predictions_unchanged(posterior, shared):
    problem = Problem("softmax")
    model = problem.model(shared, torch.float64, posterior=POSTERIORS[posterior](3, len(problem.z)))
    x = torch.from_numpy(problem.test.x)
    seen: dict[int, torch.Tensor] = {}

    def look(progress):
        seen[progress.step] = progress.predictor().predict(x).mean

    still = Settings(
        objective="loo",
        max_epochs=6,
        held_share=0.5,
        batch_size=130,
        learning_rate=0.02,
        held_learning_rate=1e-300,  # so that holding alone could change anything
    )
    train(model, problem.source, still, callbacks=[look])
    for step in (7, 12):
        torch.testing.assert_close(seen[step], seen[6], rtol=0, atol=1e-8)
    torch.testing.assert_close(model.predict(x).mean, seen[6], rtol=0, atol=1e-8)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_what_is_learnt_while_q_of_u_is_held_survives_its_release(posterior):
    problem = Problem("softmax")
    model = problem.model(dtype=torch.float64, posterior=POSTERIORS[posterior](3, len(problem.z)))
    x = torch.from_numpy(problem.test.x)
    seen: list[torch.Tensor] = []
    settings = Settings(
        objective="loo",
        max_epochs=8,
        held_share=0.5,
        batch_size=130,
        learning_rate=0.02,
        held_learning_rate=0.02,
    )
    look = [lambda progress: seen.append(progress.predictor().predict(x).mean) if progress.epoch_end else None]
    history = train(model, problem.source, settings, callbacks=look)
    assert (seen[3] - seen[-1]).abs().max() > 1e-3  # the phase did something
    assert history.best_epoch > 4
    torch.testing.assert_close(model.predict(x).mean, seen[history.best_epoch - 1], rtol=0, atol=1e-8)


def test_released_diagonals_are_what_was_scored():
    """L^-1 S L^-T is not diagonal once L has moved: the score must be that of the diagonal which stays."""
    problem = Problem("softmax")
    model = problem.model(posterior=Posterior(3, len(problem.z), diagonal=True))
    settings = Settings(
        objective="loo", max_epochs=16, batch_size=65, learning_rate=0.05, held_learning_rate=0.1, decay=False
    )
    history = train(model, problem.source, settings, validation=problem.test)
    assert held_out_score(model, problem.test) == pytest.approx(history.best_score, abs=1e-4)


@pytest.mark.parametrize("components", [1, 2])
def test_the_paper_trains_by_rmsprop_in_turns(components, monkeypatch):
    monkeypatch.setattr(state, "Adam", None)
    problem = Problem("softmax")
    model = problem.model(posterior=Posterior(3, len(problem.z), components))
    before = held_out_score(model, problem.test)
    seen = []
    settings = Settings.paper(
        objective="loo", max_epochs=24, loo_cycle=6, batch_size=65, samples=10, learning_rate=0.02
    )
    state_of = vars(loop)["RunState"]

    def kept(*arguments):
        seen.append(state_of(*arguments))
        return seen[0]

    monkeypatch.setattr(loop, "RunState", kept)
    means = []
    look = [lambda progress: means.append(seen[0].over_u.mean.detach().clone()) if progress.epoch_end else None]
    history = train(model, problem.source, settings, callbacks=look)
    assert [row["objective"] for row in history.rows] == (["elbo"] * 6 + ["loo"] * 6) * 2
    assert not torch.equal(means[0], means[5])  # by ordinary gradients
    assert all(torch.equal(held, means[5]) for held in means[6:12])  # q(u) stays, though the kernel moves
    assert seen[0].optimisers[True].state is seen[0].optimisers[False].state  # one average of squares for each number
    assert [row["learning_rate"] for row in history.rows] == ([0.02] * 6 + [0.003] * 6) * 2
    assert held_out_score(model, problem.test) > before + 0.3


def test_the_papers_own_numbers():
    settings = Settings.paper()
    assert (settings.learning_rate, settings.held_learning_rate) == (0.003, 0.003)
    assert (settings.batch_size, settings.samples, settings.loo_cycle) == (1000, 100, 100)
    assert (settings.optimiser, settings.decay, settings.whiten, settings.monte_carlo) == (
        "rmsprop",
        False,
        False,
        True,
    )
    assert [phase.epochs for phase in Settings.paper(objective="loo").phases(7)] == [100, 100]


def test_patience_counts_in_the_last_phase_only():
    """In turns, too: an earlier leave-one-out phase must not end the run."""
    problem = Problem("logit")
    settings = Settings(
        objective="loo",
        max_epochs=12,
        loo_cycle=3,
        batch_size=260,
        learning_rate=1e-9,
        held_learning_rate=1e-9,
        patience=1,
    )
    history = train(problem.model(), problem.source, settings, validation=problem.test)
    assert 10 <= len(history.rows) <= 12
    assert history.best_score == max(row["score"] for row in history.rows)


def test_every_objective_can_be_followed_in_the_same_step():
    assert phases(objective="loo", max_epochs=5, held_share=0) == [("loo", 5, False)]
    problem = Problem("logit")
    history = train(problem.model(), problem.source, Settings(objective="loo", max_epochs=5, held_share=0))
    assert {row["objective"] for row in history.rows} == {"loo"}
    assert history.rows[-1]["value"] > history.rows[0]["value"]


@pytest.mark.parametrize("batch_size", [260, 50])
def test_leave_one_out_of_gaussian_noise_learns_from_batches(batch_size):
    """With few inducing inputs f varies more than the noise in places; the rows' own terms are taken out of q(u)."""
    problem = Problem("gaussian")
    model = problem.model()
    history = train(model, problem.source, Settings(objective="loo", max_epochs=20, batch_size=batch_size))
    values = [row["value"] for row in history.rows if row["objective"] == "loo"]
    assert values[-1] > values[0]
    assert history.rows[-1]["skipped"] == 0


# -- leave-one-out that is infinite ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["poisson", "network"])
def test_likelihoods_without_leave_one_out_are_refused_before_the_first_step(name, tmp_path):
    problem = Problem(name)
    model, steps = problem.model(), []
    before = copy.deepcopy(model.state_dict())
    for folder in (None, tmp_path / "run"):
        with pytest.raises(InfiniteLOOError, match=r"leave-one-out objective is infinite.*Use objective='predictive'"):
            train(model, problem.source, Settings(objective="loo"), callbacks=[steps.append], folder=folder)
    assert steps == []
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("batch_size", [260, 5])  # one step an epoch, and many
def test_leave_one_out_that_stays_infinite_says_so_instead_of_diverging(batch_size):
    """q is wider than the noise far from the inducing inputs: no step size helps (two components: out of q(f))."""
    problem = Problem("gaussian")
    model = problem.model(posterior=Posterior(1, 12, num_components=2))
    with torch.no_grad():
        model.likelihood.log_variance.fill_(math.log(1e-3))
    model.inducing_inputs.data.fill_(50.0).add_(torch.arange(12.0)[:, None])
    settings = Settings(
        objective="loo", max_epochs=4, batch_size=batch_size, learning_rate=1e-9, held_learning_rate=1e-9
    )
    with pytest.raises(InfiniteLOOError, match=r"rows q\(f\) is too wide"):
        train(model, problem.source, settings)


@pytest.mark.parametrize("batch_size", [260, 87])  # one step an epoch, and three
def test_leave_one_out_that_becomes_infinite_goes_back_and_on_with_smaller_steps(batch_size):
    """A step that makes the noise smaller than what u tells about f is taken back, however few steps an epoch has."""
    problem = Problem("gaussian")
    settings = Settings(objective="loo", max_epochs=100, batch_size=batch_size, held_learning_rate=6.0)
    history = train(problem.model(), problem.source, settings)
    values = [row["value"] for row in history.rows if row["objective"] == "loo"]
    assert history.rows[-1]["skipped"] >= 3
    assert math.isfinite(values[-1])
    assert values[-1] > values[0] + 0.1


def test_a_run_of_open_length_makes_at_least_thirty_epochs_and_a_thousand_steps():
    assert phases(60) == [("elbo", 30 * 60, False)]
    assert phases(2) == [("elbo", 1000, False)]
    assert phases(1) == [("elbo", 300, False)]


# -- borders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "share"), [(1, 0.75), (2, 0.75), (10, 0.88)])
def test_phases_change_at_their_step_be_it_within_an_epoch(epochs, share):
    problem = Problem("logit")
    settings = Settings(objective="loo", max_epochs=epochs, held_share=share, batch_size=10)
    objectives = []
    history = train(problem.model(), problem.source, settings, callbacks=[lambda now: objectives.append(now.objective)])
    steps = len(objectives) // epochs
    first, last = (phase.steps(steps) for phase in settings.phases(steps))
    assert first == round(epochs * steps * (1 - share))
    assert first % steps
    assert objectives == ["elbo"] * first + ["loo"] * last
    assert [row["objective"] for row in history.rows] == [objectives[(n + 1) * steps - 1] for n in range(epochs)]


def test_the_epoch_in_which_phases_change_tells_of_the_second_alone(monkeypatch):
    problem = Problem("logit")
    results = []
    statistics = loop.gradient_statistics  # of the second phase; the first takes natural gradients
    monkeypatch.setattr(loop, "gradient_statistics", lambda *args: results.append(statistics(*args)) or results[-1])
    settings = Settings(objective="loo", max_epochs=1, batch_size=10)
    history = train(problem.model(), problem.source, settings)
    values = [result.value.item() / len(problem.source) for result in results]
    assert 1 < len(values) < history.rows[0]["step"]
    assert history.rows[0]["value"] == pytest.approx(sum(values) / len(values))


def test_a_run_broken_off_where_phases_change_within_an_epoch_ends_as_a_whole_one(tmp_path):
    problem = Problem("logit")
    settings = Settings(objective="loo", max_epochs=1, batch_size=10, checkpoint_seconds=1e-9)
    whole = train(problem.model(), problem.source, settings)
    steps = whole.rows[0]["step"]
    border = settings.phases(steps)[0].steps(steps)

    def break_off(now):
        if now.step == border + 1:  # the newest checkpoint is of the first phase's last step
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(problem.model(), problem.source, settings, folder=tmp_path, callbacks=[break_off])
    resumed = train(problem.model(), problem.source, settings, folder=tmp_path, resume=True)
    for name in ("value", "score", "step"):
        assert resumed.rows[0][name] == whole.rows[0][name]


def test_a_step_too_far_at_the_end_of_a_phase_is_taken_back():
    """The next phase cannot even begin there: its beginning fails like a step, and the run goes back."""
    problem = Problem("logit")
    model = problem.model()
    gram = model.kernel.gram

    def cliff(x, z):
        beyond = (model.kernel.log_lengthscale.detach().abs() > 0.03).any()
        return gram(x, z) * (math.nan if beyond else 1.0)

    model.kernel.gram = cliff
    settings = Settings(
        objective="loo",
        max_epochs=20,
        held_share=0.85,
        batch_size=260,
        learning_rate=0.06,
        held_learning_rate=1e-9,
        decay=False,
    )
    history = train(model, problem.source, settings)  # its first step, the third of the run, goes beyond
    assert history.rows[-1]["skipped"] == 3
    assert history.stopped == "max_epochs"
    assert math.isfinite(held_out_score(model, problem.test))
