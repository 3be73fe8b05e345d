"""Stream tables: how a stream is read as a table, kept in the store by name, where every client of the scope finds it.

A definition goes with its stream. Whoever deletes a stream takes its name away first and looks for definitions then;
whoever makes one stores it first and looks for the stream then. So one of two who do both at once sees the other, and
no definition is left behind.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from nadi.client.control.arguments import checked, several_texts
from nadi.client.control.policy import StreamConfiguration
from nadi.client.segments.stores import SegmentStores
from nadi.client.serializers.registry import SchemaGroup
from nadi.client.tables.change import change_value
from nadi.client.tables.listing import named_entries
from nadi.client.tables.table import Table, value_or_none
from nadi.client.tables.unreadable import Unreadable, read_record, sorted_out
from nadi.display import Displayed
from nadi.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    InvalidArgumentError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamTableNotFoundError,
)
from nadi.limits import BOOKMARK_NOTE_MAX_CHARS, SCHEMA_MAX_BYTES, STREAM_TABLE_KEYS
from nadi.model.place import TABLE_PREFIX, StoredTable
from nadi.naming import STREAM_TABLES_TABLE, check_name

if TYPE_CHECKING:
    from nadi.client.values.options import Target
    from nadi.client.values.target import Schemas

_USUAL_FORMAT = "json"  # of a schema that is given


@dataclass(frozen=True, slots=True)
class TableDefinition(Displayed):
    """How a stream is read as a table. `value_format` and `value_schema` are None where the stream's own schema in the
    store says it. `made_at` is when it was made, by the maker's clock."""

    scope: str
    name: str
    stream: str
    value_format: str | None
    value_schema: str | None
    value_mode: str | None
    key: tuple[str, ...]
    event_time: str | None
    made_at: datetime
    note: str = ""


@checked()
class StreamTables:
    """The stream tables of a scope: `manager.stream_tables(scope)`; `nadi.stream_table` reads one."""

    def __init__(self, stores: SegmentStores, scope: str) -> None:
        self._stores, self._scope = stores, scope
        self._table: Table = Table(stores, scope, STREAM_TABLES_TABLE)

    async def define(
        self,
        name: str,
        *,
        stream: str | None = None,
        value_format: str | None = None,
        value_schema: str | None = None,
        value_mode: str | None = None,
        key: Iterable[str] = (),
        event_time: str | None = None,
        note: str = "",
        replace: bool = False,
    ) -> TableDefinition:
        """Store how a stream is read as a table; AlreadyExistsError if the scope has a table of that name, unless
        `replace` is given.

        stream: by default the one of the table's name. value_format: json, msgpack, avro, protobuf or arrow; by
        default that of the stream's newest schema, or json if `value_schema` is given. value_schema: the columns in
        Spark's DDL, such as "meter string, wh double"; by default those of the stream's newest schema, each time that
        the table is read. value_mode: what becomes of an event that isn't such a row, as for `nadi.scan`.

        key: the columns whose values tell rows apart, of which the latest counts. event_time: the column that says
        when something was so.
        """
        check_name("stream table", name)
        stored = StoredTable(
            stream if stream is not None else name,
            time.time_ns() // 1_000_000,
            value_format if value_format is not None or value_schema is None else _USUAL_FORMAT,
            value_schema,
            value_mode.upper() if value_mode is not None else None,
            _key(key),
            event_time,
            note,
        )
        if len(note) > BOOKMARK_NOTE_MAX_CHARS:
            raise InvalidArgumentError(f"a note has at most {BOOKMARK_NOTE_MAX_CHARS:,} characters, not {len(note):,}")
        if len(value_schema or "") > SCHEMA_MAX_BYTES:
            raise InvalidArgumentError(f"value_schema has over {SCHEMA_MAX_BYTES:,} characters: name fewer columns")
        if stored.stream != name and await self._stores.controller.stream_exists(self._scope, name):
            raise InvalidArgumentError(
                f"{name} is a stream, and a table of that name would stand for {stored.stream}: choose another name"
            )
        await self._check(name, stored)
        await self._put(name, stored, replace=replace)
        return self._of(name, stored)

    async def get(self, name: str) -> TableDefinition:
        """Return the definition; StreamTableNotFoundError if there is none of that name."""
        held = await value_or_none(self._table, _key_of(name))
        if held is None:
            raise StreamTableNotFoundError(self._scope, name)
        return self._read(name, held.value)

    async def list(self, *, stream: str | None = None) -> builtins.list[TableDefinition]:
        """Return all definitions of the scope in order of names; only those on the stream, if given. Without those that
        `unreadable` tells."""
        return (await self.list_with_unreadable(stream=stream))[0]

    async def unreadable(self) -> builtins.list[Unreadable]:
        """Return the definitions that are damaged, or of a newer nadi; they can be dropped."""
        return (await self._sorted_out())[1]

    async def list_with_unreadable(
        self, *, stream: str | None = None
    ) -> tuple[builtins.list[TableDefinition], builtins.list[Unreadable]]:
        """Return both, what `list` returns and what `unreadable` does, by one walk through the table."""
        found, unreadable = await self._sorted_out()
        return [one for one in found.values() if stream in (None, one.stream)], unreadable

    async def drop(self, name: str) -> bool:
        """Forget a definition; return False if there is none. The stream and its events stay."""
        key = _key_of(name)
        if await value_or_none(self._table, key) is None:
            return False
        await self._table.remove(key)
        return True

    # --- inside -----------------------------------------------------------------------------

    async def _sorted_out(self) -> tuple[dict[str, TableDefinition], builtins.list[Unreadable]]:
        return await sorted_out(named_entries(self._stores, self._scope, self._table, TABLE_PREFIX), self._read)

    def _read(self, name: str, value: bytes) -> TableDefinition:
        return read_record(
            lambda: self._of(name, msgspec.json.decode(value, type=StoredTable)),
            f"stream table {self._scope}/{name}",
            f"drop it: `nadi stream-table drop {self._scope} {name}`",
        )

    def _of(self, name: str, stored: StoredTable) -> TableDefinition:
        return TableDefinition(
            self._scope,
            name,
            stored.stream,
            stored.value_format,
            stored.value_schema,
            stored.value_mode,
            stored.key,
            stored.event_time,
            datetime.fromtimestamp(stored.made_ms / 1000, UTC),
            stored.note,
        )

    async def _check(self, name: str, stored: StoredTable) -> None:
        """InvalidArgumentError unless the stream's events can be read so, and have these columns."""
        client = _Schemas(self._stores)
        await client.stream_configuration(self._scope, stored.stream)  # StreamNotFoundError
        await planned(client, self._of(name, stored))

    async def _put(self, name: str, stored: StoredTable, *, replace: bool) -> None:
        key, encoded = _key_of(name), msgspec.json.encode(stored)

        async def made(held: bytes | None) -> tuple[bytes, None]:
            if held is not None and not replace:
                raise AlreadyExistsError("stream table", f"{self._scope}/{name}")
            if held is None:
                if not await self._stores.controller.scope_exists(self._scope):
                    raise ScopeNotFoundError(self._scope)
                await self._table.create()
            return encoded, None

        await change_value(self._table, key, f"stream table {self._scope}/{name}", made)
        if not await self._stores.controller.stream_exists(self._scope, stored.stream):  # deleted meanwhile
            held = await value_or_none(self._table, key)
            if held is not None and held.value == encoded:
                try:
                    await self._table.remove(key, held.version)
                except ConditionFailedError:  # somebody else's by now
                    pass
            raise StreamNotFoundError(self._scope, stored.stream)


