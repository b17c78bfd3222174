"""Batches depend on seed and step alone, cover every row, and are loaded ahead without leaving a thread behind."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autogp.data import ArraySource, Batches, Source, Subset, prefetch


class Slow:
    """A source that is no array, so that it is loaded in a thread; row `bad` cannot be read."""

    def __init__(self, length: int = 100, bad: int = -1, wait: float = 0.0) -> None:
        self.length, self.bad, self.wait = length, bad, wait
        self.threads: set[str] = set()
        self.calls = 0

    def __len__(self) -> int:
        return self.length

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.threads.add(threading.current_thread().name)
        self.calls += 1
        time.sleep(self.wait)
        if self.bad in indices:
            raise OSError(f"row {self.bad} cannot be read")
        return indices[:, None].astype(np.uint8), indices


def loading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("autogp-prefetch")]


def rows_of(length: int) -> ArraySource:
    return ArraySource(np.zeros((length, 1)), np.arange(length))


@given(st.integers(1, 200), st.integers(1, 250), st.integers(0, 2**40), st.integers(0, 5))
def test_every_row_appears_exactly_once_per_epoch(length: int, size: int, seed: int, epoch: int) -> None:
    batches = Batches(rows_of(length), size, seed)
    steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
    rows = np.concatenate([batches.indices(step) for step in steps])
    assert sorted(rows) == list(range(length))


@given(st.integers(1, 200), st.integers(1, 250))
def test_batches_of_an_epoch_differ_by_one_row_at_most(length: int, size: int) -> None:
    batches = Batches(rows_of(length), size, 0)
    assert batches.steps_per_epoch == -(-length // size)
    sizes = {len(batches.indices(step)) for step in range(batches.steps_per_epoch)}
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(0, 3))
def test_batch_depends_only_on_seed_and_step(steps: list[int], seed: int) -> None:
    batches = Batches(rows_of(53), 10, seed)
    for step in steps:
        assert (batches.indices(step) == Batches(rows_of(53), 10, seed).indices(step)).all()


def test_the_batches_of_a_seed_never_change() -> None:
    assert Batches(rows_of(10), 4, 7).indices(4).tolist() == [1, 3, 7]


def test_epochs_and_seeds_differ_in_order() -> None:
    batches = Batches(rows_of(1000), 100, 0)
    assert set(batches.indices(0)) != set(batches.indices(10))
    assert set(batches.indices(0)) != set(Batches(rows_of(1000), 100, 1).indices(0))


def test_rows_ascend_within_a_batch_and_are_int64() -> None:
    rows = Batches(rows_of(1000), 100, 0).indices(3)
    assert rows.dtype == np.int64
    assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize("source", [rows_of(103), Slow(103), Subset(rows_of(200), np.arange(103))])
def test_prefetched_batches_are_those_of_their_steps(source: Source) -> None:
    batches = Batches(source, 10, 0)
    found = list(prefetch(batches, 5, 40))
    assert [step for step, _, _ in found] == list(range(5, 40))
    for step, _, y in found:
        assert (y.numpy() == batches.indices(step)).all()


def test_prefetch_without_stop_goes_on() -> None:
    generator = prefetch(Batches(Slow(), 50, 0), 0)
    assert [next(generator)[0] for _ in range(7)] == list(range(7))
    generator.close()


def test_prefetch_of_nothing_yields_nothing() -> None:
    assert list(prefetch(Batches(Slow(), 50, 0), 3, 3)) == []


def test_prefetch_refuses_a_depth_of_zero() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        next(prefetch(Batches(Slow(), 50, 0), 0, depth=0))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_uint8_and_other_dtypes_stay_until_the_batch(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(200).reshape(100, 2).astype(dtype))
    source = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"), np.arange(100, dtype=np.uint8))
    _, x, y = next(prefetch(Batches(source, 10, 0), 0))
    assert x.dtype == getattr(torch, dtype)
    assert y.dtype == torch.uint8


def test_read_only_rows_give_tensors_without_a_warning() -> None:
    class Window:
        x = np.broadcast_to(np.float32(1), (100, 3))

        def __len__(self) -> int:
            return 100

        def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return self.x[: len(indices)], self.x[: len(indices), 0][::-1]

    _, x, y = next(prefetch(Batches(Window(), 10, 0), 0))
    assert torch.equal(x, torch.ones(10, 3))
    assert torch.equal(y, torch.ones(10))


def test_tensors_share_the_memory_of_the_rows() -> None:
    kept = []

    class Keeping(Slow):
        def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            kept.append(super().rows(indices))
            return kept[-1]

    _, x, y = next(prefetch(Batches(Keeping(), 10, 0), 0))
    assert np.shares_memory(x.numpy(), kept[0][0])
    assert np.shares_memory(y.numpy(), kept[0][1])


def test_loading_goes_on_while_the_caller_computes() -> None:
    source = Slow(wait=0.02)
    start = time.perf_counter()
    for _ in prefetch(Batches(source, 10, 0), 0, 20):
        time.sleep(0.02)
    assert source.threads == {"autogp-prefetch_0"}
    # In turn it would take 0.8 s.
    assert time.perf_counter() - start < 0.7


def test_no_more_than_depth_batches_are_loaded_ahead() -> None:
    source = Slow()
    generator = prefetch(Batches(source, 10, 0), 0, depth=3)
    next(generator)
    time.sleep(0.05)
    assert source.calls == 4
    generator.close()


def test_an_error_in_the_loader_reaches_the_caller_at_its_step() -> None:
    batches = Batches(Slow(bad=42), 10, 0)
    wrong = next(step for step in range(10) if 42 in batches.indices(step))
    reached = []
    with pytest.raises(OSError, match="row 42 cannot be read"):
        reached.extend(step for step, _, _ in prefetch(batches, 0))
    assert reached == list(range(wrong))
    assert loading_threads() == []


def test_the_thread_ends_with_the_generator() -> None:
    batches = Batches(Slow(), 10, 0)
    for stop in (None, 3):
        generator = prefetch(batches, 0, stop)
        next(generator)
        assert loading_threads()
        generator.close()
        assert loading_threads() == []
    list(prefetch(batches, 0, 3))
    assert loading_threads() == []


def test_an_error_in_the_caller_ends_the_thread() -> None:
    def train() -> None:
        for _ in prefetch(Batches(Slow(), 10, 0), 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert loading_threads() == []


def test_small_batches_in_memory_need_no_thread(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1000, 200)))
    small, large = ArraySource(np.zeros((1000, 10))), ArraySource(np.zeros((1000, 200)))
    mapped = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"))
    for source, threads in (
        (small, 0),
        (Subset(small, np.arange(900)), 0),
        (large, 1),
        (Subset(mapped, np.arange(900)), 1),
    ):
        generator = prefetch(Batches(source, 1000, 0), 0)
        next(generator)
        assert len(loading_threads()) == threads
        generator.close()


@pytest.mark.parametrize("size", [0, -1])
def test_batch_size_must_be_positive(size: int) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        Batches(rows_of(3), size, 0)


def test_a_source_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        Batches(Slow(length=0), 10, 0)
