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
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nadi.client.control.arguments import checked, several_texts
from nadi.client.control.policy import StreamConfiguration
from nadi.client.segments.stores import SegmentStores
from nadi.client.serializers.registry import SchemaGroup
from nadi.client.tables.catalog import Catalog, RecordKind, Unreadable
from nadi.display import Displayed
from nadi.errors import AlreadyExistsError, InvalidArgumentError, StreamNotFoundError, StreamTableNotFoundError
from nadi.limits import BOOKMARK_NOTE_MAX_CHARS, SCHEMA_MAX_BYTES, STREAM_TABLE_KEYS
from nadi.model.named_records import TABLE_PREFIX, StoredTable
from nadi.naming import STREAM_TABLES_TABLE, check_name

if TYPE_CHECKING:
    from nadi.client.values.options import ReadTarget
    from nadi.client.values.target import SchemaSource

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
        remedy = f"delete it: `nadi stream-table delete {scope} {{}}`".format
        missing = partial(StreamTableNotFoundError, scope)
        kind = RecordKind("stream table", scope, remedy, missing, self._decode, prefix=TABLE_PREFIX)
        self._records: Catalog[StoredTable] = Catalog(stores, scope, STREAM_TABLES_TABLE, kind)

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
        return self._of(name, await self._records.get(name))

    async def list(self, *, stream: str | None = None) -> builtins.list[TableDefinition]:
        """Return all definitions of the scope in order of names; only those on the stream, if given. Without those that
        `unreadable` tells."""
        return (await self.list_with_unreadable(stream=stream))[0]

    async def unreadable(self) -> builtins.list[Unreadable]:
        """Return the definitions that are damaged, or of a newer nadi; they can be dropped."""
        return (await self._records.all())[1]

    async def list_with_unreadable(
        self, *, stream: str | None = None
    ) -> tuple[builtins.list[TableDefinition], builtins.list[Unreadable]]:
        """Return both, what `list` returns and what `unreadable` does, by one walk through the table."""
        records, unreadable = await self._records.all()
        return [self._of(name, one) for name, one in records.items() if stream in (None, one.stream)], unreadable

    async def drop(self, name: str) -> bool:
        """Forget a definition; return False if there is none. The stream and its events stay."""
        return await self._records.delete(name)

    # --- inside -----------------------------------------------------------------------------

    def _decode(self, name: str, value: bytes) -> StoredTable:
        stored = msgspec.json.decode(value, type=StoredTable)
        self._of(name, stored)
        return stored

    def _of(self, name: str, stored: StoredTable) -> TableDefinition:
        fields = msgspec.structs.asdict(stored)
        made_at = datetime.fromtimestamp(fields.pop("made_ms") / 1000, UTC)
        return TableDefinition(self._scope, name, made_at=made_at, **fields)

    async def _check(self, name: str, stored: StoredTable) -> None:
        """InvalidArgumentError unless the stream's events can be read so, and have these columns."""
        client = _SchemaClient(self._stores)
        await client.stream_configuration(self._scope, stored.stream)  # StreamNotFoundError
        await planned(client, self._of(name, stored))

    async def _put(self, name: str, stored: StoredTable, *, replace: bool) -> None:
        record = self._records.record(name)
        if await record.find() is None:
            await self._records.prepare()

        def made(held: StoredTable | None) -> StoredTable:
            if held is not None and not replace:
                raise AlreadyExistsError("stream table", f"{self._scope}/{name}")
            return stored

        await record.put(made)
        if not await self._stores.controller.stream_exists(self._scope, stored.stream):  # deleted meanwhile
            await record.delete_read()  # if it isn't somebody else's by now
            raise StreamNotFoundError(self._scope, stored.stream)


class _SchemaClient:
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


async def planned(client: SchemaSource, table: TableDefinition) -> ReadTarget:
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
