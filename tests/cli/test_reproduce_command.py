"""`autogp reproduce`: an experiment from the command line to its files."""

import json
import re
import signal
import textwrap
from pathlib import Path

from interruption import Interruption
from typer.testing import CliRunner

from autogp.cli import app
from autogp.cli.app import Experiment
from autogp.experiments import EXPERIMENTS


def test_every_experiment_has_a_name_on_the_command_line():
    assert [name.value for name in Experiment] == list(EXPERIMENTS)


def test_one_run_of_digits_leaves_its_scores_and_a_table(tmp_path):
    out = tmp_path / "results"
    arguments = ["reproduce", "digits", "--only", "*-elbo-50-seed0", "--time", "1s", "--out", str(out), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    (path,) = json.loads(result.stdout)["files"]
    assert json.loads(Path(path).read_text())["scores"]["error"] < 0.3
    assert "digits" in (out / "README.md").read_text()


def test_data_that_is_not_at_hand_is_asked_for_in_one_line(tmp_path):
    result = CliRunner().invoke(
        app, ["reproduce", "mnist", "--data", str(tmp_path), "--out", str(tmp_path / "results")]
    )
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert str(tmp_path) in result.stderr
    assert "--download" in result.stderr
    assert result.output.count("is not at hand") == 1


def test_a_run_that_a_signal_stops_says_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr("autogp.training.progress.progress_display", lambda verbose: Interruption(signal.SIGTERM))
    result = CliRunner().invoke(app, ["reproduce", "digits", "--only", "*-elbo-50-seed0", "--out", str(tmp_path)])
    assert result.exit_code == 143
    assert re.fullmatch(r"stopped by SIGTERM .* go on with the same command and --resume\n", result.stderr)


def test_a_dry_run_is_asked_of_the_experiment(monkeypatch):
    asked = []
    monkeypatch.setattr("autogp.experiments.reproduce", lambda name, **options: asked.append(options) or [])
    for options in ([], ["--dry-run"]):
        assert CliRunner().invoke(app, ["reproduce", "digits", *options]).exit_code == 0
    assert [options["dry_run"] for options in asked] == [False, True]
    assert (
        "it prints Python, not JSON" in CliRunner().invoke(app, ["reproduce", "digits", "--dry-run", "--json"]).stderr
    )


def test_a_dry_run_prints_what_the_documentation_shows():
    result = CliRunner().invoke(app, ["reproduce", "digits", "--only", "*-loo-50-seed0", "--dry-run"])
    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    assert textwrap.indent(result.stdout, "    ") in page.read_text()


def test_presets_are_the_experiment_s():
    result = CliRunner().invoke(app, ["reproduce", "mnist", "--preset", "theirs"])
    assert result.exit_code == 1
    assert result.stderr == f"error: mnist has no preset 'theirs'; it has {', '.join(EXPERIMENTS['mnist'].presets)}\n"
