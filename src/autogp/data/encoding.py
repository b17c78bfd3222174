"""Tables with text and missing values as numbers, and how to turn the next table into the same numbers."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from autogp.data.columns import describe_unusable, is_number, is_text, numbers_of, texts_of
from autogp.data.texts import MOST_CATEGORIES, Text, TextFit, Unseen

__all__ = ["EncoderFit", "TableEncoder"]


@dataclass(frozen=True)
class Number:
    """A column of numbers or truth values; where some were missing in training, a second column says so."""

    name: str
    mean: float  # stands in for missing values
    missing: int  # rows without a value in training

    @property
    def columns(self) -> list[str]:
        return [self.name, f"{self.name} missing"] if self.missing else [self.name]


@dataclass(frozen=True)
class Ignored:
    """A column that says nothing a model could use."""

    name: str
    reason: str

    @property
    def columns(self) -> list[str]:
        return []


KINDS = {"number": Number, "text": Text, "ignored": Ignored}


class TableEncoder:
    """Turns tables into arrays of numbers, always as it did in training; made by `TableEncoder.fit`.

    Numbers and truth values stay what they are. Text becomes a column of zeros and ones for each category. Missing
    numbers become the mean, and a further column says where; missing text is a category. Text with too many categories,
    such as names, is left out.

    Example:
        >>> table = pa.table({"age": [20, None, 40], "port": ["Cork", "Bari", "Cork"]})
        >>> encoder = TableEncoder.fit([table])
        >>> encoder.columns
        ['age', 'age missing', 'port=Bari', 'port=Cork']
        >>> encoder.transform(table).tolist()
        [[20.0, 0.0, 0.0, 1.0], [30.0, 1.0, 1.0, 0.0], [40.0, 0.0, 0.0, 1.0]]
    """

    def __init__(self, parts: Sequence[Number | Text | Ignored]) -> None:
        self.parts = list(parts)
        self.inputs = [part.name for part in self.parts]
        self.columns = [column for part in self.parts for column in part.columns]
        self.used = [part.name for part in self.parts if part.columns]
        self.ignored = {part.name: part.reason for part in self.parts if isinstance(part, Ignored)}
        starts = np.cumsum([0, *(len(part.columns) for part in self.parts)]).tolist()
        placed = list(zip(starts[:-1], self.parts, strict=True))
        self._numbers = [(start, part) for start, part in placed if isinstance(part, Number)]
        self.texts = [part.name for part in self.parts if isinstance(part, Text)]
        self._texts = [(start, part) for start, part in placed if isinstance(part, Text)]

    @classmethod
    def fit(
        cls, batches: Iterable[pa.Table | pa.RecordBatch], names: Sequence[str] | None = None, *, place: str = ""
    ) -> "TableEncoder":
        """Learns from the rows of all batches, in one pass.

        Arguments:
            batches: Tables or record batches with the same columns.
            names: The inputs, in order; by default all columns.
            place: What error messages start with, such as the name of a file and a colon.
        """
        fit = None
        for batch in batches:
            fit = fit or EncoderFit(batch.schema, names, place)
            fit.add(batch)
        if fit is None:
            raise ValueError(f"{place}there are no rows")
        return fit.finish()

    @classmethod
    def of_numbers(cls, names: Sequence[str], means: Sequence[float]) -> "TableEncoder":
        """The encoder of complete columns of numbers with these means."""
        return cls([Number(name, mean, missing=0) for name, mean in zip(names, means, strict=True)])

    def transform(
        self, table: pa.Table | pa.RecordBatch, *, unseen: Unseen | None = None, first_row: int = 1, place: str = ""
    ) -> np.ndarray:
        """The rows as numbers, float64 [B, D]; columns are found by name, and further ones do not matter.

        Arguments:
            table: The rows.
            unseen: Where to count categories, and missing values, that training did not see. The former are zeros in
                all columns, the latter the mean.
            first_row: The number of the table's first row, for error messages.
            place: What error messages start with.
        """
        self.require(table.schema.names, place)
        unseen = Unseen() if unseen is None else unseen
        out = np.zeros((table.num_rows, len(self.columns)))
        if self._numbers:
            values = numbers_of(table, [part.name for _, part in self._numbers], first_row, place)  # [B, numbers]
            absent = np.isnan(values)
            rows_absent = absent.sum(axis=0)
            np.copyto(values, [part.mean for _, part in self._numbers], where=absent)
            out[:, [start for start, _ in self._numbers]] = values
            for position in np.flatnonzero(rows_absent):
                start, part = self._numbers[position]
                if part.missing:
                    out[:, start + 1] = absent[:, position]
                else:
                    unseen.add(part.name, int(rows_absent[position]))
        for start, part in self._texts:
            part.encode(texts_of(table.column(part.name), part.name, place), out[:, start:], unseen)
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
        _refuse_repeated(self.used, names, place)

    def features(self) -> None:
        """No map: `transform` gives numbers that need none."""
        return

    @property
    def plain(self) -> bool:
        """Whether the table's columns are the array's columns, unchanged."""
        return self.columns == self.inputs and not self._texts

    @property
    def notes(self) -> list[str]:
        """What was assumed, in sentences; nothing for complete tables of numbers."""
        found = []
        for part in self.parts:
            if isinstance(part, Ignored):
                found.append(f"{part.name!r} is left out: {part.reason}")
            elif isinstance(part, Text):
                also = f", and {part.missing} missing" if part.missing else ""
                found.append(f"{part.name!r} is text with {len(part.categories)} categories{also}")
            elif part.missing:
                found.append(f"{part.name!r} has {part.missing} missing values, taken as the mean {part.mean:.6g}")
        return found

    def describe(self) -> dict[str, Any]:
        """Everything the encoder knows, as plain JSON."""
        kinds = {kind: name for name, kind in KINDS.items()}
        return {"columns": [{"kind": kinds[type(part)], **asdict(part)} for part in self.parts]}

    @classmethod
    def from_description(cls, description: Any) -> "TableEncoder":
        """The encoder that `describe` described; anything else is a `ValueError`.

        Example:
            >>> encoder = TableEncoder.fit([pa.table({"port": ["Cork", "Bari"]})])
            >>> TableEncoder.from_description(encoder.describe()).columns
            ['port=Bari', 'port=Cork']
        """
        if not isinstance(description, dict) or set(description) != {"columns"}:
            raise ValueError("the description of a table's encoding must be an object with 'columns'")
        if not isinstance(description["columns"], list):
            raise ValueError("the columns of a table's encoding must be a list")
        encoder = cls([_checked(column) for column in description["columns"]])
        if not encoder.columns or len(set(encoder.inputs)) < len(encoder.inputs):
            raise ValueError("the columns of a table's encoding must be different, and at least one must be used")
        return encoder


class EncoderFit:
    """Learns an encoder batch by batch, and hands on the numbers of batches that need no encoding.

    Arguments:
        schema: Names and types of the columns.
        names: The inputs, in order; by default all columns.
        place: What error messages start with.

    Example:
        >>> table = pa.table({"age": [20, 40]})
        >>> fit = EncoderFit(table.schema)
        >>> fit.add(table).tolist(), fit.finish().plain
        ([[20.0], [40.0]], True)
    """

    def __init__(self, schema: pa.Schema, names: Sequence[str] | None = None, place: str = "") -> None:
        self.names = list(schema.names if names is None else names)
        _refuse_repeated(self.names, schema.names, place)
        self.place = place
        self.rows = 0
        self.texts: dict[str, TextFit] = {}
        for name in self.names:
            kind = schema.field(name).type
            if is_text(kind):
                self.texts[name] = TextFit(name, pa.types.is_dictionary(kind))
            elif not is_number(kind):
                raise ValueError(f"{place}{describe_unusable(name, kind)}")
        self.numbers = [name for name in self.names if name not in self.texts]
        self.present = np.zeros(len(self.numbers), np.int64)
        self.mean = np.zeros(len(self.numbers))

    def add(self, batch: pa.Table | pa.RecordBatch) -> np.ndarray | None:
        """Learns from the rows; returns them as float64 [B, D] where no column so far has text or missing values."""
        values = numbers_of(batch, self.numbers, self.rows + 1, self.place)  # [B, numbers]
        absent = np.isnan(values)
        self.present += len(values) - absent.sum(axis=0)
        # By the distance to the mean so far, which keeps the digits of small differences beside a large offset.
        self.mean += np.where(absent, 0, values - self.mean).sum(axis=0) / np.maximum(self.present, 1)
        for name, text in self.texts.items():
            text.add(texts_of(batch.column(name), name, self.place))
        self.rows += batch.num_rows
        return values if not self.texts and (self.present == self.rows).all() else None

    def finish(self) -> TableEncoder:
        """The encoder of all rows that were added."""
        if self.rows == 0:
            raise ValueError(f"{self.place}there are no rows")
        parts: dict[str, Number | Text | Ignored] = {}
        for name, present, mean in zip(self.numbers, self.present.tolist(), self.mean.tolist(), strict=True):
            parts[name] = Number(name, mean, self.rows - present) if present else Ignored(name, "it has no values")
        for name, text in self.texts.items():
            found = text.finish(self.place)
            parts[name] = Ignored(name, found) if isinstance(found, str) else found
        encoder = TableEncoder([parts[name] for name in self.names])
        if not encoder.columns:
            raise ValueError(f"{self.place}no column is of use as an input: {'; '.join(encoder.notes)}")
        return encoder


def _checked(column: Any) -> Number | Text | Ignored:
    """A column of a description, which may come from anyone's file."""
    kind = next((kind for name, kind in KINDS.items() if isinstance(column, dict) and column.get("kind") == name), None)
    values = {key: value for key, value in column.items() if key != "kind"} if kind else {}
    if kind is None or set(values) != set(kind.__dataclass_fields__) or not isinstance(values["name"], str):
        raise ValueError(f"a column of a table's encoding is none of {', '.join(KINDS)}: {str(column)[:80]}")
    place = f"the encoding of column {values['name'][:80]!r}"
    if kind is Ignored and not isinstance(values["reason"], str):
        raise ValueError(f"{place} must have a text as its reason")
    if kind is not Ignored and not (type(values["missing"]) is int and values["missing"] >= 0):
        raise ValueError(f"{place} must have a whole number of missing rows")
    if kind is Number and not (type(values["mean"]) is float and math.isfinite(values["mean"])):
        raise ValueError(f"{place} must have a finite mean")
    if kind is Text:
        found = values["categories"]
        if not isinstance(found, list) or not all(isinstance(category, str) for category in found):
            raise ValueError(f"{place} must have a list of categories")
        if not 1 <= len(found) <= MOST_CATEGORIES or found != sorted(set(found)):
            raise ValueError(f"{place} must have 1 to {MOST_CATEGORIES} different categories in sorted order")
    return kind(**values)


def _refuse_repeated(names: Sequence[str], found: Sequence[str], place: str) -> None:
    counts = Counter(found)
    repeated = [name for name in names if counts[name] > 1]
    if repeated:
        raise ValueError(f"{place}column {repeated[0]!r} appears more than once")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(map(repr, names[:10])) + more
