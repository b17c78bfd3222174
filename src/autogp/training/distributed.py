"""Several processes train one model: each computes the statistics of its own rows, and all apply the same sums.

torchrun, or whoever sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, starts the processes, which all run the same
program. Process 0 alone writes files and shows progress.
"""

import atexit
import hashlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from autogp.data import Source, Subset
from autogp.likelihoods import InfiniteLOOError
from autogp.linalg import row_blocks
from autogp.model import SparseGP
from autogp.posteriors import Natural, Sites
from autogp.training.step import NonFiniteError, Statistics

__all__ = ["ALONE", "DistributedError", "Processes", "processes"]

TIMEOUT_SECONDS = 600.0  # that a process waits for the others; the environment variable AUTOGP_TIMEOUT sets another

T = TypeVar("T")


class DistributedError(RuntimeError):
    """Processes that have lost each other, or do not train the same model, with what to do about it."""


def processes() -> "Processes":
    """This process among those that torchrun has started; they meet at the first call. Without torchrun, it is alone.

    >>> processes().count
    1
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if not dist.is_available() or (count == 1 and not dist.is_initialized()):
        return Processes()
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        timeout = timedelta(seconds=float(os.environ.get("AUTOGP_TIMEOUT", TIMEOUT_SECONDS)))
        with _contact("start"):
            store, rank, count = next(rendezvous("env://", timeout=timeout))
            # torchrun keeps its store when it starts processes again: the addresses of the last ones are still there.
            store = PrefixStore(f"autogp/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
            backend = "nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=timeout)
        atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
    found = Processes(dist.get_rank(), dist.get_world_size())
    if not found.first:
        logging.getLogger("autogp").setLevel(logging.ERROR)
    return found


class Processes:
    """This process among `count`. Alone, every method gives back what it gets.

    >>> Processes().own(10), Processes(rank=1, count=3).own(10)
    (range(0, 10), range(3, 6))
    """

    def __init__(self, rank: int = 0, count: int = 1):
        self.rank, self.count = rank, count
        self._seconds, self._signalled = 0.0, False  # as the last `sum_statistics` found them

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and talks."""
        return self.rank == 0

    def own(self, total: int) -> range:
        """Which of so many rows are this process's."""
        return range(self.rank * total // self.count, (self.rank + 1) * total // self.count)

    def part(self, source: Source) -> Source:
        """This process's rows; all of them where there are too few to share."""
        rows = self.own(len(source))
        return (
            source if self.count == 1 or len(source) < self.count else Subset(source, np.arange(rows.start, rows.stop))
        )

    def sum_statistics(
        self,
        found: Statistics | Exception,
        model: SparseGP,
        parameters: Sequence[nn.Parameter],
        natural: Natural | None,
        started: float,
        received: int | None,
    ) -> Statistics:
        """The statistics of all processes' rows, by one reduction; raises where the step has failed in one of them.

        With them travel the seconds since the run `started`, by the clock of process 0, and whether a process has
        `received` a signal: what depends on these must be the same for all.
        """
        failed = isinstance(found, Exception)
        if self.count == 1:
            if failed:
                raise found
            return found
        sizes = [1, 1, *(each.numel() for each in parameters), *_sites_sizes(natural)]
        buffer = torch.zeros(sum(sizes) + 4, dtype=model.dtype, device=model.device)
        *parts, notes = buffer.split([*sizes, 4])
        if not failed:
            for part, tensor in zip(parts, _tensors(found), strict=True):
                part.copy_(tensor.reshape(-1))
        infinite = isinstance(found, InfiniteLOOError)
        seconds = time.monotonic() - started if self.first else 0.0
        notes.copy_(torch.tensor([seconds, received is not None, failed, infinite]))
        self.sum(buffer)
        self._seconds, signals, failures, infinite = notes.tolist()
        self._signalled = signals > 0
        if failed:
            raise found
        if failures:
            if infinite:
                raise InfiniteLOOError(type(model.likelihood).__name__, "as another process found for its rows")
            raise NonFiniteError("another process could not compute the objective of its rows")
        tensors = _tensors(found)
        value, score, *rest = (part.to(old.dtype).view_as(old) for part, old in zip(parts, tensors, strict=True))
        gradients, rest = rest[: len(parameters)], rest[len(parameters) :]
        sites = Sites(tuple(rest[:-1]), rest[-1]) if rest else None
        return replace(found, value=value, score=score, gradients=gradients, sites=sites)

    def seconds(self, own: float) -> float:
        """Since the start: by the clock of process 0, as of the last sum."""
        return own if self.count == 1 else self._seconds

    def received(self, own: int | None) -> int | None:
        """The signal that stops all processes after the same step."""
        if self.count == 1:
            return own
        return (own or int(signal.SIGTERM)) if self._signalled else None

    def sum(self, tensor: Tensor) -> Tensor:
        """Adds up the tensors of all processes, in place."""
        if self.count > 1:
            with _contact("reduction"):
                dist.all_reduce(tensor)
        return tensor

    def sum_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums of the processes' tensors, by one reduction in float64."""
        if self.count == 1:
            return list(tensors)
        buffer = self.sum(torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors]))
        parts = buffer.split([tensor.numel() for tensor in tensors])
        return [part.view_as(old).to(old.dtype) for part, old in zip(parts, tensors, strict=True)]

    def from_first(self, function: Callable[[], T]) -> T:
        """What the function gives in process 0, which alone calls it; its error is raised in all."""
        if self.count == 1:
            return function()
        found: list[Any] = [None, None]
        if self.first:
            found = list(_result(function))
        with _contact("broadcast"):
            dist.broadcast_object_list(found, src=0)
        _raise_shared(found[1])
        return found[0]

    def gather(self, function: Callable[[], T]) -> list[T]:
        """What the function gives in each process, for all; an error of one is raised in all."""
        if self.count == 1:
            return [function()]
        found: list[Any] = [None] * self.count
        with _contact("exchange"):
            dist.all_gather_object(found, _result(function))
        for _, error in found:
            _raise_shared(error)
        return [result for result, _ in found]

    def agree(self, what: str, value: T) -> T:
        """The value, which must be equal in all processes."""
        for rank, other in enumerate(self.gather(lambda: value)):
            if other != value:
                raise DistributedError(
                    f"processes {self.rank} and {rank} have different {what} ({value!r} and {other!r}): start all with "
                    "the same program, arguments and data"
                )
        return value

    def same(self, tensors: dict[str, Tensor]) -> bool:
        """Whether all processes have the same bits, by a hash of them."""
        if self.count == 1:
            return True
        digest = hashlib.blake2b()
        for tensor in tensors.values():
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        own = digest.digest()
        return all(other == own for other in self.gather(lambda: own))