class _Schemas:
    """A client as far as schemas are concerned."""

    def __init__(self, stores: SegmentStores) -> None:
        self._stores = stores

    def schemas(self, scope: str, stream: str) -> SchemaGroup:
        return SchemaGroup(self._stores, scope, stream)

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfiguration:
        return await self._stores.controller.stream_configuration(scope, stream)


def _key(given: Iterable[str]) -> tuple[str, ...]:
    key = several_texts(given, "a table's key columns")
    if len(set(key)) < len(key) or len(key) > STREAM_TABLE_KEYS:
        raise InvalidArgumentError(f"a table's key is up to {STREAM_TABLE_KEYS} columns, each named once, not {key!r}")
    return key


def _key_of(name: str) -> bytes:
    return (TABLE_PREFIX + name).encode()


async def planned(client: Schemas, table: TableDefinition) -> Target:
    """What the table's events are read as, now. InvalidArgumentError if they can't be, or lack its columns."""
    from nadi.client.definitions.columns import check_columns, fields_of  # and Arrow's: most clients do without
    from nadi.client.values.options import value_options
    from nadi.client.values.target import stored_format, target_of

    what = f"table {table.scope}/{table.name}"
    value_format = table.value_format or await stored_format(client, table.scope, table.stream)
    if value_format is None:
        raise InvalidArgumentError(
            f"{what} has no columns: the store has no schema for stream {table.scope}/{table.stream}. Write to it "
            "with a serializer that has one, or name the columns of JSON events: value_schema='meter string, wh double'"
        )
    value = value_options(value_format, table.value_schema, None, table.value_mode)
    assert value is not None, "a format was given"
    target = await target_of(client, value, table.scope, [table.stream], lambda _: True)
    assert target is not None, "whichever is found is wanted"
    check_columns(fields_of(target.kind, what), table.key, table.event_time, what)
    return target
