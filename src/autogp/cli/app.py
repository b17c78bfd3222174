"""The commands with their options; what they do is in the modules that they import when they are called."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import autogp
from autogp.cli.durations import parse_duration
from autogp.cli.shapes import parse_shape
from autogp.cli.terminal import Commands, reporting

__all__ = ["app"]

EXIT_CODES = "Exit codes: 0 done, 1 something is wrong with data or model, 2 wrong usage, 130 and 143 interrupted."

app = typer.Typer(
    cls=Commands,
    help="Gaussian process models for any likelihood, at any scale.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Task(StrEnum):
    """What kind of target there is."""

    AUTO = "auto"
    CLASSIFICATION = "classification"
    REGRESSION = "regression"
    COUNT = "count"


class Objective(StrEnum):
    """What kernel and inducing inputs maximise."""

    AUTO = "auto"
    ELBO = "elbo"
    LOO = "loo"
    PREDICTIVE = "predictive"


class ClassWeight(StrEnum):
    """What classes count."""

    BALANCED = "balanced"


class Experiment(StrEnum):
    """The experiments of the paper, and those that go with them."""

    DIGITS = "digits"
    MNIST = "mnist"
    MNIST8M = "mnist8m"
    RECTANGLES = "rectangles"
    CIFAR10 = "cifar10"
    SARCOS = "sarcos"
    EFFICIENCY = "efficiency"
    POSTERIORS = "posteriors"
    UCI = "uci"
    WISCONSIN = "wisconsin"
    MINING = "mining"


ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model that `autogp fit` wrote.", show_default=False)
]
DataPath = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="CSV, Parquet, npz, npy or idx file, also .csv.gz; a folder of CSV or Parquet; an address such as s3://...",
        show_default=False,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", help="Column to predict; in npz the name of the array, for npy and idx another file."
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="COLUMN", help="Column that names the rows: no input, carried to predictions."),
]
Exposure = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column that says over which time, area or number a count was taken."),
]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="The first line of CSV is a row; columns are called f0, f1, ...")
]
Code = Annotated[
    Path | None,
    typer.Option(metavar="FILE.py", help="Python file with classes of your own that the model has; it is run."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autogp {autogp.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Gaussian process models for any likelihood, at any scale."""


