"""The training loop: what it refuses, what it survives, when it stops, and what it leaves behind."""

import copy
import itertools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from broken_off import train_broken_off
from learnable import Problem, held_out_score

from autogp import Posterior, SparseGP
from autogp.data import ArraySource, TargetScaler, summarise
from autogp.features import Scaling
from autogp.kernels import RBF
from autogp.likelihoods import Bernoulli, Gaussian, Softmax, StudentT
from autogp.objectives import elbo
from autogp.training import CheckpointError, Progress, Settings, TrainingDivergedError, loop, train
from autogp.training.checkpoint import Checkpoints
from autogp.training.feed import Feed
from autogp.training.state import RunState

State = dict[str, torch.Tensor]
QUICK = Settings(
    max_epochs=4,
    batch_size=52,  # five steps an epoch
    samples=5,
    learning_rate=0.02,
    natural_rates=(0.3, 0.1),
    held_share=0.5,
    held_learning_rate=0.02,
    decay=False,
    checkpoint_seconds=1e-9,
)


def state_of(model: SparseGP) -> State:
    return copy.deepcopy(model.state_dict())


def same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def assert_close(first: State, second: State, tolerance: float = 1e-8) -> None:
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=tolerance, atol=tolerance)


# -- folders, and what a run may be resumed with ---------------------------------------------------------------------


def start(folder: Path, problem: Problem, **options: Any) -> None:
    """A run broken off after seven steps by an error of the user's own."""

    def fail(progress: Progress) -> None:
        if progress.step == 8:
            raise RuntimeError("broken off")

    options = {"settings": QUICK} | options
    with pytest.raises(RuntimeError, match="broken off"):
        train(problem.model(), problem.source, folder=folder, callbacks=[fail], **options)
    assert (folder / "step-000000007.safetensors").exists()


@pytest.mark.parametrize("name", ["inputs", "targets", "fewer rows"])
def test_resuming_refuses_other_data(tmp_path, name):
    problem = Problem("softmax")
    start(tmp_path, problem)
    x, y = problem.source.x.copy(), problem.source.y.copy()
    if name == "inputs":
        x[0, 0] += 1e-3
    elif name == "targets":
        y[0] = (y[0] + 1) % 3
    else:
        x, y = x[1:], y[1:]
    model, steps = problem.model(), []
    before = state_of(model)
    expected = "rows was 260, is now 259" if name == "fewer rows" else "sha256 was"
    with pytest.raises(CheckpointError, match=f"belongs to another run, with other data: .*{expected}"):
        train(model, ArraySource(x, y), QUICK, folder=tmp_path, resume=True, callbacks=[steps.append])
    assert steps == []
    assert same(state_of(model), before)


@pytest.mark.parametrize("row", [0, 1234, 4999])
def test_resuming_refuses_one_other_label_among_five_thousand(tmp_path, row):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(5000, 2)), generator.integers(0, 2, 5000)
    settings = replace(QUICK, max_epochs=1, batch_size=1000)
    model = SparseGP(RBF(), Bernoulli(), torch.from_numpy(x[:5]))
    train(model, ArraySource(x, y), settings, folder=tmp_path)
    y[row] = 1 - y[row]
    with pytest.raises(CheckpointError, match=r"belongs to another run, with other data: .*sha256 was"):
        train(model, ArraySource(x, y), settings, folder=tmp_path, resume=True)


@pytest.mark.parametrize("name", ["weights", "validation", "target_scaler"])
def test_resuming_refuses_what_changes_the_meaning_of_the_data(tmp_path, name):
    problem = Problem("gaussian")
    start(tmp_path, problem)
    options = {
        "weights": np.full(260, 2.0),
        "validation": problem.test,
        "target_scaler": TargetScaler(torch.zeros(1), torch.full((1,), 2.0)),
    }
    with pytest.raises(CheckpointError, match=f"other data: {name} was None, is now"):
        train(problem.model(), problem.source, QUICK, folder=tmp_path, resume=True, **{name: options[name]})


