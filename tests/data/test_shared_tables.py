"""A folder of files is one table, and several processes convert it together to what one process makes of it."""

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from autogp.data import ArraySource, open_source, read_rows, tables


class Threads:
    """Processes as threads: gather waits for all, and an error of one is raised in all."""

    def __init__(self, count: int) -> None:
        self.count, self.barrier, self.found = count, threading.Barrier(count, timeout=20), [None] * count

    def run(self, function: Callable[[Any], Any]) -> list[Any]:
        results: list[Any] = [None] * self.count

        def one(rank: int) -> None:
            try:
                results[rank] = function(_Thread(self, rank))
            except Exception as error:  # compared by the test
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class _Thread:
    def __init__(self, all_of_them: Threads, rank: int) -> None:
        self.all, self.rank, self.count = all_of_them, rank, all_of_them.count

    def gather(self, function: Callable[[], Any]) -> list[Any]:
        try:
            self.all.found[self.rank] = (function(), None)
        except Exception as error:
            self.all.found[self.rank] = (None, error)
        self.all.barrier.wait()
        found: list[Any] = pickle.loads(pickle.dumps(self.all.found))  # as other processes have it
        self.all.barrier.wait()
        for _, error in found:
            if error is not None:
                raise error
        return [result for result, _ in found]


def table(rows: int = 200) -> pa.Table:
    """Numbers, text, dates, gaps, a column that counts, and one with a range that only the last rows show."""
    rng, places = np.random.default_rng(0), np.linspace(0, 0.99, rows)
    return pa.table(
        {
            "age": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(40, 10, rows)),
            "port": [
                ["Cork", "Bari", None, "Dover", "Oslo"][int(5 * place**2)] for place in np.linspace(0, 0.99, rows)
            ],
            "day": pa.array(np.arange(rows) * 86_400, pa.timestamp("s")),
            "row_id": np.arange(rows),
            "far": np.where(np.arange(rows) < rows - 5, rng.random(rows), 2.0**40 + rng.random(rows)),
            "kind": [["owl", "cat", "bee"][int(3 * place)] for place in places],
        }
    )


def write_folder(folder: Path, kind: str) -> None:
    folder.mkdir()
    rows = table()
    for number, start in enumerate((0, 30, 31, 90)):
        part = rows.slice(start, (30, 31, 90, 200)[number] - start)
        if kind == "parquet":
            parquet.write_table(part, folder / f"{number}.parquet", row_group_size=17)
        else:
            csv.write_csv(part, folder / f"{number}.csv")
    (folder / "_SUCCESS").touch()


def assert_same(found: ArraySource, expected: ArraySource) -> None:
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y, expected.y)
    assert (found.x.dtype, found.y.dtype) == (expected.x.dtype, expected.y.dtype)
    assert (found.columns, found.classes, found.notes) == (expected.columns, expected.classes, expected.notes)
    assert found.encoder is not None
    assert expected.encoder is not None
    for own, other in zip(found.encoder.parts, expected.encoder.parts, strict=True):
        ours, others = vars(own).copy(), vars(other).copy()
        assert ours.pop("mean", 0.0) == pytest.approx(others.pop("mean", 0.0), rel=1e-12)
        assert ours == others


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_folder_is_the_table_of_all_its_files(tmp_path: Path, kind: str) -> None:
    write_folder(tmp_path / "rows", kind)
    csv.write_csv(table(), tmp_path / "whole.csv")
    whole = open_source(tmp_path / "whole.csv", "kind")
    found = open_source(tmp_path / "rows", "kind")
    assert_same(found, whole)
    assert found.encoder is not None
    pieces = [x for x, _ in read_rows(tmp_path / "rows", found.encoder)]
    np.testing.assert_array_equal(np.concatenate(pieces).astype(found.x.dtype), found.x)


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_processes_that_share_the_conversion_end_with_the_rows_of_one(tmp_path: Path, kind: str, count: int) -> None:
    write_folder(tmp_path / "rows", kind)
    for target in ("kind", "age", ["age", "far"]):
        options: dict[str, Any] = {"drop_missing_targets": True}
        expected = open_source(tmp_path / "rows", target, **options)
        for found in Threads(count).run(lambda among: open_source(tmp_path / "rows", target, among=among, **options)):  # noqa: B023
            assert isinstance(found, ArraySource), found
            assert_same(found, expected)
    encoder = open_source(tmp_path / "rows", "kind").encoder
    expected = open_source(tmp_path / "rows", "kind", encoder=encoder)
    for found in Threads(count).run(lambda among: open_source(tmp_path / "rows", "kind", encoder=encoder, among=among)):
        assert_same(found, expected)


