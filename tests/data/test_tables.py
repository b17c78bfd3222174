"""Tables become arrays on disk once, exactly, and every fault in them is named by its place."""

import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from autogp.data import ArraySource, converted, open_source, readers, tables
from autogp.data.addresses import File, table_files
from autogp.features import Columns


@pytest.fixture
def csv(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "data.csv") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows at a time, so that small files have many batches."""
    monkeypatch.setattr(readers, "CSV_BLOCK_BYTES", 64)
    monkeypatch.setattr(readers, "PARQUET_BATCH_BYTES", 64)
    monkeypatch.setattr(converted, "PIECE", 5)


def save(frame: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)


def features(source: ArraySource) -> np.ndarray:
    """What a kernel sees."""
    assert source.encoder is not None
    columns = Columns.of(source.encoder)
    assert columns is not None
    return columns(torch.from_numpy(np.array(source.x))).numpy()


def everything(source: ArraySource) -> tuple[np.ndarray, np.ndarray]:
    return source.rows(np.arange(len(source)))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz", "data.parquet"])
def test_table_gives_the_numbers_it_holds(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=["a", "b", "c"])
    save(frame, tmp_path / name)
    source = open_source(tmp_path / name, "b", dtype="float64")
    x, y = everything(source)
    assert source.columns == ["a", "c"]
    assert source.targets == ["b"]
    assert not source.in_memory
    np.testing.assert_array_equal(x, frame[["a", "c"]])
    np.testing.assert_array_equal(y, frame["b"])


@pytest.mark.parametrize(
    ("offset", "dtype"), [(0.0, np.float32), (50.0, np.float32), (1e3, np.float64), (1.7e9, np.float64)]
)
def test_what_varies_beside_a_large_offset_is_kept(tmp_path: Path, offset: float, dtype: type) -> None:
    values = offset + np.random.default_rng(0).uniform(size=200)
    save(pd.DataFrame({"a": values, "b": np.linspace(0, 1, 200), "y": values}), tmp_path / "data.csv")
    source = open_source(tmp_path / "data.csv", "y")
    assert source.x.dtype == dtype
    np.testing.assert_allclose(source.x[:, 0], values, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("small_blocks")
def test_a_short_last_piece_widens_nothing(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(size=41)
    save(pd.DataFrame({"a": np.where(np.arange(41) < 2, [0.0] * 41, values), "y": 0}), tmp_path / "data.csv")
    assert open_source(tmp_path / "data.csv", "y").x.dtype == np.float32


def test_text_in_quotes_may_hold_line_breaks_and_separators(csv: Callable[..., Path]) -> None:
    reviews = [f'"{number}: good;\n\nbut, {"long " * 60}"' for number in range(4000)]
    path = csv(
        '"a; b, c","review",y\n' + "".join(f"{number},{text},{number % 2}\n" for number, text in enumerate(reviews))
    )
    assert path.stat().st_size > readers.CSV_BLOCK_BYTES
    source = open_source(path, "y")
    assert (len(source), source.columns) == (4000, ["a; b, c"])
    np.testing.assert_array_equal(source.x[:, 0], np.arange(4000))
    for name in ("b.csv", "b.tsv"):
        separator = ";" if name == "b.csv" else "\t"
        path = csv('"Income, EUR"|"Height, cm"|y\n1|2|3\n'.replace("|", separator), name)
        assert open_source(path, "y").columns == ["Income, EUR", "Height, cm"]


def test_a_quote_that_is_never_closed_is_said(csv: Callable[..., Path]) -> None:
    path = csv("a,y,t\n1,0,text\n" + '1,0,"open\n' + "1,0,text\n" * 400_000)
    with pytest.raises(ValueError, match="a quote that is never closed"):
        open_source(path, "y")


@pytest.mark.parametrize(("separator", "name"), [(";", "a.csv"), ("\t", "a.csv"), ("\t", "a.tsv"), (",", "a.csv")])
def test_semicolons_and_tabs_separate_too(csv: Callable[..., Path], separator: str, name: str) -> None:
    source = open_source(csv("a,b\n1,2\n3,4\n".replace(",", separator), name), "b")
    assert source.x.tolist() == [[1], [3]]
    assert source.y.tolist() == [2, 4]


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(0, 255), st.integers(-(2**40), 2**40), st.floats(-1e6, 1e6, width=32)),
        min_size=1,
        max_size=60,
    )
)
def test_inputs_are_stored_exactly_in_the_narrowest_dtype(values: list[float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.csv")
        path.write_text("a,b\n" + "".join(f"{value!r},0\n" for value in values))
        source = open_source(path, "b")
        x = source.x[:, 0].astype(np.float64)
        whole = all(float(value).is_integer() for value in values)
        if whole and all(0 <= value <= 255 for value in values):
            assert source.x.dtype == np.uint8
        # Whole numbers always come back exactly, and so does what float32 can hold.
        exact = np.array(values, np.float64)
        np.testing.assert_allclose(x, exact, rtol=2**-24 if not whole else 0)


@pytest.mark.usefixtures("small_blocks")
def test_dtype_widens_when_later_rows_need_it(csv: Callable[..., Path]) -> None:
    path = csv("a,b,y\n" + "1,2,0\n" * 30 + "1.5,2,0\n" * 30 + "1.5,1700000001,0\n")
    source = open_source(path, "y")
    assert source.x.dtype == np.float64
    assert source.x[[0, 29, 30, 60]].tolist() == [[1, 2], [1, 2], [1.5, 2], [1.5, 1700000001]]
    assert open_source(csv("a,y\n" + "1,0\n" * 30 + "-1,0\n"), "y").x.dtype == np.float32


@pytest.mark.usefixtures("small_blocks")
def test_targets_are_integers_only_if_all_are_written_so(csv: Callable[..., Path]) -> None:
    for values, dtype, expected in (
        (["1"] * 60, np.int64, [1] * 60),
        (["1"] * 59 + ["2.5"], np.float64, [1] * 59 + [2.5]),
        (["1.0"] * 60, np.float64, [1.0] * 60),
        (["true", "false"] * 30, np.int64, [1, 0] * 30),
    ):
        source = open_source(csv("a,y\n" + "".join(f"0,{value}\n" for value in values)), "y")
        assert source.y.dtype == dtype
        assert source.y.tolist() == expected


def test_several_targets_may_be_missing_but_one_may_not(csv: Callable[..., Path]) -> None:
    path = csv("a,y,z\n1,2,3\n4,,6\n")
    y = everything(open_source(path, ["z", "y"]))[1]
    np.testing.assert_array_equal(y, [[3, 2], [6, np.nan]])
    assert open_source(path, ["z"], columns=["a"]).y.tolist() == [[3], [6]]
    with pytest.raises(ValueError, match=r"data\.csv: target column 'y' has a missing value in row 2"):
        open_source(path, "y", columns=["a"])


def test_table_without_target_has_inputs_only(csv: Callable[..., Path]) -> None:
    source = open_source(csv("a,b\n1,2\n"))
    assert source.columns == ["a", "b"]
    assert source.y.shape == (1, 0)


def test_columns_choose_and_order_the_inputs(csv: Callable[..., Path]) -> None:
    source = open_source(csv("name,a,b,y\nx,1,2,3\n"), "y", columns=["b", "a"])
    assert source.x.tolist() == [[2, 1]]
    assert source.columns == ["b", "a"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_text_targets_count_sorted_classes(tmp_path: Path, name: str) -> None:
    labels = np.random.default_rng(0).choice(["owl", "cat", "bee"], 100)
    frame = pd.DataFrame({"a": range(100), "kind": labels})
    save(frame, tmp_path / name)
    source = open_source(tmp_path / name, "kind")
    assert source.classes == ["bee", "cat", "owl"]
    assert source.y.dtype == np.int64
    assert np.array(source.classes)[source.y].tolist() == labels.tolist()


def test_given_classes_number_the_labels_of_another_file(csv: Callable[..., Path]) -> None:
    path = csv("a,y\n1,owl\n2, cat\n")
    source = open_source(path, "y", classes=["bee", "cat", "owl"])
    assert source.y.tolist() == [2, 1]
    assert source.classes == ["bee", "cat", "owl"]
    with pytest.raises(ValueError, match=r"target column 'y' has 'cat' in row 2, which is not among \['bee', 'owl'\]"):
        open_source(path, "y", classes=["bee", "owl"])
    assert open_source(csv("a,y\n1,30\n2,4\n"), "y", classes=["30", "4"]).y.tolist() == [0, 1]


@pytest.mark.usefixtures("small_blocks")
def test_target_that_mixes_numbers_and_text_is_refused(csv: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="target column 'y' holds numbers, but '<2' in row 3"):
        open_source(csv("a,y\n1,0.5\n1,1.5\n1,<2\n"), "y")
    with pytest.raises(ValueError, match="target column 'y' has a missing value in row 3"):
        open_source(csv("a,y\n1,0.5\n1,1.5\n1,?\n"), "y")
    assert len(open_source(csv("a,y\n1,0.5\n1,1.5\n1,?\n"), "y", drop_missing_targets=True)) == 2
    with pytest.raises(ValueError, match=r"column 'y' must hold numbers, but row 61 holds '\?'"):
        open_source(csv("a,y\n" + "1,0.5\n" * 60 + "1,?\n"), "y")


def test_missing_label_names_its_row(csv: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="target column 'y' has a missing value in row 2"):
        open_source(csv("a,y\n1,owl\n2,\n"), "y")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("before", [40, 100])
def test_csv_with_text_in_number_column_names_row_and_value(csv: Callable[..., Path], before: int) -> None:
    path = csv("a,width,y\n" + "1,2,3\n" * before + "1,wide,3\n")
    with pytest.raises(
        ValueError, match=rf"data\.csv: column 'width' must hold numbers, but row {before + 1} holds 'wide'"
    ):
        open_source(path, "y")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("value", ["", "NA", "nan"])
def test_missing_inputs_are_kept_as_nan(csv: Callable[..., Path], value: str) -> None:
    path = csv("a,width,y\n" + "1,2,3\n0,4,3\n" * 50 + f"1,{value},3\n")
    source = open_source(path, "y")
    assert source.columns == ["a", "width"]
    assert source.x.dtype == np.float32
    np.testing.assert_array_equal(source.x[[0, 1, 99, 100]], [[1, 2], [0, 4], [0, 4], [1, np.nan]])
    assert source.notes == ["'width' has 1 missing value, taken as the mean 3"]
    assert features(source)[[0, 1, 99, 100]].tolist() == [[1, 2, 0], [0, 4, 0], [0, 4, 0], [1, 3, 1]]


@pytest.mark.usefixtures("small_blocks")
def test_infinite_inputs_and_targets_name_row_and_column(csv: Callable[..., Path]) -> None:
    path = csv("a,width,y\n" + "1,2,3\n" * 50 + "1,inf,3\n1,2,inf\n")
    with pytest.raises(ValueError, match=r"data\.csv: column 'width' has an infinite value in row 51"):
        open_source(path, "y")
    with pytest.raises(ValueError, match=r"data\.csv: target column 'y' has an infinite value in row 52"):
        open_source(path, "y", columns=["a"])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
def test_text_and_missing_inputs_are_encoded(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"port": rng.choice(["Cork", "Bari", None], 100), "age": rng.normal(size=100), "y": 0.5})
    frame.loc[::7, "age"] = None
    save(frame, tmp_path / name)
    source = open_source(tmp_path / name, "y", dtype="float64")
    assert source.columns == ["port", "age"]
    codes = frame["port"].map({"Bari": 0, "Cork": 1})
    np.testing.assert_array_equal(source.x, np.column_stack([codes, frame["age"]]))
    expected = np.column_stack(
        [
            frame["port"] == "Bari",
            frame["port"] == "Cork",
            frame["port"].isna(),
            frame["age"].fillna(frame["age"].mean()),
            frame["age"].isna(),
        ]
    )
    np.testing.assert_allclose(features(source), expected.astype(np.float64), rtol=1e-12)
    np.testing.assert_array_equal(source.y, frame["y"])


@pytest.mark.usefixtures("small_blocks")
def test_text_and_columns_left_out_leave_bytes(csv: Callable[..., Path]) -> None:
    rows = "".join(f"{number},{'ba'[number % 2]},name {number},,0\n" for number in range(100))
    source = open_source(csv("number,kind,name,empty,y\n" + rows), "y")
    assert source.columns == ["number", "kind"]
    assert source.x.dtype == np.uint8
    assert source.x.tolist() == [[number, 1 - number % 2] for number in range(100)]
    assert list(source.encoder.ignored) == ["name", "empty"]  # type: ignore[union-attr]


def test_columns_may_be_left_out_by_name(csv: Callable[..., Path]) -> None:
    path = csv("a,b,y\n1,2,3\n")
    assert open_source(path, "y", ignore=["a"]).columns == ["b"]
    with pytest.raises(ValueError, match="has no column 'c'"):
        open_source(path, "y", ignore=["c"])


def test_a_table_is_opened_once_for_its_header_and_once_for_its_rows(
    csv: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, stream = [], File.stream
    monkeypatch.setattr(File, "stream", lambda file: opened.append(file) or stream(file))
    open_source(csv("port,age,y\nCork,,owl\nBari,2,cat\n"), "y")
    assert len(opened) == 2


def test_encoder_of_another_file_is_applied_and_tells_what_it_never_saw(csv: Callable[..., Path]) -> None:
    train = open_source(csv("id,port,age,y\na,Cork,20,1\nb,Bari,40,2\n"), "y", columns=["port", "age"])
    path = csv("age,kind,port\n,x,Cork\n10,x,Dover\n20,x,Dover\n", "new.csv")
    source = open_source(path, encoder=train.encoder)
    assert source.columns == train.columns == ["port", "age"]
    np.testing.assert_array_equal(source.x, [[1, np.nan], [-1, 10], [-1, 20]])
    assert features(source).tolist() == [[0, 1, 30], [0, 0, 10], [0, 0, 20]]
    assert len(source.notes) == 2
    assert "'Dover'" in source.notes[0]
    assert "1 row has no value" in source.notes[1]
    with pytest.raises(ValueError, match=r"new\.csv: there is no column 'age', which the model was trained with"):
        open_source(csv("port\nCork\n", "new.csv"), encoder=train.encoder)
    # Labels that look like numbers stay text where they were text.
    train = open_source(csv("code,y\n1,1\n2,2\nx,2\n"), "y")
    assert open_source(csv("code\n2\n1\n", "new.csv"), encoder=train.encoder).x.tolist() == [[1], [0]]
    train = open_source(csv("age,y\n1,1\n"), "y")
    with pytest.raises(ValueError, match=r"column 'age' holds numbers, but 'old' in row 1"):
        open_source(csv("age\nold\n", "new.csv"), encoder=train.encoder)


def test_second_opening_of_text_with_a_cache_gives_the_same(csv: Callable[..., Path], tmp_path: Path) -> None:
    path = csv("port,age,y\nCork,,1\nBari,2,2\n")
    first = open_source(path, "y", cache=tmp_path / "cache")
    again = open_source(path, "y", cache=tmp_path / "cache")
    np.testing.assert_array_equal(again.x, first.x)
    assert again.notes == first.notes != []
    assert again.encoder is not None
    assert again.encoder.used == first.columns
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_parquet_columns_that_are_neither_numbers_nor_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    days = pa.array([0, 1], pa.int32()).cast(pa.date32())
    parquet.write_table(pa.table({"a": [1, 2], "day": days, "list": [[1], [2]], "y": [0.5, 1.5]}), path)
    with pytest.raises(ValueError, match=r"column 'list' holds list<.*>, neither numbers, dates nor text"):
        open_source(path, "y", columns=["list"])
    with pytest.raises(ValueError, match=r"target column 'day' holds date32\[day\], not numbers"):
        open_source(path, "day", columns=["a"])


def test_dates_and_disguised_numbers_are_the_same_by_csv_and_parquet(csv: Callable[..., Path], tmp_path: Path) -> None:
    text = "day,price,zip,at,y\n2024-01-31,$1000,02139,08:15,$5\n2024-02-01,$2000,10001,09:30,$6\n"
    by_csv = open_source(csv(text), "y")
    frame = pd.read_csv(tmp_path / "data.csv", dtype={"zip": str})
    frame["day"] = pd.to_datetime(frame["day"])
    frame.to_parquet(tmp_path / "data.parquet")
    by_parquet = open_source(tmp_path / "data.parquet", "y")
    assert by_csv.y.tolist() == by_parquet.y.tolist() == [5, 6]
    assert (
        by_csv.x.tolist()
        == by_parquet.x.tolist()
        == [
            [1706659200, 1000, 0, 29700],
            [1706745600, 2000, 1, 34200],
        ]
    )
    assert by_csv.encoder is not None
    assert by_csv.encoder.categories == {"zip": ["02139", "10001"]}
    new = csv("day,price,zip,at\n2024-03-01,$7,10001,10:00\n", "new.csv")
    assert open_source(new, encoder=by_csv.encoder).x.tolist() == [[1709251200, 7, 1, 36000]]
    assert open_source(csv("zip,y\n2139,1\n10001,2\n"), "y", categorical=["zip"]).columns == ["zip"]


def test_decimal_commas_are_read_and_kept_for_the_next_file(csv: Callable[..., Path]) -> None:
    path = csv("a;y\n1,5;2\n1.000;3\n")
    source = open_source(path, "y", decimal=",")
    assert source.x.tolist() == [[1.5], [1000]]
    assert open_source(csv("a\n2.000\n", "new.csv"), encoder=source.encoder).x.tolist() == [[2000]]
    with pytest.raises(ValueError, match="decimal must be"):
        open_source(path, "y", decimal=":")


def test_a_file_without_names_has_numbered_columns(csv: Callable[..., Path]) -> None:
    source = open_source(csv("1,2\n3,4\n"), "f1", header=False)
    assert source.columns == ["f0"]
    assert source.y.tolist() == [2, 4]


def test_rows_without_a_target_are_left_out_on_request(csv: Callable[..., Path]) -> None:
    path = csv("a,y\n1,2\n2,\n3,4\n")
    with pytest.raises(ValueError, match="has a missing value in row 2: remove such rows, or say drop_missing_targets"):
        open_source(path, "y")
    source = open_source(path, "y", drop_missing_targets=True)
    assert (source.x.tolist(), source.y.tolist()) == ([[1], [3]], [2, 4])
    assert source.notes == ["1 row without a target is left out"]
    labels = open_source(csv("a,y\n1,x\n2, \n3,z\n"), "y", drop_missing_targets=True)
    assert (labels.y.tolist(), labels.classes) == ([0, 1], ["x", "z"])


def test_files_that_unfold_without_end_are_refused(csv: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    ones = pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**6, np.int8)), [1.0])] * 120)
    parquet.write_table(pa.table({"a": ones}), path)
    assert path.stat().st_size < 900_000
    with pytest.raises(ValueError, match=r"bytes, which unfold to 960,000,000: no table of measurements does that"):
        open_source(path)
    with pytest.raises(ValueError, match="has at least 30,000 columns in its first line; 20,000 are the most"):
        open_source(csv(",".join("a" * 30_000) + "\n1\n"))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_text_that_a_few_bytes_put_into_every_row_is_unfolded_in_pieces(tmp_path: Path, kind: pa.DataType) -> None:
    path, long = tmp_path / "data.parquet", "x" * 200_000
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 500, pa.int8()), [long, "y"])
    table = pa.table({"a": texts.cast(kind), "b": np.arange(1500.0), "y": np.arange(1500.0)})
    parquet.write_table(table, path)
    assert path.stat().st_size < 300_000
    file = table_files(path)[0]
    batches = list(readers.read_batches(file, readers.plan_layout(file, "y", None, (), False, None)))
    assert max(batch.num_rows for batch in batches) <= readers.PARQUET_BATCH_BYTES // len(long)
    assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()
    assert open_source(path, "y").encoder.categories == {"a": [long, "y"]}


def test_lines_that_are_too_long_are_named(csv: Callable[..., Path]) -> None:
    for text in ("a" * 2_500_000 + ",y\n1,2\n", "a,y\n" + "1" * 2_500_000 + ",2\n"):
        with pytest.raises(ValueError, match="has a line of more than 1,048,576 bytes"):
            open_source(csv(text), "y")


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pd.DataFrame({"a": np.random.default_rng(0).normal(size=2000), "y": 1.0}).to_parquet(path)
    content = bytearray(path.read_bytes())
    content[4:2000] = b"\xff" * 1996
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.parquet is damaged"):
        open_source(path, "y")


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.csv.gz"
    pd.DataFrame({"a": np.random.default_rng(0).normal(size=2000), "y": 1.0}).to_csv(path, index=False)
    content = bytearray(path.read_bytes())
    content[100:200] = b"\xff" * 100
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.csv\.gz"):
        open_source(path, "y")


@pytest.mark.usefixtures("small_blocks")
def test_text_in_another_coding_than_utf_8_is_named(tmp_path: Path) -> None:
    for text in ("name,y\nJosé,1\n", "name,y\n" + "Ann,1\n" * 100 + "José,1\n", "né,y\n1,1\n"):
        (tmp_path / "data.csv").write_bytes(text.encode("latin-1"))
        with pytest.raises(ValueError, match=r"data\.csv is not in UTF-8: save it in that encoding"):
            open_source(tmp_path / "data.csv", "y")


def test_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"data\.parquet is not a Parquet file"):
        open_source(tmp_path / "data.parquet", "b")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("before", [0, 100])
def test_ragged_csv_names_the_line(csv: Callable[..., Path], before: int) -> None:
    path = csv("a,b,y\n" + "1,2,3\n" * before + "1,2\n")
    with pytest.raises(ValueError, match=rf"line {before + 2} .*has 2 columns, but the header has 3"):
        open_source(path, "y")


@pytest.mark.parametrize("text", ["a,y", "a,y\n", "\n"])
def test_csv_without_rows_is_refused(csv: Callable[..., Path], text: str) -> None:
    with pytest.raises(ValueError, match="has no rows"):
        open_source(csv(text), "y")


def test_parquet_without_rows_is_refused(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1.0], "y": [1.0]}).iloc[:0].to_parquet(tmp_path / "data.parquet")
    with pytest.raises(ValueError, match="has no rows"):
        open_source(tmp_path / "data.parquet", "y")


def test_wrong_names_are_answered_with_close_ones(csv: Callable[..., Path]) -> None:
    path = csv("weight,price,height\n1,2,3\n")
    with pytest.raises(ValueError, match=r"data\.csv has no column 'Prize'; did you mean 'price'\?"):
        open_source(path, "Prize")
    with pytest.raises(ValueError, match="did you mean 'weight' or 'height'"):
        open_source(path, "price", columns=["eight"])
    with pytest.raises(ValueError, match="no column 'zzz'; its columns are 'weight', 'price', 'height'"):
        open_source(path, ["zzz"])


def test_columns_used_twice_or_not_at_all_are_refused(csv: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="column 'a' appears more than once"):
        open_source(csv("a,b,a\n1,2,3\n"), "b")
    with pytest.raises(ValueError, match="column 'b' appears more than once"):
        open_source(csv("a,b\n1,2\n"), "b", columns=["a", "b"])
    with pytest.raises(ValueError, match="no columns besides the target"):
        open_source(csv("b\n1\n"), "b")


def test_other_dtypes_are_refused(csv: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'float64', got 'int8'"):
        open_source(csv("a,b\n1,2\n"), "b", dtype="int8")  # type: ignore[arg-type]


def test_second_opening_with_a_cache_does_not_read_the_file_again(
    csv: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = csv("a,b,y\n1.5,2,owl\n3,4,cat\n")
    first = open_source(path, "y", cache=tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(tables, "read_batches", None)
        again = open_source(path, "y", cache=tmp_path / "cache")
    assert (again.x == first.x).all()
    assert (again.y == first.y).all()
    assert again.classes == first.classes == ["cat", "owl"]
    assert again.columns == ["a", "b"]


def test_changed_files_and_other_requests_are_read_anew(csv: Callable[..., Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path = csv("a,b,y\n1,2,3\n")
    assert open_source(path, "y", cache=cache).x.tolist() == [[1, 2]]
    assert open_source(path, "y", columns=["b"], cache=cache).x.tolist() == [[2]]
    assert open_source(path, "a", cache=cache).x.tolist() == [[2, 3]]
    path.write_text("a,b,y\n7,8,9\n")
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    assert open_source(path, "y", cache=cache).x.tolist() == [[7, 8]]


@pytest.mark.usefixtures("small_blocks")
def test_a_failed_reading_leaves_nothing_behind(
    csv: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = csv("a,y\n" + "1,3\n" * 100 + "wide,3\n")
    for cache in (tmp_path / "cache", None):
        with pytest.raises(ValueError, match="row 101"):
            open_source(path, "y", cache=cache)
    assert list((tmp_path / "cache").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("damage", ["about.json", "x.bin", "y.bin"])
@pytest.mark.parametrize("absent", [True, False])
def test_a_damaged_cache_is_never_used(csv: Callable[..., Path], tmp_path: Path, damage: str, absent: bool) -> None:
    path = csv("a,b,y\n1.5,2,3\n4,5,6\n")
    open_source(path, "y", cache=tmp_path / "cache")
    (entry,) = (tmp_path / "cache").iterdir()
    if absent:
        (entry / damage).unlink()
    else:
        (entry / damage).write_bytes((entry / damage).read_bytes()[:-1])
    assert open_source(path, "y", cache=tmp_path / "cache").x.tolist() == [[1.5, 2], [4, 5]]


def test_two_processes_may_build_the_same_cache(
    csv: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = csv("a,y\n1,2\n")
    write = tables._write_arrays

    def write_while_another_finishes(*arguments) -> None:
        monkeypatch.setattr(tables, "_write_arrays", write)
        open_source(path, "y", cache=tmp_path / "cache")
        write(*arguments)

    monkeypatch.setattr(tables, "_write_arrays", write_while_another_finishes)
    assert open_source(path, "y", cache=tmp_path / "cache").x.tolist() == [[1]]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_temporary_copy_goes_with_the_source(
    csv: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    source = open_source(csv("a,y\n1,2\n"), "y")
    assert len(list((tmp_path / "temporary").iterdir())) == 1
    del source
    gc.collect()
    assert list((tmp_path / "temporary").iterdir()) == []
