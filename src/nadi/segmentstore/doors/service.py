"""Commands on segments, other than appends and reads: one coroutine from a command to its reply.

Both doors of the store use it: connections, and whoever lives in the same process. Every change and
every look at state takes its turn in the segment's container, so replies tell only what is durable.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from nadi.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    DamagedDataError,
    DataFolderError,
    InvalidArgumentError,
    NadiError,
    NotEmptyError,
    PermissionDeniedError,
    SegmentNotFoundError,
    StorageFullError,
    StreamSealedError,
    TokenExpiredError,
    TruncatedError,
    UnavailableError,
)
from nadi.limits import TABLE_FIXED_KEY_MAX_BYTES, TABLE_READ_KEYS
from nadi.naming import SCRUB_SEGMENT, transient_segment_name
from nadi.segmentstore.container import tables
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.doors.access import TokenCheck
from nadi.segmentstore.reading.boundaries import edges_around
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.scrub import Scrub
from nadi.segmentstore.state import moments
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.records import Extent, Kind, SegmentRecord
from nadi.segmentstore.tier1.log import ALL, HALF, NOTHING
from nadi.wire import commands as wire
from nadi.wire.damage import damage_reply
from nadi.wire.fields import NO_VERSION, Buffer, TableEntry, TableKey

ILLEGAL_ARGUMENT = 0
TOKEN_REFUSED, TOKEN_EXPIRED = 0, 1  # in AuthTokenCheckFailed
LOOKS = (  # what writes nothing, and so needs no room
    wire.GetStreamSegmentInfo,
    wire.GetSegmentAttribute,
    wire.LocateOffset,
    wire.LocateMoment,
    wire.GetTableSegmentInfo,
    wire.ReadTable,
    wire.ReadTableKeys,
    wire.ReadTableEntries,
    wire.ReadTableEntriesDelta,
    wire.Scrub,
)


class WrongKindError(InvalidArgumentError):
    """A table command on a stream segment, or the reverse."""


def find(state: StateMachine, name: str, kind: Kind | None = None) -> SegmentRecord:
    record = state.find(name)
    if record is None:
        raise SegmentNotFoundError(name)
    if kind is Kind.TABLE and record.kind != Kind.TABLE:
        raise WrongKindError(f"{name} is not a table segment")
    if kind is Kind.STREAM and record.kind == Kind.TABLE:
        raise WrongKindError(f"{name} is a table segment")
    return record


def error_reply(error: Exception, request_id: int, segment: str, offset: int = -1) -> wire.Command:
    """The error as the wire protocol says it; unexpected errors are not for here."""
    match error:
        case SegmentNotFoundError():
            return wire.NoSuchSegment(request_id, error.segment, "", offset)
        case StreamSealedError():
            return wire.SegmentIsSealed(request_id, error.name, "", offset)
        case TruncatedError():
            return wire.SegmentIsTruncated(request_id, segment, error.start_offset, "", offset)
        case DamagedDataError():
            return damage_reply(error, request_id)
        case AlreadyExistsError():
            return wire.SegmentAlreadyExists(request_id, segment)
        case NotEmptyError():
            return wire.TableSegmentNotEmpty(request_id, segment)
        case tables.KeyNotFoundError():
            return wire.TableKeyDoesNotExist(request_id, segment)
        case tables.TableLengthError():
            return wire.SegmentIsTruncated(request_id, segment, error.length)
        case ConditionFailedError():
            return wire.TableKeyBadVersion(request_id, segment)
        case PermissionDeniedError():
            return wire.AuthTokenCheckFailed(request_id, "", TOKEN_REFUSED)
        case TokenExpiredError():
            return wire.AuthTokenCheckFailed(request_id, "", TOKEN_EXPIRED)
        case StorageFullError():
            return wire.ErrorMessage(request_id, segment, str(error), wire.STORAGE_FULL)
        case InvalidArgumentError():
            return wire.ErrorMessage(request_id, segment, str(error), ILLEGAL_ARGUMENT)
        case DataFolderError():  # what the server keeps for itself: it recovers, or says in its health why not
            raise UnavailableError(f"the server can't say: {error}") from error
    raise error


def _subject(command: Any) -> str:
    """The segment that an error reply to the command names."""
    names = (getattr(command, field, None) for field in ("segment", "source", "target", "parent_segment"))
    return next((name for name in names if name is not None), "")


class SegmentService:
    """Handles commands.

    `container_of` gives the container of a segment's name, `reader` its bytes; `access` checks tokens.
    """

    def __init__(self, container_of: Callable[[str], Container], reader: SegmentReader, access: TokenCheck) -> None:
        self.scrub: Scrub | None = None  # what reads everything stored
        self.access = access
        self._container_of = container_of
        self._reader = reader
        self._handlers: dict[type[wire.Command], Callable[[Any], Awaitable[wire.Command]]] = {
            wire.GetStreamSegmentInfo: self._info,
            wire.CreateSegment: self._create,
            wire.CreateTransientSegment: self._create_transient,
            wire.CreateTableSegment: self._create_table,
            wire.SealSegment: self._seal,
            wire.DeleteSegment: self._delete,
            wire.DeleteTableSegment: self._delete_table,
            wire.UpdateSegmentPolicy: self._update_policy,
            wire.GetSegmentAttribute: self._get_attribute,
            wire.UpdateSegmentAttribute: self._update_attribute,
            wire.TruncateSegment: self._truncate,
            wire.LocateOffset: self._locate,
            wire.LocateMoment: self._locate_moment,
            wire.MergeSegments: self._merge,
            wire.MergeSegmentsBatch: self._merge_batch,
            wire.GetTableSegmentInfo: self._table_info,
            wire.UpdateTableEntries: self._table_update,
            wire.UpdateTableToFreeRoom: self._table_update_to_free_room,
            wire.RemoveTableKeys: self._table_remove,
            wire.ReadTable: self._table_read,
            wire.ReadTableKeys: self._table_keys,
            wire.ReadTableEntries: self._table_entries,
            wire.ReadTableEntriesDelta: self._table_delta,
            wire.Scrub: self._scrub,
        }

    def handles(self, command: wire.Command) -> bool:
        """Whether a connection may bring it. What uses up the room kept aside comes through the inner door alone, from
        a controller that frees more: else a peer could take it all, where callers aren't asked who they are."""
        return type(command) in self._handlers and type(command) is not wire.UpdateTableToFreeRoom

    async def handle(self, command: Any) -> wire.Command:
        """The reply to a command; raises UnavailableError when the store can't say."""
        try:
            self.access.check(command)
            return await self._handlers[type(command)](command)
        except NadiError as error:
            if isinstance(error, StorageFullError) and isinstance(command, LOOKS):
                # it shared a frame with a write, or came while the log is opened again: that ends soon
                raise UnavailableError(f"the container recovers from a full disk: try again ({error})") from error
            return error_reply(error, command.request_id, _subject(command))

    async def _turn(
        self, segment: str, function: Callable[[FrameBuilder, StateMachine], Any], size_bytes: int = 64
    ) -> Any:
        container = self._container_of(segment)
        return await container.call(lambda frame: function(frame, container.state), size_bytes)

    # --- segments ------------------------------------------------------------------------------------

    async def _info(self, command: wire.GetStreamSegmentInfo) -> wire.Command:
        def look(_: FrameBuilder, state: StateMachine) -> wire.Command:
            r = find(state, command.segment)
            length = r.table_length if r.kind == Kind.TABLE else r.length
            return wire.StreamSegmentInfo(
                command.request_id, r.name, True, r.sealed, False, r.modified_ms, length, r.start_offset
            )

        reply: wire.Command = await self._turn(command.segment, look)
        return reply

    async def _make(self, name: str, kind: Kind, **fields: int) -> None:
        if not name:
            raise InvalidArgumentError("a segment needs a name")

        def make(frame: FrameBuilder, state: StateMachine) -> None:
            if state.find(name) is not None:
                raise AlreadyExistsError("segment", name)
            _emit_create(frame, state, name, kind, **fields)

        await self._turn(name, make)

    async def _create(self, command: wire.CreateSegment) -> wire.Command:
        await self._make(
            command.segment,
            Kind.STREAM,
            scale_type=command.scale_type,
            target_rate=command.target_rate,
            rollover_bytes=command.rollover_size_bytes,
        )
        return wire.SegmentCreated(command.request_id, command.segment)

    async def _create_transient(self, command: wire.CreateTransientSegment) -> wire.Command:
        name = transient_segment_name(command.parent_segment, command.writer_id, secrets.token_bytes(16))
        await self._make(name, Kind.TRANSIENT)
        return wire.SegmentCreated(command.request_id, name)

    async def _create_table(self, command: wire.CreateTableSegment) -> wire.Command:
        if not 0 <= command.key_length <= TABLE_FIXED_KEY_MAX_BYTES:
            raise InvalidArgumentError(
                f"a table's key length is 0 to {TABLE_FIXED_KEY_MAX_BYTES}, not {command.key_length}"
            )
        await self._make(
            command.segment,
            Kind.TABLE,
            key_length=command.key_length,
            rollover_bytes=command.rollover_size_bytes,
        )
        return wire.SegmentCreated(command.request_id, command.segment)

    async def _seal(self, command: wire.SealSegment) -> wire.Command:
        def seal(frame: FrameBuilder, state: StateMachine) -> None:
            record = find(state, command.segment)
            if record.sealed:
                raise StreamSealedError(command.segment)
            frame.emit(op.Seal(record.id, frame.now_ms), record, of_kept=ALL)

        await self._turn(command.segment, seal)
        return wire.SegmentSealed(command.request_id, command.segment)

    async def _delete(self, command: wire.DeleteSegment) -> wire.Command:
        await self.delete(command.segment)
        return wire.SegmentDeleted(command.request_id, command.segment)

    async def delete(self, segment: str) -> None:
        """Delete a segment of any kind."""

        def delete(frame: FrameBuilder, state: StateMachine) -> None:
            record = find(state, segment)
            frame.emit(op.Delete(record.id), record, of_kept=ALL)

        await self._turn(segment, delete)

    async def _delete_table(self, command: wire.DeleteTableSegment) -> wire.Command:
        def delete(frame: FrameBuilder, state: StateMachine) -> None:
            record = find(state, command.segment, Kind.TABLE)
            if command.must_be_empty and record.entry_count:
                raise NotEmptyError(f"table {command.segment} has {record.entry_count} entries")
            frame.emit(op.Delete(record.id), record, of_kept=ALL)

        await self._turn(command.segment, delete)
        return wire.SegmentDeleted(command.request_id, command.segment)

    async def _update_policy(self, command: wire.UpdateSegmentPolicy) -> wire.Command:
        def change(frame: FrameBuilder, state: StateMachine) -> None:
            record = find(state, command.segment)
            frame.emit(op.Policy(record.id, command.scale_type, command.target_rate), record, of_kept=HALF)

        await self._turn(command.segment, change)
        return wire.SegmentPolicyUpdated(command.request_id, command.segment)

    async def _get_attribute(self, command: wire.GetSegmentAttribute) -> wire.Command:
        def look(_: FrameBuilder, state: StateMachine) -> int:
            value = state.attribute(find(state, command.segment), command.attribute_id)
            return NO_VERSION if value is None else value

        return wire.SegmentAttribute(command.request_id, await self._turn(command.segment, look))

    async def _update_attribute(self, command: wire.UpdateSegmentAttribute) -> wire.Command:
        def change(frame: FrameBuilder, state: StateMachine) -> bool:
            record = find(state, command.segment)
            if record.sealed:
                raise StreamSealedError(command.segment)
            value = state.attribute(record, command.attribute_id)
            if (NO_VERSION if value is None else value) != command.expected_value:
                return False
            frame.emit(op.Attributes(record.id, {command.attribute_id: command.new_value}), record, of_kept=HALF)
            return True

        return wire.SegmentAttributeUpdated(command.request_id, await self._turn(command.segment, change))

    async def _truncate(self, command: wire.TruncateSegment) -> wire.Command:
        def truncate(frame: FrameBuilder, state: StateMachine) -> None:
            record = find(state, command.segment, Kind.STREAM)
            if not record.start_offset <= command.truncation_offset <= record.length:
                raise TruncatedError(command.segment, command.truncation_offset, record.start_offset)
            if command.truncation_offset > record.start_offset:
                frame.emit(op.Truncate(record.id, command.truncation_offset), record, of_kept=ALL)

        await self._turn(command.segment, truncate)
        return wire.SegmentTruncated(command.request_id, command.segment)

    async def _locate(self, command: wire.LocateOffset) -> wire.Command:
        target = command.target_offset

        def look(_: FrameBuilder, state: StateMachine) -> tuple[int, Extent | None, list[int]]:
            """The segment's start, the extent that holds the target, and the edges of those around it."""
            record = find(state, command.segment, Kind.STREAM)
            if not record.start_offset < target < record.length:
                return record.start_offset, None, [record.length]
            holding = record.extents[record.extent_index(target)]
            return record.start_offset, holding, edges_around(record, target)

        async def read(offset: int, length: int) -> Buffer:
            _, data = await self._reader.read(self._container_of(command.segment), command.segment, offset, length)
            return data

        start, holding, edges = await self._turn(command.segment, look)
        if target <= start:
            found = start
        elif holding is None:
            found = edges[0]
        else:
            async with self._reader.walks.to_offsets:
                inner = await self._reader.event_begins(holding)
                edges = sorted({*edges, *(begin for begin in inner if edges[0] < begin < edges[-1])})
                found = await self._reader.walks.boundary_from(target, edges, read)
        return wire.OffsetLocated(command.request_id, command.segment, found)

    async def _locate_moment(self, command: wire.LocateMoment) -> wire.Command:
        def look(frame: FrameBuilder, state: StateMachine) -> wire.Command:
            record = find(state, command.segment, Kind.STREAM)
            offset = moments.locate(state.metadata, record, command.at_ms, frame.now_ms)
            sealed = moments.sealed_before(record, command.at_ms)
            return wire.MomentLocated(command.request_id, command.segment, offset, sealed)

        reply: wire.Command = await self._turn(command.segment, look)
        return reply

    async def _scrub(self, command: wire.Scrub) -> wire.Command:
        if self.scrub is None or command.segment != SCRUB_SEGMENT:
            raise SegmentNotFoundError(command.segment)
        if command.start:
            self.scrub.begin()
        report = msgspec.json.encode(self.scrub.report())
        return wire.ScrubReported(command.request_id, command.segment, report)

    # --- merges ----------------------------------------------------------------------------------------

    async def _merge(self, command: wire.MergeSegments) -> wire.Command:
        def merge(frame: FrameBuilder, state: StateMachine) -> wire.Command:
            source = find(state, command.source, Kind.STREAM)
            target = state.find(command.target)
            if target is None:
                raise SegmentNotFoundError(command.source)
            _check_merge(target, source)
            if target.sealed:
                raise StreamSealedError(command.source)
            values: dict[bytes, int] = {}
            for update in command.attribute_updates:
                found = values.get(update.attribute, state.attribute(target, update.attribute))
                value = _updated(NO_VERSION if found is None else found, update.kind, update.value, update.expected)
                if value is None:
                    return wire.SegmentAttributeUpdated(command.request_id, False)
                values[update.attribute] = value
            changes: list[op.AnyOperation] = [op.Merge(target.id, source.id, frame.now_ms)]
            if values:
                changes.append(op.Attributes(target.id, values))
            frame.emit_all(changes, target, source, of_kept=HALF)
            return wire.SegmentsMerged(command.request_id, command.target, command.source, target.length)

        reply: wire.Command = await self._turn(command.target, merge)
        return reply

    async def _merge_batch(self, command: wire.MergeSegmentsBatch) -> wire.Command:
        def merge(frame: FrameBuilder, state: StateMachine) -> list[tuple[str, int]]:
            target = find(state, command.target, Kind.STREAM)
            if target.sealed:
                raise StreamSealedError(command.target)
            merged: list[tuple[str, int]] = []
            sources: dict[int, SegmentRecord] = {}
            length = target.length
            for name in command.sources:
                source = state.find(name)
                if source is not None and source.id not in sources:  # an absent source was merged already
                    _check_merge(target, source)
                    sources[source.id] = source
                    length += source.length
                merged.append((name, length))
            if sources:
                changes = [op.Merge(target.id, segment, frame.now_ms) for segment in sources]
                frame.emit_all(changes, target, *sources.values(), of_kept=HALF)
            return merged

        merged = await self._turn(command.target, merge)
        return wire.SegmentsBatchMerged(command.request_id, command.target, tuple(merged))

    # --- tables ------------------------------------------------------------------------------------------

    async def _on_table(
        self, segment: str, function: Callable[[FrameBuilder, StateMachine, SegmentRecord], Any], size_bytes: int = 64
    ) -> Any:
        def turn(frame: FrameBuilder, state: StateMachine) -> Any:
            return function(frame, state, find(state, segment, Kind.TABLE))

        return await self._turn(segment, turn, size_bytes)

    async def _table_info(self, command: wire.GetTableSegmentInfo) -> wire.Command:
        length, count, key_length = await self._on_table(
            command.segment, lambda _f, _s, r: (r.table_length, r.entry_count, r.key_length)
        )
        return wire.TableSegmentInfo(command.request_id, command.segment, 0, length, count, key_length)

    async def _table_update_to_free_room(self, command: wire.UpdateTableToFreeRoom) -> wire.Command:
        def update(frame: FrameBuilder, state: StateMachine) -> list[int]:
            if command.make_table and state.find(command.segment) is None:
                _emit_create(frame, state, command.segment, Kind.TABLE, of_kept=ALL)
            record = find(state, command.segment, Kind.TABLE)
            return tables.update(frame, state, record, command.entries, -1, ALL)

        versions = await self._turn(command.segment, update, _size_of(command.entries))
        return wire.TableEntriesUpdated(command.request_id, tuple(versions))

    async def _table_update(self, command: wire.UpdateTableEntries) -> wire.Command:
        versions = await self._on_table(
            command.segment,
            lambda f, s, r: tables.update(f, s, r, command.entries, command.table_segment_offset),
            _size_of(command.entries),
        )
        return wire.TableEntriesUpdated(command.request_id, tuple(versions))

    async def _table_remove(self, command: wire.RemoveTableKeys) -> wire.Command:
        await self._on_table(
            command.segment,
            lambda f, s, r: tables.remove(f, s, r, command.keys, command.table_segment_offset),
            sum(len(key.key) for key in command.keys),
        )
        return wire.TableKeysRemoved(command.request_id, command.segment)

    async def _table_read(self, command: wire.ReadTable) -> wire.Command:
        """Many keys are looked up in several turns, so not all at one moment: others write meanwhile."""
        entries: list[TableEntry] = []
        size_bytes = 0
        for begin in range(0, max(1, len(command.keys)), TABLE_READ_KEYS):
            look = partial(tables.read, command.keys[begin : begin + TABLE_READ_KEYS], size_bytes)
            found, size_bytes = await self._on_table(command.segment, look)
            entries += found
        return wire.TableRead(command.request_id, command.segment, tuple(entries))

    async def _table_keys(self, command: wire.ReadTableKeys) -> wire.Command:
        entries, token = await self._page(command)
        keys = tuple(TableKey(entry.key, entry.version) for entry in entries)
        return wire.TableKeysRead(command.request_id, command.segment, keys, token)

    async def _table_entries(self, command: wire.ReadTableEntries) -> wire.Command:
        entries, token = await self._page(command)
        return wire.TableEntriesRead(command.request_id, command.segment, tuple(entries), token)

    async def _page(self, command: wire.ReadTableKeys | wire.ReadTableEntries) -> Any:
        token, low, high = command.range
        return await self._on_table(
            command.segment, lambda _f, s, r: tables.page(s, r, command.suggested_count, token, low, high)
        )

    async def _table_delta(self, command: wire.ReadTableEntriesDelta) -> wire.Command:
        entries, reached_end, position = await self._on_table(
            command.segment, lambda _f, s, r: tables.delta(s, r, command.from_position, command.suggested_count)
        )
        return wire.TableEntriesDeltaRead(
            command.request_id, command.segment, tuple(entries), False, reached_end, position
        )


