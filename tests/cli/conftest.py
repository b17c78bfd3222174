"""Running commands, and one model that many tests look at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from passengers import write_passengers
from typer.testing import CliRunner, Result

from autogp.cli import app


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command, and insists on its exit code."""
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture
def run_json(run: Callable[..., Result]) -> Callable[..., dict[str, Any]]:
    """Runs a command with --json; standard output must be the one object, and nothing else."""

    def invoke(*arguments: object, code: int = 0) -> dict[str, Any]:
        return json.loads(run(*arguments, "--json", code=code).stdout)

    return invoke


@pytest.fixture
def error(run: Callable[..., Result]) -> Callable[..., str]:
    """Runs a command that fails, and returns the one line that says why."""

    def invoke(*arguments: object) -> str:
        result = run(*arguments, code=1)
        (line,) = result.stderr.splitlines()
        return line.removeprefix("error: ")

    return invoke


@pytest.fixture(scope="session")
def passengers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.csv, test.csv, new.csv (without targets) and the model survived.autogp."""
    folder = tmp_path_factory.mktemp("passengers")
    write_passengers(folder / "train.csv", 300, seed=0)
    write_passengers(folder / "test.csv", 300, seed=1)
    write_passengers(folder / "new.csv", 50, seed=2, target=False)
    command = [
        "fit",
        folder / "train.csv",
        "--target",
        "survived",
        "--ignore",
        "id",
        "--out",
        folder / "survived.autogp",
    ]
    result = CliRunner().invoke(app, [*map(str, command), "--inducing", "20", "--epochs", "40"])
    assert result.exit_code == 0, result.output
    return folder