def test_resuming_refuses_other_settings_and_names_them_with_both_values(tmp_path):
    problem = Problem("softmax")
    start(tmp_path, problem)
    other = replace(QUICK, seed=1, learning_rate=0.05)
    with pytest.raises(
        CheckpointError, match=r"other settings: learning_rate was 0\.02, is now 0\.05, seed was 0, is now 1\. Resume"
    ):
        train(problem.model(), problem.source, other, folder=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda z: SparseGP(RBF([1.0, 1.0]), Bernoulli(link="probit"), z), "model.likelihood.link was .*logit.*probit"),
        (lambda z: SparseGP(RBF([1.0, 1.0]), Gaussian(), z), "model.likelihood was 'Bernoulli', is now 'Gaussian'"),
        (
            lambda z: SparseGP(RBF([1.0, 1.0]), Bernoulli(), z[:5]),
            r"inducing_inputs was \[1, 12, 2\], is now \[1, 5, 2\]",
        ),
        (lambda z: SparseGP(RBF(1.0), Bernoulli(), z), r"kernel.log_lengthscale was \[1, 2\], is now \[1, 1\]"),
        (lambda z: SparseGP(RBF(1.0) + RBF(1.0), Bernoulli(), z), "model.kernel was 'RBF', is now 'Sum'"),
        (lambda z: SparseGP(frozen(RBF([1.0, 1.0])), Bernoulli(), z), "log_variance, fixed was not set, is now"),
        (lambda z: SparseGP(RBF([1.0, 1.0]), Bernoulli(), z.double()), "model.jitter, fixed was 1e-06, is now 1e-10"),
        (
            lambda z: SparseGP(RBF([1.0, 1.0]), Bernoulli(), z, Scaling(torch.zeros(2), torch.ones(2))),
            "model.features was not set, is now 'Scaling'",
        ),
    ],
    ids=["link", "likelihood", "size", "lengthscales", "kernel", "frozen", "precision", "features"],
)
def test_resuming_refuses_another_model(tmp_path, other, text):
    problem = Problem("logit")
    start(tmp_path, problem)
    with pytest.raises(CheckpointError, match=text):
        train(other(problem.z), problem.source, QUICK, folder=tmp_path, resume=True)


def frozen(module):
    return module.requires_grad_(False)


@pytest.mark.parametrize(
    ("part", "first", "second", "text"),
    [
        ("likelihood", StudentT(df=4.0), StudentT(df=50.0), r"likelihood.df, fixed was 4\.0, is now 50\.0"),
        ("likelihood", frozen(Gaussian(variance=0.1)), frozen(Gaussian(variance=0.2)), "log_variance, fixed was"),
        (
            "features",
            Scaling(torch.zeros(2), torch.ones(2)),
            Scaling(torch.zeros(2), torch.full((2,), 2.0)),
            "features.scale, fixed was",
        ),
    ],
    ids=["buffer", "frozen parameter", "scaling of the inputs"],
)
def test_resuming_refuses_other_values_of_what_stays_fixed(tmp_path, part, first, second, text):
    problem = Problem("gaussian")
    first, second = ({"likelihood": Gaussian()} | {part: value} for value in (first, second))
    train(SparseGP(RBF([1.0, 1.0]), inducing_inputs=problem.z, **first), problem.source, QUICK, folder=tmp_path)
    other = SparseGP(RBF([1.0, 1.0]), inducing_inputs=problem.z, **second)
    with pytest.raises(CheckpointError, match=text):
        train(other, problem.source, QUICK, folder=tmp_path, resume=True)


def test_numbers_of_numpy_are_settings_like_others(tmp_path):
    problem = Problem("softmax")
    settings = replace(QUICK, max_epochs=np.int64(2), learning_rate=np.float32(0.02), seed=np.int32(1))
    train(problem.model(), problem.source, settings, folder=tmp_path)
    train(problem.model(), problem.source, settings, folder=tmp_path, resume=True)


def test_a_phase_that_ends_within_an_epoch_does_not_mix_its_value_with_the_next(monkeypatch):
    """By the clock, which here ticks at every look; the two kinds of step have values of their own."""
    problem, clock = Problem("logit"), itertools.count(0.0, 0.02)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    for name, value in (("natural_statistics", -100.0), ("gradient_statistics", -1.0)):
        function, told = getattr(loop, name), torch.tensor(value * len(problem.source))

        def changed(*arguments, function=function, told=told):
            return replace(function(*arguments), value=told, prior=torch.zeros(()))

        monkeypatch.setattr(loop, name, changed)
    settings = replace(QUICK, objective="loo", held_share=0.5, max_epochs=1000, batch_size=2, time_budget=10.0)
    rows = train(problem.model(), problem.source, settings).rows
    assert {row["objective"]: row["value"] for row in rows} == {"elbo": -100.0, "loo": -1.0}
    assert {row["value"] for row in rows} == {-100.0, -1.0}


def test_run_is_resumed_whatever_the_start_values_and_the_interval_of_saving(tmp_path):
    problem = Problem("softmax")
    whole = problem.model()
    train(whole, problem.source, QUICK)
    start(tmp_path, problem)
    model = SparseGP(RBF([3.0, 5.0]), problem.likelihood, problem.z + 1)
    train(model, problem.source, replace(QUICK, checkpoint_seconds=100.0), folder=tmp_path, resume=True)
    assert same(state_of(model), state_of(whole))


