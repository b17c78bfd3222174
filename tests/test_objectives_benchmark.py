"""`python -m benchmarks.objectives` compares the objectives and names the sets that are not at hand."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_objectives_are_compared_and_what_is_not_at_hand_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("AUTOGP_DATA", str(tmp_path / "nothing"))
    sets = ["wine", "diabetes", "wisconsin"]
    command = ["objectives", "--sets", *sets, "--inducing", "10", "--pair", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    importlib.import_module("benchmarks.objectives").main()
    results = json.loads((tmp_path / "objectives.json").read_text())
    assert list(results["runs"]["0"]) == sets[:2]
    assert list(results["left_out"]) == sets[2:]
    for found in results["runs"]["0"].values():  # too few rows, and a regression: nothing but the ELBO was tried
        assert found["chosen"] == "elbo"
        assert found["difference"] == 0
    page = (tmp_path / "README.md").read_text()
    assert "| wine | 124 | 13 | 3 |" in page
    assert "Left out, not at hand: wisconsin" in page
