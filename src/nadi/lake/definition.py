"""What a lake is: which stream, which table, and how the one's events become the other's rows.

The store keeps its definition in the table of its reader group, and beside it what each of its writers says of itself
(`process.members`). The group is the stream's subscriber for the lake: it publishes the table's cut, so retention keeps
what isn't in the table yet (`docs/retention.md`). It has no readers. How far the table is it doesn't say: the table's
snapshot alone does.
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
from nadi.client.readergroup.group import made_anew, shared_state_of
from nadi.client.segments.info import what_became_of
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

FIXED = ("table", "partition", "value_format", "keep_events", "start", "event_time_unit")  # which a table is made for


class Options(TypedDict, total=False):
    """The options of a `LakeDefinition`, which are described there."""

    table: str
    catalog: Mapping[str, str]
    partition: str | None
    value_format: str | None
    value_schema: str | None
    event_time_unit: str
    keep_events: bool
    dead_letters: str | None
    holds_back: bool
    skip_truncated: bool
    start: Literal["head", "tail"]
    every_s: float
    commit_bytes: int
    compact_files: int
    keep_snapshots_s: float


class LakeDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A lake of `scope`/`stream`.

    name: that of its reader group, which holds back retention and keeps the lake's record; by default made of the
    stream's. table: in the catalog, with its namespace. catalog: PyIceberg's properties; secrets as ${VARIABLE}.
    partition: such as "day(_append_time), bucket(16, meter)".
    value_format: json, msgpack, avro, protobuf or arrow: the fields of the stream's schema, or of `value_schema`
    (Spark's DDL), are columns; without it the events are, as bytes. keep_events: these besides, as `_event`.
    event_time_unit: of what the stream's writers note, for `_event_time`: s, ms, us, ns, or none for numbers.
    dead_letters: the stream, `stream` of the same scope or `scope/stream`, for events that can't be read as values;
    None stops the lake before the first. holds_back: the stream's retention keeps what isn't in the table yet.
    skip_truncated: go on after events that were truncated all the same; else the lake stops there.
    start: where a new lake begins. every_s: seconds between commits while there is something to write; commit_bytes:
    about the most that one has.
    compact_files: once so many small files are in a partition, they are joined; 0 leaves them. keep_snapshots_s: older
    snapshots are expired then, and files that none is left to name are removed.
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
    holds_back: bool = True
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
    """The lake with these options, and otherwise as it was `before`; InvalidArgumentError for what can't be meant, or
    can't be changed any more. is_made: whether it has a table."""
    check_name("scope", scope)
    check_name("stream", stream)
    given: dict[str, Any] = dict(options)
    if given.get("partition", "") is None:
        given["partition"] = ""
    if before is None:
        missing = [one for one in ("table", "catalog") if not given.get(one)]
        if missing:
            raise errors.InvalidArgumentError(
                f"there is no lake of {scope}/{stream} yet: to make it, say its {missing[0]}"
            )
        made = LakeDefinition(scope=scope, stream=stream, name=lake_name(stream, name), **given)
    else:
        if before.stream != stream:
            raise errors.InvalidArgumentError(
                f"lake {before.name} is one of stream {before.stream}, not of {stream}: give it another name (--name)"
            )
        for one in FIXED:
            if is_made and one in given and given[one] != getattr(before, one):
                raise errors.InvalidArgumentError(
                    f"lake {before.name} was made with {one} = {getattr(before, one)!r}, and its table stays so: make "
                    "another lake of another name and table"
                )
        made = msgspec.structs.replace(before, **given)
    catalog_properties(made.catalog)
    names = made.table.split(".")
    if len(names) < 2 or not all(names):
        raise errors.InvalidArgumentError(f"a table is named with its namespace, as home.meters, not {made.table!r}")
    partition_fields(made.partition)
    value_options(made.value_format, made.value_schema, None, None)
    if made.value_schema is not None:
        of_ddl(made.value_schema)
    if made.event_time_unit not in (*PER_SECOND, NO_UNIT):
        raise errors.InvalidArgumentError(
            f"event_time_unit is {made.event_time_unit!r}: it must be {', '.join(PER_SECOND)} or {NO_UNIT}"
        )
    if made.keep_events and made.value_format is None:
        raise errors.InvalidArgumentError(
            "keep_events has no effect without value_format: the events are a column already"
        )
    if made.dead_letters is not None:
        if made.value_format is None:
            raise errors.InvalidArgumentError("dead_letters has no effect without value_format: bytes are always a row")
        for kind, name in zip(("scope", "stream"), made.dead_letter_stream or (), strict=True):
            check_name(kind, name)
        if made.dead_letter_stream == (made.scope, made.stream):
            raise errors.InvalidArgumentError("the dead-letter stream is the lake's own: it would never end")
    if made.start not in ("head", "tail"):
        raise errors.InvalidArgumentError(f"a lake starts at the head or at the tail, not at {made.start!r}")
    for option, least, most in (
        ("every_s", LAKE_EVERY_MIN_S, LAKE_EVERY_MAX_S),
        ("compact_files", 0, 10_000),
        ("keep_snapshots_s", 0, 3_650 * 86_400),
        ("commit_bytes", MIB, 64 * LAKE_COMMIT_BYTES),
    ):
        if not least <= getattr(made, option) <= most:
            raise errors.InvalidArgumentError(f"{option} is from {least:,} to {most:,}, not {getattr(made, option):,}")
    if made.compact_files == 1:
        raise errors.InvalidArgumentError("compact_files is 0, or at least 2: one file is joined already")
    return made


