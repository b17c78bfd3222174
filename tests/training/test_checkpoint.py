"""A run is resumed from its newest whole checkpoint, or refused with what to do."""

import errno
import logging
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from autogp.storage import write_tensors
from autogp.training import checkpoint as module
from autogp.training.checkpoint import CheckpointError, Checkpoints

SETTINGS = {"seed": 0, "kernel": {"name": "rbf", "lengthscale": 1.0}, "sizes": (3, 4)}
DATA = {"length": 100, "features": 5, "dtype": "float32", "checksum": "ab12"}


def open_run(folder: Path, **changes: Any) -> Checkpoints:
    arguments: dict[str, Any] = {"settings": SETTINGS, "data": DATA} | changes
    return Checkpoints(folder, **arguments)


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, {"mean": torch.full((3,), float(step))}, {"rate": step / 10})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def fail_with(number: int) -> Any:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_run_resumes_where_it_was(tmp_path):
    with open_run(tmp_path / "a" / "run") as checkpoints:
        assert checkpoints.load_newest() is None
        save(checkpoints, 0, 7)
    with open_run(tmp_path / "a" / "run") as checkpoints:
        newest = checkpoints.load_newest()
    assert newest is not None
    assert newest.step == 7
    assert newest.state == {"rate": 0.7}
    assert newest.tensors["mean"].tolist() == [7.0, 7.0, 7.0]


def test_only_the_newest_stay(tmp_path):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1, 2, 3, 10, 2_000_000_000)
    assert names(tmp_path) == [
        "lock",
        "step-000000003.safetensors",
        "step-000000010.safetensors",
        "step-2000000000.safetensors",
    ]


def test_older_ones_go_only_after_the_new_one_is_durable(tmp_path, monkeypatch):
    def write(path, *arguments):
        assert len(names(tmp_path)) == 4  # the lock and three checkpoints
        write_tensors(path, *arguments)

    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1, 2, 3)
        monkeypatch.setattr(module, "write_tensors", write)
        save(checkpoints, 4, 5)


def test_a_step_can_be_saved_again(tmp_path):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 5)
        checkpoints.save(5, {}, {"final": True})
        newest = checkpoints.load_newest()
    assert newest is not None
    assert newest.state == {"final": True}


def test_damaged_newest_is_passed_over_with_a_warning(tmp_path, caplog):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1, 2, 3)
        damage(tmp_path / "step-000000003.safetensors")
        (tmp_path / "step-000000002.safetensors").write_bytes(b"")
        with caplog.at_level(logging.WARNING, logger="autogp"):
            newest = checkpoints.load_newest()
    assert newest is not None
    assert newest.step == 1
    assert [record.name for record in caplog.records] == ["autogp", "autogp"]
    assert "step-000000003.safetensors is damaged" in caplog.text


def test_damaged_one_gives_way_to_the_run_that_passed_it_over(tmp_path):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 2)
        save_as_step_9 = (tmp_path / "step-000000002.safetensors").read_bytes()
        (tmp_path / "step-000000009.safetensors").write_bytes(save_as_step_9)  # its content says 2
        newest = checkpoints.load_newest()
        assert newest is not None
        assert newest.step == 2
        save(checkpoints, 3)
    assert names(tmp_path) == ["lock", "step-000000002.safetensors", "step-000000003.safetensors"]


def test_all_damaged_is_an_error_every_time(tmp_path):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1, 2)
        for path in tmp_path.glob("step-*"):
            damage(path)
    for _ in range(2):
        with (
            open_run(tmp_path) as checkpoints,
            pytest.raises(CheckpointError, match=r"all 2 checkpoints .* are damaged"),
        ):
            checkpoints.load_newest()


def test_other_settings_are_named_with_both_values(tmp_path):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1)
    other = {"seed": 1, "kernel": {"name": "rbf", "lengthscale": 2.0}, "objective": "loo"}
    with open_run(tmp_path, settings=other) as checkpoints, pytest.raises(CheckpointError) as refusal:
        checkpoints.load_newest()
    assert (
        "other settings: kernel.lengthscale was 1.0, is now 2.0, objective was not set, is now 'loo', "
        "seed was 0, is now 1, sizes was [3, 4], is not set now"
    ) in str(refusal.value)
    assert "data:" not in str(refusal.value)
    assert "kernel.name" not in str(refusal.value)


