"""Numbers, dates and times as people write them in text."""

import re
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

__all__ = ["CLOCKS", "CODE", "DAY", "Written", "date_form", "number_form", "seconds_of", "written_numbers"]

pc: Any = pyarrow.compute  # its functions exist at run time only

PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
CODE = r"^0\d+$"  # digits that start with 0, such as 02139, are no number
FEW_VALUES = 10
SAMPLE = 1_000  # different values that are looked at
CURRENCY = r"[$€£¥₹₩₽฿]|(?:USD|EUR|GBP|CHF|JPY|CAD|AUD|CNY|INR|US\$|A\$|C\$|R\$|kr|Rs)\.?"
MOST_UNIT = 12  # letters
BLANK = "\u00a0\u202f\u2009 "
NUMBER = re.compile(
    rf"(?P<open>\()?(?P<before>{CURRENCY})?[{BLANK}]*(?P<sign>[+\-−])?[{BLANK}]*(?P<between>{CURRENCY})?[{BLANK}]*"
    rf"(?P<digits>[.,]?\d[\d.,'’{BLANK}]*?)(?P<exponent>[eE][+-]?\d+)?[{BLANK}]*"
    rf"(?P<after>[^\d\s.,()+\-−'’:/][^\d.,()+\-−'’:]{{0,{MOST_UNIT - 1}}}?)?(?P<close>\))?"
)
DAYS = ["%Y-%m-%d", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%m-%d-%Y", "%d-%m-%Y", "%d %b %Y", "%d %B %Y",
        "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y"]  # fmt: skip
DAY = 86_400.0
CLOCKS = ["%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p"]
FORMS = ["iso", "zone", *CLOCKS, *DAYS, *(f"{day} {clock}" for day, clock in product(DAYS, CLOCKS))]
LIKE_A_DATE = r"\d[-/. :]|\d,? \d{4}|[A-Za-z] \d|\d [A-Za-z]"


@dataclass(frozen=True)
class Written:
    """How numbers are written: with which decimal mark, and in which unit or currency."""

    decimal: str = "."
    unit: str = ""

    def value(self, text: str) -> float | None:
        """The number, or None for anything else; the unit may be left out.

        >>> Written(unit="$").value("-$57,000.50"), Written(",", "kg").value("1.234,5 kg"), Written().value("12 kg")
        (-57000.5, 1234.5, None)
        """
        found = _read(text, self.decimal)
        return found[0] if found is not None and found[1] in ("", self.unit) else None


def number_form(column: Any, decimal: str | None = None) -> Written | None:
    """How the numbers of a column of text [B] are written, if most of its values are numbers in one unit (all, where
    they are few different whole ones).

    A comma is the decimal mark where the last comma of some number is not followed by three digits. Digits that start
    with 0 in some row, such as 02139, are codes.
    """
    values = _sample(column)
    if not values or any(re.match(CODE, value) for value in values):
        return None
    marks = [decimal] if decimal is not None else [".", ","]
    best: tuple[int, bool, Written] | None = None
    for mark in marks:
        numbers = [found for value in values if (found := _read(value, mark)) is not None]
        units = {unit for _, unit in numbers if unit}
        if numbers and len(units) <= 1 and (best is None or len(numbers) > best[0]):
            fraction = any(number != round(number) for number, _ in numbers)
            best = len(numbers), fraction, Written(mark, units.pop() if units else "")
    if best is None or best[0] <= len(values) / 2:
        return None
    few = not best[1] and len(values) <= FEW_VALUES  # 1, 2, 3 and 4+ are categories
    return None if few and best[0] < len(values) else best[2]


