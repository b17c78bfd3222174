"""Text and missing values become the same numbers each time, and what cannot be numbers is said."""

import copy
import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autogp.data import TableEncoder, Unseen, as_table
from autogp.data.encoding import EncoderFit
from autogp.features import Columns

NAN = float("nan")
TABLE = pa.table(
    {
        "age": [20.0, None, 40.0],
        "port": ["Cork", " Bari", None],
        "old": [True, False, True],
        "name": ["A", "B", ""],
        "empty": pa.nulls(3),
    }
)


def columns(encoder: TableEncoder) -> list[str]:
    """Names of what a kernel sees."""
    features = Columns.of(encoder)
    return encoder.used if features is None else features.columns


def encoded(encoder: TableEncoder, table: pa.Table, **options: Any) -> np.ndarray:
    """What a kernel sees."""
    x, features = encoder.transform(table, **options), Columns.of(encoder)
    return x if features is None else features(torch.from_numpy(x)).numpy()


def test_columns_are_named_after_what_they_say() -> None:
    encoder = TableEncoder.fit([TABLE])
    assert encoder.inputs == ["age", "port", "old", "name", "empty"]
    assert encoder.used == ["age", "port", "old", "name"]
    assert encoder.ignored == {"empty": "it has no values"}
    assert encoder.categories == {"port": ["Bari", "Cork"], "name": ["A", "B"]}
    np.testing.assert_array_equal(encoder.transform(TABLE), [[20, 1, 1, 0], [NAN, 0, 0, 1], [40, NAN, 1, NAN]])
    assert columns(encoder) == [
        "age",
        "age missing",
        "port=Bari",
        "port=Cork",
        "port missing",
        "old",
        "name=A",
        "name=B",
        "name missing",
    ]
    assert encoded(encoder, TABLE).tolist() == [
        [20, 0, 0, 1, 0, 1, 1, 0, 0],
        [30, 1, 1, 0, 0, 0, 0, 1, 0],
        [40, 0, 0, 0, 1, 1, 0, 0, 1],
    ]
    assert encoder.notes == [
        "'age' has 1 missing value, taken as the mean 30",
        "'port' is text with 2 categories, and 1 missing",
        "'name' is text with 2 categories, and 1 missing",
        "'empty' is left out: it has no values",
    ]


def test_complete_numbers_pass_through_unchanged() -> None:
    values = np.random.default_rng(0).normal(size=(50, 3))
    table = pa.table(list(values.T), names=["a", "b", "c"])
    encoder = TableEncoder.fit(table.to_batches(max_chunksize=7))
    assert encoder.plain
    assert Columns.of(encoder) is None
    assert encoder.notes == []
    np.testing.assert_array_equal(encoder.transform(table), values)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.floats(-1e6, 1e6)), st.sampled_from(["a", "b", "c", None])),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 30),
)
def test_batches_of_any_size_give_the_encoding_of_the_whole(rows: list[tuple], size: int) -> None:
    numbers, texts = zip(*rows, strict=True)
    table = pa.table({"number": pa.array(numbers, pa.float64()), "text": pa.array(texts, pa.string())})
    if table["number"].null_count == table["text"].null_count == len(rows):
        return
    whole, pieces = TableEncoder.fit([table]), TableEncoder.fit(table.to_batches(max_chunksize=size))
    assert columns(pieces) == columns(whole)
    x = encoded(whole, table)
    np.testing.assert_allclose(encoded(pieces, table), x, rtol=1e-9, atol=1e-9)
    frame = table.to_pandas()
    if "number" in whole.used:
        np.testing.assert_allclose(x[:, 0], frame["number"].fillna(frame["number"].mean()), rtol=1e-9, atol=1e-9)
    if whole.categories:
        # Exactly one category of each row, "missing" among them.
        names = [name for name in columns(whole) if name.startswith("text")]
        ones = x[:, [columns(whole).index(name) for name in names]]
        assert (ones.sum(axis=1) == 1).all()
        expected = ["text missing" if text is None else f"text={text}" for text in texts]
        assert [names[number] for number in ones.argmax(axis=1)] == expected


def test_mean_of_a_large_offset_keeps_its_digits() -> None:
    values = 1e9 + np.random.default_rng(0).normal(size=10_000)
    batches = pa.table({"a": [*values, None]}).to_batches(max_chunksize=100)
    (part,) = TableEncoder.fit(batches).describe()["columns"]
    assert abs(part["mean"] - (1e9 + (values - 1e9).mean())) < 1e-6