@pytest.mark.parametrize("optimiser", ["natural", "rmsprop"])
@pytest.mark.parametrize("diagonal", [False, True], ids=["full", "diagonal"])
def test_mixture_broken_off_at_every_step_ends_in_the_bits_of_an_unbroken_run(tmp_path, diagonal, optimiser):
    problem = Problem("softmax")
    settings = replace(QUICK, objective="loo", loo_cycle=1, optimiser=optimiser)  # q(u) held in each second epoch

    def model() -> SparseGP:
        return problem.model(posterior=Posterior(3, 12, num_components=2, diagonal=diagonal))

    whole = model()
    history = train(whole, problem.source, settings, validation=problem.test)
    assert len(history.rows) == 4
    broken, _, breaks = train_broken_off(model, problem.source, settings, tmp_path, validation=problem.test)
    assert breaks == 19
    assert same(state_of(broken), state_of(whole))


def test_folder_that_holds_a_run_is_not_used_unasked(tmp_path):
    problem = Problem("softmax")
    start(tmp_path, problem)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(CheckpointError, match="already holds a run at step 7: resume it, or choose another folder"):
        train(problem.model(), problem.source, QUICK, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_second_run_in_a_folder_ends_at_once(tmp_path):
    problem, refused = Problem("softmax"), []

    def try_another(progress: Progress) -> None:
        if progress.step == 3:
            with pytest.raises(CheckpointError, match="is in use by process"):
                train(problem.model(), problem.source, QUICK, folder=tmp_path, resume=True)
            refused.append(progress.step)

    history = train(problem.model(), problem.source, QUICK, folder=tmp_path, callbacks=[try_another])
    assert refused == [3]
    assert history.stopped == "max_epochs"


def test_folder_that_cannot_be_written_is_noticed_before_the_first_step(tmp_path):
    (tmp_path / "file").touch()
    problem, steps = Problem("softmax"), []
    for folder in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/autogp")):
        with pytest.raises(CheckpointError, match="cannot keep checkpoints in"):
            train(problem.model(), problem.source, QUICK, folder=folder, callbacks=[steps.append])
    assert steps == []


def test_resuming_without_a_run_starts_one_and_a_finished_run_is_over(tmp_path):
    problem, steps = Problem("softmax"), []
    model = problem.model()
    first = train(model, problem.source, QUICK, folder=tmp_path / "run", resume=True)
    again = problem.model()
    second = train(again, problem.source, QUICK, folder=tmp_path / "run", resume=True, callbacks=[steps.append])
    assert steps == []
    assert second == first
    assert same(state_of(again), state_of(model))


# -- steps that fail -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def runs(monkeypatch) -> list[RunState]:
    """The states of the runs that a test has made; q is there, not in the model, until a run ends."""
    made: list[RunState] = []

    class Kept(RunState):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(loop, "RunState", Kept)
    return made


class Recorder:
    """Makes the kernel give NaN in chosen steps (counted from 0), and keeps the state after each."""

    def __init__(self, model: SparseGP, runs: list[RunState], failing: Callable[[int], bool]):
        self.runs, self.failing = runs, failing
        self.states: list[State] = []
        diag = model.kernel.diag

        def faulty(x: torch.Tensor) -> torch.Tensor:
            return diag(x) * (math.nan if self.failing(len(self.states)) else 1.0)

        model.kernel.diag = faulty

    def __call__(self, progress: Progress) -> None:
        self.states.append(self.runs[-1].snapshot())


def test_step_that_is_not_finite_is_skipped_counted_and_changes_nothing(runs):
    problem = Problem("softmax")
    model = problem.model()
    recorder = Recorder(model, runs, lambda step: step in (3, 7, 8))
    history = train(model, problem.source, QUICK, callbacks=[recorder])
    changed = [not same(before, after) for before, after in zip(recorder.states, recorder.states[1:], strict=False)]
    assert [step + 1 for step, moved in enumerate(changed) if not moved] == [3, 7, 8]
    assert [row["skipped"] for row in history.rows] == [1, 3, 3, 3]
    assert [row["learning_rate"] for row in history.rows] == [0.02] * 4  # two in a row are no reason to go back


@pytest.mark.parametrize("validated", [True, False])
def test_an_epoch_in_which_no_step_worked_is_never_the_best(validated, runs):
    problem = Problem("softmax")
    model = problem.model()
    recorder = Recorder(model, runs, lambda step: step < 2)
    full = replace(QUICK, batch_size=260, max_epochs=6)
    validation = problem.test if validated else None
    history = train(model, problem.source, full, callbacks=[recorder], validation=validation)
    assert [math.isnan(row["value"]) for row in history.rows] == [True, True, False, False, False, False]
    assert history.best_epoch > 2
    assert math.isfinite(history.best_score)


def test_three_failures_in_a_row_lead_back_to_the_last_good_state_at_half_the_step_size(monkeypatch, caplog, runs):
    problem = Problem("softmax")
    rates: dict[bool, list[float]] = {True: [], False: []}
    apply = loop.apply

    for faulty in (False, True):

        def spy(statistics, optimiser, rates, q, natural_rate, seen=rates[faulty]):
            seen.append(natural_rate)
            return apply(statistics, optimiser, rates, q, natural_rate)

        monkeypatch.setattr(loop, "apply", spy)
        model = problem.model()
        recorder = Recorder(model, runs, lambda step, faulty=faulty: faulty and step in (7, 8, 9))
        with caplog.at_level(logging.WARNING, logger="autogp"):
            history = train(model, problem.source, QUICK, callbacks=[recorder])
    assert same(recorder.states[8], recorder.states[6])
    assert same(recorder.states[9], recorder.states[4])  # the end of the first epoch
    assert not same(recorder.states[10], recorder.states[9])
    assert [row["learning_rate"] for row in history.rows] == [0.02, 0.01, 0.01, 0.01]
    assert rates[True][:10] == rates[False][:10]
    assert rates[True][10:] == pytest.approx([rate / 2 for rate in rates[False][10:]])
    assert [record.message.split(" (")[0] for record in caplog.records] == ["3 steps in a row failed"]
    assert "half the step size" in caplog.text


@pytest.mark.parametrize("folder", [None, "run"])
def test_after_five_returns_training_has_diverged_and_says_what_to_do(tmp_path, folder, runs):
    problem = Problem("softmax")
    model = problem.model()
    recorder = Recorder(model, runs, lambda step: step >= 6)
    with pytest.raises(TrainingDivergedError) as divergence:
        train(
            model,
            problem.source,
            replace(QUICK, max_epochs=50),
            callbacks=[recorder],
            folder=folder and tmp_path / folder,
        )
    assert len(recorder.states) == 6 + 6 * 3 - 1
    message = str(divergence.value)
    assert "after 5 returns to an earlier state" in message
    assert "not finite" in message
    assert (
        "Scale the inputs and targets, lower learning_rate, or build the model with float64 inducing inputs" in message
    )
    assert same(runs[0].snapshot(), recorder.states[4])  # the best state that there was
    recorder.failing = lambda step: False
    assert train(model, problem.source, QUICK).stopped == "max_epochs"


@pytest.mark.parametrize("batch_size", [260, 52])
def test_a_step_too_far_is_taken_back_even_if_it_ended_an_epoch(batch_size):
    """With one step an epoch each state is an epoch's last: the one to return to is the last that worked."""
    problem = Problem("softmax")
    model = problem.model()
    diag, worked = model.kernel.diag, [torch.zeros(1, 2)]

    def cliff(x: torch.Tensor) -> torch.Tensor:
        now = model.kernel.log_lengthscale.detach().clone()
        if min((now - before).abs().max() for before in worked) > 0.2:
            return diag(x) * math.nan
        worked.append(now)
        return diag(x)

    model.kernel.diag = cliff
    history = train(model, problem.source, replace(QUICK, batch_size=batch_size, max_epochs=20, learning_rate=0.4))
    assert history.rows[-1]["skipped"] in (3, 6, 9)
    assert history.rows[-1]["learning_rate"] < 0.4
    assert math.isfinite(held_out_score(model, problem.test))
    assert math.isfinite(history.best_score)


def test_a_state_from_which_no_step_worked_is_not_left_behind(runs):
    """Without validation rows a state is scored by the batches before it: it may be broken, and yet seem the best."""
    problem = Problem("softmax")
    model = problem.model()
    before = state_of(model)
    recorder = Recorder(model, runs, lambda step: step >= 5)  # from the end of the first epoch on
    with pytest.raises(TrainingDivergedError):
        train(model, problem.source, replace(QUICK, max_epochs=50), callbacks=[recorder])
    assert not same(recorder.states[4], recorder.states[-1])
    assert same(state_of(model), before)


def test_score_that_cannot_be_computed_is_nan_and_can_be_saved_and_resumed(tmp_path, runs):
    problem = Problem("softmax")
    results = []
    for folder in (tmp_path / "run", None):
        model = problem.model()
        recorder = Recorder(
            model, runs, lambda step: step in (9, 12)
        )  # the ninth ends an epoch, and is there to be scored

        def fail(progress: Progress, folder=folder) -> None:
            if folder and progress.step == 14:
                raise RuntimeError("broken off")

        options = {"validation": problem.test, "folder": folder, "callbacks": [recorder, fail]}
        if folder:
            with pytest.raises(RuntimeError, match="broken off"):
                train(model, problem.source, QUICK, **options)
            del model.kernel.diag  # the failing steps are behind
            options |= {"callbacks": [], "resume": True}
        history = train(model, problem.source, QUICK, **options)
        results.append((state_of(model), history))
    assert math.isnan(history.rows[1]["score"])
    assert [row["skipped"] for row in history.rows] == [0, 1, 2, 2]
    (resumed, first), (whole, second) = results
    assert same(resumed, whole)
    assert (first.best_epoch, first.best_score) == (second.best_epoch, second.best_score)
    assert math.isnan(first.rows[1]["score"])


def test_model_learns_on_after_any_end_of_a_run_that_held_q_of_u():
    problem = Problem("softmax")
    for error in (RuntimeError, KeyboardInterrupt):
        model = problem.model()

        def fail(progress: Progress, error=error) -> None:
            if progress.objective == "loo" and progress.epoch == 3.2:
                raise error

        with pytest.raises(error):
            train(model, problem.source, replace(QUICK, objective="loo"), callbacks=[fail])
        assert held_out_score(model, problem.test) > -1
        assert all(parameter.grad is None for parameter in model.parameters())
        assert train(model, problem.source, QUICK).stopped == "max_epochs"


# -- data that cannot be learnt from ---------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_are_found_before_training_by_row_and_column():
    problem, steps = Problem("softmax"), []
    x, y = problem.source.x, problem.source.y
    bad_x, bad_y, two = x.copy(), y.astype(float), np.stack([x[:, 0], x[:, 1]], 1)
    bad_x[201, 1], bad_y[17], two[55, 1] = math.nan, math.nan, math.inf
    model = problem.model()
    network = Problem("network").model()
    rows_of_nan = ArraySource(bad_x[200:], y[200:])
    for who, source, validation, text in [
        (model, ArraySource(bad_x, y), None, "inputs hold nan in row 201, column 1"),
        (model, ArraySource(x, bad_y), None, r"targets hold nan in row 17 \("),
        (network, ArraySource(x, two), None, "targets hold inf in row 55, column 1"),
        (model, problem.source, rows_of_nan, "inputs hold nan in row 1, column 1"),
        (model, problem.source, ArraySource(x, bad_y), r"targets hold nan in row 17 \("),
    ]:
        with pytest.raises(ValueError, match=text):
            train(who, source, QUICK, validation=validation, callbacks=[steps.append])
    assert steps == []


def test_missing_targets_are_missing_where_the_likelihood_says_so():
    problem = Problem("network")
    y = problem.source.y.copy()
    y[::3, 0] = math.nan
    history = train(problem.model(), ArraySource(problem.source.x, y), QUICK)
    assert history.rows[-1]["skipped"] == 0
    with pytest.raises(ValueError, match="targets hold nan in row 0"):
        train(Problem("user's, one latent").model(), ArraySource(problem.source.x, y[:, 0]), QUICK)


@pytest.mark.parametrize(
    "weights", [np.ones(259), np.ones((260, 1)), -np.ones(260), np.full(260, math.nan), np.zeros(260)]
)
def test_weights_that_make_no_sense_are_refused(weights):
    problem = Problem("softmax")
    with pytest.raises(ValueError, match="weights must be 260 finite numbers, one per row, none negative"):
        train(problem.model(), problem.source, QUICK, weights=weights)


# -- when it stops, and what it leaves -------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["elbo", "loo"])
def test_time_budget_is_kept_and_every_phase_gets_its_share(objective):
    problem = Problem("softmax")
    train(problem.model(), problem.source, QUICK)  # what is imported at the first step is not counted
    budget = replace(QUICK, objective=objective, max_epochs=10**6, time_budget=1.5)
    started = time.monotonic()
    history = train(problem.model(), problem.source, budget)
    assert 1.5 <= time.monotonic() - started < 10  # one step more, on a machine that may be busy
    assert history.stopped == "time budget"
    assert 1.5 <= history.rows[-1]["seconds"] < 10
    assert history.rows[-2]["seconds"] <= 1.5
    if objective == "loo":
        assert history.rows[-1]["objective"] == "loo"
        assert all(row["seconds"] >= 0.7 for row in history.rows if row["objective"] == "loo")


def test_patience_ends_a_run_that_gets_no_better():
    problem = Problem("gaussian")
    still = replace(QUICK, learning_rate=1e-12, max_epochs=100, patience=4, batch_size=260, natural_rates=(0.9, 0.9))
    history = train(problem.model(), problem.source, still, validation=problem.test)
    assert history.stopped == "no better score"
    assert len(history.rows) == history.best_epoch + 4 < 100


def test_callbacks_see_every_step_and_can_stop():
    problem, seen = Problem("softmax"), []

    def stop(progress: Progress) -> bool:
        seen.append(progress)
        return progress.step == 12

    model = problem.model()
    history = train(model, problem.source, QUICK, callbacks=[stop])
    assert history.stopped == "callback"
    assert [progress.step for progress in seen] == list(range(1, 13))
    assert [progress.step for progress in seen if progress.epoch_end] == [5, 10]
    assert [row["step"] for row in history.rows] == [5, 10, 12]  # the broken epoch is scored and may be the best
    last = seen[-1]
    assert (last.total_steps, last.epoch, last.objective, last.skipped) == (20, 12 / 5, "elbo", 0)
    assert last.score == history.rows[1]["score"]
    assert last.rows_per_second == pytest.approx(12 * 52 / last.seconds)
    assert last.seconds_left == pytest.approx(last.seconds * 8 / 12)
    assert math.isnan(seen[3].score)


def test_stopped_in_its_first_epoch_the_model_has_learnt_all_the_same():
    problem = Problem("softmax")
    model = problem.model()
    before = held_out_score(model, problem.test)
    history = train(
        model, problem.source, replace(QUICK, batch_size=10), callbacks=[lambda progress: progress.step == 9]
    )
    assert history.best_epoch == 1
    assert held_out_score(model, problem.test) > before + 0.1


def test_history_has_one_row_an_epoch_with_the_fields_it_promises():
    problem = Problem("softmax")
    history = train(problem.model(), problem.source, replace(QUICK, objective="loo"))
    fields = {"epoch", "step", "seconds", "objective", "value", "score", "learning_rate", "skipped"}
    assert all(set(row) == fields for row in history.rows)
    assert all(field in loop.History.__doc__ for field in fields)
    assert [row["epoch"] for row in history.rows] == [1, 2, 3, 4]
    assert [row["step"] for row in history.rows] == [5, 10, 15, 20]
    assert [row["objective"] for row in history.rows] == ["elbo", "elbo", "loo", "loo"]
    assert all(row["value"] < 0 and row["score"] < 0 for row in history.rows)
    seconds = [row["seconds"] for row in history.rows]
    assert seconds == sorted(seconds)
    assert history.stopped == "max_epochs"


def test_q_moves_alone_in_the_first_tenth_of_the_steps_from_the_prior():
    problem = Problem("logit")
    model = problem.model()
    start, moved = model.kernel.log_lengthscale.detach().clone(), []
    settings = replace(QUICK, max_epochs=8)  # 40 steps
    train(
        model,
        problem.source,
        settings,
        callbacks=[lambda _: moved.append(not model.kernel.log_lengthscale.equal(start))],
    )
    assert moved == [False] * 4 + [True] * 36


@pytest.mark.parametrize("objective", ["elbo", "predictive", "loo"])
def test_the_best_state_is_left_behind_though_later_ones_were_worse(objective):
    problem = Problem("softmax")
    model = problem.model()
    wild = replace(QUICK, objective=objective, learning_rate=1.0, held_learning_rate=1.0, max_epochs=16)
    history = train(model, problem.source, wild, validation=problem.test)
    assert history.best_score == max(row["score"] for row in history.rows)
    assert history.rows[history.best_epoch - 1]["score"] == history.best_score
    assert history.rows[-1]["score"] < history.best_score - 0.01
    assert held_out_score(model, problem.test) == pytest.approx(history.best_score, abs=1e-5)


def test_the_state_that_is_kept_is_the_one_that_was_scored_where_a_step_sees_all_rows():
    problem = Problem("gaussian")
    model = problem.model(dtype=torch.float64)
    wild = replace(QUICK, learning_rate=0.5, batch_size=1000, max_epochs=16)
    history = train(model, problem.source, wild)
    x, y = problem.source.rows(np.arange(len(problem.source)))
    found = elbo(model, torch.from_numpy(x), torch.from_numpy(y)).item() / len(x)
    assert found == pytest.approx(history.best_score, rel=1e-6)


def test_without_validation_rows_the_score_is_the_objective_over_the_epochs_own_batches():
    problem = Problem("gaussian")
    model = problem.model(dtype=torch.float64)
    still = replace(QUICK, learning_rate=1e-12, batch_size=260)
    history = train(model, problem.source, still)
    value = elbo(model, torch.from_numpy(problem.source.x), torch.from_numpy(problem.source.y)).item()
    assert history.rows[-1]["score"] == pytest.approx(value / len(problem.source), abs=1e-6)


# -- rows ------------------------------------------------------------------------------------------------------------

FULL = replace(QUICK, batch_size=10_000, max_epochs=6, decay=True)


@pytest.mark.parametrize("name", ["gaussian", "logit", "poisson"])
def test_rows_of_weight_zero_have_no_influence(name):
    problem, other = Problem(name), Problem(name, seed=1)
    x, y = problem.source.x, problem.source.y
    alone, beside = (problem.model(dtype=torch.float64) for _ in range(2))
    first = train(alone, problem.source, FULL)
    more = ArraySource(np.concatenate([other.source.x, x]), np.concatenate([other.source.y, y]))
    second = train(beside, more, FULL, weights=np.repeat([0.0, 1.0], 260))
    assert_close(state_of(beside), state_of(alone))
    for ours, theirs in zip(second.rows, first.rows, strict=True):
        assert ours["score"] == pytest.approx(theirs["score"], rel=1e-8)
        assert ours["value"] == pytest.approx(theirs["value"], rel=1e-8)


@pytest.mark.parametrize("objective", ["elbo", "predictive", "loo"])
def test_weight_two_equals_a_row_twice(objective):
    problem = Problem("logit")
    x, y = problem.source.x, problem.source.y
    weights = np.where(np.arange(260) < 100, 2.0, 1.0)
    weighted, repeated = (problem.model(dtype=torch.float64) for _ in range(2))
    settings = replace(FULL, objective=objective)
    first = train(weighted, problem.source, settings, weights=weights)
    second = train(repeated, ArraySource(np.concatenate([x, x[:100]]), np.concatenate([y, y[:100]])), settings)
    assert_close(state_of(weighted), state_of(repeated), 1e-7)
    assert [row["score"] for row in first.rows] == pytest.approx([row["score"] for row in second.rows], rel=1e-7)


def test_bytes_and_large_targets_are_scaled_as_they_are_read():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, size=(150, 4), dtype=np.uint8)
    y = 1e6 + 1e3 * np.sin(images[:, 0] / 40.0)
    source = ArraySource(images, y)
    summary = summarise(source)
    inputs, targets = Scaling.from_summary(summary), TargetScaler.from_summary(summary)
    scaled = ArraySource(inputs(torch.from_numpy(images)), targets(torch.from_numpy(y)))
    z = inputs(torch.from_numpy(images[:10]))
    model, behind = SparseGP(RBF(2.0), Gaussian(), z, inputs), SparseGP(RBF(2.0), Gaussian(), z)
    train(model, source, QUICK, target_scaler=targets)
    history = train(behind, scaled, QUICK)
    model.features = None
    assert same(state_of(model), state_of(behind))
    assert history.rows[-1]["skipped"] == 0


