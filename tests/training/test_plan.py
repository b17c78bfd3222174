"""Phases of a user's own: what is not trainable stays, rates are those given, and a broken run ends as a whole one."""

import copy
from dataclasses import replace

import pytest
import torch
from broken_off import train_broken_off
from learnable import Problem, held_out_score
from torch import nn

from autogp import Posterior, SparseGP
from autogp.training import Phase, Settings, train
from autogp.training.schedule import PARTS

SETTINGS = Settings(batch_size=65, samples=5, checkpoint_seconds=1e-9)  # four steps an epoch


def model_of(problem: Problem, components: int = 1) -> SparseGP:
    """With a network in front, and a q that gives every part a slope."""
    torch.manual_seed(0)
    posterior = Posterior(problem.likelihood.num_latents, len(problem.z), components)
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return problem.model(features=nn.Linear(2, 2), posterior=posterior)


def moved_parts(before: dict[str, torch.Tensor], model: SparseGP) -> set[str]:
    after = model.state_dict()
    return {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("hold", [False, True], ids=["free", "held"])
@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("part", PARTS)
def test_parts_that_are_not_trainable_do_not_move_by_a_bit(part, components, hold):
    problem = Problem("student-t")
    model = model_of(problem, components)
    before = copy.deepcopy(model.state_dict())
    trainable = tuple(each for each in PARTS if each != part)
    plan = [Phase("predictive" if hold else "elbo", epochs=2, hold=hold, trainable=trainable)]
    train(model, problem.source, replace(SETTINGS, plan=plan), validation=problem.test)
    moved = set(trainable) | ({"posterior"} if hold else set())  # q(v) follows the q(u) that is held
    assert moved_parts(before, model) == moved


def test_each_part_has_the_rate_that_its_phase_gives_it():
    """Adam's first step is the rate itself, where the gradient is not 0."""
    problem = Problem("student-t")
    model = model_of(problem)
    before = copy.deepcopy(dict(model.named_parameters()))
    rates = {"features": 0.001, "kernel": 0.002, "likelihood": 0.003, "inducing_inputs": 0.004}
    plan = [Phase(epochs=0.25, rates=rates, decay=False)]
    train(model, problem.source, replace(SETTINGS, plan=plan))
    for part, rate in rates.items():
        moves = [
            (parameter.detach() - before[name]).abs().max().item()
            for name, parameter in model.named_parameters()
            if name.split(".")[0] == part
        ]
        assert max(moves) == pytest.approx(rate, rel=1e-3)


PLAN = [
    Phase("elbo", epochs=1.5, trainable=("posterior", "likelihood")),
    Phase("elbo", epochs=2, rates={"kernel": 0.01, "features": 0.01}),
    Phase("loo", epochs=1.5, hold=True, rates={"kernel": 0.02}, trainable=("kernel", "likelihood"), prior=0.5),
    Phase("predictive", epochs=1, natural_rates=(0.2, 0.2), decay=False),
]


def test_a_plan_is_followed_in_its_order_and_its_last_objective_ends_the_run():
    problem = Problem("softmax")
    objectives = []
    settings = replace(SETTINGS, plan=PLAN, objective="loo", max_epochs=1)  # the plan replaces these two
    history = train(
        model_of(problem), problem.source, settings, callbacks=[lambda now: objectives.append(now.objective)]
    )
    assert objectives == ["elbo"] * 14 + ["loo"] * 6 + ["predictive"] * 4
    assert history.rows[-1]["objective"] == "predictive"
    assert history.stopped == "max_epochs"
    assert history.best_epoch == len(history.rows) == 6  # of the last phase, with a score of its own


@pytest.mark.parametrize("components", [1, 2])
def test_a_run_with_a_plan_broken_off_at_every_step_ends_in_the_bits_of_an_unbroken_one(tmp_path, components):
    problem = Problem("softmax")
    settings = replace(SETTINGS, plan=PLAN)
    whole = model_of(problem, components)
    history = train(whole, problem.source, settings)
    broken, again, breaks = train_broken_off(lambda: model_of(problem, components), problem.source, settings, tmp_path)
    assert breaks == 23
    assert moved_parts(copy.deepcopy(whole.state_dict()), broken) == set()
    for name in ("value", "score", "objective", "learning_rate"):
        assert [row[name] for row in again.rows] == [row[name] for row in history.rows]


def test_what_is_learnt_after_the_last_whole_epoch_is_kept():
    problem = Problem("softmax")
    model = problem.model()
    before = held_out_score(model, problem.test)
    history = train(model, problem.source, replace(SETTINGS, plan=[Phase(epochs=0.75)]))
    assert [row["step"] for row in history.rows] == [3]
    assert held_out_score(model, problem.test) > before + 0.1


def test_a_phase_that_stands_twice_in_a_plan_is_two_phases():
    """Patience counts in the last phase alone."""
    problem = Problem("logit")
    still = dict.fromkeys(PARTS, 1e-9)
    elbo, loo = Phase("elbo", epochs=3, rates=still), Phase("loo", epochs=3, hold=True, rates=still)
    settings = Settings(plan=[elbo, loo, elbo, loo], batch_size=260, patience=1)
    history = train(problem.model(), problem.source, settings, validation=problem.test)
    assert 10 <= len(history.rows) <= 12
