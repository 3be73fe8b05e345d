"""The definition of a lake: its stream, its table, and how events become rows.

The store keeps the definition in the table of the lake's reader group, with the writers' reports (`process.members`).
The group is the lake's subscription to the stream: it publishes the table's cut, so that retention keeps events that
aren't in the table yet (`docs/retention.md`). It has no readers. The lake's progress is only in the table's snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, TypedDict, Unpack

import msgspec
from msgspec.structs import replace

from nadi import errors
from nadi.client import StreamManager, aio
from nadi.client.blocking.face import inside
from nadi.client.control.arguments import checking
from nadi.client.manager.streams import stores_of
from nadi.client.readergroup.group import find_recreated_stream, shared_state_of
from nadi.client.segments.info import resolve_missing
from nadi.client.serializers.types import of_ddl
from nadi.client.tables.catalog import CatalogRecord, RecordKind, Unreadable, readable
from nadi.client.values.options import value_options
from nadi.lake.table.catalogs import catalog_properties
from nadi.lake.table.partitions import partition_fields
from nadi.limits import LAKE_COMMIT_BYTES, LAKE_EVERY_MAX_S, LAKE_EVERY_MIN_S, MIB, PREFIXED_NAME_MAX_CHARS
from nadi.model.readergroup import StreamDataRetention
from nadi.model.streamcut import StreamCut
from nadi.naming import NO_UNIT, PER_SECOND, READER_GROUP_PREFIX, check_name, segment_name
from nadi.process.members import Members, WorkerInfo, live_members

FIXED = ("table", "partition", "value_format", "keep_events", "start", "event_time_unit")  # fixed once the table exists


class Options(TypedDict, total=False):
    """The options of a `LakeDefinition`, see there."""

    table: str
    catalog: Mapping[str, str]
    partition: str | None
    value_format: str | None
    value_schema: str | None
    event_time_unit: str
    keep_events: bool
    dead_letters: str | None
    protect_unconsumed: bool
    skip_truncated: bool
    start: Literal["head", "tail"]
    every_s: float
    commit_bytes: int
    compact_files: int
    keep_snapshots_s: float


class LakeDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A lake of `scope`/`stream`.

    name: of its reader group, which protects events from retention and has the lake's record; by default derived from
    the stream's name. table: in the catalog, with its namespace. catalog: PyIceberg's properties; secrets as
    ${VARIABLE}. partition: such as "day(_append_time), bucket(16, meter)".
    value_format: json, msgpack, avro, protobuf or arrow: columns are the fields of the stream's schema, or of
    `value_schema` (Spark's DDL); without a format the column is the event's bytes. keep_events: store the bytes too, as
    `_event`. event_time_unit: of the times that writers note, for `_event_time`: s, ms, us, ns, or none for numbers.
    dead_letters: the stream, `stream` of the same scope or `scope/stream`, for invalid events; None stops the lake at
    the first. protect_unconsumed: the stream's retention keeps events that aren't in the table yet. skip_truncated:
    continue after truncated events; otherwise the lake stops. start: where a new lake starts. every_s: seconds between
    commits while there are events; commit_bytes: approximate limit of one commit. compact_files: number of small files
    in a partition at which they are merged; 0 never merges. keep_snapshots_s: age at which snapshots are expired, with
    the files that only they reference.
    """

    scope: str
    stream: str
    name: str
    table: str
    catalog: dict[str, str]
    partition: str = ""
    value_format: str | None = None
    value_schema: str | None = None
    event_time_unit: str = "ms"
    keep_events: bool = False
    dead_letters: str | None = None
    protect_unconsumed: bool = True
    skip_truncated: bool = False
    start: Literal["head", "tail"] = "head"
    every_s: float = 30.0
    commit_bytes: int = LAKE_COMMIT_BYTES
    compact_files: int = 16
    keep_snapshots_s: float = 5 * 86_400.0

    @property
    def full_name(self) -> str:
        return f"{self.scope}/{self.stream}"

    @property
    def dead_letter_stream(self) -> tuple[str, str] | None:
        if self.dead_letters is None:
            return None
        scope, _, stream = self.dead_letters.rpartition("/")
        return scope or self.scope, stream


def lake_name(stream: str, name: str | None = None) -> str:
    return check_name("lake", name or f"{stream}-lake", max_chars=PREFIXED_NAME_MAX_CHARS)


