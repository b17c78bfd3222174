"""The command `autogp predict`: a file of any size becomes a table of predictions."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import typer
from sklearn.base import is_classifier

from autogp.cli.models import encoder_for, open_model
from autogp.cli.terminal import Terminal
from autogp.cli.writing import ask_before_replacing, check_writable, harmless, table_writer
from autogp.data import ArraySource, Unseen, read_rows
from autogp.estimators.summary import label_names
from autogp.training.distributed import processes

__all__ = ["QUANTILES", "output_names", "predict_file"]

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
SHOWN_ROWS = 10
MOST_COLUMNS = 8  # of a table on the terminal


def predict_file(
    terminal: Terminal,
    model_path: Path,
    data: str,
    out: Path | None,
    carried: list[str],
    header: bool,
    raw: bool,
    force: bool,
    exposure: str | None = None,
    code: Path | None = None,
) -> None:
    """Writes predictions to `out`, or shows the first; `carried` are columns of the data that go with them, `exposure`
    is that of the exposures of counts, and `code` has classes of the model."""
    if out is not None:
        if out.suffix not in (".csv", ".parquet"):
            raise typer.BadParameter(f"{out} should end in .csv or .parquet", param_hint="--out")
        processes().from_first(lambda: _check_place(out, data, force))
    model = open_model(model_path, code)
    unseen = Unseen()
    read = carried if exposure is None else list(dict.fromkeys([*carried, exposure]))
    pieces = read_rows(data, encoder_for(model, data), unseen, read, header)
    rows = ((x, *_parted(columns, carried, exposure)) for x, columns in pieces)
    if out is None:
        first = _beside(model, *next(rows), slice(0, SHOWN_ROWS))
        _show(terminal, first)
        for sentence in unseen.sentences():
            terminal.note(sentence)
        terminal.say(f"the first rows; all: autogp predict {model_path} {data} --out predictions.csv")
        terminal.result({"predictions": first.to_pylist(), "notes": unseen.sentences()})
        return
    count = _write(terminal, model, rows, out, raw)
    for sentence in unseen.sentences():
        terminal.note(sentence)
    terminal.say(f"{count:,} predictions in {out}")
    terminal.result({"out": str(out), "rows": count, "notes": unseen.sentences()})


def _check_place(out: Path, data: str, force: bool) -> None:
    check_writable(out, data)
    ask_before_replacing(out, force)


def _parted(columns: pa.Table | None, carried: list[str], exposure: str | None) -> tuple[pa.Table | None, Any]:
    """The columns that go with the predictions, and the exposures [B], as numbers, where there are such."""
    if exposure is None or columns is None:
        return columns, None
    try:
        numbers = columns[exposure].cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        raise ValueError(f"--exposure {exposure} holds text that is no number") from None
    return columns.select(carried), numbers


def predictions(model: Any, x: np.ndarray, exposure: np.ndarray | None = None) -> pa.RecordBatch:
    """Predictions for rows x [B, D], as columns."""
    source, beside = ArraySource(x), {} if exposure is None else {"exposure": exposure}
    if is_classifier(model) and exposure is not None:
        raise ValueError("--exposure is for counts, but the model predicts classes")
    if is_classifier(model):
        probabilities = model.predict_proba(source)
        names, columns = [f"p_{label}" for label in label_names(model)], list(probabilities.T)
        if model.model_.likelihood.num_classes is not None:
            names, columns = ["class", *names], [model.classes_[probabilities.argmax(axis=1)], *columns]
    else:
        mean, std, quantiles = model.predict(source, return_std=True, quantiles=list(QUANTILES.values()), **beside)
        outputs = [""] if mean.ndim == 1 else [f"_{name}" for name in output_names(model, mean.shape[1])]
        names = [f"{name}{output}" for output in outputs for name in ("mean", "std", *QUANTILES)]
        together = np.concatenate([mean[..., None], std[..., None], quantiles], axis=-1)  # [B, (P,) 5]
        columns = list(together.reshape(len(x), -1).T)
    return pa.record_batch([pa.array(column) for column in columns], names=names)


def output_names(model: Any, count: int) -> list[str]:
    """The names of the targets, or their numbers from 1."""
    return list(model.target_names_ or [str(number + 1) for number in range(count)])


def _beside(
    model: Any, x: np.ndarray, carried: pa.Table | None, exposure: np.ndarray | None, rows: slice = slice(None)
) -> pa.Table:
    """Predictions for some of the rows x [B, D], after the columns that are carried along."""
    found = pa.Table.from_batches([predictions(model, x[rows], None if exposure is None else exposure[rows])])
    if carried is None or carried.num_columns == 0:
        return found
    for name in carried.schema.names:
        if name in found.schema.names:
            raise ValueError(f"--id {name} is the name of a column of the predictions: rename it")
    kept = carried.slice(rows.start or 0, len(found))
    return pa.table([*kept.columns, *found.columns], names=[*kept.schema.names, *found.schema.names])


def _write(
    terminal: Terminal,
    model: Any,
    rows: Iterator[tuple[np.ndarray, pa.Table | None, np.ndarray | None]],
    out: Path,
    raw: bool,
) -> int:
    among, count = processes(), 0
    start = next(rows)
    schema = _beside(model, *start, slice(0, 1)).schema
    escape = (lambda table: table) if raw or out.suffix != ".csv" else harmless
    pieces = chain([start], rows)
    with ExitStack() as stack:
        status = stack.enter_context(terminal.err.status("predicting")) if among.first else None
        writer = stack.enter_context(table_writer(out, schema)) if among.first else None
        while group := list(islice(pieces, among.count)):  # one piece for each process
            own = group[among.rank] if among.rank < len(group) else None
            for batch in among.gather(lambda own=own: None if own is None else _beside(model, *own)):
                count += 0 if batch is None else batch.num_rows
                if writer is not None and status is not None and batch is not None:
                    writer.write_table(escape(batch))
                    status.update(f"predicting, {count:,} rows")
    return count


def _show(terminal: Terminal, batch: pa.Table) -> None:
    probabilities = any(name.startswith("p_") for name in batch.schema.names)
    rows = (
        [_number(value, probabilities) if isinstance(value, float) else str(value) for value in row.values()]
        for row in batch.to_pylist()
    )
    names = ["row", *batch.schema.names[:MOST_COLUMNS]]
    terminal.table(names, ([str(number), *row[:MOST_COLUMNS]] for number, row in enumerate(rows, 1)))
    if batch.num_columns > MOST_COLUMNS:
        terminal.say(f"and {batch.num_columns - MOST_COLUMNS} more columns")


def _number(value: float, probability: bool) -> str:
    """With four digits, or all of those before the point."""
    return f"{value:.3f}" if probability else f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
