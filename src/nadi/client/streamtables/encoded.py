"""Rows as events of a table's stream, each with the routing key that its key makes.

The routing key is the text of the key's column: as it is if it is a text, else as Arrow writes it (5, true,
2026-11-14), of bytes their hex digits. Of a key of several columns it is these texts, with `/` between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from nadi.client.definitions.stream_tables import TableDefinition
from nadi.client.values.columns import MISFITS, native, told
from nadi.client.values.encoding import check_column, encoder
from nadi.client.values.options import Target
from nadi.client.values.types import plain
from nadi.errors import InvalidArgumentError, SerializationError

Encode = Callable[[pa.StructArray], Sequence[bytes]]


class RowEncoder:
    """Makes events of batches of rows that have the schema `given`; InvalidArgumentError if the table has no place for
    one of its columns."""

    def __init__(self, table: TableDefinition, target: Target, given: pa.Schema) -> None:
        self._name = f"table {table.scope}/{table.name}"
        self._key = table.key
        self._kind = plain(target.kind)
        self._fields = list(self._kind)
        known = [field.name for field in self._fields]
        for name in given.names:
            if name not in known or given.names.count(name) > 1:
                why = "twice" if name in known else f"and {self._name} doesn't: it has {', '.join(known)}"
                raise InvalidArgumentError(f"the rows have a column {name[:60]!r}, {why}: leave it out")
        for name in self._key:
            if name not in given.names:
                raise InvalidArgumentError(f"the rows have no column {name!r}, a part of the key of {self._name}")
        if target.definition is not None:
            here = [field for field in self._fields if field.name in given.names]
            check_column(pa.struct(here), target, "row")
        self._encode: Encode = _documents(target) if target.definition is None else encoder(target)

    def of(self, batch: pa.RecordBatch) -> tuple[Sequence[bytes], list[str | None]]:
        """The events, and their routing keys."""
        columns = {name: self._cast(name, batch.column(name)) for name in batch.schema.names}
        keys = self._keys([columns[name] for name in self._key], batch.num_rows)
        whole = [columns.get(one.name, pa.nulls(batch.num_rows, one.type)) for one in self._fields]
        events = self._encode(pa.StructArray.from_arrays(whole, fields=self._fields))
        return events.to_pylist() if isinstance(events, pa.Array) else events, keys

    def _cast(self, name: str, column: pa.Array) -> pa.Array:
        wanted = self._kind.field(name).type
        try:
            return pc.cast(column, wanted) if column.type != wanted else column
        except pa.ArrowException as error:
            raise InvalidArgumentError(
                f"column {name!r} of the rows is {column.type}, and {self._name} has {wanted} there: {told(error)}"
            ) from None

    def _keys(self, columns: Sequence[pa.Array], count: int) -> list[str | None]:
        if not columns:
            return [None] * count
        for name, column in zip(self._key, columns, strict=True):
            if column.null_count:
                raise InvalidArgumentError(
                    f"a row has no {name!r}, which is a part of the key of {self._name}: leave it out, or name one"
                )
        texts = [_texts(column) for column in columns]
        return list(texts[0]) if len(texts) == 1 else ["/".join(parts) for parts in zip(*texts, strict=True)]


def _texts(column: pa.Array) -> list[str]:
    if pa.types.is_binary(column.type):
        return [one.hex() for one in column.to_pylist()]
    found: list[str] = pc.cast(column, pa.string()).to_pylist()
    return found


def _documents(target: Target) -> Encode:
    """Of rows whose columns the definition names."""
    kind, is_json = target.kind, target.options.format == "json"
    encode = (msgspec.json if is_json else msgspec.msgpack).Encoder().encode
    names = [kind.field(number).name for number in range(kind.num_fields)]
    odd = [kind.field(name).type for name in names]
    is_plain = not any(pa.types.is_nested(one) or (pa.types.is_timestamp(one) and one.unit == "ns") for one in odd)

    def encoded(rows: pa.StructArray) -> list[bytes]:
        if is_json:
            _check_numbers(rows, names)
        try:
            if is_plain:
                values = zip(*(column.to_pylist() for column in rows.flatten()), strict=True)
                return [encode(dict(zip(names, one, strict=True))) for one in values]
            return [encode(native(one, kind)) for one in rows.to_pylist()]
        except MISFITS as error:
            raise SerializationError(f"a row can't be written as {target.options.format}: {told(error)}") from error

    return encoded


def _check_numbers(rows: pa.StructArray, names: Sequence[str]) -> None:
    for name, column in zip(names, rows.flatten(), strict=True):
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
            raise SerializationError(f"a row has NaN or infinity as its {name!r}, and JSON has no such numbers")
