"""A run is resumed from its newest whole checkpoint, or refused with what to do."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import autogp.storage
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


def run_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(autogp.storage.__file__).parents[1])}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


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


def test_folder_is_locked_between_processes_and_free_after_a_kill(tmp_path):
    script = """
import sys
from autogp.training.checkpoint import Checkpoints
with Checkpoints(sys.argv[1], {}, {}):
    print("locked", flush=True)
    sys.stdin.read()
"""
    with run_python(script, tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(CheckpointError, match=f"in use by process {holder.pid}:"):
            open_run(tmp_path).__enter__()
        holder.kill()
        assert holder.wait() == -signal.SIGKILL
    with open_run(tmp_path) as checkpoints:
        save(checkpoints, 1)


# One process imports torch, then forks the runs that it kills: twenty imports would take most of a minute.
KILLS = """
import json, os, random, signal, sys, time
import torch
from autogp.training.checkpoint import Checkpoints

def run(folder, pipe):
    with Checkpoints(folder, {}, {}) as checkpoints:
        newest = checkpoints.load_newest()
        step = newest.step if newest else 0
        os.write(pipe, b"%d " % step)
        while True:
            step += 1
            checkpoints.save(step, {"a": torch.full((300_000,), float(step)), "b": torch.tensor(step)}, {"step": step})
            os.write(pipe, b"%d " % step)

torch.set_num_threads(1)  # a pool of threads would not survive the fork
generator = random.Random(0)
for _ in range(20):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        run(sys.argv[1], writer)
    os.close(writer)
    started = os.read(reader, 100)
    time.sleep(generator.uniform(0.0, 0.2))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        completed = int((started.decode() + pipe.read()).split()[-1])
    temporaries = [name for name in os.listdir(sys.argv[1]) if name.endswith(".tmp")]
    with Checkpoints(sys.argv[1], {}, {}) as checkpoints:
        newest = checkpoints.load_newest()
        files = sorted(os.listdir(sys.argv[1]))
    found = newest.step if newest else 0
    whole = newest is None or (
        bool((newest.tensors["a"] == found).all()) and newest.tensors["b"].item() == found == newest.state["step"]
    )
    report = {"completed": completed, "found": found, "whole": whole, "files": files, "killed in": temporaries}
    print(json.dumps(report), flush=True)
"""


def test_a_run_killed_at_any_moment_resumes_from_a_whole_checkpoint(tmp_path):
    with run_python(KILLS, tmp_path) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    reports = [json.loads(line) for line in output.splitlines()]
    assert len(reports) == 20
    found, files = 0, 0
    for report in reports:
        assert report["found"] - report["completed"] in (0, 1)  # the one in progress may have been whole already
        assert report["whole"]
        # The lock, three checkpoints, and one not yet removed; as long as no save is completed, one more each time.
        assert len(report["files"]) <= (5 if report["completed"] > found else max(files + 1, 5))
        found, files = report["found"], len(report["files"])
        assert not any(name.endswith(".tmp") for name in report["files"])
    assert reports[-1]["found"] > 0
    assert any(report["killed in"] for report in reports)  # else no kill came in the middle of a save


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
