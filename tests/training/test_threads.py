"""Threads: one for steps that are too small to share, and as many as before afterwards."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from autogp import GPRegressor, SparseGP
from autogp.kernels import RBF
from autogp.likelihoods import Softmax
from autogp.training.threads import threads_for


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "inducing", "columns", "threads"), [(142, 142, 13, 1), (60_000, 200, 784, 2)])
def test_small_steps_run_on_one_thread(rows: int, inducing: int, columns: int, threads: int) -> None:
    model = SparseGP(RBF(), Softmax(10 if threads == 2 else 2), torch.randn(inducing, columns))
    with threads_for(model, rows):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2


def test_a_small_fit_uses_one_thread_and_restores_the_others_after_an_error_too() -> None:
    x, seen = np.linspace(0, 1, 30)[:, None], []

    def callback(progress: object) -> None:
        seen.append(torch.get_num_threads())
        raise KeyError

    with pytest.raises(KeyError):
        GPRegressor(n_inducing=5, max_epochs=3, verbose=False).fit(x, x[:, 0], callbacks=[callback])
    assert seen == [1]
    assert torch.get_num_threads() == 2
