"""Numbers, dates and times as people write them in text."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

__all__ = ["CLOCKS", "CODE", "DAY", "DIGITS", "Written", "date_form", "number_form", "seconds_of", "written_numbers"]

pc: Any = pyarrow.compute  # its functions exist at run time only

PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
CODE = r"^0\d+$"  # digits that start with 0, such as 02139, are no number
FEW_VALUES = 10
SAMPLE = 1_000  # different values that are looked at
CURRENCY = r"[$€£¥₹₩₽฿]|(?:USD|EUR|GBP|CHF|JPY|CAD|AUD|CNY|INR|US\$|A\$|C\$|R\$|kr|Rs)\.?"
MOST_UNIT = 12  # letters
MAGNITUDES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}  # $1.2M and $300k in one column
ABSENT = {"?", "-", "--", ".", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none"}  # of numbers and dates
MOST_WORDS = 3  # different ones beside numbers that are taken as missing, such as "unknown"
BLANK = "\u00a0\u202f\u2009 "
NUMBER = re.compile(
    rf"(?P<open>\()?(?P<before>{CURRENCY})?[{BLANK}]*(?P<sign>[+\-−])?[{BLANK}]*(?P<between>{CURRENCY})?[{BLANK}]*"
    rf"(?P<digits>[.,]?\d[\d.,'’{BLANK}]*?)(?P<exponent>[eE][+-]?\d+)?[{BLANK}]*"
    rf"(?P<after>[^\d\s.,()+\-−'’:/][^\d.,()+\-−'’:]{{0,{MOST_UNIT - 1}}}?)?(?P<close>\))?"
)
DAYS = ["%Y-%m-%d", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%m-%d-%Y", "%d-%m-%Y", "%d %b %Y", "%d %B %Y",
        "%d-%b-%Y", "%d%b%Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y",
        "%d-%b-%y", "%d %b %y"]  # fmt: skip
QUARTER, DIGITS = "%Y quarter", "%Y%m%d"
MONTHS = ["%Y-%m", "%m/%Y", "%b %Y", "%B %Y", "%b-%Y", "%b-%y", QUARTER]
DAY = 86_400.0
CLOCKS = ["%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p"]
FORMS = ["iso", "zone", *CLOCKS, *DAYS, *(f"{day} {clock}" for day, clock in product(DAYS, CLOCKS)), *MONTHS,
         "%Y%m%dT%H%M%S"]  # fmt: skip
LIKE_A_DATE = r"\d[-/. :]|\d,? \d{4}|[A-Za-z][ -]\d|\d ?[A-Za-z]|[Qq][1-4]"
WEEKDAY = r"(?i)^(mon|tues?|wed(nes)?|thu(rs?)?|fri|sat(ur)?|sun)(day)?\.?,? +"
UNIVERSAL = r" (GMT|UTC)$"
# What strptime must find for each directive: it would read the year 21 in "Jan 2021" where a day is expected.
PATTERNS = {"%Y": r"\d{4}", "%y": r"\d{2}", "%b": "[A-Za-z]+", "%B": "[A-Za-z]+", "%p": "[AaPp][Mm]"}


@dataclass(frozen=True)
class Written:
    """How numbers are written: with which decimal mark, and in which unit or currency."""

    decimal: str = "."
    unit: str = ""
    words: tuple[str, ...] = ()  # that stand where a number is missing

    def value(self, text: str) -> float | None:
        """The number, NaN where a word says that there is none, or None for anything else; the unit may be left out.

        >>> Written(unit="$").value("-$57,000.50"), Written(",", "kg").value("1.234,5 kg"), Written().value("12 kg")
        (-57000.5, 1234.5, None)
        >>> Written().value("?"), Written(words=("refused",)).value("refused"), Written(unit="$").value("$1.2M")
        (nan, nan, 1200000.0)
        """
        if text.lower() in ABSENT or text in self.words:
            return np.nan
        found = _read(text, self.decimal)
        return found[0] if found is not None and found[1] in ("", self.unit) else None


def number_form(column: Any, decimal: str | None = None) -> Written | None:
    """How the numbers of a column of text [B] are written, if most of its values are numbers in one unit (all, where
    they are few different whole ones). Up to three different words without a digit say that a number is missing.

    A comma is the decimal mark where the last comma of some number is not followed by three digits. Digits that start
    with 0 in some row, such as 02139, are codes.
    """
    values = [value for value in _sample(column) if value.lower() not in ABSENT]
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
    if not best[1] and len(values) <= FEW_VALUES and best[0] < len(values):  # 1, 2, 3 and 4+ are categories
        return None
    words = column.filter(pc.invert(pc.match_substring_regex(column, r"\d"))).unique().to_pylist()
    words = sorted({word for word in words if word is not None and word.lower() not in ABSENT})
    return replace(best[2], words=tuple(words)) if len(words) <= MOST_WORDS else best[2]


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
    values = pa.array([value for value in _sample(column) if value.lower() not in ABSENT], pa.large_string())
    if not len(values):
        return None
    if pc.all(pc.match_substring_regex(values, r"^(19|20)\d{6}$")).as_py():
        return DIGITS if _parsed(values, DIGITS).null_count == 0 else None
    if not pc.all(pc.match_substring_regex(values, LIKE_A_DATE)).as_py():
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
        column = _without(column, ABSENT)
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
    column = pc.replace_substring_regex(column, WEEKDAY, "")
    column = pc.replace_substring_regex(column, UNIVERSAL, "")
    if form == QUARTER:  # 2024Q3, 2024-Q3 and Q3 2024 are the month 2024-07
        form = "%Y-%m"
        column = pc.replace_substring_regex(column, r"^[Qq]([1-4])[- ]?(\d{4})$", r"\2Q\1")
        for quarter in range(1, 5):
            column = pc.replace_substring_regex(column, rf"^(\d{{4}})[- ]?[Qq]{quarter}$", rf"\1-{3 * quarter - 2:02}")
    pattern = re.sub("%.", lambda part: PATTERNS.get(part[0], r"\d{1,2}"), form.replace(".", r"\."))
    if form.startswith(DIGITS):
        pattern = pattern.replace("{1,2}", "{2}")
    column = pc.if_else(pc.match_substring_regex(column, f"^{pattern}$"), column, None)
    if form not in CLOCKS and "%d" not in form:  # a month starts with its first day
        column, form = pc.replace_substring_regex(column, "$", " 01"), f"{form} %d"
    return pc.strptime(column, format=form, unit="us", error_is_null=True)


def _without(column: Any, words: Collection[str]) -> Any:
    """A column of text, null where it is one of these words."""
    absent = pc.is_in(pc.utf8_lower(column), value_set=pa.array(sorted(words), column.type))
    return pc.if_else(absent, pa.scalar(None, column.type), column)


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
    after = (match["after"] or "").strip()
    factor = MAGNITUDES.get(after)
    units = [unit.strip() for unit in (match["before"], match["between"], after if factor is None else "") if unit]
    if len(units) > 1:
        return None
    other = "," if decimal == "." else r"\."
    digits = match["digits"].strip()
    lakhs = rf"|\d{{1,2}}({other}\d\d)+{other}\d{{3}}"  # 1,23,000
    if not re.fullmatch(rf"(\d+|\d{{1,3}}([{other}'’{BLANK}]\d{{3}})+{lakhs})?(\{decimal}\d*)?", digits):
        return None
    plain = re.sub(rf"[{other}'’{BLANK}]", "", digits).replace(decimal, ".")
    value = float(plain + (match["exponent"] or "")) * (factor or 1.0)
    negative = match["open"] is not None or match["sign"] in ("-", "−")
    return (-value if negative else value), (units[0] if units else "")