def test_rows_handed_on_while_learning_settle_to_those_of_the_encoder() -> None:
    pieces = TABLE.to_batches(max_chunksize=1)
    fit = EncoderFit(TABLE.schema)
    rows = [fit.add(piece) for piece in pieces]
    encoder = fit.finish()
    found = np.concatenate([fit.settle(x, encoder) for x in rows])
    np.testing.assert_array_equal(found, encoder.transform(TABLE))


def test_values_that_training_never_saw_are_marked_and_counted() -> None:
    encoder = TableEncoder.fit([pa.table({"age": [20, 40], "port": ["Cork", "Bari"]})])
    unseen = Unseen()
    first = pa.table({"port": ["Dover", None, "Cork"], "extra": [1, 2, 3], "age": [None, 1, 2]})
    second = pa.table({"port": ["Rhyl", "Dover"], "age": [None, None]})
    np.testing.assert_array_equal(encoder.transform(first), [[NAN, -1], [1, NAN], [2, 1]])
    assert encoded(encoder, first, unseen=unseen).tolist() == [[30, 0, 0], [1, 0, 0], [2, 0, 1]]
    assert encoded(encoder, second, unseen=unseen).tolist() == [[30, 0, 0], [30, 0, 0]]
    assert unseen.sentences() == [
        "column 'port': 3 rows hold values that training never saw ('Dover', 'Rhyl'): their intervals are wider",
        "column 'age': 3 rows have no value, which never happened in training: their intervals are wider",
        "column 'port': 1 row has no value, which never happened in training: their intervals are wider",
    ]


def test_text_like_names_is_left_out() -> None:
    table = pa.table(
        {
            "name": [f"person {number}" for number in range(300)],
            "code": [f"code {number % 120}" for number in range(300)],
            "few": ["a", "b"] * 150,
        }
    )
    encoder = TableEncoder.fit(table.to_batches(max_chunksize=9))
    assert columns(encoder) == ["code 1", "code 2", "code 3", "few=a", "few=b"]
    assert encoder.ignored["name"] == "it is text with 300 different values in 300 rows"
    assert encoder.notes[1] == "'code' is text with 120 categories, each placed by the targets of its rows"
    encoder = TableEncoder.fit([table.slice(0, 20)])
    assert encoder.ignored["name"] == "it is text with 20 different values in 20 rows"
    with pytest.raises(ValueError, match="no column is of use as an input: 'name' is left out: it is text"):
        TableEncoder.fit([table.select(["name"])])


@pytest.mark.parametrize("fault", ["<5", "12,5", "unknown"])
def test_a_typing_error_among_numbers_is_named(fault: str) -> None:
    values = [f"{number / 8}" for number in range(40)]
    values[16] = fault
    batches = pa.table({"a": ["x"] * 40, "age": values}).to_batches(max_chunksize=7)
    message = re.escape(f"data.csv: column 'age' holds numbers, but {fault!r} in row 17: correct it, leave it empty")
    with pytest.raises(ValueError, match=f"^{message}"):
        TableEncoder.fit(batches, ["age"], place="data.csv: ")


def test_numbers_with_commas_or_stored_as_text_are_no_categories() -> None:
    for texts, numbers in (
        (["1,5", "2,5", "1.000,5"], [1.5, 2.5, 1000.5]),
        (["900.5", "1,200", "1,400.25"], [900.5, 1200, 1400.25]),
        (["$57,000", None, "-$1,000.50"], [57000, NAN, -1000.5]),
        (["23.5 %", "4 %", "5%"], [23.5, 4, 5]),
        (["12 kg", "1 200 kg", "7"], [12, 1200, 7]),
        (["1.5", "2.5", "1e3"], [1.5, 2.5, 1000]),
    ):
        table = pa.table({"price": texts})
        encoder = TableEncoder.fit([table])
        np.testing.assert_array_equal(encoder.transform(table)[:, 0], numbers)
        again = TableEncoder.from_description(json.loads(json.dumps(encoder.describe())))
        np.testing.assert_array_equal(again.transform(table)[:, 0], numbers)
    assert encoder.transform(pa.table({"price": [7]})).tolist() == [[7]]