@pytest.mark.parametrize("changes", [{"length": 101}, {"features": 6}, {"dtype": "float64"}, {"checksum": "cd34"}])
def test_other_data_are_named(tmp_path, changes):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1)
    with open_run(tmp_path, data=DATA | changes) as checkpoints, pytest.raises(CheckpointError) as refusal:
        checkpoints.load_newest()
    [(name, value)] = changes.items()
    assert f"other data: {name} was {DATA[name]!r}, is now {value!r}. Resume" in str(refusal.value)


def test_other_data_and_settings_are_named_together(tmp_path):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1)
    with (
        open_run(tmp_path, data={}, settings={}) as checkpoints,
        pytest.raises(CheckpointError, match=r"other data: checksum .*; with other settings: kernel"),
    ):
        checkpoints.load_newest()


def test_newer_format_and_other_kinds_are_refused_rather_than_passed_over(tmp_path):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1)
        newest = tmp_path / "step-000000002.safetensors"
        content = (tmp_path / "step-000000001.safetensors").read_bytes()
        newest.write_bytes(content.replace(rb"\"format\":2", rb"\"format\":3"))
        with pytest.raises(CheckpointError, match="newer autogp"):
            checkpoints.load_newest()
        write_tensors(newest, {}, {"kind": "model"})
        with pytest.raises(CheckpointError, match="holds a 'model'"):
            checkpoints.load_newest()
        newest.unlink()
        newest.mkdir()
        with pytest.raises(CheckpointError, match="not a regular file"):
            checkpoints.load_newest()


def test_existing_run_is_not_started_over(tmp_path):
    with open_run(tmp_path) as checkpoints:
        checkpoints.refuse_existing()
        save(checkpoints, 3, 12)
        with pytest.raises(
            CheckpointError, match="already holds a run at step 12: resume it, or choose another folder"
        ):
            checkpoints.refuse_existing()
        with pytest.raises(CheckpointError, match="already holds a run at step 12"):
            save(checkpoints, 1)
    assert names(tmp_path) == ["lock", "step-000000003.safetensors", "step-000000012.safetensors"]


def test_folder_is_locked_within_one_process(tmp_path):
    with open_run(tmp_path) as checkpoints:
        for other in [open_run(tmp_path), checkpoints]:
            with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}:"):
                other.__enter__()
        save(checkpoints, 1)
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 2)


def forked(function: Callable[[], object]) -> int:
    """The number of a process in which the function runs until it is killed. PyTorch need not be imported again."""
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks of programs with threads; the child starts none
        child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(1)
    return child


def test_folder_is_locked_between_processes_and_free_after_a_kill(tmp_path):
    reader, writer = os.pipe()

    def hold() -> None:
        with open_run(tmp_path):
            os.write(writer, b"locked")
            time.sleep(600)

    holder = forked(hold)
    assert os.read(reader, 100) == b"locked"
    with pytest.raises(CheckpointError, match=f"in use by process {holder}:"):
        open_run(tmp_path).__enter__()
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    os.close(reader)
    os.close(writer)
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1)


def save_for_ever(folder: Path, pipe: int) -> None:
    with open_run(folder) as checkpoints:
        newest = checkpoints.load_newest()
        step = newest.step if newest else 0
        os.write(pipe, b"%d " % step)
        while True:
            step += 1
            checkpoints.save(step, {"a": torch.full((300_000,), float(step)), "b": torch.tensor(step)}, {"step": step})
            os.write(pipe, b"%d " % step)


def test_a_run_killed_at_any_moment_resumes_from_a_whole_checkpoint(tmp_path):
    chance = random.Random(0)
    found, files, killed_in_a_save = 0, 0, False
    for _ in range(20):
        reader, writer = os.pipe()
        child = forked(partial(save_for_ever, tmp_path, writer))
        os.close(writer)
        started = os.read(reader, 100)
        time.sleep(chance.uniform(0.0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader) as pipe:
            completed = int((started.decode() + pipe.read()).split()[-1])
        killed_in_a_save |= any(name.endswith(".tmp") for name in names(tmp_path))
        with open_run(tmp_path) as checkpoints:
            newest = checkpoints.load_newest()
            left = names(tmp_path)
        step = newest.step if newest else 0
        assert step - completed in (0, 1)  # the one in progress may have been whole already
        if newest is not None:
            assert (newest.tensors["a"] == step).all()
            assert newest.tensors["b"].item() == step == newest.state["step"]
        # The lock, three checkpoints, and one not yet removed; as long as no save is completed, one more each time.
        assert len(left) <= (5 if completed > found else max(files + 1, 5))
        assert not any(name.endswith(".tmp") for name in left)
        found, files = step, len(left)
    assert found > 0
    assert killed_in_a_save  # else no kill came in the middle of a save


def test_leftovers_of_a_killed_run_are_removed_and_nothing_else(tmp_path):
    for name in ["step-000000004.safetensors.0a1b2c3d.tmp", "probe.tmp", "notes.tmp", "step-1.txt"]:
        (tmp_path / name).touch()
    with open_run(tmp_path):
        assert names(tmp_path) == ["lock", "notes.tmp", "step-1.txt"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "cannot save step 4: disk full; last good checkpoint is step 3 in .*; free space and resume"),
        (errno.EDQUOT, "disk full; last good checkpoint is step 3"),
        (errno.EIO, "Input/output error; last good checkpoint is step 3 in .*; mend that and resume"),
    ],
)
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_failed_save_names_the_last_good_checkpoint_and_keeps_all(tmp_path, monkeypatch, function, number, text):
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1, 2, 3)
        before = names(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, function, fail_with(number))
            with pytest.raises(CheckpointError, match=text):
                save(checkpoints, 4)
        assert names(tmp_path) == before
        newest = checkpoints.load_newest()
        assert newest is not None
        assert newest.step == 3
        save(checkpoints, 4)  # room again


