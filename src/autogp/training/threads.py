"""How many threads a training uses."""

import contextlib
from collections.abc import Iterator

import torch

from autogp.model import SparseGP

__all__ = ["threads_for"]

# Multiply-adds of a step from which sharing it between threads pays. A smaller step is mostly many short operations:
# two threads gain little on an idle machine, and wait for each other at every operation on a busy one.
SHARED_WORK = 2.5e7
MOST_ROWS = 2000  # of a step


@contextlib.contextmanager
def threads_for(model: SparseGP, num_rows: int) -> Iterator[None]:
    """Within this block PyTorch uses one thread where steps on so many rows are too small to share.

    A step takes about B M (D + Q M) multiply-adds, in kernels and in products with M x M matrices.
    """
    size, columns = model.inducing_inputs.shape[-2:]
    work = min(num_rows, MOST_ROWS) * size * (columns + model.likelihood.num_latents * size)
    before = torch.get_num_threads()
    if work < SHARED_WORK:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
