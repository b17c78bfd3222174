"""Our optimisers are PyTorch's, to the bit, but for what they load."""

import subprocess
import sys

import pytest
import torch

from autogp.training.optimisers import Adam, RMSProp


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam, lambda parameters: torch.optim.Adam(parameters, fused=True)),
        (RMSProp, lambda parameters: torch.optim.RMSprop(parameters, alpha=0.9)),
    ],
    ids=["Adam", "RMSProp"],
)
def test_steps_are_those_of_pytorchs_classes(ours, theirs):
    start = [torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    shares, results = [1.0, 0.25], []
    for kind in (ours, theirs):
        parameters = [torch.nn.Parameter(part.clone()) for part in start]
        optimiser = kind(parameters, shares) if kind is ours else kind([{"params": [part]} for part in parameters])
        for step in range(6):
            optimiser.zero_grad()
            assert all(parameter.grad is None for parameter in parameters)
            (parameters[0].square() * (step + 1)).sum().backward()
            if step > 2:  # a parameter may get its first gradient later
                parameters[1].exp().sum().backward()
            rate = 0.1 / (step + 1)
            if kind is ours:
                optimiser.step(rate)
            else:
                for group, share in zip(optimiser.param_groups, shares, strict=True):
                    group["lr"] = share * rate
                optimiser.step()
        results.append(parameters)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert not torch.equal(results[0][1], start[1])


def test_training_does_not_load_the_compiler_nor_symbolic_algebra():
    """torch loads the one for its own optimisers, the other where gradients are handed to `backward`: a second each."""
    code = """
import sys, numpy as np
from autogp import GPClassifier
GPClassifier(max_epochs=2).fit(np.arange(20.0)[:, None], np.arange(20) // 10)
print({"torch._dynamo", "sympy"} & set(sys.modules))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