class LakeRecord(msgspec.Struct, frozen=True):
    """A lake as others see it. table_id: of its table, once that was made. start: the cut at which a new one begins.
    is_wanted: whether its writers are to run, which `stop` ends. trouble: that one ended with, until one can write."""

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
        self._place = stores_of(manager), scope, READER_GROUP_PREFIX + name, "writer/"
        kind = RecordKind(
            "the record of lake",
            scope,
            lambda name: "delete the lake (`nadi lake delete`; its table stays)",
            lambda name: errors.NotFoundError(f"there is no lake {scope}/{name}: see `nadi lake list {scope}`"),
            lambda name, value: msgspec.msgpack.decode(value, type=LakeRecord),
            msgspec.msgpack.encode,
            key=b"lake",
        )
        self.record: CatalogRecord[LakeRecord] = CatalogRecord(
            manager.table(scope, READER_GROUP_PREFIX + name), kind, name
        )

    def members(self) -> Members:
        return Members(*self._place)

    async def writers(self) -> list[WorkerInfo]:
        """Those that are there. state: "writing", "level" with the stream when it last looked, or "waiting" to try
        again for the reason in `last_error`."""
        return await live_members(*self._place)

    async def define(self, lake: LakeDefinition) -> LakeRecord:
        """Keep the definition, with a group and a cut to begin at if the lake is new."""
        record = await self.record.find()
        if record is None:
            start = await self._start_of(lake)
            kind = StreamDataRetention
            await self._groups.create_reader_group(
                self.name,
                lake.full_name,
                starts=[start],
                retention=kind.MANUAL_RELEASE_AT_USER_STREAMCUT if lake.holds_back else kind.NONE,
            )
            streams = (await shared_state_of(await self._groups.get_reader_group(self.name)).read()).streams
            if streams != (lake.full_name,):
                raise errors.ConflictError(
                    f"there is a reader group {self.name} of {', '.join(streams)}: give the lake another name (--name)"
                )
            record = LakeRecord(lake, start=start.as_text())
        elif record.definition.start != lake.start and not record.table_id:
            record = replace(record, start=(await self._start_of(lake)).as_text())
        elif record.definition.holds_back != lake.holds_back:
            raise errors.ConflictError(
                f"lake {self.name} {'holds' if record.definition.holds_back else 'does not hold'} back retention since "
                "it was made: delete it with `nadi lake delete`, and run it again, to change that"
            )
        await self.check_stream()
        first = record

        def defined(held: LakeRecord | None) -> LakeRecord:
            stays = held is not None and (held.table_id or held.definition.start == lake.start)
            start = held.start if held is not None and stays else first.start
            return replace(held or first, definition=lake, is_wanted=True, start=start)

        await self.record.put(defined)
        return self.record.newest

    async def _start_of(self, lake: LakeDefinition) -> StreamCut:
        cuts = self._manager.cuts(lake.scope, lake.stream)
        return await (cuts.head() if lake.start == "head" else cuts.tail())

    async def check_stream(self, cut: StreamCut | None = None) -> None:
        """StreamRemadeError if the stream was deleted, and made anew under its name, since the lake was made, or since
        its table reached the cut."""
        stores = stores_of(self._manager)
        state = await shared_state_of(await self._groups.get_reader_group(self.name)).read()
        error: errors.NadiError | None = await made_anew(stores, state)
        if error is None and cut is not None and cut.positions:
            error = await what_became_of(stores, segment_name(cut.scope, cut.stream, max(cut.positions)))
        if isinstance(error, errors.StreamRecreatedError):
            raise errors.StreamRecreatedError(
                error.scope,
                error.stream,
                "the lake's table has the old one. Delete the lake (`nadi lake delete`; the table stays), and run it "
                "again with a new table",
            )

    async def note(self, trouble: str) -> None:
        """Have the record say what a writer ended with, or "" for one that can write."""
        await self.record.change(lambda record: None if record.trouble == trouble else replace(record, trouble=trouble))

    async def release(self, cut: StreamCut) -> None:
        """Let retention have what lies before the cut."""
        group = await self._groups.get_reader_group(self.name)
        # another writer was further; or it doesn't hold back
        with suppress(errors.InvalidStreamCutError, errors.SubscriberNotFoundError):
            await group.update_retention_stream_cut([cut])

    async def forget(self) -> None:
        await self._groups.delete_reader_group(self.name)


@checking
def lakes_of(manager: StreamManager, scope: str) -> tuple[dict[str, LakeRecord], list[Unreadable]]:
    """The scope's lakes by name, as the store has them; and those whose records are damaged, or of a newer nadi, which
    can be forgotten."""
    thread, core = inside(manager)

    async def listed() -> tuple[dict[str, LakeRecord], list[Unreadable]]:
        names = await core.reader_group_manager(scope).list_reader_groups()
        return await readable({name: StoredLake(core, scope, name).record for name in names})

    return thread.run(listed())


def writers_of(manager: StreamManager, scope: str, name: str) -> list[WorkerInfo]:
    thread, core = inside(manager)
    return thread.run(StoredLake(core, scope, name).writers())


def record_of(manager: StreamManager, scope: str, name: str) -> LakeRecord:
    """NotFoundError if there is no such lake."""
    thread, core = inside(manager)
    return thread.run(StoredLake(core, scope, name).record.get())