def test_each_process_reads_its_own_row_groups_and_the_copy_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "rows", "parquet")
    read: dict[int, int] = {}
    original = tables.EncoderFit.add

    def counted(fit: Any, batch: pa.RecordBatch, *more: Any) -> np.ndarray:
        read[id(fit)] = read.get(id(fit), 0) + batch.num_rows
        return original(fit, batch, *more)

    def opened(among: Any) -> ArraySource:
        return open_source(tmp_path / "rows", "kind", among=among, cache=tmp_path / "cache")

    monkeypatch.setattr(tables.EncoderFit, "add", counted)
    sources = Threads(2).run(opened)
    assert sorted(read.values()) == [93, 107]  # in groups of 17 rows and less
    (entry,) = (tmp_path / "cache").iterdir()
    assert {path.name for path in entry.iterdir()} == {"x.bin", "y.bin", "about.json"}
    assert (entry / "x.bin").stat().st_size == sources[0].x.nbytes
    Threads(2).run(opened)
    assert sum(read.values()) == 200, "a copy that exists is used again"


def test_processes_that_see_different_folders_make_a_copy_each(tmp_path: Path) -> None:
    """As on machines without a common disk: two of them, with one and with two processes."""
    write_folder(tmp_path / "rows", "parquet")
    expected = open_source(tmp_path / "rows", "kind")

    def opened(among: Any) -> ArraySource:
        cache = tmp_path / ("second" if among.rank else "first")
        return open_source(tmp_path / "rows", "kind", among=among, cache=cache)

    for found in Threads(3).run(opened):
        assert_same(found, expected)
    assert [len(list((tmp_path / name).iterdir())) for name in ("first", "second")] == [1, 1]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_an_error_in_one_process_is_raised_in_all_and_names_file_and_row(tmp_path: Path, kind: str) -> None:
    write_folder(tmp_path / "rows", kind)
    part = table().slice(90, 110).to_pandas()
    part.loc[60, "kind"] = None
    name = f"3.{kind}"
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pandas(part), tmp_path / "rows" / name, row_group_size=17)
    else:
        part.to_csv(tmp_path / "rows" / name, index=False)
    for found in Threads(2).run(lambda among: open_source(tmp_path / "rows", "kind", among=among, cache=tmp_path)):
        assert isinstance(found, ValueError)
        assert f"{name}: target column 'kind' has a missing value in row 61" in str(found)
    assert {path.name for path in tmp_path.iterdir()} == {"rows"}


def test_files_of_a_folder_must_be_alike(tmp_path: Path) -> None:
    write_folder(tmp_path / "rows", "parquet")
    parquet.write_table(table().drop_columns(["port"]), tmp_path / "rows" / "4.parquet")
    with pytest.raises(ValueError, match=r"4.parquet has no column 'port'"):
        open_source(tmp_path / "rows", "kind")
    (tmp_path / "rows" / "5.csv").write_text("a\n1\n")
    with pytest.raises(ValueError, match=r"holds both Parquet and CSV files"):
        open_source(tmp_path / "rows", "kind")


def test_a_dtype_is_judged_by_the_range_of_all_rows(tmp_path: Path) -> None:
    """Fractions beside an offset: float32 is off by 6e-5, too much for the first rows' range of 0.01, not for 1,000."""
    steps = np.concatenate([np.linspace(0, 0.01, 50_000), np.linspace(0, 1000, 50_000)])
    parquet.write_table(pa.table({"a": 1000 + steps, "y": steps}), tmp_path / "rows.parquet", row_group_size=50_000)
    assert open_source(tmp_path / "rows.parquet", "y").x.dtype == np.float32
    parquet.write_table(pa.table({"a": 1000 + steps / 1e5, "y": steps}), tmp_path / "rows.parquet")
    assert open_source(tmp_path / "rows.parquet", "y").x.dtype == np.float64