def written_numbers(column: Any, written: Written) -> tuple[np.ndarray, int]:
    """Numbers of a column of text, float64 [B], NaN where there is none; and the first row with another text, or -1."""
    if written.decimal == "." and pc.all(pc.match_substring_regex(column, PLAIN)).as_py() is not False:
        return column.cast(pa.float64()).to_numpy(zero_copy_only=False), -1
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = encoded.dictionary_encode()
    known = [written.value(text) for text in encoded.dictionary.to_pylist()]
    places = encoded.indices.to_numpy(zero_copy_only=False)  # NaN where there is nothing
    absent = np.isnan(places)
    places = np.where(absent, len(known), places).astype(np.int64)
    wrong = np.flatnonzero(np.array([value is None for value in known] + [False])[places])
    return np.array([np.nan if value is None else value for value in known] + [np.nan])[places], int(
        next(iter(wrong), -1)
    )


def date_form(column: Any) -> str | None:
    """How dates or times of a column of text are written, if all of its values are such; `seconds_of` takes it.

    Of 02/03/2024 the month is first, unless some row has a first number above 12.
    """
    values = pa.array(_sample(column), pa.large_string())
    if not len(values) or not pc.all(pc.match_substring_regex(values, LIKE_A_DATE)).as_py():
        return None
    for form in FORMS:
        try:
            if _parsed(values, form).null_count == 0:
                return form
        except pa.ArrowInvalid:
            continue
    return None


def seconds_of(column: Any, form: str = "") -> tuple[np.ndarray, int]:
    """Seconds since 1970, or since midnight, of dates and times on their own clock; and the first row without, or -1.

    >>> seconds_of(pa.array(["2024-01-02"]), "iso")
    (array([1.7041536e+09]), -1)
    """
    kind = column.type
    wrong = -1
    if form and not pa.types.is_temporal(kind):
        try:
            parsed = _parsed(column, form)
        except pa.ArrowInvalid:  # some value is wrong: which one?
            zone = pa.timestamp("us", "UTC" if form == "zone" else None)
            parsed = pa.array([_iso(value, zone) for value in column.to_pylist()], zone)
        wrong = pc.and_(parsed.is_null(), column.is_valid()).index(True).as_py()
        column, kind = parsed, parsed.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = pc.local_timestamp(column)
    unit = pa.time64("us") if pa.types.is_time(kind) else pa.timestamp("us")
    column = column.cast(unit, safe=False)
    micro = column.cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    seconds = micro / 1e6
    return seconds % DAY if form in CLOCKS else seconds, wrong


def _parsed(column: Any, form: str) -> Any:
    """A column of text as timestamps, null where it has no such; ISO's raise ArrowInvalid there."""
    if form == "iso":
        return column.cast(pa.timestamp("us"))
    if form == "zone":
        return column.cast(pa.timestamp("us", "UTC"))
    if "%Y" in form:
        column = pc.if_else(pc.match_substring_regex(column, r"\d{4}"), column, None)
    return pc.strptime(column, format=form, unit="us", error_is_null=True)


def _iso(value: str | None, kind: pa.DataType) -> Any:
    try:
        return pa.array([value], pa.large_string()).cast(kind)[0].as_py()
    except pa.ArrowInvalid:
        return None


def _sample(column: Any) -> list[str]:
    """Different values from all over the column."""
    values = column.drop_null().unique()
    if len(values) > SAMPLE:
        values = values.take(pa.array(np.linspace(0, len(values) - 1, SAMPLE).astype(np.int64)))
    return values.to_pylist()


def _read(text: str, decimal: str) -> tuple[float, str] | None:
    """The number and its unit, where the text is one."""
    match = NUMBER.fullmatch(text.strip())
    if match is None or (match["open"] is None) != (match["close"] is None):
        return None
    units = [unit.strip() for unit in (match["before"], match["between"], match["after"]) if unit]
    if len(units) > 1:
        return None
    other = "," if decimal == "." else r"\."
    digits = match["digits"].strip()
    if not re.fullmatch(rf"(\d+|\d{{1,3}}([{other}'’{BLANK}]\d{{3}})+)?(\{decimal}\d*)?", digits):
        return None
    plain = re.sub(rf"[{other}'’{BLANK}]", "", digits).replace(decimal, ".")
    value = float(plain + (match["exponent"] or ""))
    negative = match["open"] is not None or match["sign"] in ("-", "−")
    return (-value if negative else value), (units[0] if units else "")
