"""A training that is killed, however often and whenever, and resumed each time, ends in the bits of an unbroken one."""

import multiprocessing
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from broken_runs import run, run_into_signals

from autogp.storage import read_tensors

# Children are forked from a process that has imported the package: they start in milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["autogp.training"])


def finish(folder: Path | None, result: Path) -> bytes:
    """What the training leaves behind when it is let alone."""
    child = CONTEXT.Process(target=run, args=(folder, result))
    child.start()
    child.join()
    assert child.exitcode == 0
    return result.read_bytes()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> bytes:
    """The result of a run that never saved anything."""
    return finish(None, tmp_path_factory.mktemp("unbroken") / "model")


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"))


def steps_made(folder: Path) -> int:
    return max((int(path.stem.removeprefix("step-")) for path in checkpoints(folder)), default=0)


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob("step-*.tmp"))


def is_going_on(folder: Path) -> bool:
    """Whether the last state saved is that of a run that is not over."""
    _, description = read_tensors(checkpoints(folder)[-1], kind="checkpoint")
    return description["state"]["history"]["stopped"] == ""


@dataclass
class Tally:
    kills: int = 0  # of trainings that had made a step and were going on
    in_a_save: int = 0
    trainings: int = 0  # that came to their end in spite of it


def kill_until_done(folder: Path, result: Path, tally: Tally, kills: int, chance: random.Random) -> None:
    """Starts the training again and again, and kills it each time, until it is over or all kills are spent."""
    while not result.exists():
        before = steps_made(folder)
        child = CONTEXT.Process(target=run, args=(folder, result))
        child.start()
        if tally.kills < kills:
            steps = chance.choice([0, 1, 1, 2, 3, 5, 8, 13])  # 0: perhaps while it loads
            while child.is_alive() and steps_made(folder) < before + steps:
                time.sleep(0.0005)
            moment = time.monotonic() + chance.uniform(0.0, 0.03)  # anywhere in a step and its save
            aimed = chance.random() < 0.3  # at the middle of a save
            while child.is_alive() and (time.monotonic() < moment or (aimed and not leftovers(folder))):
                time.sleep(0 if aimed else 0.0005)
            child.kill()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        if child.exitcode and steps_made(folder) > before and is_going_on(folder):
            tally.kills += 1
            tally.in_a_save += bool(leftovers(folder))


def kill_often(tmp_path: Path, kills: int, unbroken: bytes) -> Tally:
    chance, tally = random.Random(0), Tally()
    while tally.kills < kills:
        tally.trainings += 1
        result = tmp_path / f"model-{tally.trainings}"
        kill_until_done(tmp_path / f"run-{tally.trainings}", result, tally, kills, chance)
        assert result.read_bytes() == unbroken
    return tally


def test_training_killed_fifty_times_ends_in_the_bits_of_an_unbroken_run(tmp_path, unbroken):
    tally = kill_often(tmp_path, 50, unbroken)
    assert tally.kills >= 50
    assert tally.in_a_save >= 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_training_killed_a_thousand_times_ends_in_the_bits_of_an_unbroken_run(tmp_path, unbroken):
    tally = kill_often(tmp_path, 1000, unbroken)
    assert tally.kills >= 1000
    assert tally.in_a_save >= 60


@pytest.mark.parametrize("step", [0, 20, 80])  # at the start, with q free, with q(u) held
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_the_step_end_saves_and_the_run_resumes_in_the_same_bits(
    tmp_path, unbroken, step, number, exit_code
):
    child = CONTEXT.Process(target=run_into_signals, args=(tmp_path / "run", tmp_path / "report", step, [number], 1e3))
    child.start()
    child.join()
    assert child.exitcode == exit_code
    name = signal.Signals(number).name
    assert (tmp_path / "report").read_text() == (
        f"{step + 1}: stopped by {name} after step {step + 1} of 112; saved in {tmp_path}/run, resume from there"
    )
    assert [path.name for path in checkpoints(tmp_path / "run")] == [f"step-{step + 1:09d}.safetensors"]
    assert finish(tmp_path / "run", tmp_path / "model") == unbroken


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 1)])
def test_a_second_signal_is_obeyed_at_once_and_the_run_resumes_from_the_step_before(
    tmp_path, unbroken, number, exit_code
):
    arguments = (tmp_path / "run", tmp_path / "report", 20, [number, number], 1e-9)
    child = CONTEXT.Process(target=run_into_signals, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == exit_code
    assert not (tmp_path / "report").exists()
    assert checkpoints(tmp_path / "run")[-1].name == "step-000000020.safetensors"
    assert finish(tmp_path / "run", tmp_path / "model") == unbroken
