"""A model is a module like any other: PyTorch's optimisers, copies, state dicts and compiler work on it."""

import copy
import shutil

import pytest
import torch
from torch import nn
from torch.func import functional_call

from autogp import Posterior, SparseGP, elbo
from autogp.kernels import RBF
from autogp.likelihoods import Bernoulli, Gaussian
from autogp.posteriors import Natural
from autogp.training.optimisers import Adam
from autogp.training.step import Batch, apply, natural_statistics

ROWS, INDUCING = 30, 5


def problem(name: str) -> tuple[SparseGP, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(ROWS, 1, dtype=torch.float64, generator=generator) - 2
    signal = torch.sin(2 * x[:, 0]) + 0.5 * torch.randn(ROWS, dtype=torch.float64, generator=generator)
    likelihood = Gaussian(variance=0.5) if name == "gaussian" else Bernoulli()
    y = signal if name == "gaussian" else (signal > 0).double()
    z = torch.linspace(-2, 2, INDUCING, dtype=torch.float64)[:, None]
    return SparseGP(RBF(), likelihood, z), x, y


def some_model() -> tuple[SparseGP, torch.Tensor]:
    """With a network in front, two components, and no parameter at its start value."""
    torch.manual_seed(0)
    z = torch.randn(INDUCING, 2, dtype=torch.float64)
    model = SparseGP(RBF([1.0, 2.0]), Gaussian(), z, nn.Linear(3, 2), Posterior(1, INDUCING, num_components=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model, torch.randn(9, 3)


def assert_same_marginals(first, second) -> None:
    for ours, theirs in zip(first, second, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("learnt", [False, True], ids=["q alone", "all parameters"])
@pytest.mark.parametrize("name", ["gaussian", "bernoulli"])
def test_adam_on_the_elbo_ends_where_natural_gradients_do(name, learnt):
    model, x, y = problem(name)
    for part in (model.kernel, model.likelihood):
        part.requires_grad_(learnt)
    model.inducing_inputs.requires_grad_(learnt)
    natural = copy.deepcopy(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 600)
    for _ in range(600):
        optimiser.zero_grad()
        loss = -elbo(model, x, y)
        loss.backward()
        optimiser.step()
        schedule.step()
    q, batch = Natural.of(natural.posterior), Batch(x, natural.likelihood.check_targets(y), torch.ones_like(x[:, 0]))
    own = Adam(
        parameter for name, parameter in natural.named_parameters() if learnt and not name.startswith("posterior.")
    )
    for step in range(300):
        statistics = natural_statistics(natural, batch, "elbo", own.parameters, q)
        apply(statistics, own, [0.1 * (1 - step / 300)] * len(own.parameters), q, natural_rate=0.5)
    natural.posterior.set_natural(q)
    assert elbo(model, x, y).item() == pytest.approx(elbo(natural, x, y).item(), rel=1e-5)


def test_a_state_dict_gives_another_model_the_same_marginals():
    model, x = some_model()
    other = SparseGP(
        RBF([3.0, 3.0]), Gaussian(), torch.zeros(INDUCING, 2).double(), nn.Linear(3, 2), Posterior(1, INDUCING, 2)
    )
    assert not torch.equal(other(x).mean, model(x).mean)
    other.load_state_dict(model.state_dict())
    assert_same_marginals(other(x), model(x))


def test_the_jitter_stays_on_the_cpu_so_that_no_step_waits_for_it():
    model = SparseGP(RBF(), Gaussian(), torch.zeros(2, 1)).to("meta")
    assert (model.inducing_inputs.device.type, model.jitter.device.type) == ("meta", "cpu")
    assert model.dtype == torch.float32


def test_a_copy_has_the_same_marginals_and_parameters_of_its_own():
    model, x = some_model()
    other = copy.deepcopy(model)
    expected = model(x)
    assert_same_marginals(other(x), expected)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert_same_marginals(other(x), expected)


def test_functional_call_computes_with_the_parameters_it_is_given():
    model, x = some_model()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    assert_same_marginals(functional_call(model, dict(other.named_parameters()), (x,)), other(x))


def test_every_parameter_has_the_gradient_of_finite_differences():
    model, x = some_model()
    y = torch.linspace(-1, 1, 9, dtype=torch.float64)
    model.features.double()
    model.zero_grad()
    elbo(model, x, y).backward()
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        values = []
        with torch.no_grad():
            for step in (1e-4, -2e-4):
                parameter.add_(step * direction)
                values.append(elbo(model, x, y).item())
            parameter.add_(1e-4 * direction)
        slope = (values[0] - values[1]) / 2e-4
        assert (parameter.grad * direction).sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-6), name


COMPILERS = [
    pytest.param("eager", id="traced"),
    pytest.param(
        "inductor",
        id="compiled",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(shutil.which("c++") is None, reason="PyTorch's compiler needs one for C++"),
        ],
    ),
]


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
@pytest.mark.parametrize("backend", COMPILERS)
def test_a_compiled_model_has_the_same_marginals_and_gradients(backend):
    model, x = some_model()
    results = []
    for each in (model, torch.compile(model, backend=backend)):
        marginals = each(x)
        gradients = torch.autograd.grad((marginals.mean + marginals.variance).sum(), list(model.kernel.parameters()))
        results.append([*marginals, *gradients])
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-6)
