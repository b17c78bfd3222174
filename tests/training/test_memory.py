"""Memory: training from a file larger than it may use, and blocks that stay from step to step."""

import platform
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from autogp.data import open_source, summarise
from autogp.features import Scaling
from autogp.likelihoods import Softmax
from autogp.model import SparseGP
from autogp.training import Settings, start_inducing_inputs, start_kernel, train
from autogp.training.memory import kept_memory

GIGABYTE = 2**30


def private_memory() -> int:
    """Bytes of this process that are not pages of files, which the system takes back when it needs them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_training_from_five_gigabytes_needs_less_than_one_and_a_half(tmp_path: Path) -> None:
    rows, columns = 5 * GIGABYTE // 784, 784
    x = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.uint8, shape=(rows, columns))
    y = np.random.default_rng(0).integers(0, 10, rows)
    for start in range(0, rows, 100_000):
        part = np.random.default_rng(start).integers(0, 200, (min(100_000, rows - start), columns), dtype=np.uint8)
        part[:, ::10] += 5 * y[start : start + len(part), None].astype(np.uint8)  # something to learn
        x[start : start + len(part)] = part
    x.flush()
    np.save(tmp_path / "y.npy", y)
    del x, part

    before = private_memory()
    source = open_source(tmp_path / "x.npy", tmp_path / "y.npy")
    scaler = Scaling.from_summary(summarise(source, max_rows=20_000), "global")
    inducing = start_inducing_inputs(source, 100, scaler, by_class=True)
    model = SparseGP(start_kernel("rbf", source, scaler), Softmax(10), inducing, scaler)
    peak, steps = 0, 0

    def watch(progress) -> bool:
        nonlocal peak, steps
        peak, steps = max(peak, private_memory() - before), steps + 1
        return steps == 300

    torch.set_num_threads(2)
    train(model, source, Settings(max_epochs=1), callbacks=[watch])
    print(f"peak {peak / GIGABYTE:.2f} GB over {steps} steps")
    assert steps == 300
    assert peak < 1.5 * GIGABYTE


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_blocks_that_are_freed_and_allocated_again_cost_no_page_faults() -> None:
    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(2**24)  # 64 MB, 16,384 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with kept_memory(), kept_memory():  # a training within a callback of another
        for _ in range(20):  # until the heap has a hole that is large enough
            faults()
        assert max(faults() for _ in range(5)) < 100