def definition_of(
    scope: str,
    stream: str,
    name: str | None,
    before: LakeDefinition | None,
    *,
    is_made: bool = False,
    **options: Unpack[Options],
) -> LakeDefinition:
    """Return the lake with these options, others as `before`; InvalidArgumentError for invalid options, or changes that
    are no longer possible. is_made: whether its table exists."""
    check_name("scope", scope)
    check_name("stream", stream)
    changes: dict[str, Any] = dict(options)
    if changes.get("partition", "") is None:
        changes["partition"] = ""
    if before is None:
        missing = [option for option in ("table", "catalog") if not changes.get(option)]
        if missing:
            raise errors.InvalidArgumentError(
                f"stream {scope}/{stream} doesn't have a lake yet: pass {missing[0]} (--{missing[0]}) to create it"
            )
        lake = LakeDefinition(scope=scope, stream=stream, name=lake_name(stream, name), **changes)
    else:
        if before.stream != stream:
            raise errors.InvalidArgumentError(
                f"lake {before.name} belongs to stream {before.stream}, not {stream}: choose another name (--name)"
            )
        for option in FIXED:
            if is_made and option in changes and changes[option] != getattr(before, option):
                raise errors.InvalidArgumentError(
                    f"lake {before.name} was created with {option} = {getattr(before, option)!r}, which can't be "
                    "changed: create another lake with another name and table"
                )
        lake = msgspec.structs.replace(before, **changes)
    catalog_properties(lake.catalog)
    names = lake.table.split(".")
    if len(names) < 2 or not all(names):
        raise errors.InvalidArgumentError(f"the table name needs a namespace, as in home.meters, not {lake.table!r}")
    partition_fields(lake.partition)
    value_options(lake.value_format, lake.value_schema, None, None)
    if lake.value_schema is not None:
        of_ddl(lake.value_schema)
    if lake.event_time_unit not in (*PER_SECOND, NO_UNIT):
        raise errors.InvalidArgumentError(
            f"event_time_unit must be one of {', '.join(PER_SECOND)} or {NO_UNIT}, not {lake.event_time_unit!r}"
        )
    if lake.keep_events and lake.value_format is None:
        raise errors.InvalidArgumentError(
            "keep_events has no effect without value_format: the events' bytes are a column already"
        )
    if lake.dead_letters is not None:
        if lake.value_format is None:
            raise errors.InvalidArgumentError("dead_letters has no effect without value_format: bytes are always valid")
        for kind, name in zip(("scope", "stream"), lake.dead_letter_stream or (), strict=True):
            check_name(kind, name)
        if lake.dead_letter_stream == (lake.scope, lake.stream):
            raise errors.InvalidArgumentError("the dead-letter stream can't be the lake's stream: name another stream")
    if lake.start not in ("head", "tail"):
        raise errors.InvalidArgumentError(f"start must be head or tail, not {lake.start!r}")
    for option, least, most in (
        ("every_s", LAKE_EVERY_MIN_S, LAKE_EVERY_MAX_S),
        ("compact_files", 0, 10_000),
        ("keep_snapshots_s", 0, 3_650 * 86_400),
        ("commit_bytes", MIB, 64 * LAKE_COMMIT_BYTES),
    ):
        if not least <= getattr(lake, option) <= most:
            raise errors.InvalidArgumentError(f"{option} must be {least:,} to {most:,}, not {getattr(lake, option):,}")
    if lake.compact_files == 1:
        raise errors.InvalidArgumentError("compact_files must be 0 or at least 2, not 1")
    return lake


class LakeRecord(msgspec.Struct, frozen=True):
    """The stored record of a lake. table_id: of its table, once it exists. start: the cut at which a new lake starts.
    is_wanted: whether its writers should run; `stop` resets it. trouble: the last writer's error, until one can
    write."""

    definition: LakeDefinition
    table_id: str = ""
    start: str = ""
    is_wanted: bool = True
    trouble: str = ""


