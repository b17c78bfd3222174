"""The command line under torchrun: one model, one output, and process 0 alone talks."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autogp import load_model
from autogp.training.distributed import processes


def run(*arguments: object, count: int = 2) -> str:
    """Standard output of a command in several processes."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", count] if count > 1 else []
    command = [sys.executable, *torchrun, "-m", "autogp", *arguments]
    found = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


def write_table(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    labels = np.where(x[:, 0] + 0.3 * rng.normal(size=rows) > 0, "yes", "no")
    lines = [f"{a:.4f},{b:.4f},{label}" for (a, b), label in zip(x, labels, strict=True)]
    path.write_text("\n".join(["a,b,answer", *lines]) + "\n")


@pytest.mark.slow
def test_two_processes_fit_predict_and_evaluate_as_one(tmp_path: Path) -> None:
    data = tmp_path / "rows.csv"
    write_table(data, 151)
    scores, tables, models = {}, {}, {}
    for count in (1, 2):
        out, table = tmp_path / f"{count}.autogp", tmp_path / f"{count}.csv"
        said = run("fit", data, "--target", "answer", "--inducing", 8, "--epochs", 3, "--out", out, count=count)
        assert said.count("saved in") == 1
        assert not (tmp_path / f"{count}.autogp.training").exists()
        models[count] = load_model(out).model_.state_dict()
        assert "151 predictions" in run("predict", out, data, "--out", table, count=count)
        tables[count] = table.read_text()
        scores[count] = run("evaluate", out, data, "--json", count=count)
    for name, tensor in models[1].items():
        np.testing.assert_allclose(models[2][name], tensor, rtol=1e-9, atol=1e-9)
    numbers = [np.genfromtxt(tables[count].splitlines(), delimiter=",", skip_header=1)[:, 1:] for count in (1, 2)]
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-7)
    assert scores[1].count("\n") == scores[2].count("\n") == 1


def test_a_wrong_file_is_told_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "autogp"]
    arguments = [
        "fit",
        str(tmp_path / "rows.csv"),
        "--target",
        "a",
        "--out",
        str(tmp_path / "nowhere" / "model.autogp"),
    ]
    found = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    assert found.returncode != 0
    assert found.stderr.count("there is no folder") == 1


def test_alone_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (processes().rank, processes().count) == (0, 1)
