"""Files of results: plain JSON that is written whole or not at all, with what is needed to run it again."""

import json
import math
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autogp.storage import replacing

__all__ = ["environment", "plain", "read_json", "read_records", "write_json"]

KIND = "autogp experiment"


def write_json(path: Path, content: Any) -> None:
    """Writes the file in one go, a line for each key of a dictionary, so that two versions can be compared."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        lines = (f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
        text = "{\n" + ",\n".join(lines) + "\n}\n"
    else:
        text = json.dumps(content, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text)


def read_json(path: Path) -> Any:
    """What the file holds; nothing if there is none, or not one of JSON."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All records of runs in the experiments' folders, by name; other files are left alone."""
    found = [read_json(path) for path in sorted(folder.glob("*/*.json"))]
    return [content for content in found if isinstance(content, dict) and content.get("kind") == KIND]


def plain(value: Any) -> Any:
    """As JSON has it: lists for tuples, six digits for measurements, nothing for what is not finite."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def environment(device: torch.device) -> dict[str, Any]:
    """When, with what and on which machine."""
    packages = ("autogp", "torch", "numpy", "scipy", "scikit-learn")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        },
    }


def _processor() -> str:
    """Its name, which only Linux's own file knows on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
