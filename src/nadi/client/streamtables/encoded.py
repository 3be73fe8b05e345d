"""Encode rows as events of a table's stream, each with a routing key derived from its key.

The routing key is the key column's text: strings unchanged, bytes as hex digits, other types as Arrow formats them (5,
true, 2026-11-14). The texts of several columns are joined by `/`.
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
from nadi.client.streamtables.lossless import ValueMismatchError, first_wrong, lossless
from nadi.client.values.options import ReadTarget
from nadi.client.values.parser import check_column, encoder
from nadi.errors import InvalidArgumentError, SerializationError

_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The events, their routing keys, and the columns they encode, in the table's types."""

    events: Sequence[bytes]
    keys: list[str | None]
    columns: Mapping[str, pa.Array]

    def texts(self) -> Iterator[bytes]:
        """Yield each row's content as JSON, independent of the encoding."""
        names = sorted(self.columns)
        encode = msgspec.json.Encoder().encode
        for values in zip(*(self.columns[name].to_pylist() for name in names), strict=True):
            yield encode({name: value for name, value in zip(names, values, strict=True) if value is not None})


class RowEncoder:
    """Encodes batches of rows of the schema `given`; InvalidArgumentError if the table lacks one of its columns."""

    def __init__(self, table: TableDefinition, target: ReadTarget, given: pa.Schema) -> None:
        self._name = f"table {table.scope}/{table.name}"
        self._key = table.key
        self._given_kind, self._kind = target.kind, plain(target.kind)
        self._fields = list(self._kind)
        known = [field.name for field in self._fields]
        for name in given.names:
            if name not in known or given.names.count(name) > 1:
                why = "twice" if name in known else f"but {self._name} doesn't: it has {', '.join(known)}"
                raise InvalidArgumentError(f"the rows have a column {name[:60]!r} {why}: omit it")
        for name in self._key:
            if name not in given.names:
                raise InvalidArgumentError(
                    f"the rows lack the column {name!r}, which is part of the key of {self._name}"
                )
        self._has_schema = target.definition is not None
        if self._has_schema:
            fields = [field for field in self._fields if field.name in given.names]
            check_column(pa.struct(fields), target, "row")
        self._encode = encoder(target)
        self._checks = [check_taken, *([check_finite] if target.options.format == "json" else [])]

    def of(self, batch: pa.RecordBatch, first: int = 0) -> EncodedRows:
        """Encode the batch's rows. first: the number of its first row, for errors to identify a row.

        InvalidArgumentError for a value that doesn't fit its column without loss; SerializationError for one that the
        format can't represent.
        """
        columns = {name: self._lossless(name, batch.column(name), first) for name in batch.schema.names}
        keys = self._keys([columns[name] for name in self._key], batch.num_rows, first)
        for name, column in columns.items():
            for check in self._checks:
                _check(name, column, first, check)
        return EncodedRows(self._encode(self._rows(columns, batch.num_rows)), keys, columns)

    def _rows(self, columns: Mapping[str, pa.Array], count: int) -> pa.StructArray:
        """Return all columns, with nulls for missing ones; only the given columns if a stored schema supplies the
        rest."""
        if self._has_schema:
            fields = [field for field in self._fields if field.name in columns]
            return pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)
        arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in self._fields]
        return pa.StructArray.from_arrays(arrays, fields=self._fields)

    def _lossless(self, name: str, column: pa.Array, first: int) -> pa.Array:
        table_type = self._kind.field(name).type
        try:
            return lossless(column, self._given_kind.field(name).type)
        except ValueMismatchError as error:
            which = "" if error.row is None else f"row {first + error.row:,} has {_shown(column, error.row)}, and "
            raise InvalidArgumentError(
                f"column {name!r} of the rows is {column.type}, but {table_type} in {self._name}: {which}"
                f"{error.why}. Cast or omit the column"
            ) from None

    def _keys(self, columns: Sequence[pa.Array], count: int, first: int) -> list[str | None]:
        if not columns:
            return [None] * count
        for name, column in zip(self._key, columns, strict=True):
            if column.null_count:
                raise InvalidArgumentError(
                    f"row {first + pc.index(column.is_null(), True).as_py():,} lacks {name!r}, which is part of the "
                    f"key of {self._name}: omit the row, or set the value"
                )
        texts = [_texts(column) for column in columns]
        return list(texts[0]) if len(texts) == 1 else ["/".join(parts) for parts in zip(*texts, strict=True)]


def _texts(column: pa.Array) -> list[str]:
    if pa.types.is_binary(column.type):
        return [value.hex() for value in column.to_pylist()]
    texts: list[str] = pc.cast(column, pa.string()).to_pylist()
    return texts


def _check(name: str, column: pa.Array, first: int, check: Callable[[pa.Array], None]) -> None:
    try:
        check(column)
    except ValueError as error:
        row = first_wrong(column, check) or 0
        raise SerializationError(f"row {first + row:,} has {_shown(column, row)} as its {name!r}: {error}") from None


def _shown(column: pa.Array, row: int) -> str:
    cell = column.slice(row, 1)
    if pa.types.is_string(cell.type) or pa.types.is_large_string(cell.type):
        text = cell.cast(pa.large_binary() if pa.types.is_large_string(cell.type) else pa.binary())[0].as_py()
        value: object = text.decode(errors="backslashreplace")
    else:
        try:
            value = cell[0].as_py()
        except (ValueError, OverflowError):  # a time outside the range of Python's datetime
            value = cell.cast(pa.string())[0].as_py()
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