class StoredLake:
    """The record of the lake `name` of a scope, and its reader group."""

    def __init__(self, manager: aio.StreamManager, scope: str, name: str) -> None:
        self._manager, self.name = manager, name
        self._groups = manager.reader_group_manager(scope)
        self._location = stores_of(manager), scope, READER_GROUP_PREFIX + name, "writer/"
        kind = RecordKind(
            "the record of lake",
            scope,
            lambda name: "delete the lake (`nadi lake delete`; its table stays)",
            lambda name: errors.NotFoundError(f"lake {scope}/{name} doesn't exist: see `nadi lake list {scope}`"),
            lambda name, value: msgspec.msgpack.decode(value, type=LakeRecord),
            msgspec.msgpack.encode,
            key=b"lake",
        )
        self.record: CatalogRecord[LakeRecord] = CatalogRecord(
            manager.table(scope, READER_GROUP_PREFIX + name), kind, name
        )

    def members(self) -> Members:
        return Members(*self._location)

    async def writers(self) -> list[WorkerInfo]:
        """Return the live writers. state: "writing", "level" (the table is up to date), or "waiting" to retry after
        `last_error`."""
        return await live_members(*self._location)

    async def define(self, lake: LakeDefinition) -> LakeRecord:
        """Store the definition; create a new lake's group and starting cut."""
        record = await self.record.find()
        if record is None:
            start = await self._start_of(lake)
            kind = StreamDataRetention
            await self._groups.create_reader_group(
                self.name,
                lake.full_name,
                starts=[start],
                retention=kind.MANUAL_RELEASE_AT_USER_STREAMCUT if lake.protect_unconsumed else kind.NONE,
            )
            streams = (await shared_state_of(await self._groups.get_reader_group(self.name)).read()).streams
            if streams != (lake.full_name,):
                raise errors.ConflictError(
                    f"reader group {self.name} exists and reads {', '.join(streams)}: choose another name for the lake "
                    "(--name)"
                )
            record = LakeRecord(lake, start=start.as_text())
        elif record.definition.start != lake.start and not record.table_id:
            record = replace(record, start=(await self._start_of(lake)).as_text())
        elif record.definition.protect_unconsumed != lake.protect_unconsumed:
            raise errors.ConflictError(
                f"protect_unconsumed of lake {self.name} is {record.definition.protect_unconsumed} and can't be "
                "changed: delete the lake with `nadi lake delete`, and run it again"
            )
        await self.check_stream()
        first = record

        def defined(stored: LakeRecord | None) -> LakeRecord:
            stays = stored is not None and (stored.table_id or stored.definition.start == lake.start)
            start = stored.start if stored is not None and stays else first.start
            return replace(stored or first, definition=lake, is_wanted=True, start=start)

        await self.record.put(defined)
        return self.record.newest

    async def _start_of(self, lake: LakeDefinition) -> StreamCut:
        cuts = self._manager.cuts(lake.scope, lake.stream)
        return await (cuts.head() if lake.start == "head" else cuts.tail())

    async def check_stream(self, cut: StreamCut | None = None) -> None:
        """Raise StreamRecreatedError if the stream was recreated since the lake was created, or since its table reached
        the cut."""
        stores = stores_of(self._manager)
        state = await shared_state_of(await self._groups.get_reader_group(self.name)).read()
        error: errors.NadiError | None = await find_recreated_stream(stores, state)
        if error is None and cut is not None and cut.positions:
            error = await resolve_missing(stores, segment_name(cut.scope, cut.stream, max(cut.positions)))
        if isinstance(error, errors.StreamRecreatedError):
            raise errors.StreamRecreatedError(
                error.scope,
                error.stream,
                "the lake's table has the old stream. Delete the lake (`nadi lake delete`; the table stays), and run "
                "it again with a new table",
            )

    async def record_trouble(self, trouble: str) -> None:
        """Record the error with which a writer ended, or "" for a writer that can write."""
        await self.record.change(lambda record: None if record.trouble == trouble else replace(record, trouble=trouble))

    async def release(self, cut: StreamCut) -> None:
        """Allow retention to truncate events before the cut."""
        group = await self._groups.get_reader_group(self.name)
        # another writer has released more, or the lake doesn't hold back retention
        with suppress(errors.InvalidStreamCutError, errors.SubscriberNotFoundError):
            await group.update_retention_stream_cut([cut])

    async def forget(self) -> None:
        await self._groups.delete_reader_group(self.name)


@checking
def lakes_of(manager: StreamManager, scope: str) -> tuple[dict[str, LakeRecord], list[Unreadable]]:
    """Return the scope's lakes by name, and those whose records are damaged or of a newer nadi, which can be
    deleted."""
    thread, core = inside(manager)

    async def listed() -> tuple[dict[str, LakeRecord], list[Unreadable]]:
        names = await core.reader_group_manager(scope).list_reader_groups()
        return await readable({name: StoredLake(core, scope, name).record for name in names})

    return thread.run(listed())


def writers_of(manager: StreamManager, scope: str, name: str) -> list[WorkerInfo]:
    thread, core = inside(manager)
    return thread.run(StoredLake(core, scope, name).writers())


def record_of(manager: StreamManager, scope: str, name: str) -> LakeRecord:
    """Return the lake's record; NotFoundError."""
    thread, core = inside(manager)
    return thread.run(StoredLake(core, scope, name).record.get())
