"""Several processes and one answer."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("distributed_cases.py")
CASES = ["elbo", "float32", "tiny batches", "loo", "predictive", "plan", "paper", "mixture", "weights",
         "early stopping", "callback", "regression", "chance", "classifier", "all rows", "regressor"]  # fmt: skip


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
def results(tmp_path_factory) -> Callable[[int], dict[str, np.ndarray]]:
    """What so many processes end with."""
    folder = tmp_path_factory.mktemp("results")

    @cache
    def run(count: int) -> dict[str, np.ndarray]:
        for code, out, err in finished(start(count, [PROGRAM, folder / f"{count}.npz"])):
            assert code == 0, err
            assert (out, err) == ("", ""), "process 0 alone talks, and it has nothing to say"
        with np.load(folder / f"{count}.npz") as archive:
            return dict(archive)

    return run


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_the_model_is_the_same_for_any_number_of_processes(results, name: str, count: int) -> None:
    assert set(results(1)) == set(CASES)
    tolerance = 1e-4 if name == "float32" else 1e-9
    expected = results(1)[name]
    np.testing.assert_allclose(
        results(count)[name], expected, rtol=tolerance, atol=tolerance * np.nanmax(np.abs(expected))
    )


RUN = Path(__file__).with_name("distributed_run.py")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> np.ndarray:
    """What two processes find."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert [code for code, *_ in finished(start(2, [RUN, folder / "run", folder / "result.npy"]))] == [0, 0]
    return np.load(folder / "result.npy")


def test_a_signal_to_one_process_stops_all_after_a_save_and_they_go_on_to_the_same_bits(tmp_path, undisturbed) -> None:
    program = [RUN, tmp_path / "run", tmp_path / "result.npy"]
    (first, _, told), (second, _, silent) = finished(start(2, [*program, "--signal-at", 70]))
    assert (first, second) == (143, 143)
    assert "stopped by SIGTERM after step 71 of 220; saved in" in told  # process 1 hears of it in the next step
    assert silent == ""
    assert [code for code, *_ in finished(start(2, program))] == [0, 0]
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), undisturbed)


def test_another_number_of_processes_goes_on_and_says_so(tmp_path, undisturbed) -> None:
    program = [RUN, tmp_path / "run", tmp_path / "result.npy"]
    finished(start(2, [*program, "--signal-at", 50]))
    (code, _, told), *others = finished(start(3, program))
    assert code == 0
    assert "going on with 3 processes, after 2" in told
    assert [(code, err) for code, _, err in others] == [(0, ""), (0, "")]
    np.testing.assert_allclose(np.load(tmp_path / "result.npy"), undisturbed, rtol=1e-9, atol=1e-9)


def test_a_process_that_hangs_ends_the_others_within_the_time_out(tmp_path) -> None:
    running = start(2, [RUN, tmp_path / "run", tmp_path / "result.npy", "--stop-at", 30], AUTOGP_TIMEOUT="5")
    try:
        _, told = running[1].communicate(timeout=120)  # process 0 is the one that has stopped
        assert running[1].returncode == 1
        assert "process 1 lost contact with the others" in told
        assert "has not answered for 5 seconds (AUTOGP_TIMEOUT)" in told
        assert any((tmp_path / "run").glob("step-*"))
    finally:
        running[0].kill()
        running[0].communicate()


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_after_kills_at_random_moments_torchrun_ends_in_the_same_bits(tmp_path, kills: int) -> None:
    epochs = ["--epochs", max(10, kills)]
    finished(start(2, [RUN, tmp_path / "undisturbed", tmp_path / "expected.npy", *epochs]))
    program = [RUN, tmp_path / "run", tmp_path / "result.npy", *epochs, "--kills", kills]
    options = ["--nproc-per-node", 2, "--max-restarts", 2 * kills, "--monitor-interval", 0.1]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *program]
    found = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=7000)
    assert found.returncode == 0, found.stderr
    assert len((tmp_path / "kills").read_bytes()) == kills
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), np.load(tmp_path / "expected.npy"))
