"""Checkpoints of a run in one folder: one writer at a time, never a partial file, never another run's state."""

__all__ = ["Checkpoint", "CheckpointError", "Checkpoints"]

import contextlib
import errno
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from autogp.storage import StorageError, read_tensors, write_tensors

_KIND = "checkpoint"
KEPT = 3  # of the newest checkpoints
_NAME = re.compile(r"step-(\d{9,})\.safetensors")
_logger = logging.getLogger("autogp")


class CheckpointError(RuntimeError):
    """A checkpoint folder that cannot be used, written or resumed from, with what to do about it."""


@dataclass(frozen=True)
class Checkpoint:
    """A run after `step` steps: its tensors, and the rest of its state as plain JSON."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, its folder locked while the `with` block lasts.

    Args:
        folder: made if missing.
        settings: plain JSON that decides the course of the run; a run resumes under equal settings only.
        data: plain JSON that identifies the data (length, features, dtype, checksum); likewise.
        reserve_bytes: room that the disk must have when the block is entered: about the size of a checkpoint.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder, Checkpoints(folder, {"seed": 0}, {"length": 10}) as checkpoints:
    ...     checkpoints.save(5, {"mean": torch.zeros(2)}, {"rate": 0.1})
    ...     checkpoints.load_newest()
    Checkpoint(step=5, tensors={'mean': tensor([0., 0.])}, state={'rate': 0.1})
    """

    def __init__(
        self,
        folder: str | Path,
        settings: dict[str, Any],
        data: dict[str, Any],
        reserve_bytes: int = 1 << 20,
    ):
        if reserve_bytes < 1:
            raise ValueError(f"reserve_bytes must be at least 1, not {reserve_bytes}")
        self.folder = Path(folder)
        self.settings = _plain("settings", settings)
        self.data = _plain("data", data)
        self.reserve_bytes = reserve_bytes
        self._lock: int | None = None
        self._damaged: set[int] = set()

    def __enter__(self) -> "Checkpoints":
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = _lock(self.folder)
            try:
                for leftover in [*self.folder.glob("step-*.safetensors.*.tmp"), *self.folder.glob("probe.tmp")]:
                    leftover.unlink()
                _probe(self.folder / "probe.tmp", self.reserve_bytes)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            reason, remedy = _explain(error)
            text = f"cannot keep checkpoints in {self.folder} (room for {self.reserve_bytes} bytes is needed)"
            raise CheckpointError(f"{text}: {reason}; {remedy} or choose another folder") from error
        self._lock = lock
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)  # gives the lock up; its file stays, for removing it would race with its next user
            self._lock = None

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Save the run after `step` steps; older checkpoints go only once this one is safely on the disk."""
        if step < 0:
            raise ValueError(f"a step is at least 0, not {step}")
        description = {"kind": _KIND, "step": step, "settings": self.settings, "data": self.data, "state": state}
        try:
            # A later step belongs to a run that was never resumed: this one must not mix with it.
            if step < max(self._good_steps(), default=step):
                self.refuse_existing()
            write_tensors(self._path(step), tensors, description)
            self._damaged.discard(step)
            for old in [*self._damaged, *self._good_steps()[KEPT:]]:
                self._path(old).unlink(missing_ok=True)
            self._damaged.clear()
        except OSError as error:
            reason, remedy = _explain(error)
            good = []
            with contextlib.suppress(OSError):
                good = self._good_steps()
            last = f"last good checkpoint is step {good[0]}" if good else "there is no good checkpoint"
            raise CheckpointError(
                f"cannot save step {step}: {reason}; {last} in {self.folder}; {remedy} and resume"
            ) from error

    def load_newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or None in a folder without any.

        Damaged ones are passed over with a warning. Those of other data, other settings or a newer autogp are refused,
        as is a folder where all are damaged: a run never starts again unasked.
        """
        steps = self._steps()
        for step in steps:
            try:
                checkpoint, description = self._load(step)
            except StorageError as error:
                if not error.damaged:
                    raise CheckpointError(f"cannot resume: {error}") from error
                _logger.warning("checkpoint passed over: %s", error)
                self._damaged.add(step)
                continue
            self._check_same_run(step, description)
            return checkpoint
        if steps:
            raise CheckpointError(
                f"all {len(steps)} checkpoints in {self.folder} are damaged: restore one from a copy, or choose another"
                " folder to start again"
            )
        return None

    def refuse_existing(self) -> None:
        """Raise if the folder holds a run already, for callers who were not asked to resume one."""
        if self._steps():
            newest = self._steps()[0]
            raise CheckpointError(
                f"{self.folder} already holds a run at step {newest}: resume it, or choose another folder"
            )

    def _load(self, step: int) -> tuple[Checkpoint, dict[str, Any]]:
        path = self._path(step)
        tensors, description = read_tensors(path, kind=_KIND)
        match description:
            case {"step": int(stated), "settings": {}, "data": {}, "state": {}} if stated == step:
                return Checkpoint(step, tensors, description["state"]), description
        raise StorageError(f"{path} is damaged: it does not describe step {step} of a run", damaged=True)

    def _check_same_run(self, step: int, description: dict[str, Any]) -> None:
        differences = [
            f"other {name}: {', '.join(_differences(description[name], ours))}"
            for name, ours in [("data", self.data), ("settings", self.settings)]
            if description[name] != ours
        ]
        if differences:
            raise CheckpointError(
                f"{self._path(step)} belongs to another run, with {'; with '.join(differences)}. Resume with the data"
                " and settings it was started with, or choose another folder"
            )

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.safetensors"

    def _steps(self) -> list[int]:
        """Steps that have a file, newest first."""
        if self._lock is None:
            raise CheckpointError(f"{self.folder} is not locked: use it within `with Checkpoints(...) as checkpoints`")
        names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def _good_steps(self) -> list[int]:
        """Steps that have a file not found damaged, newest first."""
        return [step for step in self._steps() if step not in self._damaged]


def _lock(folder: Path) -> int:
    """Lock the folder for this process; the system gives the lock up when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError as error:
        raise CheckpointError(
            "checkpoints need file locks (fcntl), which this system lacks: use Linux or macOS"
        ) from error
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
    except BlockingIOError as error:
        process = os.read(lock, 20).decode(errors="replace")
        os.close(lock)
        raise CheckpointError(
            f"{folder} is in use by process {process or 'unknown'}: wait until it ends, or choose another folder"
        ) from error
    except BaseException:
        os.close(lock)
        raise
    return lock


def _probe(path: Path, size: int) -> None:
    """Fail now rather than after hours if a file of this size cannot be written."""
    try:
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                for start in range(0, size, 1 << 20):
                    file.write(bytes(min(size - start, 1 << 20)))
    finally:
        path.unlink(missing_ok=True)


def _plain(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """The content as it comes back from a file, so that the two can be compared."""
    try:
        return json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the {name} cannot be kept as JSON: {error}") from error


def _explain(error: OSError) -> tuple[str, str]:
    """What went wrong, and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk full", "free space"
    return error.strerror or str(error), "mend that"


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Each entry that differs, by its dotted name."""
    for name in sorted(old.keys() | new.keys()):
        before, now = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{prefix}{name}.")
        elif before != now or (name in old) != (name in new):
            was = f"was {before!r}" if name in old else "was not set"
            yield f"{prefix}{name} {was}, is " + (f"now {now!r}" if name in new else "not set now")
