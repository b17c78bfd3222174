"""CSV and Parquet files, streamed once into memory-mapped arrays that give any row at once."""

import hashlib
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from autogp.data.columns import numbers_of, texts_of
from autogp.data.encoding import EncoderFit, TableEncoder
from autogp.data.readers import Form, Layout, plan_layout, read_batches
from autogp.data.sources import ArraySource
from autogp.data.texts import Unseen

__all__ = ["TABLE_SUFFIXES", "encoded_batches", "open_table"]

TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet")
VERSION = 5  # of the files in a cache; raised whenever their meaning changes
REMOVE = "remove such rows, or say drop_missing_targets=True (--drop-missing-target)"
PIECE = 2**20  # numbers converted at a time
MOST_ROUNDING = 1e-5  # by float32, of the range of a column


def open_table(
    path: Path,
    target: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    ignore: Sequence[str],
    classes: Sequence[str] | None,
    encoder: TableEncoder | None,
    dtype: str,
    cache: str | Path | None,
    form: Form,
    drop_missing: bool,
) -> ArraySource:
    """The rows of a CSV or Parquet file; the arguments are those of `open_source`."""
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    status = path.stat()
    identity = [VERSION, str(path.resolve()), status.st_size, status.st_mtime_ns]
    form = form if encoder is None else replace(form, decimal=encoder.decimal)
    request = [target, columns, ignore, classes, encoder and encoder.describe(), dtype, astuple(form), drop_missing]
    key = hashlib.sha256(json.dumps(identity + request, default=list).encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        layout = plan_layout(path, target, columns, ignore, classes is not None, encoder, form)
        _write_arrays(folder, path, layout, isinstance(target, str), classes, encoder, dtype, drop_missing)

    if cache is not None:
        return _load_or_build(Path(cache), key, build)
    temporary = Path(tempfile.mkdtemp(prefix="autogp-"))
    with _removed_on_error(temporary):
        source = _load_or_build(temporary, key, build)
    weakref.finalize(source, shutil.rmtree, temporary, ignore_errors=True)
    return source


def encoded_batches(
    path: Path, encoder: TableEncoder, unseen: Unseen, carried: Sequence[str], header: bool
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """The inputs of a table, float64 [B, C], beside its columns `carried`, a few megabytes at a time; at least one
    row."""
    rows = 0
    form = Form(decimal=encoder.decimal, header=header)
    layout = plan_layout(path, None, None, (), False, encoder, form, carried)
    for batch in read_batches(path, layout):
        x = encoder.transform(batch, unseen=unseen, first_row=rows + 1, place=f"{path}: ")
        yield x, batch.select(list(carried))
        rows += batch.num_rows
    if rows == 0:
        raise ValueError(f"{path} has no rows")


def _load_or_build(cache: Path, key: str, build: Callable[[Path], None]) -> ArraySource:
    entry = cache / key
    try:
        return _load(entry)
    except (OSError, ValueError):
        # Absent, or damaged by a crash of the machine.
        shutil.rmtree(entry, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=cache))
    with _removed_on_error(partial):
        build(partial)
        try:
            # The name appears when everything is written, or never.
            partial.rename(entry)
        except OSError:
            # Another process was faster.
            shutil.rmtree(partial)
    return _load(entry)


@contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _load(entry: Path) -> ArraySource:
    about = json.loads((entry / "about.json").read_text())
    x = np.memmap(entry / "x.bin", about["x_dtype"], mode="r", shape=tuple(about["x_shape"]))
    y = None
    if about["y_shape"] is not None:
        y = np.memmap(entry / "y.bin", about["y_dtype"], mode="r", shape=tuple(about["y_shape"]))
    encoder = TableEncoder.from_description(about["encoder"])
    return ArraySource(
        x,
        y,
        columns=encoder.used,
        targets=about["targets"],
        classes=about["classes"],
        encoder=encoder,
        notes=about["notes"],
    )


def _write_arrays(
    folder: Path,
    path: Path,
    layout: Layout,
    single: bool,
    classes: Sequence[str] | None,
    encoder: TableEncoder | None,
    wide: str,
    drop_missing: bool,
) -> None:
    """Writes x.bin [N, C], y.bin [N] or [N, P] and about.json, which says how to read them."""
    place = f"{path}: "
    inputs = _Inputs(folder / "x.bin", wide)
    targets = _Targets(folder / "y.bin", path, layout, single, classes)
    unseen = Unseen()
    fit = None
    rows = kept = 0
    for batch in read_batches(path, layout):
        if encoder is None:
            fit = fit or EncoderFit(batch.schema, layout.inputs, place, layout.form.categorical, layout.form.decimal)
            x = fit.add(batch)
        else:
            x = encoder.transform(batch, unseen=unseen, first_row=rows + 1, place=place)
        chosen = targets.present(batch) if drop_missing else np.arange(batch.num_rows)
        inputs.append(x[chosen])
        targets.append(batch, rows, chosen)
        rows, kept = rows + batch.num_rows, kept + len(chosen)
    if rows == 0:
        raise ValueError(f"{path} has no rows")
    if kept == 0:
        raise ValueError(f"{path}: no row has a target")
    if fit is not None:
        encoder = fit.finish()
        if encoder.categories or encoder.ignored:
            inputs = _settled(inputs, fit, encoder)
    assert encoder is not None
    about: dict[str, Any] = {
        "x_dtype": inputs.dtype.name,
        "x_shape": [kept, len(encoder.used)],
        **targets.finish(kept),
        "encoder": encoder.describe(),
        "notes": [*(encoder.notes if fit is not None else unseen.sentences()), *_dropped(rows - kept)],
    }
    (folder / "about.json").write_text(json.dumps(about))


def _dropped(rows: int) -> list[str]:
    return [f"{rows:,} {'row' if rows == 1 else 'rows'} without a target are left out"] if rows else []


def _settled(inputs: "_Inputs", fit: EncoderFit, encoder: TableEncoder) -> "_Inputs":
    """The same rows with the codes and columns that are known only now."""
    old = np.memmap(inputs.path, inputs.dtype, mode="r").reshape(-1, len(fit.names))
    fresh = _Inputs(inputs.path.with_name("settled.bin"), inputs.wide)
    step = max(1, PIECE // len(fit.names))
    for start in range(0, len(old), step):
        fresh.append(fit.settle(old[start : start + step], encoder))
    fresh.path = fresh.path.replace(inputs.path)
    return fresh


class _Inputs:
    """A file of inputs in the narrowest dtype that keeps those met so far."""

    def __init__(self, path: Path, wide: str) -> None:
        self.path = path
        self.wide = wide
        self.dtype = np.dtype(np.uint8)
        self.low, self.high = np.inf, -np.inf  # of each column so far, [C], without missing values

    def append(self, x: np.ndarray) -> None:  # [B, C]
        if len(x) == 0:
            return
        self.low, self.high = np.fmin(self.low, np.fmin.reduce(x)), np.fmax(self.high, np.fmax.reduce(x))
        needed = np.promote_types(self.dtype, _narrowest(x, self.high - self.low, self.wide))
        if needed != self.dtype and self.path.exists():
            _convert(self.path, self.dtype, needed)
        self.dtype = needed
        _append(self.path, x.astype(needed))


class _Targets:
    """A file of targets: codes of labels, or float64 numbers that become int64 at the end where all are whole."""

    def __init__(self, path: Path, table: Path, layout: Layout, single: bool, classes: Sequence[str] | None) -> None:
        self.path = path
        self.table = table
        self.names = layout.targets
        self.single = single
        self.labels = _LabelFit(table, self.names[0], classes) if layout.text_target else None
        self.whole = layout.integer_targets and not layout.written
        self.written = layout.written

    def present(self, batch: pa.RecordBatch) -> np.ndarray:
        """Which rows of the batch have a target."""
        found = np.zeros(batch.num_rows, bool)
        for name in self.names:
            texts = texts_of(batch.column(name), name, f"{self.table}: ")
            found |= texts.is_valid().to_numpy(zero_copy_only=False)
        return np.flatnonzero(found)

    def append(self, batch: pa.RecordBatch, start: int, chosen: np.ndarray) -> None:
        """Adds the targets of the chosen rows of the batch; `start` rows came before."""
        if self.labels is not None:
            _append(self.path, self.labels.codes(batch.column(self.names[0]), start, chosen))
        elif self.names:
            y = numbers_of(batch, self.names, start + 1, f"{self.table}: target ", self.written)[chosen]  # [B, P]
            if self.single and np.isnan(y).any():
                row = start + int(chosen[np.argmax(np.isnan(y[:, 0]))]) + 1
                raise ValueError(
                    f"{self.table}: target column {self.names[0]!r} has a missing value in row {row}: {REMOVE}"
                )
            self.whole = self.whole and bool((y == np.rint(y)).all())
            _append(self.path, y)

    def finish(self, rows: int) -> dict[str, Any]:
        """What about.json says of the targets."""
        dtype, classes = np.dtype(np.int64), None
        if self.labels is not None:
            rank, classes = self.labels.finish()
            _convert(self.path, dtype, dtype, rank.__getitem__)
        elif not self.whole:
            dtype = np.dtype(np.float64)
        elif self.names:
            _convert(self.path, np.dtype(np.float64), dtype)
        shape = [rows] if self.single else [rows, len(self.names)]
        return {
            "y_dtype": dtype.name,
            "y_shape": shape if self.names else None,
            "targets": self.names or None,
            "classes": classes,
        }


class _LabelFit:
    """Class labels met so far, each with its code and the row that had it first."""

    def __init__(self, path: Path, column: str, classes: Sequence[str] | None) -> None:
        self.place = f"{path}: target column {column!r}"
        self.fixed = classes is not None
        self.known = {str(label): (code, 0) for code, label in enumerate(classes or [])}

    def codes(self, column: pa.Array, start: int, chosen: np.ndarray) -> np.ndarray:
        """Codes of the chosen rows, in order of first appearance; `start` rows came before the column's."""
        column = texts_of(column, "", self.place).take(pa.array(chosen))
        if column.null_count:
            row = int(chosen[np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]])
            raise ValueError(f"{self.place} has a missing value in row {start + row + 1}: {REMOVE}")
        encoded = column.dictionary_encode()
        positions = encoded.indices.to_numpy()
        _, first = np.unique(positions, return_index=True)
        codes = []
        for label, row in zip(encoded.dictionary.to_pylist(), start + chosen[first] + 1, strict=True):
            if self.fixed and label not in self.known:
                raise ValueError(f"{self.place} has {label!r} in row {row}, which is not among {list(self.known)}")
            codes.append(self.known.setdefault(label, (len(self.known), int(row)))[0])
        return np.array(codes, np.int64)[positions]

    def finish(self) -> tuple[np.ndarray, list[str]]:
        """For each code its place among the sorted labels, and those labels."""
        if self.fixed:
            return np.arange(len(self.known)), list(self.known)
        numbers = [(row, label) for label, (_, row) in self.known.items() if _is_number(label)]
        text = [(row, label) for label, (_, row) in self.known.items() if not _is_number(label)]
        # A typing error or a "?" must not turn a regression into thousands of classes.
        if numbers and text:
            (number_row, number), (text_row, label) = min(numbers), min(text)
            raise ValueError(
                f"{self.place} mixes numbers and text: row {number_row} holds {number!r}, row {text_row} {label!r}"
            )
        classes = sorted(self.known)
        rank = np.empty(len(classes), np.int64)
        rank[[self.known[label][0] for label in classes]] = np.arange(len(classes))
        return rank, classes


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _narrowest(values: np.ndarray, ranges: np.ndarray, wide: str) -> np.dtype:
    """The smallest dtype for [B, C] numbers that keeps whole ones exact, and what varies beside a large offset."""
    whole = ((values == np.rint(values)) | np.isnan(values)).all(axis=0)  # [C]
    if whole.all() and values.min() >= 0 and values.max() <= 255:  # false where a value is missing
        return np.dtype(np.uint8)
    with np.errstate(over="ignore"):
        rounding = np.fmax.reduce(np.abs(values.astype(np.float32) - values))  # [C]
    allowed = np.where(whole, 0, MOST_ROUNDING * ranges)
    return np.dtype(np.float64) if (rounding > allowed).any() else np.dtype(wide)


def _append(path: Path, array: np.ndarray) -> None:
    try:
        with path.open("ab") as file:
            file.write(np.ascontiguousarray(array).data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # which disk is full


def _convert(
    path: Path, before: np.dtype, after: np.dtype, change: Callable[[np.ndarray], np.ndarray] | None = None
) -> None:
    """Rewrites a file of numbers in another dtype, piece by piece."""
    old = np.memmap(path, before, mode="r")
    fresh = path.with_suffix(".new")
    for start in range(0, len(old), PIECE):
        piece = old[start : start + PIECE]
        _append(fresh, (piece if change is None else change(piece)).astype(after))
    fresh.replace(path)