ALONE = Processes()


def _result(function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return function(), None
    except Exception as error:  # raised again, in all processes
        return None, error


def _raise_shared(error: Exception | None) -> None:
    """An error that all processes raise, so that one of them is enough to tell of it."""
    if error is not None:
        error.__dict__["shared"] = True
        raise error


def _tensors(found: Statistics) -> list[Tensor]:
    """What is a sum over rows."""
    sites = [] if found.sites is None else [*found.sites.precision, found.sites.shift]
    return [found.value, found.score, *found.gradients, *sites]


def _sites_sizes(natural: Natural | None) -> list[int]:
    if natural is None:
        return []
    latents, inducing = natural.shift.shape
    return [*(latents * (stop - start) * stop for start, stop in row_blocks(inducing)), latents * inducing]


@contextmanager
def _contact(what: str):
    """Errors of the network, in words."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason, seconds = str(error).splitlines()[0], os.environ.get("AUTOGP_TIMEOUT", TIMEOUT_SECONDS)
        raise DistributedError(
            f"process {os.environ.get('RANK', '0')} lost contact with the others in a {what} ({reason}). One of them "
            f"has ended, and its own message says why, or has not answered for {seconds} seconds (AUTOGP_TIMEOUT). "
            "With --max-restarts torchrun starts all again, and training goes on from its last checkpoint"
        ) from error
