"""CSV and Parquet files, streamed once into memory-mapped arrays that give any row at once.

Several processes may do so together: each reads and converts its own row groups or files, and writes its own rows of
the one copy.
"""

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from autogp.data.addresses import File
from autogp.data.columns import numbers_of, texts_of
from autogp.data.encoding import EncoderFit, TableEncoder
from autogp.data.readers import Form, Layout, plan_layout, read_batches, row_groups
from autogp.data.sources import ArraySource
from autogp.data.texts import Unseen

__all__ = ["Among", "encoded_batches", "open_table"]

VERSION = 6  # of the files in a cache; raised whenever their meaning changes
REMOVE = "remove such rows, or say drop_missing_targets=True (--drop-missing-target)"
PIECE = 2**20  # numbers converted at a time
MOST_ROUNDING = 1e-5  # by float32, of the range of a column

T = TypeVar("T")


class Among(Protocol):
    """This process among those that open a table together, as `autogp.training.distributed.processes` gives it."""

    rank: int
    count: int

    def gather(self, function: Callable[[], T], /) -> list[T]:
        """What the function gives in each process; an error of one is raised in all."""
        ...


def open_table(
    files: list[File],
    target: str | Sequence[str] | None,
    columns: Sequence[str] | None,
    ignore: Sequence[str],
    classes: Sequence[str] | None,
    encoder: TableEncoder | None,
    dtype: str,
    cache: str | Path | None,
    form: Form,
    drop_missing: bool,
    among: Among | None,
) -> ArraySource:
    """The rows of CSV or Parquet files, one after the other; the other arguments are those of `open_source`."""
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    identity = [VERSION, *((_whole_name(file), file.size, file.changed) for file in files)]
    form = form if encoder is None else replace(form, decimal=encoder.decimal)
    request = [target, columns, ignore, classes, encoder and encoder.describe(), dtype, astuple(form), drop_missing]
    key = hashlib.sha256(json.dumps(identity + request, default=list).encode()).hexdigest()[:32]

    def build(folder: Path, group: _Group) -> None:
        layout = group.first(lambda: plan_layout(files[0], target, columns, ignore, classes is not None, encoder, form))
        _write_arrays(folder, files, layout, isinstance(target, str), classes, encoder, dtype, drop_missing, group)

    if cache is not None:
        Path(cache).mkdir(parents=True, exist_ok=True)
        return _load_or_build(Path(cache), key, build, _Group(among, Path(cache)))
    group = _Group(among, Path(tempfile.gettempdir()))
    temporary = Path(group.first(lambda: tempfile.mkdtemp(prefix="autogp-")))
    with _removed_on_error(temporary):
        source = _load_or_build(temporary, key, build, group)
    if group.place == 0:  # the others keep what they have mapped
        weakref.finalize(source, shutil.rmtree, temporary, ignore_errors=True)
    return source


def _whole_name(file: File) -> str:
    return file.path if file.name != file.path else str(Path(file.path).resolve())


class _Group:
    """Those of the processes that see the same folder: they make one copy of a table together.

    All groups make the same calls, since each call waits for all processes.
    """

    def __init__(self, among: Among | None, folder: Path) -> None:
        self.among, self.ranks, self.place = among, [0], 0
        self.several = among is not None and among.count > 1
        if among is not None and self.several:
            with tempfile.NamedTemporaryFile(prefix="process-", dir=folder) as own:
                names = among.gather(lambda: Path(own.name).name)
                self.ranks = [rank for rank, name in enumerate(names) if (folder / name).exists()]
                self.place = self.ranks.index(among.rank)
                among.gather(lambda: None)  # all have looked

    def gather(self, function: Callable[[], T]) -> list[T]:
        """What the function gives in each process of the group."""
        if self.among is None:
            return [function()]
        found = self.among.gather(function)
        return [found[rank] for rank in self.ranks]

    def all(self, fact: bool) -> bool:
        """Whether it is so in every process, of any group."""
        return fact if self.among is None else all(self.among.gather(lambda: fact))

    def first(self, function: Callable[[], T]) -> T:
        """What the function gives in the group's first process, which alone calls it."""
        return self.gather(lambda: function() if self.place == 0 else None)[0]  # pyright: ignore[reportReturnType]