def test_digits_in_text_are_numbers_unless_one_starts_with_0_or_the_user_says_so() -> None:
    digits, codes = pa.table({"zip": ["12139", "10001", "9"]}), pa.table({"zip": ["02139", "10001", "9"]})
    assert not TableEncoder.fit([digits]).categories
    assert TableEncoder.fit([codes]).categories == {"zip": ["02139", "10001", "9"]}
    assert TableEncoder.fit([digits], categorical=["zip"]).categories == {"zip": ["10001", "12139", "9"]}
    numbers = pa.table({"zip": [12139.0, None, 9.0]})
    encoder = TableEncoder.fit([numbers], categorical=["zip"])
    assert encoder.categories == {"zip": ["12139", "9"]}
    assert encoder.transform(pa.table({"zip": [9, 12139]})).tolist() == [[1], [0]]
    with pytest.raises(ValueError, match="categorical names 'zap', which is no input; there are 'zip'"):
        TableEncoder.fit([digits], categorical=["zap"])


def test_a_decimal_mark_that_is_given_counts() -> None:
    table = pa.table({"price": ["1.234", "2.000"]})
    assert TableEncoder.fit([table]).transform(table).tolist() == [[1.234], [2.0]]
    assert TableEncoder.fit([table], decimal=",").transform(table).tolist() == [[1234], [2000]]


def test_columns_that_never_vary_or_name_the_rows_are_left_out() -> None:
    table = pa.table(
        {
            "PassengerId": [7, 3, 5],
            "same": [1, 1, 1],
            "word": ["a", "a", "a"],
            "day": pa.array([5, 5, 5], pa.date32()),
            "age": [1.0, 2.0, 4.0],
            "bid": [3, 4, 5],
        }
    )
    encoder = TableEncoder.fit([table])
    assert encoder.used == ["age", "bid"]
    assert set(encoder.ignored.values()) == {
        "it has the same value in every row",
        "it has another whole number in every row, and the name of numbers that name rows",
    }
    assert TableEncoder.fit([table.select(["same", "word"])]).used == ["same", "word"]


def test_dates_of_every_kind_are_the_same_seconds() -> None:
    days = ["2024-01-31", "2025-02-01", None]
    seconds = [1706659200, 1738368000, NAN]
    stamps = pa.array(days).cast(pa.timestamp("s"))
    local = pc.assume_timezone(stamps, "Asia/Tokyo")  # midnight there
    written = ["01/31/2024", "02/01/2025", None], ["31.01.2024", "1.2.2025", None], ["Jan 31, 2024", "Feb 1, 2025", ""]
    for column in (days, stamps, stamps.cast(pa.date32()), local, *written):
        encoder = TableEncoder.fit([pa.table({"day": column})])
        np.testing.assert_array_equal(encoder.transform(pa.table({"day": column}))[:, 0], seconds)
        np.testing.assert_array_equal(encoder.transform(pa.table({"day": stamps}))[:, 0], seconds)
        assert columns(encoder) == ["day", "day sine of year", "day cosine of year", "day missing"]
    with pytest.raises(ValueError, match="column 'day' holds dates or times, but 'soon' in row 2"):
        encoder.transform(pa.table({"day": ["Jan 1, 2024", "soon"]}))


@pytest.mark.parametrize(
    "texts",
    [
        ["01/31/24", "07/01/24"],
        ["31.01.24", "1.7.24"],
        ["31-Jan-24", "01-Jul-24"],
        ["31jan2024", "1jul2024"],
        ["Wed, 31 Jan 2024 00:00:00 GMT", "Mon, 01 Jul 2024 00:00:00 GMT"],
        ["Wednesday, January 31, 2024", "Monday, July 1, 2024"],
        ["20240131T000000", "20240701T000000"],
        ["20240131", "20240701"],
    ],
)
def test_days_are_read_in_every_usual_form(texts: list[str]) -> None:
    table = pa.table({"day": [*texts, "n/a"]})
    np.testing.assert_array_equal(TableEncoder.fit([table]).transform(table)[:, 0], [1706659200, 1719792000, NAN])


def test_months_and_quarters_start_with_their_first_day() -> None:
    for texts in (["2024-01", "2024-07"], ["Jan 2024", "Jul 2024"], ["2024Q1", "2024Q3"], ["Q1 2024", "Q3 2024"]):
        table = pa.table({"day": texts})
        np.testing.assert_array_equal(TableEncoder.fit([table]).transform(table)[:, 0], [1704067200, 1719792000])
    periods = pd.DataFrame({"day": pd.PeriodIndex(["2024Q1", "2024Q3"], freq="Q")})
    np.testing.assert_array_equal(
        TableEncoder.fit([as_table(periods)]).transform(as_table(periods))[:, 0], [1704067200, 1719792000]
    )


