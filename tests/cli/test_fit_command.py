"""`autogp fit` finds out what a file holds, says what it assumed, and leaves a model and nothing else."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from interruption import Interruption
from passengers import QUICK, write_passengers
from typer.testing import Result

from autogp import load_model

Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]


def table(path: Path, **columns: Any) -> Path:
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def test_says_what_it_assumed_and_leaves_the_model_alone(run: Run, tmp_path: Path) -> None:
    data = write_passengers(tmp_path / "data.csv", 100)
    result = run("fit", data, "--target", "survived", "--out", tmp_path / "m.autogp", *QUICK)
    for words in (
        "100 rows",
        "classification of survived, 2 classes: no, yes (the target holds text)",
        "4 inputs, encoded in 9 columns: sex, port, age, fare",
        "'id' is left out: it has another whole number in every row",
        "'name' is left out: it is text with 100 different values in 100 rows",
        "'sex' is text with 2 categories",
        "missing values, taken as the mean",
        "leave-one-out",
        f"next: autogp predict {tmp_path / 'm.autogp'}",
    ):
        assert words in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "m.autogp"]
    assert load_model(tmp_path / "m.autogp").classes_.tolist() == ["no", "yes"]


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("y", "task", "words"),
    [
        (RNG.choice(["a", "b", "c"], 60), "classification", "holds text"),
        (RNG.integers(0, 3, 60), "classification", "3 different whole numbers; else say --task count or"),
        (RNG.integers(0, 2, 60).astype(float), "classification", "2 different whole numbers"),
        (RNG.integers(0, 2, 60).astype(bool), "classification", "2 different whole numbers"),
        (RNG.normal(size=60), "regression", "holds fractions"),
        (RNG.permutation(60), "regression", "60 different whole numbers; --task count is for counts"),
        (RNG.permutation(60) - 30, "regression", "60 different whole numbers"),
        (RNG.integers(0, 5, 60) + 0.0, "regression", "5 different whole numbers"),
    ],
)
def test_task_follows_from_the_target(run_json: RunJson, tmp_path: Path, y: np.ndarray, task: str, words: str) -> None:
    data = table(tmp_path / "data.csv", a=RNG.normal(size=60), y=y)
    found = run_json("fit", data, "-t", "y", "-o", tmp_path / "m.autogp", "--inducing", 5, "--epochs", 2)
    assert found["task"] == task
    assert words in found["notes"][-1]
    assert found["rows"] == 60
    assert found["inputs"] == ["a"]
    assert (found["classes"] is None) == (task != "classification")


def test_task_may_be_said(run_json: RunJson, tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", a=RNG.normal(size=60), y=RNG.integers(0, 3, 60))
    for task, likelihood in (("regression", "Gaussian"), ("count", "NegativeBinomial"), ("classification", "Softmax")):
        found = run_json("fit", data, "-t", "y", "-o", tmp_path / "m.autogp", "--task", task, *QUICK)
        assert (found["task"], found["likelihood"], found["notes"]) == (task, likelihood, [])


def test_several_targets_of_zeros_and_ones_are_labels(run_json: RunJson, run: Run, tmp_path: Path) -> None:
    a = RNG.normal(size=60)
    data = table(tmp_path / "data.csv", a=a, up=(a > 0).astype(int), far=(abs(a) > 1).astype(int))
    found = run_json("fit", data, "-t", "up", "-t", "far", "-o", tmp_path / "m.autogp", *QUICK)
    assert (found["task"], found["likelihood"], found["notes"]) == (
        "classification",
        "Bernoulli",
        ["the targets hold 0 and 1; else say --task regression"],
    )
    run("predict", tmp_path / "m.autogp", data, "--out", tmp_path / "p.csv")
    assert pd.read_csv(tmp_path / "p.csv").columns.tolist() == ["p_up", "p_far"]
    scores = run_json("evaluate", tmp_path / "m.autogp", data)
    assert scores["error"] < 0.2
    assert scores["nlp"] < np.log(2)


def test_ordered_classes_by_name(run_json: RunJson, tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", a=RNG.normal(size=60), y=RNG.integers(1, 5, 60))
    found = run_json("fit", data, "-t", "y", "-o", tmp_path / "m.autogp", "--likelihood", "ordinal", *QUICK)
    assert (found["likelihood"], found["classes"]) == ("Ordinal", [1, 2, 3, 4])
    found = run_json("fit", data, "-t", "y", "-o", tmp_path / "counts.autogp", "--likelihood", "poisson", *QUICK)
    assert (found["task"], found["likelihood"]) == ("count", "Poisson")
    assert run_json("evaluate", tmp_path / "m.autogp", data)["nlp"] < 2


def test_settings_reach_the_estimator(run: Run, tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", a=RNG.normal(size=60), b=RNG.normal(size=60), y=RNG.normal(size=60))
    options = ["--inducing", 7, "--kernel", "matern32", "--objective", "predictive"]
    options += ["--time", "1h", "--epochs", 3, "--seed", 5]
    run("fit", data, "-t", "y", "-o", tmp_path / "m.autogp", "--ignore", "b", *options)
    model = load_model(tmp_path / "m.autogp")
    found = {name: value for name, value in model.get_params().items() if name in ("kernel", "objective")}
    assert found == {"kernel": "matern32", "objective": "predictive"}
    assert (model.n_inducing, model.time_budget, model.max_epochs, model.random_state) == (7, 3600, 3, 5)
    assert model.feature_names_in_.tolist() == ["a"]
    assert [row["objective"] for row in model.history_] == ["elbo"] * 3 + ["predictive"] * 3  # from the ELBO's optimum


def test_kernel_and_objective_are_the_estimator_s_own_choice_unless_said(run: Run, tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", a=RNG.normal(size=60), y=RNG.choice(["u", "v"], 60))
    run("fit", data, "-t", "y", "-o", tmp_path / "m.autogp", *QUICK)
    model = load_model(tmp_path / "m.autogp")
    assert (model.kernel, model.objective) == ("auto", "auto")


def test_arrays_and_idx_files_are_taken(run_json: RunJson, tmp_path: Path) -> None:
    x, y = RNG.normal(size=(60, 3)), RNG.integers(0, 3, 60)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    np.savez(tmp_path / "other.npz", x=x, kind=y)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    out = tmp_path / "m.autogp"
    for data, target in (("both.npz", []), ("other.npz", ["-t", "kind"]), ("x.npy", ["-t", tmp_path / "y.npy"])):
        found = run_json("fit", tmp_path / data, *target, "-o", out, "--inducing", 5, "--epochs", 2)
        assert (found["task"], found["rows"], found["inputs"]) == ("classification", 60, 3)
    np.savez(tmp_path / "column.npz", x=x, y=y[:, None])
    assert run_json("fit", tmp_path / "column.npz", "-o", out, *QUICK)["task"] == "classification"
    assert run_json("evaluate", out, tmp_path / "column.npz")["rows"] == 60
    np.savez(tmp_path / "several.npz", x=x, y=RNG.normal(size=(60, 2)))
    found = run_json("fit", tmp_path / "several.npz", "-o", out, "--inducing", 5, "--epochs", 2)
    assert found["task"] == "regression"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_training_resumes_to_the_same_model(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    data = write_passengers(tmp_path / "data.csv", 60)
    settings = ["fit", data, "-t", "survived", "--inducing", 5, "--epochs", 60]
    run(*settings, "-o", tmp_path / "whole.autogp")
    out, folder = tmp_path / "m.autogp", tmp_path / "m.autogp.training"
    with monkeypatch.context() as patch:
        patch.setattr("autogp.training.progress.progress_display", lambda verbose: Interruption(number))
        result = run(*settings, "-o", out, code=code)
    saved = f"saved in {folder}, go on with the same command and --resume"
    assert result.stderr == f"stopped by {number.name} after step 10; {saved}\n"
    assert folder.is_dir()
    assert not out.exists()
    assert "holds an interrupted training: go on with --resume" in run(*settings, "-o", out, code=1).stderr
    assert run(*settings[:-1], 61, "-o", out, "--resume", code=1).stderr.count("\n") == 1
    run(*settings, "-o", out, "--resume")
    assert not folder.exists()
    whole, resumed = load_model(tmp_path / "whole.autogp"), load_model(out)
    for name, tensor in whole.model_.state_dict().items():
        assert (resumed.model_.state_dict()[name] == tensor).all()


def test_a_second_interrupt_tells_whether_anything_was_saved(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_passengers(tmp_path / "data.csv", 60)
    command = ["fit", data, "-t", "survived", "--inducing", 5, "--epochs", 60, "-o", tmp_path / "m.autogp"]

    def interrupt(*numbers: signal.Signals) -> None:
        monkeypatch.setattr("autogp.training.progress.progress_display", lambda verbose: Interruption(*numbers))

    interrupt(signal.SIGINT, signal.SIGINT)
    assert run(*command, code=130).stderr == "interrupted; nothing was saved\n"
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]
    interrupt(signal.SIGINT)
    run(*command, code=130)
    interrupt(signal.SIGINT, signal.SIGINT)
    shown = run(*command, "--resume", code=130).stderr
    assert shown == "interrupted; go on with the same command and --resume\n"


def test_training_that_fails_leaves_nothing(error: Callable[..., str], tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", a=RNG.normal(size=60), y=RNG.integers(0, 50, size=60))
    command = ["fit", data, "-t", "y", "-o", tmp_path / "m.autogp", "--objective", "loo", "--likelihood", "poisson"]
    assert "Use objective='predictive'" in error(*command)
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data.csv is empty"),
        ("a,y\n", "data.csv has no rows"),
        ("a,y\n1,x\n2,x\n", "the target is 'x' in every row: there is nothing to learn"),
        ("a,y\n1,5\n2,5\n", "the target is '5' in every row: there is nothing to learn"),
        ("a,y\n1,112\n", "there is one row only: a model is learnt from two at least"),
        ("a,y\n1,x\n2,\n", "target column 'y' has a missing value in row 2: remove such rows"),
        ("a,y\n1,0.5\n2,\n", "target column 'y' has a missing value in row 2: remove such rows"),
        ("a,y\n1.5,1\n2.5,2\n1.5.2,3\n3.5,1\n", "column 'a' holds numbers, but '1.5.2' in row 3: correct it"),
        ("a,y\n1,0.5\n2,1.5\n3,1.5.2\n", "target column 'y' holds numbers, but '1.5.2' in row 3"),
        ("a,b,y\n1,2,3\n1,2\n", "line 3 (blank ones not counted) has 2 columns, but the header has 3"),
        ("y\n1\n2\n", "has no columns besides the target"),
        ("[/red],z\n1,2\n", "data.csv has no column 'y'; its columns are '[/red]', 'z'"),
    ],
)
def test_faults_in_a_table_are_named(error: Callable[..., str], tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "data.csv").write_text(text)
    assert message in error("fit", tmp_path / "data.csv", "-t", "y", "-o", tmp_path / "m.autogp")
    assert not (tmp_path / "m.autogp").exists()


def test_targets_that_do_not_suit_the_task_are_refused(error: Callable[..., str], tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", a=[1, 2, 3], text=["u", "v", "u"], half=[1, 2.5, 3], low=[1, -2, 3])
    out = ["-o", tmp_path / "m.autogp"]
    assert "holds text, such as 'u': --task count" in error("fit", data, "-t", "text", "--task", "count", *out)
    assert "classification needs labels" in error("fit", data, "-t", "half", "--task", "classification", *out)
    assert "holds 2.5 in row 2" in error("fit", data, "-t", "half", "--task", "count", *out)
    assert "holds -2 in row 2" in error("fit", data, "-t", "low", "--task", "count", *out)
    np.savez(tmp_path / "x.npz", x=np.eye(3))
    assert "say with --target where the targets are" in error("fit", tmp_path / "x.npz", *out)
    np.savez(tmp_path / "unequal.npz", x=np.eye(3), y=np.arange(2))
    assert "unequal.npz: x has 3 rows, but y has 2" in error("fit", tmp_path / "unequal.npz", *out)
    table(tmp_path / "huge.csv", a=[1, 2, 1e300], y=[1, 2.5, 3e200], z=[1, 2.5, 3])
    huge = "too large to be scaled, first in row 3"
    assert f"1e+300, {huge}, column 'a' (counted from 1)" in error("fit", tmp_path / "huge.csv", "-t", "z", *out)
    assert f"3e+200, {huge} (counted from 1)" in error("fit", tmp_path / "huge.csv", "-t", "y", "--ignore", "a", *out)
    assert "--ignore is for columns that have names" in error("fit", tmp_path / "x.npz", "--ignore", "a", *out)


def test_places_that_cannot_be_written_are_refused_before_any_work(
    error: Callable[..., str], passengers: Path, tmp_path: Path
) -> None:
    data = passengers / "train.csv"
    command = ["fit", data, "-t", "survived", "-o"]
    assert f"there is no folder {tmp_path / 'no'}" in error(*command, tmp_path / "no" / "m.autogp")
    assert "is a folder: name a file" in error(*command, tmp_path)
    assert "is the data itself" in error(*command, data)
    assert "there is no interrupted training" in error(*command, tmp_path / "m.autogp", "--resume")
    assert "did you mean 'name'?" in error(*command, tmp_path / "m.autogp", "--ignore", "nmae")
    assert "there is no file" in error("fit", tmp_path / "none.csv", "-t", "y", "-o", tmp_path / "m.autogp")


def test_wrong_usage_has_its_own_exit_code(run: Run, passengers: Path) -> None:
    data = passengers / "train.csv"
    assert "which column is to be predicted? There are id, name" in run("fit", data, code=2).stderr
    assert "'soon' is no duration" in run("fit", data, "-t", "survived", "--time", "soon", code=2).stderr
    assert "there is no kernel 'cosine'" in run("fit", data, "-t", "survived", "--kernel", "cosine", code=2).stderr
    assert "--epochs" in run("fit", data, "-t", "survived", "--epochs", "0", code=2).stderr


def test_what_is_not_a_file_is_never_replaced(error: Callable[..., str], tmp_path: Path) -> None:
    data = write_passengers(tmp_path / "data.csv", 30)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file that could be replaced" in error("fit", data, "-t", "survived", "-o", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_target_that_is_no_label_is_refused(error: Callable[..., str], tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", a=RNG.normal(size=60), name=np.array([f"person {i}" for i in range(60)]))
    command = ["fit", data, "-o", tmp_path / "m.autogp"]
    assert "60 different labels in 60 rows" in error(*command, "-t", "name")
    message = "--ignore or --id names 'a', the column that is to be predicted"
    assert message in error(*command, "-t", "a", "--ignore", "a")


def test_kernels_are_expressions_of_columns(run: Run, error: Callable[..., str], tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", a=RNG.normal(size=40), b=list("uvwx") * 10, y=RNG.normal(size=40))
    command = ["fit", data, "-t", "y", "-o", tmp_path / "m.autogp", *QUICK, "--kernel"]
    shown = run(*command, "rbf(a) * categorical(b) + linear").stdout
    assert "Linear" in shown
    assert "'c'" in error(*command, "rbf(c)")


def test_classes_of_text_have_the_order_that_is_said(run: Run, tmp_path: Path) -> None:
    a = RNG.normal(size=90)
    grade = np.array(["low", "middle", "high"])[np.digitize(a + 0.5 * RNG.normal(size=90), [-0.5, 0.5])]
    command = ["fit", table(tmp_path / "data.csv", a=a, grade=grade), "-t", "grade", "-o", tmp_path / "m.autogp"]
    order = ["--order", "low", "--order", "middle", "--order", "high"]
    assert "Ordinal, cuts at" in run(*command, *QUICK, *order).stdout
    model = load_model(tmp_path / "m.autogp")
    assert model.classes_.tolist() == ["high", "low", "middle"]
    # From low through middle to high: the class in the middle is likely only between the two others.
    likeliest = model.classes_[model.predict_proba(pd.DataFrame({"a": [-3.0, 0.0, 3.0]})).argmax(axis=1)]
    assert likeliest.tolist() == ["low", "middle", "high"]
    assert "must name each class once: 'high', 'low', 'middle'" in run(*command, *order[:4], code=2).stderr
    wrong = run(*command[:3], "a", *command[4:], "--order", "low", code=2).stderr
    assert "there are no classes: the task is regression" in wrong


def test_it_is_told_that_the_time_was_over(run: Run, tmp_path: Path) -> None:
    data = write_passengers(tmp_path / "data.csv", 60)
    shown = run("fit", data, "-t", "survived", "-o", tmp_path / "m.autogp", "--inducing", 5, "--time", "0.1s")
    assert "note: --time ended training after" in shown.stderr


def test_several_targets_ids_and_rows_without_a_target(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    rows = [f"=n{i},{i % 7},{i % 5},${i % 5 + i % 7}," + ("" if i == 3 else str(i % 7 + i % 2)) for i in range(60)]
    data.write_text("\n".join(["who,a,b,y,z", *rows]) + "\n")
    command = ["fit", data, "-t", "y", "-t", "z", "--id", "who", "-o", tmp_path / "m.autogp", *QUICK]
    shown = run(*command, "--categorical", "b", "--validation", "0.2").stdout
    assert "regression of y, z" in shown
    assert "2 inputs, encoded in 6 columns: a, b" in shown
    out = tmp_path / "p.csv"
    run("predict", tmp_path / "m.autogp", data, "-o", out, "--id", "who")
    lines = out.read_text().splitlines()
    assert lines[0].startswith('"who","mean_y","std_y"')
    assert '"mean_z"' in lines[0]
    assert lines[1].startswith('"\'=n0",')
    run("predict", tmp_path / "m.autogp", data, "-o", out, "--id", "who", "--raw", "--force")
    assert out.read_text().splitlines()[1].startswith('"=n0",')
    command = ["fit", data, "-t", "z", "--id", "who", "-o", tmp_path / "m.autogp", "--drop-missing-target", *QUICK]
    assert "1 row without a target is left out" in run(*command, "--task", "regression").stdout


def test_a_file_without_names_and_options_that_do_not_fit(run: Run, error: Callable[..., str], tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("".join(f"{i % 7},5;{i % 9},5\n" for i in range(40)))
    command = ["fit", data, "-t", "f1", "--no-header", "--decimal", ",", "-o", tmp_path / "m.autogp", *QUICK]
    run(*command, "--likelihood", "student_t")
    run("predict", tmp_path / "m.autogp", data, "--no-header", "-o", tmp_path / "p.csv")
    assert "there are no classes: the task is regression" in run(*command, "--class-weight", "balanced", code=2).stderr
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(9, 2)), y=RNG.normal(size=9))
    assert "--categorical is for columns that have names" in error("fit", tmp_path / "x.npz", "--categorical", "a")
    (tmp_path / "m.autogp.training").mkdir()
    assert "go on with --resume, or start again with --force" in error(*command)
    run(*command, "--force")


def test_exposures_of_counts_are_a_column(run: Run, run_json: RunJson, tmp_path: Path) -> None:
    """The same as the estimator with `exposure`, in fit, predict and evaluate."""
    random = np.random.default_rng(0)
    x, years = random.uniform(-1, 1, 60), random.uniform(0.5, 8, 60)
    data = table(tmp_path / "claims.csv", x=x, years=years, claims=random.poisson(years * np.exp(x)))
    model, out = tmp_path / "m.autogp", tmp_path / "p.csv"
    result = run_json("fit", data, "-t", "claims", "--exposure", "years", "--samples", 3, "--out", model, *QUICK)
    assert result["inputs"] == ["x"]
    assert result["task"] == "count"
    assert result["target"] == "claims"
    loaded = load_model(model)
    assert loaded.settings.samples == 3
    run("predict", model, data, "--exposure", "years", "--id", "claims", "--out", out)
    written = pd.read_csv(out)
    expected = loaded.predict(pd.DataFrame({"x": x}), exposure=years)
    np.testing.assert_allclose(written["mean"], expected, rtol=1e-6)
    assert list(written.columns) == ["claims", "mean", "std", "q05", "q50", "q95"]
    scores = run_json("evaluate", model, data, "--exposure", "years")
    density = loaded.log_density(pd.DataFrame({"x": x}), written["claims"], years)
    assert scores["nlp"] == pytest.approx(-density.mean(), rel=1e-5)
    assert "one --target of counts" in run("fit", data, "-t", "x", "-t", "claims", "--exposure", "years", code=2).stderr
