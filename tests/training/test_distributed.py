"""Several processes and one answer."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("distributed_cases.py")
CASES = ["elbo", "float32", "tiny batches", "loo", "predictive", "plan", "paper", "mixture", "weights",
         "early stopping", "callback", "regression", "chance", "classifier", "regressor"]  # fmt: skip


def start(count: int, program: list, **environment: str) -> list[subprocess.Popen]:
    """The program in `count` processes that know of each other, as a cluster without torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    return [
        subprocess.Popen(
            [sys.executable, *map(str, program)],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def finished(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Exit code and output of each."""
    found = [process.communicate(timeout=300) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, found, strict=True)]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[int, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("results")
    found = {}
    for count in (1, 2, 4):
        for code, out, err in finished(start(count, [PROGRAM, folder / f"{count}.npz"])):
            assert code == 0, err
            assert (out, err) == ("", ""), "process 0 alone talks, and it has nothing to say"
        with np.load(folder / f"{count}.npz") as archive:
            found[count] = dict(archive)
    return found


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_the_model_is_the_same_for_any_number_of_processes(results, name: str, count: int) -> None:
    assert set(results[1]) == set(CASES)
    tolerance = 1e-4 if name == "float32" else 1e-9
    expected = results[1][name]
    np.testing.assert_allclose(
        results[count][name], expected, rtol=tolerance, atol=tolerance * np.nanmax(np.abs(expected))
    )
