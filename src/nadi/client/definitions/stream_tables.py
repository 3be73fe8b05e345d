"""Stream tables: definitions of streams read as tables, stored by name for all clients of the scope.

A definition is deleted with its stream. Deleting a stream removes its name first and then looks for definitions;
defining a table stores the definition first and then looks for the stream. So of two concurrent calls one sees the
other, and no definition is orphaned.
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

from nadi.client.control.arguments import check_strings, checked
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

_USUAL_FORMAT = "json"  # if value_schema is given


@dataclass(frozen=True, slots=True)
class TableDefinition(Displayed):
    """The definition of a stream table.

    `value_format` and `value_schema` are None if they come from the stream's stored schema. `created_at` is the time of
    definition by the defining client's clock.
    """

    scope: str
    name: str
    stream: str
    value_format: str | None
    value_schema: str | None
    value_mode: str | None
    key: tuple[str, ...]
    event_time: str | None
    created_at: datetime
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
        """Store the definition of a table; AlreadyExistsError if the scope has a table of that name, unless `replace`
        is set.

        stream: by default the stream with the table's name. value_format: json, msgpack, avro, protobuf or arrow; by
        default the format of the stream's newest schema, or json if `value_schema` is given. value_schema: the columns
        in Spark's DDL, such as "meter string, wh double"; by default those of the stream's newest schema at each read.
        value_mode: the treatment of events that aren't such a row, as for `nadi.scan`.

        key: the columns that identify a row; the latest one counts. event_time: the column with the time of each
        row's event.
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
            raise InvalidArgumentError(
                f"the note has {len(note):,} characters, at most {BOOKMARK_NOTE_MAX_CHARS:,} are allowed"
            )
        if len(value_schema or "") > SCHEMA_MAX_BYTES:
            raise InvalidArgumentError(
                f"value_schema has more than {SCHEMA_MAX_BYTES:,} characters: list fewer columns"
            )
        if stored.stream != name and await self._stores.controller.stream_exists(self._scope, name):
            raise InvalidArgumentError(
                f"{name} is already a stream, so it can't be a table of stream {stored.stream}: choose another name"
            )
        await self._check(name, stored)
        await self._put(name, stored, replace=replace)
        return self._of(name, stored)

    async def get(self, name: str) -> TableDefinition:
        """Return the definition; StreamTableNotFoundError if it doesn't exist."""
        return self._of(name, await self._records.get(name))

    async def list(self, *, stream: str | None = None) -> builtins.list[TableDefinition]:
        """Return the scope's definitions, sorted by name; only those of `stream`, if given. Omits those that
        `unreadable` returns."""
        return (await self.list_with_unreadable(stream=stream))[0]

    async def unreadable(self) -> builtins.list[Unreadable]:
        """Return the definitions that are damaged, or written by a newer nadi; they can be dropped."""
        return (await self._records.all())[1]

    async def list_with_unreadable(
        self, *, stream: str | None = None
    ) -> tuple[builtins.list[TableDefinition], builtins.list[Unreadable]]:
        """Return the results of `list` and `unreadable` from a single pass over the table."""
        records, unreadable = await self._records.all()
        return [
            self._of(name, stored) for name, stored in records.items() if stream in (None, stored.stream)
        ], unreadable

    async def delete(self, name: str) -> bool:
        """Delete a definition; return False if it doesn't exist. The stream and its events stay."""
        return await self._records.delete(name)

    # --- inside -----------------------------------------------------------------------------

    def _decode(self, name: str, value: bytes) -> StoredTable:
        stored = msgspec.json.decode(value, type=StoredTable)
        self._of(name, stored)
        return stored

    def _of(self, name: str, stored: StoredTable) -> TableDefinition:
        fields = msgspec.structs.asdict(stored)
        created_at = datetime.fromtimestamp(fields.pop("made_ms") / 1000, UTC)
        return TableDefinition(self._scope, name, created_at=created_at, **fields)

    async def _check(self, name: str, stored: StoredTable) -> None:
        """Raise InvalidArgumentError if the stream's events can't be read this way, or lack these columns."""
        client = _SchemaClient(self._stores)
        await client.stream_configuration(self._scope, stored.stream)  # StreamNotFoundError
        await planned(client, self._of(name, stored))

    async def _put(self, name: str, stored: StoredTable, *, replace: bool) -> None:
        record = self._records.record(name)
        if await record.find() is None:
            await self._records.prepare()

        def updated(current: StoredTable | None) -> StoredTable:
            if current is not None and not replace:
                raise AlreadyExistsError("stream table", f"{self._scope}/{name}")
            return stored

        await record.put(updated)
        if not await self._stores.controller.stream_exists(self._scope, stored.stream):  # deleted meanwhile
            await record.delete_read()  # unless another client has replaced it
            raise StreamNotFoundError(self._scope, stored.stream)


class _SchemaClient:
    def __init__(self, stores: SegmentStores) -> None:
        self._stores = stores

    def schemas(self, scope: str, stream: str) -> SchemaGroup:
        return SchemaGroup(self._stores, scope, stream)

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfiguration:
        return await self._stores.controller.stream_configuration(scope, stream)


def _key(given: Iterable[str]) -> tuple[str, ...]:
    key = check_strings(given, "a table's key columns")
    if len(set(key)) < len(key) or len(key) > STREAM_TABLE_KEYS:
        raise InvalidArgumentError(f"a table's key has up to {STREAM_TABLE_KEYS} different columns, not {key!r}")
    return key


async def planned(client: SchemaSource, table: TableDefinition) -> ReadTarget:
    """Return the current read target of the table's events; InvalidArgumentError if they can't be read, or lack its
    columns."""
    from nadi.client.definitions.columns import check_columns, fields_of  # loads Arrow, which most clients don't use
    from nadi.client.values.options import value_options
    from nadi.client.values.target import stored_format, target_of

    subject = f"table {table.scope}/{table.name}"
    value_format = table.value_format or await stored_format(client, table.scope, table.stream)
    if value_format is None:
        raise InvalidArgumentError(
            f"{subject} lacks columns: the store doesn't have a schema for stream {table.scope}/{table.stream}. Write "
            "to it with a "
            "serializer that has one, or set the columns of JSON events: value_schema='meter string, wh double'"
        )
    value = value_options(value_format, table.value_schema, None, table.value_mode)
    assert value is not None, "a format was given"
    target = await target_of(client, value, table.scope, [table.stream], lambda _: True)
    assert target is not None, "every schema is accepted"
    check_columns(fields_of(target.kind, subject), table.key, table.event_time, subject)
    return target