def test_whole_numbers_that_are_all_days_are_dates() -> None:
    days = pd.date_range("2024-01-30", periods=9).strftime("%Y%m%d").astype(int)
    for kind in (int, float, str):
        assert columns(TableEncoder.fit([as_table(pd.DataFrame({"day": days.astype(kind)}))]))[0] == "day"
        encoder = TableEncoder.fit([as_table(pd.DataFrame({"day": days.astype(kind)}))])
        assert encoder.describe()["columns"][0]["form"] == "%Y%m%d"
    assert columns(TableEncoder.fit([pa.table({"count": range(20240130, 20240140)})])) == [
        "count"
    ]  # no 32nd of January


def test_words_among_numbers_are_missing_values() -> None:
    values = [f"{number / 8}" for number in range(2000)]
    values[7], values[1234], values[1500] = "?", "refused", "N/A"
    table = pa.table({"age": values})
    encoder = TableEncoder.fit([table])
    assert np.flatnonzero(np.isnan(encoder.transform(table)[:, 0])).tolist() == [7, 1234, 1500]
    assert "has 3 missing values ('refused' among them)" in encoder.notes[0]
    assert TableEncoder.from_description(json.loads(json.dumps(encoder.describe()))).parts == encoder.parts


def test_thousands_and_millions_may_stand_in_one_column() -> None:
    table = pa.table({"price": ["$1.2M", "$300k", "$57,000", "$999"], "lakhs": ["1,23,000", "45,000", "9,00,000", "1"]})
    expected = [[1.2e6, 123_000], [3e5, 45_000], [57_000, 900_000], [999, 1]]
    np.testing.assert_allclose(TableEncoder.fit([table]).transform(table), expected)


def test_dates_have_the_periods_that_the_data_span() -> None:
    hourly = pa.array(np.arange(0, 30 * 86400, 3600), pa.timestamp("s"))
    assert columns(TableEncoder.fit([pa.table({"t": hourly})]))[1::2] == ["t sine of week", "t sine of day"]
    monthly = pa.array(np.arange(0, 1200, 30), pa.int32()).cast(pa.date32())
    assert columns(TableEncoder.fit([pa.table({"t": monthly})]))[1::2] == ["t sine of year"]
    clock = pa.table({"t": ["08:00", "20:00", "14:00"]})
    encoder = TableEncoder.fit([clock])
    assert columns(encoder) == ["t sine of day", "t cosine of day"]
    np.testing.assert_allclose(encoded(encoder, clock)[:, 1], [-0.5, 0.5, -np.sqrt(0.75)], atol=1e-9)


def test_a_few_numbered_categories_stay_categories() -> None:
    assert columns(TableEncoder.fit([pa.table({"rooms": ["1", "2", "3", "4+"] * 5})]))[-1] == "rooms=4+"
    # Who says that numbers are categories is believed.
    codes = pa.array([str(number) for number in range(12)] * 3).dictionary_encode()
    assert len(columns(TableEncoder.fit([pa.table({"code": codes})]))) == 12
    frame = pd.DataFrame({"code": pd.Categorical([3, 1, 3])})
    assert columns(TableEncoder.fit([as_table(frame)])) == ["code=1", "code=3"]


def test_numbers_written_as_text_later_are_read_and_others_named() -> None:
    encoder = TableEncoder.fit([pa.table({"age": [20, 40]})])
    np.testing.assert_array_equal(encoder.transform(pa.table({"age": [" 7", "1e2", ""]})), [[7], [100], [NAN]])
    with pytest.raises(ValueError, match=r"^new: column 'age' holds numbers, but 'old' in row 12"):
        encoder.transform(pa.table({"age": ["1", "old"]}), first_row=11, place="new: ")
    with pytest.raises(ValueError, match="column 'age' has an infinite value in row 2"):
        encoder.transform(pa.table({"age": [1.0, np.inf]}))


def test_columns_are_found_by_name_and_absent_ones_named() -> None:
    encoder = TableEncoder.fit([TABLE])
    shuffled = TABLE.select(["old", "name", "port", "age"])
    np.testing.assert_array_equal(encoder.transform(shuffled), encoder.transform(TABLE))
    with pytest.raises(
        ValueError,
        match="there are no columns 'age', 'old', which the model was trained with; there are 'port', 'name'",
    ):
        encoder.transform(TABLE.select(["port", "name"]))
    twice = pa.table([TABLE["age"]] * 2, names=["age", "age"])
    with pytest.raises(ValueError, match="column 'age' appears more than once"):
        TableEncoder.fit([twice])
    with pytest.raises(ValueError, match="column 'age' appears more than once"):
        TableEncoder.fit([TABLE], ["age"]).transform(twice)