@pytest.mark.parametrize(("rows", "batch_size"), [(103, 50), (103, 103), (103, 1000), (7, 2), (1, 5)])
def test_batches_count_by_their_true_size_and_hold_each_row_once_an_epoch(monkeypatch, rows, batch_size):
    batches = []
    statistics = loop.natural_statistics

    def spy(model, batch, *others):
        batches.append(batch)
        return statistics(model, batch, *others)

    monkeypatch.setattr(loop, "natural_statistics", spy)
    x = np.random.default_rng(0).normal(size=(rows, 2))
    model = SparseGP(RBF(), Gaussian(), torch.from_numpy(x[:5].astype(np.float32)))
    train(model, ArraySource(x, x[:, 0]), replace(QUICK, batch_size=batch_size, max_epochs=2))
    per_epoch = math.ceil(rows / batch_size)
    assert len(batches) == 2 * per_epoch
    for batch in batches:
        assert len(batch.x) <= batch_size
        torch.testing.assert_close(batch.weights.sum().item(), float(rows), rtol=1e-6, atol=0)
    for epoch in (batches[:per_epoch], batches[per_epoch:]):
        seen = torch.cat([batch.x for batch in epoch])
        assert len(np.unique(seen.numpy(), axis=0)) == len(seen) == rows
        assert max(len(batch.x) for batch in epoch) - min(len(batch.x) for batch in epoch) <= 1


