"""The command line as a program: quick to start, and it never shows a traceback unless asked."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from passengers import QUICK, write_passengers
from typer.testing import CliRunner, Result

import autogp
from autogp import load_model
from autogp.cli import app
from autogp.cli.durations import parse_duration

Run = Callable[..., Result]
PROGRAM = [sys.executable, "-m", "autogp"]
# The package's folder first, so that the same tree is tested whether or not it is installed.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(autogp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def test_help_answers_before_torch_could_be_imported() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([*PROGRAM, "--help"], check=True, capture_output=True, env=ENVIRONMENT)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 0.9
    code = "import sys; import autogp.cli; assert not {'torch', 'pyarrow', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = {"torch", "sklearn", "scipy", "numpy", "pandas", "pyarrow", "matplotlib", "rich", "typer"}
    code = f"import sys; import autogp; assert not {heavy!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


def test_nothing_waits_for_a_compiler_pictures_or_metrics_that_it_does_not_need() -> None:
    """torch loads a compiler for its own optimisers, and symbolic algebra where gradients are handed to `backward`."""
    code = """
import sys
from autogp import GPClassifier, GPRegressor
heavy = {"torch._dynamo", "sympy", "matplotlib", "jinja2", "typer", "sklearn.cluster", "sklearn.metrics"}
print(heavy & {*sys.modules})
import autogp.cli.fitting, autogp.cli.evaluating
print("matplotlib" in sys.modules)
GPClassifier(max_epochs=2).fit([[row] for row in range(20)], [row // 10 for row in range(20)])
print({"torch._dynamo", "sympy"} & {*sys.modules})
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.stdout.split() == ["set()", "False", "set()"]


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "report", "info"])
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    shown = run(command, "--help").stdout
    assert f"Example: autogp {command} titanic" in shown
    assert "--json" in shown


def test_exit_codes_version_and_completion_are_told(run: Run) -> None:
    assert "Exit codes: 0 done" in run("--help").stdout
    assert "--install-completion" in run("--help").stdout
    assert run("--version").stdout == f"autogp {autogp.__version__}\n"
    run("fly", code=2)


def test_from_table_to_predictions_in_two_commands(tmp_path: Path) -> None:
    write_passengers(tmp_path / "titanic.csv", 200)
    write_passengers(tmp_path / "new.csv", 20, seed=1, target=False)
    for command in (
        ["fit", "titanic.csv", "--target", "survived", "--epochs", "20", "--inducing", "10"],
        ["predict", "model.autogp", "new.csv", "--out", "predictions.csv"],
    ):
        done = subprocess.run([*PROGRAM, *command], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    assert (tmp_path / "predictions.csv").read_text().count("\n") == 21


def test_unexpected_errors_are_one_line_unless_debugging(monkeypatch: pytest.MonkeyPatch, passengers: Path) -> None:
    def broken(path: Path, code: Path | None) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("autogp.cli.models.open_model", broken)
    command = ["info", str(passengers / "survived.autogp")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert result.stderr == "error: unexpected ZeroDivisionError: by nothing (--debug shows where)\n"
    assert "Traceback" in CliRunner().invoke(app, [*command, "--debug"]).stderr
    result = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(result.stdout)["error"].startswith("unexpected ZeroDivisionError")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device", "/data/m.autogp"), "No space left on device: /data/m.autogp"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError(), "there is not enough memory"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_the_machine_s_own_troubles_are_told_in_words(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, message: str
) -> None:
    def broken(path: Path, code: Path | None) -> None:
        raise error

    monkeypatch.setattr("autogp.cli.models.open_model", broken)
    result = CliRunner().invoke(app, ["info", "m.autogp"])
    assert result.exit_code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert result.stderr.removeprefix("error: ").startswith(message)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("1h2m3s", 3723)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("options", "unbuffered"), [([], ""), (["--json"], ""), ([], "1")])
def test_a_full_standard_output_is_one_line(passengers: Path, options: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, "info", passengers / "survived.autogp", *options],
            env=ENVIRONMENT | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def run_in_shell(redirection: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The program with its streams redirected as a shell does it."""
    command = ["sh", "-c", f'"$@" {redirection}', "sh", *PROGRAM, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


def test_closed_streams_take_nothing_from_the_work(passengers: Path, tmp_path: Path) -> None:
    model, out = passengers / "survived.autogp", tmp_path / "predictions.csv"
    for command in (
        ["fit", passengers / "train.csv", "-t", "survived", "-o", tmp_path / "m.autogp", *QUICK],
        ["predict", model, passengers / "new.csv", "-o", out],
        ["info", model, "--json"],
    ):
        assert run_in_shell("<&- >&- 2>&-", *command).returncode == 0
    assert load_model(tmp_path / "m.autogp").n_rows_ == 300
    assert out.read_text().count("\n") == 51


def test_a_closed_standard_output_leaves_errors_as_they_are(tmp_path: Path) -> None:
    done = run_in_shell(">&-", "info", tmp_path / "none.autogp")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_goes_away_ends_the_program_quietly(passengers: Path, options: list[str]) -> None:
    with subprocess.Popen(
        [*PROGRAM, "info", passengers / "survived.autogp", *options],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 1)
