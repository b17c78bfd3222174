"""Several processes and one answer."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent
CASES = ["elbo", "float32", "tiny batches", "loo", "predictive", "plan", "paper", "mixture", "weights",
         "early stopping", "callback", "regression", "chance", "classifier", "all rows", "regressor"]  # fmt: skip


class Server:
    """Starts processes that know of each other, as a cluster without torchrun would; see distributed_server.py."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, 0
        command = [sys.executable, str(FOLDER / "distributed_server.py")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **wanted: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, count: int, program: list, **environment: str) -> list["Started"]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)} | environment
        found = []
        for rank in range(count):
            self.started += 1
            output = self.folder / str(self.started)
            own = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            number = self.ask(start=[*map(str, program)], environment=own, output=str(output))
            found.append(Started(self, number, output))
        return found


class Started:
    def __init__(self, server: Server, number: int, output: Path) -> None:
        self.server, self.number, self.output = server, number, output

    def finished(self) -> tuple[int, str, str]:
        """Exit code and output."""
        code = self.server.ask(wait=self.number)
        return code, *(self.output.with_suffix(end).read_text() for end in (".out", ".err"))  # pyright: ignore


def finished(processes: list[Started]) -> list[tuple[int, str, str]]:
    return [process.finished() for process in processes]


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Iterator[Callable[..., list[Started]]]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server.start
    server.process.communicate()


@pytest.fixture(scope="module")
def results(tmp_path_factory, start) -> Callable[[int], dict[str, np.ndarray]]:
    """What so many processes end with."""
    folder = tmp_path_factory.mktemp("results")

    @cache
    def run(count: int) -> dict[str, np.ndarray]:
        for code, out, err in finished(start(count, ["cases", folder / f"{count}.npz"])):
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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, start) -> np.ndarray:
    """What two processes find."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert [code for code, *_ in finished(start(2, ["run", folder / "run", folder / "result.npy"]))] == [0, 0]
    return np.load(folder / "result.npy")


def test_a_signal_to_one_process_stops_all_after_a_save_and_they_go_on_to_the_same_bits(
    tmp_path, start, undisturbed
) -> None:
    program = ["run", tmp_path / "run", tmp_path / "result.npy"]
    (first, _, told), (second, _, silent) = finished(start(2, [*program, "--signal-at", 20]))
    assert (first, second) == (143, 143)
    assert "stopped by SIGTERM after step 21 of 66; saved in" in told  # process 1 hears of it in the next step
    assert silent == ""
    assert [code for code, *_ in finished(start(2, program))] == [0, 0]
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), undisturbed)


def test_another_number_of_processes_goes_on_and_says_so(tmp_path, start, undisturbed) -> None:
    program = ["run", tmp_path / "run", tmp_path / "result.npy"]
    finished(start(2, [*program, "--signal-at", 15]))
    (code, _, told), *others = finished(start(3, program))
    assert code == 0
    assert "going on with 3 processes, after 2" in told
    assert [(code, err) for code, _, err in others] == [(0, ""), (0, "")]
    np.testing.assert_allclose(np.load(tmp_path / "result.npy"), undisturbed, rtol=1e-9, atol=1e-9)


def test_a_process_that_hangs_ends_the_others_within_the_time_out(tmp_path, start) -> None:
    began = time.monotonic()
    program = ["run", tmp_path / "run", tmp_path / "result.npy", "--stop-at", 10]
    hung, other = start(2, program, AUTOGP_TIMEOUT="5")
    try:
        code, _, told = other.finished()  # process 0 is the one that has stopped
        assert code == 1
        assert "process 1 lost contact with the others" in told
        assert "has not answered for 5 seconds (AUTOGP_TIMEOUT)" in told
        assert time.monotonic() - began < 90
        assert any((tmp_path / "run").glob("step-*"))
    finally:
        os.kill(hung.number, signal.SIGKILL)
        hung.finished()


def test_after_a_kill_the_others_end_with_a_message_and_all_go_on_to_the_same_bits(
    tmp_path, start, undisturbed
) -> None:
    program = ["run", tmp_path / "run", tmp_path / "result.npy", "--kills", 1]
    (killed, *_), (code, _, told) = finished(start(2, program))
    assert (killed, code) == (-signal.SIGKILL, 1)
    assert "process 1 lost contact with the others" in told
    assert [code for code, *_ in finished(start(2, program))] == [0, 0]
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [2, 100])
def test_after_kills_at_random_moments_torchrun_ends_in_the_same_bits(tmp_path, start, kills: int) -> None:
    epochs = ["--epochs", max(10, kills)]
    finished(start(2, ["run", tmp_path / "undisturbed", tmp_path / "expected.npy", *epochs]))
    program = [FOLDER / "distributed_run.py", tmp_path / "run", tmp_path / "result.npy", *epochs, "--kills", kills]
    options = ["--nproc-per-node", 2, "--max-restarts", 2 * kills, "--monitor-interval", 0.1]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *program]
    found = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=7000)
    assert found.returncode == 0, found.stderr
    assert len((tmp_path / "kills").read_bytes()) == kills
    np.testing.assert_array_equal(np.load(tmp_path / "result.npy"), np.load(tmp_path / "expected.npy"))