# -- chance ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["elbo", "loo"])
def test_the_seed_decides_every_bit(objective):
    problem = Problem("softmax")
    states = []
    for seed, disturbance in ((5, 0), (5, 1), (6, 0)):
        torch.manual_seed(disturbance)  # the global generator has no part in it
        np.random.seed(disturbance)  # noqa: NPY002
        model = problem.model()
        train(model, problem.source, replace(QUICK, objective=objective, seed=seed))
        states.append(state_of(model))
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


@pytest.mark.parametrize("kernel_rate", [1.0, 0.5])
def test_frozen_parameters_stay_as_they_are(kernel_rate):
    problem = Problem("softmax")
    model = problem.model()
    model.inducing_inputs.requires_grad_(False)
    model.kernel.requires_grad_(False)
    before = state_of(model)
    train(model, problem.source, replace(QUICK, kernel_rate=kernel_rate))
    after = state_of(model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"posterior.mean", "posterior.log_scale", "posterior.upper"}


@pytest.mark.parametrize("hold", [False, True])
def test_the_kernel_takes_its_share_of_the_learning_rate_and_nothing_else_does(hold):
    problem = Problem("student-t")
    model = problem.model(posterior=Posterior(1, len(problem.z), num_components=2))
    before = state_of(model)
    settings = replace(QUICK, objective="loo", learning_rate=0.1, held_learning_rate=0.1, kernel_rate=0.25)
    phase, state = settings.phases(5)[int(hold)], RunState(model, settings)
    optimiser = state.optimisers[phase.hold]
    gradients = [torch.full_like(parameter, -3.0) for parameter in optimiser.parameters]
    optimiser.step(gradients, state.rates(phase, share=1.0))  # Adam's first step is the rate itself
    for name, parameter in model.named_parameters():
        rate = {"kernel": 0.025, "posterior": 0.0 if hold else 0.1}.get(name.split(".")[0], 0.1)
        move = parameter.detach() - before[name]
        torch.testing.assert_close(move, torch.full_like(move, rate), msg=name)


