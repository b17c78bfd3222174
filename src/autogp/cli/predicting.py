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
from autogp.cli.writing import check_writable, table_writer
from autogp.data import ArraySource, Unseen, read_rows
from autogp.training.distributed import processes

__all__ = ["QUANTILES", "predict_file"]

QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
SHOWN_ROWS = 10
MOST_COLUMNS = 8  # of a table on the terminal


def predict_file(terminal: Terminal, model_path: Path, data: Path, out: Path | None) -> None:
    """Writes predictions to `out`, or shows the first."""
    if out is not None:
        if out.suffix not in (".csv", ".parquet"):
            raise typer.BadParameter(f"{out} should end in .csv or .parquet", param_hint="--out")
        processes().from_first(lambda: check_writable(out, data))
    model = open_model(model_path)
    unseen = Unseen()
    rows = (x for x, _ in read_rows(data, encoder_for(model, data), unseen))
    if out is None:
        first = predictions(model, next(rows)[:SHOWN_ROWS])
        _show(terminal, first)
        for sentence in unseen.sentences():
            terminal.note(sentence)
        terminal.say(f"the first rows; all: autogp predict {model_path} {data} --out predictions.csv")
        terminal.result({"predictions": first.to_pylist(), "notes": unseen.sentences()})
        return
    count = _write(terminal, model, rows, out)
    for sentence in unseen.sentences():
        terminal.note(sentence)
    terminal.say(f"{count:,} predictions in {out}")
    terminal.result({"out": str(out), "rows": count, "notes": unseen.sentences()})


def predictions(model: Any, x: np.ndarray) -> pa.RecordBatch:
    """Predictions for rows x [B, D], as columns."""
    source = ArraySource(x)
    if is_classifier(model):
        probabilities = model.predict_proba(source)
        names = ["class", *(f"p_{label}" for label in model.classes_)]
        columns = [model.classes_[probabilities.argmax(axis=1)], *probabilities.T]
    else:
        mean, std, quantiles = model.predict(source, return_std=True, quantiles=list(QUANTILES.values()))
        outputs = [""] if mean.ndim == 1 else [f"_{number + 1}" for number in range(mean.shape[1])]
        names = [f"{name}{output}" for output in outputs for name in ("mean", "std", *QUANTILES)]
        together = np.concatenate([mean[..., None], std[..., None], quantiles], axis=-1)  # [B, (P,) 5]
        columns = list(together.reshape(len(x), -1).T)
    return pa.record_batch([pa.array(column) for column in columns], names=names)


def _write(terminal: Terminal, model: Any, rows: Iterator[np.ndarray], out: Path) -> int:
    among, count = processes(), 0
    start = next(rows)
    schema = predictions(model, start[:1]).schema
    pieces = chain([start], rows)
    with ExitStack() as stack:
        status = stack.enter_context(terminal.err.status("predicting")) if among.first else None
        writer = stack.enter_context(table_writer(out, schema)) if among.first else None
        while group := list(islice(pieces, among.count)):  # one piece for each process
            own = group[among.rank] if among.rank < len(group) else start[:0]
            for batch in among.gather(lambda own=own: predictions(model, own) if len(own) else None):
                count += 0 if batch is None else batch.num_rows
                if writer is not None and status is not None and batch is not None:
                    writer.write_batch(batch)
                    status.update(f"predicting, {count:,} rows")
    return count


def _show(terminal: Terminal, batch: pa.RecordBatch) -> None:
    number_format = ".3f" if "class" in batch.schema.names else ".4g"  # probabilities, or numbers of any size
    rows = (
        [format(value, number_format) if isinstance(value, float) else str(value) for value in row.values()]
        for row in batch.to_pylist()
    )
    names = ["row", *batch.schema.names[:MOST_COLUMNS]]
    terminal.table(names, ([str(number), *row[:MOST_COLUMNS]] for number, row in enumerate(rows, 1)))
    if batch.num_columns > MOST_COLUMNS:
        terminal.say(f"and {batch.num_columns - MOST_COLUMNS} more columns")