@app.command(epilog="Example: autogp fit titanic.csv --target survived --time 5m --out titanic.autogp")
def fit(
    data: DataPath,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            help="Column to predict, may be given several times; in npz the name of the array, for npy and idx a file.",
        ),
    ] = None,
    task: Annotated[Task, typer.Option(help="What the target is; auto looks at it.")] = Task.AUTO,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Column to leave out; may be given several times.")
    ] = None,
    id_columns: Ids = None,
    exposure: Exposure = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column of categories, whatever it looks like; several times for more."),
    ] = None,
    decimal: Annotated[
        str | None,
        typer.Option(metavar="MARK", help="Decimal mark of numbers, . or ,; by default each column tells."),
    ] = None,
    no_header: NoHeader = False,
    drop_missing_target: Annotated[
        bool, typer.Option("--drop-missing-target", help="Leave out rows without a target, and count them.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder for the converted copy of a table; processes that see it share one, and it stays."),
    ] = None,
    likelihood: Annotated[
        str | None, typer.Option(metavar="NAME", help="Such as student_t, poisson, probit; by default it is chosen.")
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS", help="Ordered classes of text: each class, from the lowest to the highest."),
    ] = None,
    class_weight: Annotated[ClassWeight | None, typer.Option(help="balanced: each class counts the same.")] = None,
    validation: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of the rows by which training keeps its best state.")
    ] = None,
    image_shape: Annotated[
        str | None,
        typer.Option(metavar="SHAPE", help="Rows are images: 28x28, 32x32x3, or 3x32x32 for planes. idx files know."),
    ] = None,
    augment: Annotated[
        int | None,
        typer.Option(min=1, metavar="COPIES", help="Images: so many deformed copies of each are learnt from, too."),
    ] = None,
    inducing: Annotated[
        int | None,
        typer.Option(
            min=1, help="Inducing inputs: accuracy and time grow with them.", show_default="chosen by the data"
        ),
    ] = None,
    kernel: Annotated[
        str,
        typer.Option(
            metavar="KERNEL",
            help="How rows are compared: a name such as rbf, or an expression, 'rbf(age) * categorical(country)'.",
        ),
    ] = "auto",
    objective: Annotated[
        Objective, typer.Option(help="What training maximises; auto: elbo, then predictive if held-out rows gain.")
    ] = Objective.AUTO,
    time: Annotated[
        float | None, typer.Option(parser=parse_duration, metavar="DURATION", help="End in time: 90s, 5m or 1h30m.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the data; by default 30, or more where they are short.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Monte Carlo samples a row, where training needs them; by default 10.")
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py", help="Python file, which is run: --likelihood and --kernel may name its classes."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same model.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model file to write.")] = Path("model.autogp"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was interrupted.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model, and an interrupted training, without asking.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model on a file and save it.

    Text becomes numbers, dates or categories; how each column was read is said.

    An interrupted training stays in a folder beside the model file: the same command with --resume goes on.
    """
    with reporting(json, debug) as terminal:
        from autogp.cli.fitting import fit_file
        from autogp.training import Settings

        fit_file(
            terminal,
            data,
            target or [],
            task.value,
            {
                "ignore": [*(ignore or []), *(id_columns or [])],
                "categorical": categorical or [],
                "decimal": decimal,
                "header": not no_header,
                "drop_missing_targets": drop_missing_target,
                "cache": cache,
            },
            None if image_shape is None else parse_shape(image_shape),
            {
                "n_inducing": "auto" if inducing is None else inducing,
                "kernel": kernel,
                "objective": objective.value,
                "time_budget": time,
                "max_epochs": epochs,
                "random_state": seed,
                "validation_fraction": validation,
                **({} if samples is None else {"settings": Settings(samples=samples)}),
                **({} if likelihood is None else {"likelihood": likelihood}),
                **({} if augment is None else {"augment": augment}),
                **({} if class_weight is None else {"class_weight": class_weight.value}),
            },
            out,
            resume,
            force,
            exposure,
            order or [],
            code,
        )


@app.command(epilog="Example: autogp predict titanic.autogp new.csv --out predictions.csv")
def predict(
    model: ModelPath,
    data: DataPath,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV or Parquet file to write; without it the first rows show.")
    ] = None,
    id_columns: Ids = None,
    exposure: Exposure = None,
    no_header: NoHeader = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write text as it is, even if a spreadsheet would run it as a formula.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file without asking.")] = False,
    code: Code = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict every row of a file, in its order; the file may be larger than memory.

    Classifiers give the class (class) and a probability for each class (p_...).

    Others give mean, standard deviation, and what 5, 50 and 95 % of the targets stay below (q05, q50, q95).

    Counts are those of one unit of exposure, unless --exposure names a column.
    """
    with reporting(json, debug) as terminal:
        from autogp.cli.predicting import predict_file

        predict_file(terminal, model, data, out, id_columns or [], not no_header, raw, force, exposure, code)


@app.command(epilog="Example: autogp evaluate titanic.autogp test.csv")
def evaluate(
    model: ModelPath,
    data: DataPath,
    target: Target = None,
    exposure: Exposure = None,
    code: Code = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare predictions with what a file holds, by the scores that matter.

    The target is the column that the model was trained on, unless --target names another.
    """
    with reporting(json, debug) as terminal:
        from autogp.cli.evaluating import evaluate_file

        evaluate_file(terminal, model, data, target, exposure, code)


@app.command(epilog="Example: autogp report titanic.autogp test.csv --out report.html")
def report(
    model: ModelPath,
    data: DataPath,
    target: Target = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    code: Code = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a page that shows how good a model is on a file that it has not learnt from.

    The page is one HTML file, which opens anywhere without a network.
    """
    with reporting(json, debug) as terminal:
        from autogp.cli.evaluating import report_file

        report_file(terminal, model, data, target, out, code)


@app.command(epilog="Example: autogp info titanic.autogp")
def info(model: ModelPath, code: Code = None, json: Json = False, debug: Debug = False) -> None:
    """Say what a model is: data, kernel, likelihood, training and scores."""
    with reporting(json, debug) as terminal:
        from autogp.cli.models import show_model

        show_model(terminal, model, code)


@app.command(epilog="Example: autogp reproduce digits")
def reproduce(
    name: Annotated[Experiment, typer.Argument(help="The experiment.", show_default=False)],
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets; else AUTOGP_DATA says.")] = None,
    preset: Annotated[str, typer.Option(metavar="NAME", help="Our settings, or others: 'paper'.")] = "ours",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of everything random; by default the experiment's own.")
    ] = None,
    time: Annotated[
        float | None,
        typer.Option(parser=parse_duration, metavar="DURATION", help="The longest that a run of ours may train."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the runs that are there, go on with one that was interrupted.")
    ] = False,
    only: Annotated[str | None, typer.Option(metavar="PATTERN", help="Only runs of such names: '*-loo-200-*'.")] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="Judge by held-out training rows, to choose settings.")
    ] = False,
    download: Annotated[bool, typer.Option("--download", help="Fetch data that is not at hand.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the Python call of each run; run none.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the results.")] = Path("results"),
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment of the paper: one JSON file a run, tables and figures made from them."""
    with reporting(json, debug) as terminal:
        from autogp import experiments

        if dry_run and json:
            raise typer.BadParameter("it prints Python, not JSON", param_hint="--dry-run")
        written = experiments.reproduce(
            name.value,
            data=data,
            preset=preset,
            seed=seed,
            time=time,
            resume=resume,
            validation=validation,
            only=only,
            download=download,
            dry_run=dry_run,
            results=out,
            verbose=not json,
        )
        terminal.result({"files": [str(path) for path in written]})
