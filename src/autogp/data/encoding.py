"""Tables with text and missing values as numbers, and how to turn the next table into the same numbers."""

import copy
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from autogp.data.columns import describe_unusable, is_date, is_number, is_text, numbers_of, texts_of
from autogp.data.dates import Date, DateFit, days_in_digits
from autogp.data.kinds import KINDS, Ignored, Number, Part, part_of
from autogp.data.texts import CONSTANT, ManyTexts, Text, TextFit, Unseen
from autogp.data.written import DIGITS, Written, date_form, number_form

__all__ = ["EncoderFit", "TableEncoder", "names_rows", "refuse_repeated"]


NAMES_OF_ROWS = ("", "id", "index", "row", "rowid", "rownames", "row names", "row number", "unnamed: 0")
ENDS_OF_NAMES = re.compile(r"([^A-Za-z0-9](id|ID|Id)|[a-z]I[dD])$")  # customer_id, PassengerId


class TableEncoder:
    """Turns tables into arrays of numbers, always as it did in training; made by `TableEncoder.fit`.

    Each column becomes one: numbers and truth values stay what they are, dates and times are seconds, and text is the
    code of its category, unless it is numbers or dates. Missing values are NaN. `autogp.features.Columns` makes of the
    array what a kernel can use. Text that differs in most rows, such as names, is left out, and so are columns that
    never vary and whole numbers that count or name the rows.

    Attributes:
        parts: What is known of each column of the table.
        inputs: Names of all columns.
        used: Names of the C columns of the array.
        used_parts: What is known of each of them.
        ignored: For each column that is left out, why.
        categories: For each column of text, its categories.
        complete: Whether the used columns are numbers without missing values.
        groups: Kinds of used columns, each with the columns of the array and the parts that are of it.

    Example:
        >>> table = pa.table({"age": [20, None, 40], "port": ["Cork", "Bari", "Cork"]})
        >>> encoder = TableEncoder.fit([table])
        >>> encoder.transform(table).tolist()
        [[20.0, 1.0], [nan, 0.0], [40.0, 1.0]]
        >>> encoder.categories
        {'port': ['Bari', 'Cork']}
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)
        self.inputs = [part.name for part in self.parts]
        self.ignored = {part.name: part.reason for part in self.parts if isinstance(part, Ignored)}
        self.categories = {part.name: part.categories for part in self.parts if isinstance(part, Text)}
        used: list[Any] = [part for part in self.parts if not isinstance(part, Ignored)]
        self.used_parts = used
        self.used = [part.name for part in used]
        self.complete = all(isinstance(part, Number) and not part.missing for part in used)
        self.groups: list[tuple[Any, list[int], list[Any]]] = []
        for kind in (Number, Text, ManyTexts, Date):
            chosen = [position for position, part in enumerate(used) if type(part) is kind]
            if chosen:
                self.groups.append((kind, chosen, [used[position] for position in chosen]))

    @classmethod
    def fit(
        cls,
        batches: Iterable[pa.Table | pa.RecordBatch],
        names: Sequence[str] | None = None,
        *,
        categorical: Sequence[str] = (),
        decimal: str | None = None,
        place: str = "",
    ) -> "TableEncoder":
        """Learns from the rows of all batches, in one pass.

        Arguments:
            batches: Tables or record batches with the same columns.
            names: The inputs, in order; by default all columns.
            categorical: Columns that are categories, whatever they look like.
            decimal: The decimal mark of numbers in text; by default each column tells.
            place: What error messages start with, such as the name of a file and a colon.
        """
        fit = None
        for batch in batches:
            fit = fit or EncoderFit(batch.schema, names, place, categorical, decimal)
            fit.add(batch)
        if fit is None:
            raise ValueError(f"{place}there are no rows")
        return fit.finish()

    @classmethod
    def of_numbers(
        cls, names: Sequence[str], means: Sequence[float] | None = None, missing: Sequence[int] | None = None
    ) -> "TableEncoder":
        """The encoder of columns of numbers with these means (which rows without gaps do not need), and so many
        missing values; by default none."""
        means = [0.0] * len(names) if means is None else means
        counts = [0] * len(names) if missing is None else missing
        return cls([Number(name, mean, count) for name, mean, count in zip(names, means, counts, strict=True)])

    def transform(
        self, table: pa.Table | pa.RecordBatch, *, unseen: Unseen | None = None, first_row: int = 1, place: str = ""
    ) -> np.ndarray:
        """The rows as numbers, float64 [B, C]; columns are found by name, and further ones do not matter.

        Arguments:
            table: The rows.
            unseen: Where to count categories, and missing values, that training did not see. The former are -1, the
                latter NaN.
            first_row: The number of the table's first row, for error messages.
            place: What error messages start with.
        """
        self.require(table.schema.names, place)
        unseen = Unseen() if unseen is None else unseen
        out = np.empty((table.num_rows, len(self.used)))
        for kind, columns, parts in self.groups:
            out[:, columns] = kind.encode(parts, table, unseen, first_row, place)
        return out

    def require(self, names: Sequence[str], place: str = "") -> None:
        """Raises `ValueError` where a column that the encoder uses is not among `names`, or twice."""
        found = set(names)
        lacking = [name for name in self.used if name not in found]
        if lacking:
            some = "is no column" if len(lacking) == 1 else "are no columns"
            raise ValueError(
                f"{place}there {some} {_listed(lacking)}, which the model was trained with; "
                f"there are {_listed(list(names))}"
            )
        refuse_repeated(self.used, names, place)

    @property
    def numbers(self) -> bool:
        """Whether the table's columns are the array's columns, unchanged: numbers, some of which may be missing."""
        return all(isinstance(part, Number) for part in self.parts)

    @property
    def plain(self) -> bool:
        """Whether the table's columns are the array's columns, unchanged and without missing values."""
        return self.complete and not self.ignored

    @property
    def decimal(self) -> str | None:
        """The decimal mark of the tables, where it is not the usual one."""
        return "," if any(isinstance(part, Number) and part.decimal == "," for part in self.parts) else None

    @property
    def notes_of_ignored(self) -> list[str]:
        """Which columns are left out and why, in sentences."""
        return [part.note for part in self.parts if isinstance(part, Ignored)]

    @property
    def notes(self) -> list[str]:
        """What was assumed, in sentences; nothing for complete tables of numbers."""
        return [part.note for part in self.parts if part.note]

    def describe(self) -> dict[str, Any]:
        """Everything the encoder knows, as plain JSON."""
        kinds = {kind: name for name, kind in KINDS.items()}
        return {"columns": [{"kind": kinds[type(part)], **asdict(part)} for part in self.parts]}

    @classmethod
    def from_description(cls, description: Any) -> "TableEncoder":
        """The encoder that `describe` described; anything else is a `ValueError`.

        Example:
            >>> encoder = TableEncoder.fit([pa.table({"port": ["Cork", "Bari"]})])
            >>> TableEncoder.from_description(encoder.describe()).categories
            {'port': ['Bari', 'Cork']}
        """
        if not isinstance(description, dict) or set(description) != {"columns"}:
            raise ValueError("the description of a table's encoding must be an object with 'columns'")
        if not isinstance(description["columns"], list):
            raise ValueError("the columns of a table's encoding must be a list")
        encoder = cls([part_of(column) for column in description["columns"]])
        if not encoder.used or len(set(encoder.inputs)) < len(encoder.inputs):
            raise ValueError("the columns of a table's encoding must be different, and at least one must be used")
        return encoder


class EncoderFit:
    """Learns an encoder batch by batch, and hands on the rows as numbers.

    The first batch decides what a column of text is: numbers where most of its values are, dates or times where all
    are, else categories.

    Arguments:
        schema: Names and types of the columns.
        names: The inputs, in order; by default all columns.
        place: What error messages start with.
        categorical: Columns that are categories, whatever they look like.
        decimal: The decimal mark of numbers in text; by default each column tells.

    Example:
        >>> table = pa.table({"age": [20, 40], "port": ["Cork", "Bari"]})
        >>> fit = EncoderFit(table.schema)
        >>> x = fit.add(table)
        >>> encoder = fit.finish()
        >>> x.tolist(), fit.settle(x, encoder).tolist()
        ([[20.0, 0.0], [40.0, 1.0]], [[20.0, 1.0], [40.0, 0.0]])
    """

    def __init__(
        self,
        schema: pa.Schema,
        names: Sequence[str] | None = None,
        place: str = "",
        categorical: Sequence[str] = (),
        decimal: str | None = None,
    ) -> None:
        self.names = list(schema.names if names is None else names)
        refuse_repeated(self.names, schema.names, place)
        unknown = [name for name in categorical if name not in self.names]
        if unknown:
            raise ValueError(
                f"{place}categorical names {unknown[0]!r}, which is no input; there are {_listed(self.names)}"
            )
        self.place, self.categorical, self.decimal = place, set(categorical), decimal
        self.rows, self.decided = 0, False
        self.texts: dict[str, TextFit] = {}
        self.dates: dict[str, DateFit] = {}
        self.written: dict[str, Written] = {}
        self.numbers: list[str] = []

    def decide(self, batch: pa.Table | pa.RecordBatch) -> None:
        """Sets what kind each column is of; else the first batch that is added does."""
        self.decided = True
        for name in self.names:
            kind = batch.schema.field(name).type
            if name in self.categorical or pa.types.is_dictionary(kind):
                self.texts[name] = TextFit(name)
            elif is_date(kind):
                self.dates[name] = DateFit(name, "", pa.types.is_time(kind))
            elif is_text(kind):
                self._decide_text(name, texts_of(batch.column(name), name, self.place))
            elif is_number(kind):
                self._decide_number(name, batch.column(name))
            else:
                raise ValueError(f"{self.place}{describe_unusable(name, kind)}")
        count = len(self.numbers)
        self.present, self.mean = np.zeros(count, np.int64), np.zeros(count)
        self.low, self.high = np.full(count, np.inf), np.full(count, -np.inf)
        self.named = {name: [] for name in self.numbers if names_rows(name)}

    def _decide_number(self, name: str, column: Any) -> None:
        if days_in_digits(column):
            self.dates[name] = DateFit(name, DIGITS, clock=False)
        else:
            self.numbers.append(name)

    def _decide_text(self, name: str, column: Any) -> None:
        form = date_form(column)
        written = number_form(column, self.decimal) if form is None else None
        if written is not None:
            self.numbers.append(name)
            self.written[name] = written
        elif form is not None:
            self.dates[name] = DateFit(name, form, clock=False)
        else:
            self.texts[name] = TextFit(name)

    def add(
        self, batch: pa.Table | pa.RecordBatch, first_row: int | None = None, place: str | None = None
    ) -> np.ndarray:
        """Learns from the rows; returns them as float64 [B, inputs], with codes that are not settled yet.

        In error messages they count from `first_row` in `place`; by default from the rows that were added before.
        """
        if not self.decided:
            self.decide(batch)
        first_row = self.rows + 1 if first_row is None else first_row
        place = self.place if place is None else place
        out = np.empty((batch.num_rows, len(self.names)))
        places = {name: position for position, name in enumerate(self.names)}
        values = numbers_of(batch, self.numbers, first_row, place, self.written)  # [B, numbers]
        self._learn_numbers(values)
        out[:, [places[name] for name in self.numbers]] = values
        for name, text in self.texts.items():
            out[:, places[name]] = text.add(texts_of(batch.column(name), name, place))
        for name, date in self.dates.items():
            out[:, places[name]] = date.add(batch.column(name), first_row, place)
        self.rows += batch.num_rows
        return out

    def _learn_numbers(self, values: np.ndarray) -> None:
        absent = np.isnan(values)
        self.present += len(values) - absent.sum(axis=0)
        # By the distance to the mean so far, which keeps the digits of small differences beside a large offset.
        self.mean += np.where(absent, 0, values - self.mean).sum(axis=0) / np.maximum(self.present, 1)
        if len(values):
            self.low = np.fmin(self.low, np.fmin.reduce(values))
            self.high = np.fmax(self.high, np.fmax.reduce(values))
        for name, parts in self.named.items():
            parts.append(values[:, self.numbers.index(name)])

    def merged(self, others: Sequence["EncoderFit"]) -> "EncoderFit":
        """What this one and the others, which decided alike, have learnt from the rows of all."""
        found = copy.deepcopy(self)
        for other in others:
            found.rows += other.rows
            total = found.present + other.present
            found.mean += (other.mean - found.mean) * other.present / np.maximum(total, 1)
            found.present = total
            found.low, found.high = np.fmin(found.low, other.low), np.fmax(found.high, other.high)
            for name, parts in found.named.items():
                parts += other.named[name]
            for own, further in ((found.texts, other.texts), (found.dates, other.dates)):
                for name, fit in own.items():
                    fit.merge(further[name])  # pyright: ignore[reportArgumentType]
        return found

    def settle(self, x: np.ndarray, encoder: TableEncoder) -> np.ndarray:
        """What `add` returned, [B, inputs], as the encoder of all rows gives it, float64 [B, C]."""
        x = x[:, [self.names.index(name) for name in encoder.used]].astype(np.float64)
        for name, categories in encoder.categories.items():
            places = {category: code for code, category in enumerate(categories)}
            codes = np.array([places[category] for category in self.texts[name].categories] + [np.nan])
            column = x[:, encoder.used.index(name)]
            column[:] = codes[np.where(np.isnan(column), -1, column).astype(np.int64)]
        return x

    def finish(self) -> TableEncoder:
        """The encoder of all rows that were added."""
        if self.rows == 0:
            raise ValueError(f"{self.place}there are no rows")
        # Better a column that says nothing than none.
        encoders = (TableEncoder(self._parts(varies)) for varies in (True, False))
        encoder = next((each for each in encoders if each.used), None)
        if encoder is None:
            notes = TableEncoder(self._parts(True)).notes
            raise ValueError(f"{self.place}no column is of use as an input: {'; '.join(notes)}")
        return encoder

    def _parts(self, varies: bool) -> list[Part]:
        """What is known of each column; with `varies` those that do not vary, or name the rows, are left out."""
        found: dict[str, Any] = {name: self._number(place, varies) for place, name in enumerate(self.numbers)}
        found |= {name: fit.finish(varies) for name, fit in (*self.texts.items(), *self.dates.items())}
        return [Ignored(name, found[name]) if isinstance(found[name], str) else found[name] for name in self.names]

    def _number(self, place: int, varies: bool) -> Number | str:
        name, present = self.numbers[place], int(self.present[place])
        if present == 0:
            return "it has no values"
        if varies and self.low[place] == self.high[place] and present == self.rows:
            return CONSTANT
        if varies and name in self.named and _different(np.concatenate(self.named[name])):
            return "it has another whole number in every row, and the name of numbers that name rows"
        written = self.written.get(name, Written(self.decimal or "."))
        mean, missing = float(self.mean[place]), self.rows - present
        return Number(name, mean, missing, written.decimal, written.unit, list(written.words))


def names_rows(name: str) -> bool:
    """Whether numbers of this name are likely to name rows, such as customer_id."""
    return name.strip().lower() in NAMES_OF_ROWS or ENDS_OF_NAMES.search(name.strip()) is not None


def _different(values: np.ndarray) -> bool:
    """Whether these are whole numbers, each in one row."""
    return len(values) > 1 and bool((values == np.rint(values)).all()) and len(np.unique(values)) == len(values)


def refuse_repeated(names: Sequence[str], found: Sequence[str], place: str) -> None:
    """Raises `ValueError` where one of the names is found twice."""
    counts = Counter(found)
    repeated = [name for name in names if counts[name] > 1]
    if repeated:
        raise ValueError(f"{place}column {repeated[0]!r} appears more than once")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(map(repr, names[:10])) + more