def test_training_leaves_the_users_arrays_and_scalers_alone():
    problem = Problem("softmax")
    x, y = problem.source.x.copy(), problem.source.y.copy()
    scaling = Scaling(torch.zeros(2), torch.ones(2))
    train(SparseGP(RBF(), Softmax(3), problem.z, scaling), problem.source, QUICK)
    assert np.array_equal(problem.source.x, x)
    assert np.array_equal(problem.source.y, y)
    assert not scaling.shift.any()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gaussian", math.nan, "targets hold nan in row 155"),
        ("softmax", 7, "got 7 at row 155"),
        ("poisson", -1, "row 155"),
    ],
)
def test_targets_that_cannot_be_are_found_before_the_first_step_with_their_row(name, value, message):
    problem = Problem(name)
    x, y = problem.source.rows(np.arange(len(problem.source)))
    y = y.reshape(len(y)).copy()
    y[155] = value
    steps = []
    with pytest.raises(ValueError, match=message):
        train(problem.model(), ArraySource(x, y), QUICK, callbacks=[steps.append])
    assert steps == []


def test_a_source_of_ones_own_may_return_lists():
    problem = Problem("gaussian")

    class Lists:
        def __len__(self):
            return len(problem.source)

        def rows(self, indices):
            return tuple(part.tolist() for part in problem.source.rows(indices))

    assert len(train(problem.model(), Lists(), QUICK).rows) == QUICK.max_epochs


def test_the_callers_scaler_stays_on_its_device():
    scaler = TargetScaler(torch.zeros(1), torch.ones(1))
    feed = Feed(Problem("gaussian").model(), 10, None, scaler)
    assert feed.target_scaler is not scaler


def test_long_histories_can_be_saved(tmp_path):
    problem = Problem("gaussian")
    state = RunState(problem.model(), QUICK)
    row = {"epoch": 1, "step": 5, "seconds": 0.1, "objective": "loo", "value": -1.5, "score": math.nan}
    state.history.rows = [row | {"learning_rate": 0.1, "skipped": 0} for _ in range(100_000)]
    with Checkpoints(tmp_path, {}, {}) as checkpoints:
        checkpoints.save(5, state.tensors(), state.plain())
        again = RunState(problem.model(), QUICK)
        again.restore(checkpoints.load_newest())
    assert len(again.history.rows) == 100_000
    assert str(again.history.rows[7]) == str(state.history.rows[7])  # equal NaNs and order too
