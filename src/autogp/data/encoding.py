"""Tables with text and missing values as numbers, and how to turn the next table into the same numbers."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from autogp.data.columns import describe_unusable, is_number, is_text, numbers_of, texts_of
from autogp.data.texts import MOST_CATEGORIES, ManyTexts, Text, TextFit, Unseen

__all__ = ["EncoderFit", "TableEncoder"]


@dataclass(frozen=True)
class Number:
    """A column of numbers or truth values."""

    name: str
    mean: float
    missing: int  # rows without a value in training

    @property
    def note(self) -> str:
        """What was assumed, in a sentence, or nothing."""
        found = f"{self.name!r} has {self.missing} missing values, taken as the mean {self.mean:.6g}"
        return found if self.missing else ""

    @staticmethod
    def encode(
        parts: Sequence["Number"], table: pa.Table | pa.RecordBatch, unseen: Unseen, first_row: int, place: str
    ) -> np.ndarray:
        """The numbers of these columns [B, c]: NaN where one is missing."""
        values = numbers_of(table, [part.name for part in parts], first_row, place)
        absent = np.isnan(values)
        for position, count in enumerate(absent.sum(axis=0).tolist()):
            if count and not parts[position].missing:
                unseen.add(parts[position].name, count)
        return values


@dataclass(frozen=True)
class Ignored:
    """A column that says nothing a model could use."""

    name: str
    reason: str

    @property
    def note(self) -> str:
        """What was assumed, in a sentence."""
        return f"{self.name!r} is left out: {self.reason}"


KINDS = {"number": Number, "text": Text, "many_texts": ManyTexts, "ignored": Ignored}


class TableEncoder:
    """Turns tables into arrays of numbers, always as it did in training; made by `TableEncoder.fit`.

    Each column becomes one: numbers and truth values stay what they are, and text is the code of its category. Missing
    values are NaN. `autogp.features.Columns` makes of the array what a kernel can use. Text with too many categories,
    such as names, is left out.

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

    def __init__(self, parts: Sequence[Number | Text | Ignored]) -> None:
        self.parts = list(parts)
        self.inputs = [part.name for part in self.parts]
        self.ignored = {part.name: part.reason for part in self.parts if isinstance(part, Ignored)}
        self.categories = {part.name: part.categories for part in self.parts if isinstance(part, Text)}
        used: list[Any] = [part for part in self.parts if not isinstance(part, Ignored)]
        self.used_parts = used
        self.used = [part.name for part in used]
        self.complete = not self.categories and not any(part.missing for part in used)
        self.groups: list[tuple[Any, list[int], list[Any]]] = []
        for kind in (Number, Text, ManyTexts):
            chosen = [position for position, part in enumerate(used) if type(part) is kind]
            if chosen:
                self.groups.append((kind, chosen, [used[position] for position in chosen]))

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
    def of_numbers(
        cls, names: Sequence[str], means: Sequence[float], missing: Sequence[int] | None = None
    ) -> "TableEncoder":
        """The encoder of columns of numbers with these means, and so many missing values; by default none."""
        counts = [0] * len(means) if missing is None else missing
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
        _refuse_repeated(self.used, names, place)

    @property
    def numbers(self) -> bool:
        """Whether the table's columns are the array's columns, unchanged: numbers, some of which may be missing."""
        return all(isinstance(part, Number) for part in self.parts)

    @property
    def plain(self) -> bool:
        """Whether the table's columns are the array's columns, unchanged and without missing values."""
        return self.complete and not self.ignored

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
        encoder = cls([_checked(column) for column in description["columns"]])
        if not encoder.used or len(set(encoder.inputs)) < len(encoder.inputs):
            raise ValueError("the columns of a table's encoding must be different, and at least one must be used")
        return encoder


class EncoderFit:
    """Learns an encoder batch by batch, and hands on the rows as numbers.

    Arguments:
        schema: Names and types of the columns.
        names: The inputs, in order; by default all columns.
        place: What error messages start with.

    Example:
        >>> table = pa.table({"age": [20, 40], "port": ["Cork", "Bari"]})
        >>> fit = EncoderFit(table.schema)
        >>> x = fit.add(table)
        >>> encoder = fit.finish()
        >>> x.tolist(), fit.settle(x, encoder).tolist()
        ([[20.0, 0.0], [40.0, 1.0]], [[20.0, 1.0], [40.0, 0.0]])
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

    def add(self, batch: pa.Table | pa.RecordBatch) -> np.ndarray:
        """Learns from the rows; returns them as float64 [B, inputs], with codes that are not settled yet."""
        out = np.empty((batch.num_rows, len(self.names)))
        values = numbers_of(batch, self.numbers, self.rows + 1, self.place)  # [B, numbers]
        absent = np.isnan(values)
        self.present += len(values) - absent.sum(axis=0)
        # By the distance to the mean so far, which keeps the digits of small differences beside a large offset.
        self.mean += np.where(absent, 0, values - self.mean).sum(axis=0) / np.maximum(self.present, 1)
        out[:, [position for position, name in enumerate(self.names) if name not in self.texts]] = values
        for position, name in enumerate(self.names):
            if name in self.texts:
                out[:, position] = self.texts[name].add(texts_of(batch.column(name), name, self.place))
        self.rows += batch.num_rows
        return out

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
        parts: dict[str, Number | Text | Ignored] = {}
        for name, present, mean in zip(self.numbers, self.present.tolist(), self.mean.tolist(), strict=True):
            parts[name] = Number(name, mean, self.rows - present) if present else Ignored(name, "it has no values")
        for name, text in self.texts.items():
            found = text.finish(self.place)
            parts[name] = Ignored(name, found) if isinstance(found, str) else found
        encoder = TableEncoder([parts[name] for name in self.names])
        if not encoder.used:
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
    if kind in (Text, ManyTexts):
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
