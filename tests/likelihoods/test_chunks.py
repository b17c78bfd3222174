"""Many samples are worked on in chunks: the same numbers and gradients, in less memory."""

import pytest
import torch
from torch import Tensor

from autogp.likelihoods import Likelihood, Network, Softmax, StudentT, base

SAMPLES, ROWS = 50, 6


class Own(Likelihood):
    """Two latents and a parameter, by `log_prob` alone."""

    num_latents = 2

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return -(self.scale * (y - f[..., 0] * f[..., 1])).square().log1p()


CASES = {
    "own": (Own, lambda g: torch.randn(ROWS, dtype=torch.float64, generator=g)),
    "softmax": (lambda: Softmax(3), lambda g: torch.arange(ROWS) % 3),
    "network": (lambda: Network(2), lambda g: torch.randn(ROWS, 2, dtype=torch.float64, generator=g)),
    "student": (lambda: StudentT(), lambda g: torch.randn(ROWS, 1, dtype=torch.float64, generator=g)),
}


def everything(likelihood: Likelihood, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor) -> list[Tensor]:
    """Values of the expectations, their gradients, and the expected derivatives."""
    found = []
    functions = [likelihood.expected_log_prob, likelihood.log_expected_prob]
    functions += [likelihood.log_expected_inverse_prob] if not isinstance(likelihood, Network) else []
    for function in functions:
        mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
        rows = function(mean, variance, y, noise)
        wanted = [mean, variance, *likelihood.parameters()]
        found += [rows.detach(), *torch.autograd.grad(rows.sum(), wanted)]
    return [*found, *likelihood.expected_derivatives(mean, variance, y, noise)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("numbers", [1, 200])
def test_chunks_change_no_value_and_no_gradient(case: str, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make, targets = CASES[case]
    likelihood, generator = make(), torch.Generator().manual_seed(0)
    likelihood = likelihood.double()
    shape = (2, ROWS, likelihood.num_latents)
    mean = torch.randn(shape, dtype=torch.float64, generator=generator)
    variance = torch.rand(shape, dtype=torch.float64, generator=generator)
    noise = torch.randn(SAMPLES, *shape, dtype=torch.float64, generator=generator)
    y = targets(generator)
    whole = everything(likelihood, mean, variance, y, noise)
    monkeypatch.setattr(base, "CHUNK_NUMBERS", numbers)
    assert len(base.chunks(noise)) > 3
    for found, expected in zip(everything(likelihood, mean, variance, y, noise), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_backward_pass_keeps_no_more_than_a_chunk() -> None:
    likelihood = Network(7)
    mean, noise = torch.zeros(1, 200, 8, requires_grad=True), torch.zeros(2000, 1, 200, 8)
    kept = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        likelihood.expected_log_prob(mean, torch.ones_like(mean), torch.zeros(200, 7), noise)
    assert max(kept) <= base.CHUNK_NUMBERS < noise.numel()