def _emit_create(
    frame: FrameBuilder, state: StateMachine, name: str, kind: Kind, of_kept: float = NOTHING, **fields: int
) -> None:
    frame.emit(op.Create(state.next_segment, name, kind, frame.now_ms, **fields), of_kept=of_kept)
    record = state.find(name)
    assert record is not None
    frame.touched[record.id] = record


def _size_of(entries: Iterable[TableEntry]) -> int:
    return sum(len(entry.key) + len(entry.value) for entry in entries)


def _check_merge(target: SegmentRecord, source: SegmentRecord) -> None:
    """InvalidArgumentError where the state could not take the merge, or would lose data by it."""
    if Kind.TABLE in (target.kind, source.kind):
        raise WrongKindError(f"{source.name} can't be merged into {target.name}: one of them is a table segment")
    if source is target:
        raise InvalidArgumentError(f"{target.name} can't be merged into itself")
    if source.start_offset > 0:
        raise InvalidArgumentError(f"{source.name} was truncated, so it can't be merged into another segment")


def _wrapped(value: int) -> int:
    """The 64-bit integer that a sum becomes in Java."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _updated(value: int, kind: int, new: int, expected: int) -> int | None:
    """What an attribute becomes by an update of that kind; None if its condition fails."""
    match kind:
        case 0 | 1:
            return new
        case 2:
            return new if new > value else None
        case 3:
            return new if value == NO_VERSION else _wrapped(value + new)
        case 4:
            return new if value == expected else None
    raise InvalidArgumentError(f"there is no attribute update of kind {kind}")
