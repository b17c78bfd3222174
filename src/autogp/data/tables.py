"""CSV and Parquet files, streamed once into memory-mapped arrays that give any row at once.

Several processes may do so together: each reads and converts its own row groups or files, and writes its own rows of
the one copy.
"""

import hashlib
import json
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
from autogp.data.converted import ColumnFacts, InputFile, TargetFile
from autogp.data.encoding import EncoderFit, TableEncoder
from autogp.data.readers import Form, Layout, plan_layout, read_batches, row_groups
from autogp.data.sources import ArraySource
from autogp.data.texts import Unseen

__all__ = ["Among", "encoded_batches", "open_table"]

VERSION = 6  # of the files in a cache; raised whenever their meaning changes

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
    inputs: InputFile
    targets: TargetFile
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
        InputFile(folder / f"x-{group.place}.bin", len(layout.inputs if encoder is None else encoder.used), wide),
        TargetFile(folder / f"y-{group.place}.bin", layout, single, classes),
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
    known = reduce(ColumnFacts.merged, [each.inputs.known for each in parts])
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
    return (
        [f"{rows:,} {'row without a target is' if rows == 1 else 'rows without a target are'} left out"] if rows else []
    )
