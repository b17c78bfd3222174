"""Mini-batches whose rows depend on the seed and the step alone, loaded while the last one is computed."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from autogp.data.sources import Source, as_tensor

__all__ = ["Batches", "prefetch"]

SMALL_BATCH_BYTES = 2**20


class Batches:
    """Which rows belong to the batch of each step: every row once an epoch, in a new order each epoch.

    An epoch is divided evenly, so that its batches differ by one row at most and none exceeds `batch_size`.

    Arguments:
        source: The data.
        batch_size: The most rows B in a batch.
        seed: Not negative.
        total: The number of rows of the whole data, where several processes have a part each.
        first: The number of this source's first row among them. A process loads its own rows of each batch.

    Example:
        >>> from autogp.data import ArraySource
        >>> batches = Batches(ArraySource(np.eye(10)), batch_size=4, seed=0)
        >>> batches.steps_per_epoch, [len(batches.indices(step)) for step in range(4)]
        (3, [4, 3, 3, 4])
        >>> Batches(ArraySource(np.eye(5)), batch_size=4, seed=0, total=10, first=5).own(0)
        slice(2, 4, None)
    """

    def __init__(self, source: Source, batch_size: int, seed: int, total: int | None = None, first: int = 0) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if len(source) == 0:
            raise ValueError("the source has no rows")
        self.source = source
        self.batch_size = batch_size
        self.seed = seed
        self.total, self.first = total or len(source), first
        self.steps_per_epoch = -(-self.total // batch_size)
        self._order = (0, self._permutation(0))

    def indices(self, step: int) -> np.ndarray:
        """Row numbers of the batch of `step` (0, 1, ...), int64 [B], ascending."""
        epoch, position = divmod(step, self.steps_per_epoch)
        # Read once and replaced whole: the loading thread and the caller may both be here.
        known, order = self._order
        if known != epoch:
            order = self._permutation(epoch)
            self._order = (epoch, order)
        size, larger = divmod(len(order), self.steps_per_epoch)
        start = position * size + min(position, larger)
        # Ascending, since their order within a batch means nothing and a disk reads forward faster.
        return np.sort(order[start : start + size + (position < larger)]).astype(np.int64)

    def own(self, step: int) -> slice:
        """Which rows of the batch this source holds."""
        return slice(*np.searchsorted(self.indices(step), [self.first, self.first + len(self.source)]).tolist())

    def load(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of these rows; where there are none, those of a row that does not count."""
        numbers = self.indices(step)[self.own(step)] - self.first
        return self.source.rows(numbers if len(numbers) else np.zeros(1, np.int64))

    def _permutation(self, epoch: int) -> np.ndarray:
        length = self.total
        rows = np.arange(length, dtype=np.int32 if length < 2**31 else np.int64)
        np.random.default_rng([self.seed, epoch]).shuffle(rows)
        return rows


def prefetch(
    batches: Batches, start: int, stop: int | None = None, depth: int = 2
) -> Generator[tuple[int, Tensor, Tensor]]:
    """Yields (step, x [B, D], y [B] or [B, P]) for steps from `start` up to `stop`, or without end.

    Up to `depth` further batches are loaded in one thread meanwhile; an error there is raised here, at its step. The
    thread ends with the generator. Tensors keep the stored dtype, and are in pinned memory where there is CUDA.
    Small batches of arrays in memory are loaded without a thread, which would cost more than it gives.

    Example:
        >>> from autogp.data import ArraySource
        >>> batches = Batches(ArraySource(np.eye(4), np.arange(4)), batch_size=2, seed=0)
        >>> [(step, x.shape[0], y.dtype) for step, x, y in prefetch(batches, start=3, stop=5)]
        [(3, 2, torch.int64), (4, 2, torch.int64)]
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")

    def load(step: int) -> tuple[int, Tensor, Tensor]:
        x, y = batches.load(step)
        return step, _pinned(x), _pinned(y)

    steps = iter(count(start) if stop is None else range(start, stop))
    if _is_quick(batches):
        yield from map(load, steps)
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="autogp-prefetch") as pool:
        pending = deque(pool.submit(load, step) for step in islice(steps, depth))
        try:
            while pending:
                batch = pending.popleft().result()
                pending.extend(pool.submit(load, step) for step in islice(steps, 1))
                yield batch
        finally:
            for future in pending:
                future.cancel()


def _is_quick(batches: Batches) -> bool:
    if not getattr(batches.source, "in_memory", False):
        return False
    x, _ = batches.source.rows(np.zeros(1, np.int64))
    return x.nbytes * min(batches.batch_size, len(batches.source)) < SMALL_BATCH_BYTES


def _pinned(array: np.ndarray) -> Tensor:
    tensor = as_tensor(array)
    return tensor.pin_memory() if torch.cuda.is_available() else tensor
