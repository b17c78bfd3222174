"""What every part is given, and the file that the results are kept in."""

import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from autogp.experiments.record import environment, plain, read_json, write_json
from benchmarks.contenders import Contender, at_hand

MODES = ("tiny", "quick", "full")  # tiny is for tests


@dataclass(frozen=True)
class Run:
    """How much to run, on how many threads, and a folder for arrays."""

    mode: str
    threads: int
    folder: Path
    libraries: tuple[str, ...]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)  # of those that have worked

    def of(self, sizes: dict[str, Any]) -> Any:
        """What a part has for this mode."""
        return sizes[self.mode]

    def takes_part(self, library: str) -> bool:
        return library in self.libraries and at_hand(library)

    def contender(self, library: str) -> Contender:
        worker = Contender(library, self.threads)
        self.versions[library] = worker.hello["versions"]
        return worker

    def say(self, text: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {text}", flush=True)


class Results:
    """benchmarks.json: for each mode the machine, the versions, the parts that are finished and their dates."""

    def __init__(self, path: Path):
        self.path = path
        self.content: dict[str, Any] = read_json(path) or {}

    def begin(self, run: Run, parts: list[str], all_parts: list[str]) -> list[str]:
        """The parts to run now. A run that was broken off on this machine goes on; a finished one starts anew, unless
        only some parts were asked for."""
        before, now = self.content.get(run.mode, {}), self._description(run)
        same = all(before.get(key) == now[key] for key in ("machine", "threads"))
        finished = set(before.get("parts", {})) if same else set()
        if parts == all_parts and finished >= set(all_parts):
            finished = set()
        kept = finished if parts == all_parts else finished - set(parts)
        found = {name: before["parts"][name] for name in all_parts if name in kept}
        dates = {name: date for name, date in before.get("dates", {}).items() if name in found}
        versions = before.get("versions", {}) if same else {}
        self.content[run.mode] = {**now, "versions": versions, "dates": dates, "parts": found}
        return [name for name in parts if name not in kept]

    def finish(self, mode: str, name: str, content: dict[str, Any], versions: dict[str, dict[str, str]]) -> None:
        """Adds a part, and writes the file in one go."""
        own = self.content[mode]
        own["parts"][name] = plain(content)
        own.setdefault("dates", {})[name] = datetime.now(UTC).isoformat(timespec="seconds")
        own["versions"].update(versions)
        write_json(self.path, self.content)

    @staticmethod
    def _description(run: Run) -> dict[str, Any]:
        machine = environment(torch.device("cpu"))["machine"]
        machine = {key: machine[key] for key in ("system", "processor", "cores")}
        machine["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
        machine["python"] = platform.python_version()
        return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "threads": run.threads, "machine": machine}