def encoded_batches(
    files: list[File], encoder: TableEncoder, unseen: Unseen, carried: Sequence[str], header: bool
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """The inputs of a table, float64 [B, C], beside its columns `carried`, a few megabytes at a time; at least one
    row."""
    form = Form(decimal=encoder.decimal, header=header)
    layout = plan_layout(files[0], None, None, (), False, encoder, form, carried)
    empty = True
    for file in files:
        rows = 0
        for batch in read_batches(file, layout):
            x = encoder.transform(batch, unseen=unseen, first_row=rows + 1, place=f"{file}: ")
            yield x, batch.select(list(carried))
            rows, empty = rows + batch.num_rows, False
    if empty:
        raise ValueError(f"{files[0]} has no rows")


def _load_or_build(cache: Path, key: str, build: Callable[[Path, _Group], None], group: _Group) -> ArraySource:
    entry = cache / key
    found = _loaded(entry)
    if group.all(found is not None) and found is not None:
        return found
    fresh = Path(group.first(lambda: tempfile.mkdtemp(prefix="partial-", dir=cache)))
    with _removed_on_error(fresh):
        build(fresh, group)
        group.first(lambda: _put(fresh, entry))
    source = _load(entry)
    group.all(True)  # have opened it: the first may remove it
    return source


def _loaded(entry: Path) -> ArraySource | None:
    try:
        return _load(entry)
    except (OSError, ValueError):  # absent, or damaged by a crash of the machine
        return None


def _put(fresh: Path, entry: Path) -> None:
    """The name appears when everything is written, or never."""
    if _loaded(entry) is None:
        shutil.rmtree(entry, ignore_errors=True)
    try:
        fresh.rename(entry)
    except OSError:  # another program was faster
        shutil.rmtree(fresh)


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


@dataclass(frozen=True)
class _Block:
    """What one process reads at least: a CSV file, or a row group of a Parquet file."""

    file: int
    group: int
    first: int  # rows of the file that come before
    size: int  # rows, or bytes of CSV


def _blocks(files: list[File]) -> list[_Block]:
    found = []
    for number, file in enumerate(files):
        sizes = row_groups(file) if file.parquet else [file.size]
        found += [_Block(number, group, sum(sizes[:group]), size) for group, size in enumerate(sizes)]
    return found


def _shares(blocks: list[_Block], count: int) -> list[list[_Block]]:
    """Consecutive blocks for each of so many processes, of about the same size in all."""
    shares: list[list[_Block]] = [[] for _ in range(count)]
    total, before = max(1, sum(block.size for block in blocks)), 0
    for block in blocks:
        shares[min(count - 1, (2 * before + block.size) * count // (2 * total))].append(block)
        before += block.size
    return shares


@dataclass
class _Part:
    """What a process knows of the rows that it has converted."""

    fit: EncoderFit | None
    unseen: Unseen
    inputs: "_Inputs"
    targets: "_Targets"
    rows: int = 0
    kept: int = 0


def _write_arrays(
    folder: Path,
    files: list[File],
    layout: Layout,
    single: bool,
    classes: Sequence[str] | None,
    encoder: TableEncoder | None,
    wide: str,
    drop_missing: bool,
    group: _Group,
) -> None:
    """Writes x.bin [N, C], y.bin [N] or [N, P] and about.json, which says how to read them."""
    shares = group.first(lambda: _shares(_blocks(files), len(group.ranks)))
    # Where there are several processes, the first rows of all decide of what kind the columns are.
    fit = group.first(lambda: _decided(files, layout)) if encoder is None and group.several else None
    part = _Part(
        fit,
        Unseen(),
        _Inputs(folder / f"x-{group.place}.bin", len(layout.inputs if encoder is None else encoder.used), wide),
        _Targets(folder / f"y-{group.place}.bin", layout, single, classes),
    )
    parts = group.gather(lambda: _converted(part, files, shares[group.place], layout, encoder, drop_missing))
    about = group.gather(lambda: _write_part(folder, files, layout, part, parts, group.place, encoder, wide))[0]
    group.first(lambda: (folder / "about.json").write_text(json.dumps(about)))


def _write_part(
    folder: Path,
    files: list[File],
    layout: Layout,
    part: _Part,
    parts: list[_Part],
    place: int,
    encoder: TableEncoder | None,
    wide: str,
) -> dict[str, Any]:
    """Writes the rows of one of the parts to x.bin and y.bin; returns what about.json says."""
    rows, kept = sum(each.rows for each in parts), [each.kept for each in parts]
    if rows == 0:
        raise ValueError(f"{files[0]} has no rows")
    if sum(kept) == 0:
        raise ValueError(f"{files[0]}: no row has a target")
    known = reduce(_Columns.merged, [each.inputs.known for each in parts])
    settle: Callable[[np.ndarray], np.ndarray] | None = None
    fits = [each.fit for each in parts if each.fit is not None]
    if encoder is None:
        encoder = fits[0].merged(fits[1:]).finish()
        known = known.of(layout.inputs, encoder)
        if part.fit is not None and (encoder.categories or encoder.ignored):
            settle = partial(part.fit.settle, encoder=encoder)
    dtype, start = known.dtype(wide), sum(kept[:place])
    targets = part.targets.together([each.targets for each in parts])
    part.inputs.write(folder / "x.bin", dtype, start * len(encoder.used), settle, len(parts) == 1)
    part.targets.write(folder / "y.bin", start, targets)
    unseen = Unseen()
    for each in parts:
        unseen.merge(each.unseen)
    width = [] if part.targets.single else [len(layout.targets)]
    return {
        "x_dtype": dtype.name,
        "x_shape": [sum(kept), len(encoder.used)],
        "y_dtype": targets.dtype.name,
        "y_shape": [sum(kept), *width] if layout.targets else None,
        "targets": layout.targets or None,
        "classes": targets.classes,
        "encoder": encoder.describe(),
        "notes": [*(encoder.notes if fits else unseen.sentences()), *_dropped(rows - sum(kept))],
    }


def _decided(files: list[File], layout: Layout) -> EncoderFit:
    """Knows of what kind each column is, by the first rows."""
    for file in files:
        for batch in read_batches(file, layout):
            if batch.num_rows:
                fit = _begun(batch, layout, f"{file}: ")
                fit.decide(batch)
                return fit
    raise ValueError(f"{files[0]} has no rows")


def _begun(batch: pa.RecordBatch, layout: Layout, place: str) -> EncoderFit:
    return EncoderFit(batch.schema, layout.inputs, place, layout.form.categorical, layout.form.decimal)


def _converted(
    part: _Part,
    files: list[File],
    blocks: list[_Block],
    layout: Layout,
    encoder: TableEncoder | None,
    drop_missing: bool,
) -> _Part:
    """The part, with the rows of these blocks."""
    for number in dict.fromkeys(block.file for block in blocks):
        file, own = files[number], [block for block in blocks if block.file == number]
        place, row = f"{file}: ", own[0].first
        groups = range(own[0].group, own[-1].group + 1) if file.parquet else None
        for batch in read_batches(file, layout, groups):
            if encoder is None:
                part.fit = part.fit or _begun(batch, layout, place)
                x = part.fit.add(batch, row + 1, place)
            else:
                x = encoder.transform(batch, unseen=part.unseen, first_row=row + 1, place=place)
            chosen = part.targets.present(batch, place) if drop_missing else np.arange(batch.num_rows)
            part.inputs.append(x[chosen])
            part.targets.append(batch, row, chosen, place)
            row, part.rows, part.kept = row + batch.num_rows, part.rows + batch.num_rows, part.kept + len(chosen)
    return part


def _dropped(rows: int) -> list[str]:
    return [f"{rows:,} {'row' if rows == 1 else 'rows'} without a target are left out"] if rows else []


@dataclass
class _Columns:
    """What decides the dtype of inputs, of each column [C]; missing values are left out of all but `missing`."""

    low: np.ndarray
    high: np.ndarray
    rounding: np.ndarray  # by float32, at most
    whole: np.ndarray
    missing: np.ndarray

    @classmethod
    def of_rows(cls, x: np.ndarray) -> "_Columns":
        """Those of rows [B, C], at least one."""
        missing: Any = np.isnan(x)
        with np.errstate(over="ignore"):
            rounding = np.fmax.reduce(np.abs(x.astype(np.float32) - x))
        whole = ((x == np.rint(x)) | missing).all(axis=0)
        return cls(np.fmin.reduce(x), np.fmax.reduce(x), rounding, whole, missing.any(axis=0))

    def merged(self, other: "_Columns") -> "_Columns":
        """Those of the rows of both."""
        return _Columns(
            np.fmin(self.low, other.low),
            np.fmax(self.high, other.high),
            np.fmax(self.rounding, other.rounding),
            self.whole & other.whole,
            self.missing | other.missing,
        )

    def of(self, names: list[str], encoder: TableEncoder) -> "_Columns":
        """Those of the columns that the encoder uses, with the codes that it gives to text."""
        places = [names.index(name) for name in encoder.used]
        found = _Columns(*(values[places] for values in vars(self).values()))
        for name, categories in encoder.categories.items():
            found.high[encoder.used.index(name)] = len(categories) - 1
        return found

    def dtype(self, wide: str) -> np.dtype:
        """The smallest that keeps whole numbers exact, and what varies beside a large offset."""
        if (self.whole & ~self.missing & (self.low >= 0) & (self.high <= 255)).all():
            return np.dtype(np.uint8)
        allowed = np.where(self.whole, 0, MOST_ROUNDING * (self.high - self.low))
        return np.dtype(np.float64) if (self.rounding > allowed).any() else np.dtype(wide)


class _Inputs:
    """A file of inputs in the narrowest dtype that keeps those met so far."""

    def __init__(self, path: Path, columns: int, wide: str) -> None:
        self.path, self.columns, self.wide = path, columns, wide
        self.dtype = np.dtype(np.uint8)
        none = np.full(columns, np.nan)
        self.known = _Columns(none, none, none, np.ones(columns, bool), np.zeros(columns, bool))

    def append(self, x: np.ndarray) -> None:  # [B, C]
        if len(x) == 0:
            return
        self.known = self.known.merged(_Columns.of_rows(x))
        needed = np.promote_types(self.dtype, self.known.dtype(self.wide))
        if needed != self.dtype and self.path.exists():
            _convert(self.path, self.dtype, needed)
        self.dtype = needed
        _append(self.path, x.astype(needed))

    def write(
        self,
        path: Path,
        dtype: np.dtype,
        start: int,
        settle: Callable[[np.ndarray], np.ndarray] | None,
        alone: bool,
    ) -> None:
        """Puts the rows into a file of all, after `start` numbers, with the codes and columns that `settle` gives."""
        if not self.path.exists():
            return
        if alone and settle is None and dtype == self.dtype:
            self.path.rename(path)
            return
        old = np.memmap(self.path, self.dtype, mode="r").reshape(-1, self.columns)
        step = max(1, PIECE // self.columns)
        pieces = (old[row : row + step] for row in range(0, len(old), step))
        _put_numbers(path, start, dtype, pieces if settle is None else map(settle, pieces))
        self.path.unlink()


@dataclass(frozen=True)
class _AllTargets:
    """What is known of the targets when all rows have been read."""

    dtype: np.dtype
    classes: list[str] | None
    rank: np.ndarray | None  # for each code of this process its place among the classes


class _Targets:
    """A file of targets: codes of labels, or float64 numbers that become int64 at the end where all are whole."""

    def __init__(self, path: Path, layout: Layout, single: bool, classes: Sequence[str] | None) -> None:
        self.path = path
        self.names = layout.targets
        self.single = single
        self.labels = _LabelFit(self.names[0], classes) if layout.text_target else None
        self.whole = layout.integer_targets and not layout.written
        self.written = layout.written

    def present(self, batch: pa.RecordBatch, place: str) -> np.ndarray:
        """Which rows of the batch have a target."""
        found = np.zeros(batch.num_rows, bool)
        for name in self.names:
            column = batch.column(name)
            column = column if pa.types.is_floating(column.type) else texts_of(column, name, place)
            found |= ~column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        return np.flatnonzero(found)

    def append(self, batch: pa.RecordBatch, start: int, chosen: np.ndarray, place: str) -> None:
        """Adds the targets of the chosen rows of the batch; `start` rows came before."""
        if self.labels is not None:
            _append(self.path, self.labels.codes(batch.column(self.names[0]), start, chosen, place))
        elif self.names:
            y = numbers_of(batch, self.names, start + 1, f"{place}target ", self.written)[chosen]  # [B, P]
            if self.single and np.isnan(y).any():
                row = start + int(chosen[np.argmax(np.isnan(y[:, 0]))]) + 1
                raise ValueError(f"{place}target column {self.names[0]!r} has a missing value in row {row}: {REMOVE}")
            self.whole = self.whole and bool((y == np.rint(y)).all())
            _append(self.path, y)

    def together(self, parts: list["_Targets"]) -> _AllTargets:
        """What the targets of all parts are."""
        if self.labels is not None:
            classes = _LabelFit.classes([each.labels for each in parts if each.labels is not None])
            places = {label: place for place, label in enumerate(classes)}
            rank = np.array([places[label] for label in self.labels.known], np.int64)
            return _AllTargets(np.dtype(np.int64), classes, rank)
        whole = all(each.whole for each in parts)
        return _AllTargets(np.dtype(np.int64 if whole else np.float64), None, None)

    def write(self, path: Path, start: int, all_rows: _AllTargets) -> None:
        """Puts the targets into a file of all, after those of `start` rows."""
        if not self.path.exists():
            return
        old = np.memmap(self.path, np.float64 if all_rows.rank is None else np.int64, mode="r")
        rank: Any = all_rows.rank
        pieces = (old[at : at + PIECE] for at in range(0, len(old), PIECE))
        pieces = pieces if rank is None else (rank[piece] for piece in pieces)
        _put_numbers(path, start * max(1, len(self.names)), all_rows.dtype, pieces)
        self.path.unlink()


class _LabelFit:
    """Class labels met so far, each with its code and the row that had it first."""

    def __init__(self, column: str, classes: Sequence[str] | None) -> None:
        self.column = column
        self.fixed = classes is not None
        self.known = {str(label): (code, 0, "") for code, label in enumerate(classes or [])}

    def codes(self, column: pa.Array, start: int, chosen: np.ndarray, place: str) -> np.ndarray:
        """Codes of the chosen rows, in order of first appearance; `start` rows came before the column's."""
        where = f"{place}target column {self.column!r}"
        column = texts_of(column, "", where).take(pa.array(chosen))
        if column.null_count:
            row = int(chosen[np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]])
            raise ValueError(f"{where} has a missing value in row {start + row + 1}: {REMOVE}")
        encoded = column.dictionary_encode()
        positions = encoded.indices.to_numpy()
        _, first = np.unique(positions, return_index=True)
        codes = []
        for label, row in zip(encoded.dictionary.to_pylist(), start + chosen[first] + 1, strict=True):
            if self.fixed and label not in self.known:
                raise ValueError(f"{where} has {label!r} in row {row}, which is not among {list(self.known)}")
            codes.append(self.known.setdefault(label, (len(self.known), int(row), where))[0])
        return np.array(codes, np.int64)[positions]

    @staticmethod
    def classes(parts: list["_LabelFit"]) -> list[str]:
        """The labels of all parts, sorted unless their order was given."""
        if parts[0].fixed:
            return list(parts[0].known)
        met = [(label, row, where) for part in parts for label, (_, row, where) in part.known.items()]
        number = next((each for each in met if _is_number(each[0])), None)
        text = next((each for each in met if not _is_number(each[0])), None)
        # A typing error or a "?" must not turn a regression into thousands of classes.
        if number is not None and text is not None:
            other = text[2].split(": target column")[0]
            raise ValueError(
                f"{number[2]} mixes numbers and text: row {number[1]} holds {number[0]!r}, row {text[1]} "
                + (f"of {other} " if text[2] != number[2] else "")
                + f"{text[0]!r}"
            )
        return sorted({label for label, *_ in met})


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _append(path: Path, array: np.ndarray) -> None:
    try:
        with path.open("ab") as file:
            file.write(np.ascontiguousarray(array).data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # which disk is full


def _put_numbers(path: Path, start: int, dtype: np.dtype, pieces: Iterator[np.ndarray]) -> None:
    """Writes numbers into a file, which other processes may write too, after `start` others."""
    try:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            file.seek(start * dtype.itemsize)
            for piece in pieces:
                file.write(np.ascontiguousarray(piece, dtype).data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # which disk is full


def _convert(path: Path, before: np.dtype, after: np.dtype) -> None:
    """Rewrites a file of numbers in another dtype, piece by piece."""
    old = np.memmap(path, before, mode="r")
    fresh = path.with_suffix(".new")
    for start in range(0, len(old), PIECE):
        _append(fresh, old[start : start + PIECE].astype(after))
    fresh.replace(path)
