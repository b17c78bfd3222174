"""What reaches the terminal: text that steers it is written out, and streams that lead nowhere do no harm."""

import io
import json
import logging
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow.csv
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from autogp.cli import app
from autogp.cli.terminal import Terminal, reporting

Run = Callable[..., Result]

STEERING = "\x1b[2J\x07\x7f\x9b1m\u202e\u2066\u200f"
WRITTEN_OUT = r"\x1b[2J\x07\x7f\x9b1m\u202e\u2066\u200f"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def assert_written_out(shown: str) -> None:
    assert not FORBIDDEN.search(shown), repr(shown)
    assert WRITTEN_OUT in shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data.csv and new.csv, whose names, columns, labels and categories steer the terminal."""
    folder = tmp_path_factory.mktemp("steering")
    rows = [f'{i % 7},"{"x" if i % 3 else STEERING}","{"no" if i % 2 else STEERING}"' for i in range(40)]
    header = f'"a{STEERING}","b{STEERING}","y{STEERING}"'
    (folder / f"data{STEERING}.csv").write_bytes("\n".join([header, *rows, ""]).encode())
    return folder


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    return folder / f"data{STEERING}.csv"


@pytest.fixture
def model(run: Run, folder: Path, data: Path) -> Path:
    path = folder / f"m{STEERING}.autogp"
    if not path.exists():
        run("fit", data, "-t", f"y{STEERING}", "-o", path, "--inducing", 5, "--epochs", 3)
    return path


def test_names_labels_and_values_are_written_out_by_every_command(
    run: Run, folder: Path, data: Path, model: Path
) -> None:
    again = ["fit", data, "-t", f"y{STEERING}", "-o", folder / f"again{STEERING}.autogp"]
    for command in (
        [*again, "--inducing", 5, "--epochs", 3],
        ["info", model],
        ["predict", model, data],
        ["predict", model, data, "-o", folder / f"p{STEERING}.csv"],
        ["evaluate", model, data],
        ["report", model, data, "-o", folder / f"r{STEERING}.html"],
    ):
        assert_written_out(run(*command).output)


def test_errors_and_notes_are_written_out(run: Run, folder: Path, data: Path, model: Path) -> None:
    (folder / "new.csv").write_bytes(f'"a{STEERING}","b{STEERING}"\n1,"never{STEERING}"\n'.encode())
    for code, command in (
        (0, ["predict", model, folder / "new.csv"]),
        (1, ["info", folder / f"none{STEERING}.autogp"]),
        (1, ["fit", data, "-t", STEERING, "-o", folder / "m.autogp"]),
        (1, ["evaluate", model, data, "-t", f"b{STEERING}"]),
    ):
        assert_written_out(run(*command, code=code).stderr)
    shown = CliRunner().invoke(app, ["info", str(folder / f"none{STEERING}.autogp"), "--debug"]).stderr
    assert "Traceback" in shown
    assert_written_out(shown)


def test_wrong_usage_quotes_what_was_given_written_out(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # so that no quotation is broken
    for command in (["fit", data], ["info", "m", STEERING], [f"--{STEERING}"], ["predict", "m", data, "-o", STEERING]):
        assert_written_out(run(*command, code=2).output)


def test_programs_and_files_get_the_data_as_it_is(run: Run, folder: Path, data: Path, model: Path) -> None:
    shown = run("info", model, "--json").stdout
    assert shown.isascii()
    assert shown.rstrip("\n").isprintable()
    assert json.loads(shown)["classes"] == sorted([STEERING, "no"])
    run("predict", model, data, "-o", folder / "p.csv")
    table = pyarrow.csv.read_csv(folder / "p.csv")
    assert f"p_{STEERING}" in table.column_names
    assert STEERING in table["class"].to_pylist()


@pytest.mark.filterwarnings("default")
def test_warnings_and_log_messages_are_notes(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(json=False, debug=False):
        warnings.warn("one\x1b\nline", stacklevel=1)
        logging.getLogger("autogp.anything").warning("%s", f"two{STEERING}")
    logging.getLogger("autogp.anything").warning("when the command is over")
    assert capsys.readouterr().err == f"note: one\\x1b line\nnote: two{WRITTEN_OUT}\n"


def test_colours_are_the_program_s_own() -> None:
    terminal = Terminal(json=False)
    terminal.err = Console(file=io.StringIO(), force_terminal=True, highlight=False)
    terminal.note(STEERING)
    assert terminal.err.file.getvalue() == f"\x1b[33mnote: \x1b[0m{WRITTEN_OUT}\n"  # pyright: ignore