def test_failed_first_save_says_that_there_is_none(tmp_path, monkeypatch):
    with open_run(tmp_path) as checkpoints:
        monkeypatch.setattr(os, "fsync", fail_with(errno.ENOSPC))
        with pytest.raises(CheckpointError, match="there is no good checkpoint in"):
            save(checkpoints, 1)


def test_folder_removed_during_the_run_is_reported(tmp_path):
    with open_run(tmp_path / "run") as checkpoints:
        (tmp_path / "run" / "lock").unlink()
        (tmp_path / "run").rmdir()
        with pytest.raises(CheckpointError, match="No such file or directory"):
            save(checkpoints, 1)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 256 kB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_really_full_disk_keeps_the_last_good_checkpoint(small_disk):
    tensors = {"a": torch.ones(20_000)}  # 80 kB: three fit beside the lock, not four
    with open_run(small_disk, reserve_bytes=80_000) as checkpoints:
        for step in [1, 2, 3]:
            checkpoints.save(step, tensors, {})
        with pytest.raises(CheckpointError, match="disk full; last good checkpoint is step 3 in"):
            checkpoints.save(4, tensors, {})
        newest = checkpoints.load_newest()
        assert newest is not None
        assert newest.step == 3
    assert not list(small_disk.glob("*.tmp"))


def test_disk_without_room_is_noticed_before_the_run(small_disk):
    with pytest.raises(CheckpointError, match=r"room for 300000 bytes is needed\): disk full; free space or choose"):
        open_run(small_disk, reserve_bytes=300_000).__enter__()
    with open_run(small_disk, reserve_bytes=200_000):
        assert names(small_disk) == ["lock"]


def test_disk_without_room_is_noticed_where_files_cannot_be_preallocated(small_disk, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    with pytest.raises(CheckpointError, match="disk full"):
        open_run(small_disk, reserve_bytes=3_000_000).__enter__()
    with open_run(small_disk, reserve_bytes=200_000):
        assert names(small_disk) == ["lock"]


def test_failed_probe_gives_the_lock_up(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail_with(errno.ENOSPC), raising=False)
        with pytest.raises(CheckpointError, match="disk full"):
            open_run(tmp_path).__enter__()
    with open_run(tmp_path):
        assert names(tmp_path) == ["lock"]


def test_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for folder in [tmp_path / "file", tmp_path / "file" / "run"]:
        with pytest.raises(CheckpointError, match=r"cannot keep checkpoints in .*choose another folder"):
            open_run(folder).__enter__()


def test_system_without_file_locks_is_refused_clearly(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(CheckpointError, match="checkpoints need file locks"):
        open_run(tmp_path).__enter__()


def test_folder_is_used_under_its_lock_only(tmp_path):
    checkpoints = open_run(tmp_path)
    for use in [checkpoints.load_newest, checkpoints.refuse_existing, lambda: save(checkpoints, 1)]:
        with pytest.raises(CheckpointError, match="is not locked"):
            use()


def test_arguments_that_cannot_work_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="the settings cannot be kept as JSON"):
        open_run(tmp_path, settings={"budget": float("inf")})
    with pytest.raises(CheckpointError, match="the data cannot be kept as JSON"):
        open_run(tmp_path, data={"x": torch.zeros(1)})
    with pytest.raises(ValueError, match="at least 1"):
        open_run(tmp_path, reserve_bytes=0)
    with open_run(tmp_path) as checkpoints, pytest.raises(ValueError, match="at least 0"):
        save(checkpoints, -1)
