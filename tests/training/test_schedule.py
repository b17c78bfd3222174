"""Phases: what they are, that changing between them loses nothing, and what cannot be asked of them."""

import copy
import math

import pytest
import torch
from learnable import Problem, held_out_score

from autogp import GaussianPosterior, InfiniteLOOError, MixturePosterior
from autogp.posteriors import HeldPosterior
from autogp.training import Phase, Settings, loop, phases, state, train


def lengths(**changes) -> list[tuple[str, int]]:
    return [(phase.objective, phase.steps) for phase in phases(Settings(**changes), steps_per_epoch=1)]


def test_bound_and_predictive_density_have_one_phase():
    assert phases(Settings(objective="elbo", max_epochs=7), 10) == [Phase("elbo", 70, hold=False)]
    assert phases(Settings(objective="predictive", max_epochs=7), 10) == [Phase("predictive", 70, hold=False)]


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
    found = phases(Settings(objective=objective, max_epochs=epochs, held_share=share), steps_per_epoch=3)
    assert found == [Phase("elbo", expected[0], hold=False), Phase(objective, expected[1], hold=True)]


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
    found = lengths(objective="loo", max_epochs=epochs, loo_cycle=cycle)
    assert found == list(zip(["elbo", "loo"] * (len(expected) // 2), expected, strict=True))
    assert sum(expected) == epochs


def test_turns_are_counted_in_epochs():
    found = phases(Settings(objective="loo", max_epochs=5, loo_cycle=1), steps_per_epoch=10)
    assert [phase.steps for phase in found] == [20, 10, 10, 10]


def test_one_step_is_too_few_for_two_phases():
    with pytest.raises(ValueError, match="objective='loo' has two phases, and max_epochs=1 is one step"):
        phases(Settings(objective="loo", max_epochs=1), steps_per_epoch=1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"objective": "map"}, "objective must be one of elbo, loo, predictive, got 'map'"),
        ({"optimiser": "sgd"}, "optimiser must be one of natural, rmsprop"),
        ({"max_epochs": 0}, "max_epochs must be positive or None, got 0"),
        ({"batch_size": -1}, "batch_size must be positive, got -1"),
        ({"learning_rate": math.nan}, "learning_rate must be positive, got nan"),
        ({"kernel_rate": 0.0}, "kernel_rate must be positive, got 0.0"),
        ({"patience": 0}, "patience must be positive or None, got 0"),
        ({"time_budget": -1.0}, "time_budget must be positive or None"),
        ({"natural_rates": (0.1, 0.0)}, r"natural_rates must lie in \(0, 1\]"),
        ({"natural_rates": (1.1, 0.1)}, r"natural_rates must lie in \(0, 1\]"),
        ({"batch_size": 50.5}, "batch_size must be a whole number, got 50.5"),
        ({"seed": 2**32}, "seed must lie between 0 and 2\\^31 - 1, got 4294967296"),
        ({"held_share": 1.0}, r"held_share must lie in \[0, 1\), got 1.0"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(change, text):
    with pytest.raises(ValueError, match=text):
        Settings(**change)


def test_step_sizes_rise_at_first_and_fall_to_the_end():
    settings = Settings(learning_rate=0.1, held_learning_rate=0.01, natural_rates=(0.4, 0.1))
    free, held = Phase("elbo", 5), Phase("loo", 5, hold=True)
    assert [settings.learning_rate_at(free, share, 99) for share in (0, 0.5)] == pytest.approx([0.1, 0.05])
    rising = [settings.learning_rate_at(free, 0.0, taken) for taken in (0, 2, 29, 30)]
    assert rising == pytest.approx([0.1 / 30, 0.01, 0.1, 0.1])
    assert settings.learning_rate_at(free, 0.125, 2) == pytest.approx(0.05 * 0.5 * (1 + math.cos(math.pi / 8)))  # short
    assert settings.learning_rate_at(free, 1.0, 99) == pytest.approx(0, abs=1e-15)
    assert settings.learning_rate_at(held, 0.0, 99) == 0.01
    assert [settings.natural_rate_at(share) for share in (0, 0.5, 1)] == pytest.approx([0.4, 0.2, 0.1])
    constant = Settings(learning_rate=0.1, decay=False)
    assert [constant.learning_rate_at(free, share, 0) for share in (0, 0.5, 1)] == [0.1] * 3


# -- q(u) is held, and released --------------------------------------------------------------------------------------

POSTERIORS = {
    "natural": lambda latents, size: GaussianPosterior(latents, size),
    "mixture": lambda latents, size: MixturePosterior(latents, size, num_components=2),
    "mixture of one": lambda latents, size: MixturePosterior(latents, size),
}


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_holding_and_releasing_q_of_u_leave_predictions_unchanged(posterior, shared):
    problem = Problem("softmax")
    model = problem.model(shared, torch.float64, posterior=POSTERIORS[posterior](3, len(problem.z)))
    x = torch.from_numpy(problem.test.x)
    seen: dict[int, torch.Tensor] = {}
    kinds: dict[int, type] = {}

    def look(progress):
        seen[progress.step], kinds[progress.step] = model.predict(x).mean, type(model.posterior)

    still = Settings(
        objective="loo",
        max_epochs=6,
        held_share=0.5,
        batch_size=130,
        learning_rate=0.02,
        held_learning_rate=1e-300,  # so that holding alone could change anything
    )
    train(model, problem.source, still, callbacks=[look])
    assert [kinds[step] for step in (6, 7, 12)] == [type(model.posterior), HeldPosterior, HeldPosterior]
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
    look = [lambda progress: seen.append(model.predict(x).mean) if progress.epoch_end else None]
    history = train(model, problem.source, settings, callbacks=look)
    assert (seen[3] - seen[-1]).abs().max() > 1e-3  # the phase did something
    assert history.best_epoch > 4
    torch.testing.assert_close(model.predict(x).mean, seen[history.best_epoch - 1], rtol=0, atol=1e-8)


def test_released_diagonals_are_what_was_scored():
    """L^-1 S L^-T is not diagonal once L has moved: the score must be that of the diagonal which stays."""
    problem = Problem("softmax")
    model = problem.model(posterior=MixturePosterior(3, len(problem.z), diagonal=True))
    settings = Settings(
        objective="loo", max_epochs=16, batch_size=65, learning_rate=0.05, held_learning_rate=0.1, decay=False
    )
    history = train(model, problem.source, settings, validation=problem.test)
    assert held_out_score(model, problem.test) == pytest.approx(history.best_score, abs=1e-4)


def test_the_paper_trains_a_mixture_by_rmsprop_in_turns(monkeypatch):
    monkeypatch.setattr(state, "Adam", None)
    problem = Problem("softmax")
    model = problem.model(posterior=MixturePosterior(3, len(problem.z)))
    before = held_out_score(model, problem.test)
    kinds = []
    settings = Settings.paper(
        objective="loo", max_epochs=24, loo_cycle=6, batch_size=65, samples=10, learning_rate=0.02
    )
    assert (settings.optimiser, settings.decay) == ("rmsprop", False)
    look = [lambda progress: kinds.append((progress.objective, type(model.posterior))) if progress.epoch_end else None]
    history = train(model, problem.source, settings, callbacks=look)
    assert kinds == ([("elbo", MixturePosterior)] * 6 + [("loo", HeldPosterior)] * 6) * 2
    assert [row["learning_rate"] for row in history.rows] == ([0.02] * 6 + [0.003] * 6) * 2
    assert held_out_score(model, problem.test) > before + 0.3


def test_the_papers_own_numbers():
    settings = Settings.paper()
    assert (settings.learning_rate, settings.held_learning_rate) == (0.003, 0.003)
    assert (settings.batch_size, settings.samples, settings.loo_cycle) == (1000, 100, 100)
    assert lengths(objective="loo", max_epochs=settings.max_epochs, loo_cycle=100) == [("elbo", 100), ("loo", 100)]


def test_ordinary_gradients_cannot_move_a_posterior_in_natural_form():
    problem = Problem("gaussian")
    with pytest.raises(TypeError, match=r"cannot move a GaussianPosterior.*give the model a MixturePosterior"):
        train(problem.model(), problem.source, Settings.paper())


def test_held_posterior_does_not_learn():
    problem = Problem("gaussian")
    model = problem.model()
    prepared = model.prepare()
    model.posterior = HeldPosterior(prepared.moments, prepared.factor)
    with pytest.raises(TypeError, match="a held posterior does not learn"):
        train(model, problem.source)


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
    assert phases(Settings(objective="loo", max_epochs=5, held_share=0), 1) == [Phase("loo", 5)]
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
    model = problem.model()
    model.posterior = MixturePosterior(*model.posterior.shift.shape, num_components=2)
    with torch.no_grad():
        model.likelihood.log_variance.fill_(math.log(1e-3))
    model.inducing_inputs.data.fill_(50.0).add_(torch.arange(12.0)[:, None])
    settings = Settings(
        objective="loo", max_epochs=4, batch_size=batch_size, learning_rate=1e-9, held_learning_rate=1e-9
    )
    with pytest.raises(InfiniteLOOError, match=r"rows q\(f\) is too wide"):
        train(model, problem.source, settings)
    assert isinstance(model.posterior, MixturePosterior)


@pytest.mark.parametrize("batch_size", [260, 87])  # one step an epoch, and three
def test_leave_one_out_that_becomes_infinite_goes_back_and_on_with_smaller_steps(batch_size):
    """A step that makes the noise smaller than what u tells about f is taken back, however few steps an epoch has."""
    problem = Problem("gaussian")
    settings = Settings(objective="loo", max_epochs=100, batch_size=batch_size, held_learning_rate=3.0)
    history = train(problem.model(), problem.source, settings)
    values = [row["value"] for row in history.rows if row["objective"] == "loo"]
    assert history.rows[-1]["skipped"] >= 3
    assert math.isfinite(values[-1])
    assert values[-1] > values[0] + 0.1


def test_a_run_of_open_length_makes_at_least_thirty_epochs_and_a_thousand_steps():
    assert phases(Settings(), steps_per_epoch=60) == [Phase("elbo", 30 * 60)]
    assert phases(Settings(), steps_per_epoch=2) == [Phase("elbo", 1000)]
    assert phases(Settings(), steps_per_epoch=1) == [Phase("elbo", 300)]


# -- borders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "share"), [(1, 0.75), (2, 0.75), (10, 0.88)])
def test_phases_change_at_their_step_be_it_within_an_epoch(epochs, share):
    problem = Problem("logit")
    settings = Settings(objective="loo", max_epochs=epochs, held_share=share, batch_size=10)
    objectives = []
    history = train(problem.model(), problem.source, settings, callbacks=[lambda now: objectives.append(now.objective)])
    steps = len(objectives) // epochs
    first, last = phases(settings, steps)
    assert first.steps == round(epochs * steps * (1 - share))
    assert first.steps % steps
    assert objectives == ["elbo"] * first.steps + ["loo"] * last.steps
    assert [row["objective"] for row in history.rows] == [objectives[(n + 1) * steps - 1] for n in range(epochs)]


def test_the_epoch_in_which_phases_change_tells_of_the_second_alone(monkeypatch):
    problem = Problem("logit")
    results = []
    step = loop.gradient_step  # of the second phase; the first takes natural steps
    monkeypatch.setattr(loop, "gradient_step", lambda *args: results.append(step(*args)) or results[-1])
    settings = Settings(objective="loo", max_epochs=1, batch_size=10)
    history = train(problem.model(), problem.source, settings)
    values = [result.value.item() / len(problem.source) for result in results]
    assert 1 < len(values) < history.rows[0]["step"]
    assert history.rows[0]["value"] == pytest.approx(sum(values) / len(values))


def test_a_run_broken_off_where_phases_change_within_an_epoch_ends_as_a_whole_one(tmp_path):
    problem = Problem("logit")
    settings = Settings(objective="loo", max_epochs=1, batch_size=10, checkpoint_seconds=1e-9)
    whole = train(problem.model(), problem.source, settings)
    border = phases(settings, whole.rows[0]["step"])[0].steps

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
        held_share=0.9,
        batch_size=260,
        learning_rate=0.06,
        held_learning_rate=1e-9,
        decay=False,
    )
    history = train(model, problem.source, settings)  # at q = p the kernel has no slope: its second step goes beyond
    assert history.rows[-1]["skipped"] == 3
    assert history.stopped == "max_epochs"
    assert math.isfinite(held_out_score(model, problem.test))