def test_tables_without_rows_are_refused() -> None:
    for batches in ([], [TABLE.slice(0, 0)]):
        with pytest.raises(ValueError, match="there are no rows"):
            TableEncoder.fit(batches)


def test_lists_are_refused_with_advice() -> None:
    days = pa.array([1, 2], pa.timestamp("s"))
    with pytest.raises(ValueError, match=r"column 'list' holds list<.*>, neither numbers, dates nor text"):
        TableEncoder.fit([pa.table({"list": [[1], [2]]})])
    with pytest.raises(ValueError, match="column 'age' holds timestamp"):
        TableEncoder.fit([pa.table({"age": [1, 2]})]).transform(pa.table({"age": days}))
    with pytest.raises(ValueError, match="column 'port' holds list"):
        TableEncoder.fit([pa.table({"port": ["a", "b"]})]).transform(pa.table({"port": [[1], [2]]}))


def test_data_frames_of_every_kind_of_column_become_tables() -> None:
    frame = pd.DataFrame(
        {
            "object": np.array(["a", None, "b"], dtype=object),
            "string": pd.array(["a", None, "b"], dtype="string"),
            "nullable": pd.array([1, None, 3], dtype="Int64"),
            "truth": pd.array([True, None, False], dtype="boolean"),
            "mixed": ["x", 1, None],
            5: [1.5, np.nan, 2.5],
        },
        index=[7, 8, 9],
    )
    encoder = TableEncoder.fit([as_table(frame)])
    assert encoder.inputs == ["object", "string", "nullable", "truth", "mixed", "5"]
    x = encoded(encoder, as_table(frame))
    found = {name: x[:, position].tolist() for position, name in enumerate(columns(encoder))}
    assert found["object=a"] == found["string=a"] == found["mixed=x"] == [1, 0, 0]
    assert found["nullable"] == [1, 2, 3]
    assert found["truth"] == [1, 0.5, 0]
    assert found["mixed=1"] == found["5 missing"] == [0, 1, 0]
    assert found["5"] == [1.5, 2, 2.5]


def test_description_is_plain_json_that_gives_the_same_encoder() -> None:
    encoder = TableEncoder.fit([TABLE])
    description = json.loads(json.dumps(encoder.describe()))
    assert description == encoder.describe()
    again = TableEncoder.from_description(description)
    assert again.describe() == encoder.describe()
    assert (again.used, again.ignored, again.notes) == (encoder.used, encoder.ignored, encoder.notes)
    assert columns(again) == columns(encoder)
    np.testing.assert_array_equal(again.transform(TABLE), encoder.transform(TABLE))


DESCRIPTION = TableEncoder.fit([TABLE]).describe()


def changed(position: int, **values: Any) -> Any:
    description = copy.deepcopy(DESCRIPTION)
    description["columns"][position].update(values)
    return description


@pytest.mark.parametrize(
    "description",
    [
        None,
        [],
        {},
        {"columns": {}},
        {"columns": []},
        {"columns": [None]},
        {"columns": ["age"]},
        {"columns": [{"kind": "ignored", "name": "a", "reason": "b"}]},
        {**DESCRIPTION, "more": 1},
        {"columns": DESCRIPTION["columns"] + DESCRIPTION["columns"][:1]},
        changed(0, kind="dates"),
        changed(0, kind=["number"]),
        changed(0, more=1),
        changed(0, name=1),
        changed(0, mean=float("nan")),
        changed(0, mean="20"),
        changed(0, mean=1),
        changed(0, missing=-1),
        changed(0, missing=True),
        changed(0, missing=1.0),
        changed(1, categories="Cork"),
        changed(1, categories=[]),
        changed(1, categories=["a", 1]),
        changed(1, categories=["b", "a"]),
        changed(1, categories=["a", "a"]),
        changed(1, categories=[f"{number:06d}" for number in range(100_001)]),
        changed(4, reason=None),
    ],
)
def test_other_descriptions_are_refused(description: Any) -> None:
    with pytest.raises(ValueError, match="encoding"):
        TableEncoder.from_description(description)
