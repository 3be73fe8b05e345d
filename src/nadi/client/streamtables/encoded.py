"""Rows as events of a table's stream, each with the routing key that its key makes.

The routing key is the text of the key's column: as it is if it is a text, else as Arrow writes it (5, true,
2026-11-14), of bytes their hex digits. Of a key of several columns it is these texts, with `/` between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from nadi.client.definitions.stream_tables import TableDefinition
from nadi.client.serializers.arrow_columns import plain
from nadi.client.serializers.columns import check_finite, check_taken
from nadi.client.streamtables.lossless import MisfitError, first_wrong, lossless
from nadi.client.values.options import ReadTarget
from nadi.client.values.parser import check_column, encoder
from nadi.errors import InvalidArgumentError, SerializationError

_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The events, their routing keys, and the columns that they were made of, in the table's types."""

    events: Sequence[bytes]
    keys: list[str | None]
    columns: Mapping[str, pa.Array]

    def texts(self) -> Iterator[bytes]:
        """What each row says, however it is encoded."""
        names = sorted(self.columns)
        encode = msgspec.json.Encoder().encode
        for values in zip(*(self.columns[name].to_pylist() for name in names), strict=True):
            yield encode({name: value for name, value in zip(names, values, strict=True) if value is not None})


class RowEncoder:
    """Makes events of batches of rows that have the schema `given`; InvalidArgumentError if the table has no place for
    one of its columns."""

    def __init__(self, table: TableDefinition, target: ReadTarget, given: pa.Schema) -> None:
        self._name = f"table {table.scope}/{table.name}"
        self._key = table.key
        self._given_kind, self._kind = target.kind, plain(target.kind)
        self._fields = list(self._kind)
        known = [field.name for field in self._fields]
        for name in given.names:
            if name not in known or given.names.count(name) > 1:
                why = "twice" if name in known else f"and {self._name} doesn't: it has {', '.join(known)}"
                raise InvalidArgumentError(f"the rows have a column {name[:60]!r}, {why}: leave it out")
        for name in self._key:
            if name not in given.names:
                raise InvalidArgumentError(f"the rows have no column {name!r}, a part of the key of {self._name}")
        self._has_schema = target.definition is not None
        if self._has_schema:
            here = [field for field in self._fields if field.name in given.names]
            check_column(pa.struct(here), target, "row")
        self._encode = encoder(target)
        self._checks = [check_taken, *([check_finite] if target.options.format == "json" else [])]

    def of(self, batch: pa.RecordBatch, first: int = 0) -> EncodedRows:
        """The batch's rows as events. first: the number of its first row, for errors to name the one that is meant.

        InvalidArgumentError for a value that has no place in its column, or only with loss; SerializationError for one
        that the format hasn't.
        """
        columns = {name: self._lossless(name, batch.column(name), first) for name in batch.schema.names}
        keys = self._keys([columns[name] for name in self._key], batch.num_rows, first)
        for name, column in columns.items():
            for check in self._checks:
                _check(name, column, first, check)
        return EncodedRows(self._encode(self._rows(columns, batch.num_rows)), keys, columns)

    def _rows(self, columns: Mapping[str, pa.Array], count: int) -> pa.StructArray:
        """All columns, those not given as nulls; where a schema may say what is written instead, only those given."""
        if self._has_schema:
            fields = [one for one in self._fields if one.name in columns]
            return pa.StructArray.from_arrays([columns[one.name] for one in fields], fields=fields)
        whole = [columns.get(one.name, pa.nulls(count, one.type)) for one in self._fields]
        return pa.StructArray.from_arrays(whole, fields=self._fields)

    def _lossless(self, name: str, column: pa.Array, first: int) -> pa.Array:
        wanted = self._kind.field(name).type
        try:
            return lossless(column, self._given_kind.field(name).type)
        except MisfitError as error:
            which = "" if error.row is None else f"row {first + error.row:,} has {_shown(column, error.row)}, and "
            raise InvalidArgumentError(
                f"column {name!r} of the rows is {column.type}, and {self._name} has {wanted} there: {which}"
                f"{error.why}. Cast it, or leave it out"
            ) from None

    def _keys(self, columns: Sequence[pa.Array], count: int, first: int) -> list[str | None]:
        if not columns:
            return [None] * count
        for name, column in zip(self._key, columns, strict=True):
            if column.null_count:
                raise InvalidArgumentError(
                    f"row {first + pc.index(column.is_null(), True).as_py():,} has no {name!r}, which is a part of the "
                    f"key of {self._name}: leave it out, or name one"
                )
        texts = [_texts(column) for column in columns]
        return list(texts[0]) if len(texts) == 1 else ["/".join(parts) for parts in zip(*texts, strict=True)]


def _texts(column: pa.Array) -> list[str]:
    if pa.types.is_binary(column.type):
        return [one.hex() for one in column.to_pylist()]
    found: list[str] = pc.cast(column, pa.string()).to_pylist()
    return found


def _check(name: str, column: pa.Array, first: int, check: Callable[[pa.Array], None]) -> None:
    try:
        check(column)
    except ValueError as error:
        row = first_wrong(column, check) or 0
        raise SerializationError(f"row {first + row:,} has {_shown(column, row)} as its {name!r}: {error}") from None


def _shown(column: pa.Array, row: int) -> str:
    one = column.slice(row, 1)
    if pa.types.is_string(one.type) or pa.types.is_large_string(one.type):
        text = one.cast(pa.large_binary() if pa.types.is_large_string(one.type) else pa.binary())[0].as_py()
        value: object = text.decode(errors="backslashreplace")
    else:
        try:
            value = one[0].as_py()
        except (ValueError, OverflowError):  # a time that Python has none for
            value = one.cast(pa.string())[0].as_py()
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
