"""Handles commands on segments, other than appends and reads: one coroutine from a command to its reply.

Every change and every read of state takes its turn in the segment's container, so replies report only durable changes.
Most commands are answered in one turn (`segments`); the others are here.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from cachetools import LRUCache

from nadi import errors
from nadi.access.audit import AuditedAct, AuditTrail
from nadi.access.commands import ACTS, acts_of
from nadi.access.names import Act, NameKind, kind_of
from nadi.access.quotas import Quotas
from nadi.access.tokens import Token, TokenKey
from nadi.limits import CHUNKS_LOCATED, LOAD_PAGE_SEGMENTS, TABLE_READ_KEYS, TOKENS_CACHED
from nadi.model.scrub import ScrubReport
from nadi.naming import LOAD_SEGMENT, SCRUB_SEGMENT, segment_of, transient_segment_name
from nadi.runtime import Runtime
from nadi.segmentstore.container import table_segments
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.container_registry import ContainerRegistry
from nadi.segmentstore.reading.boundaries import edges_around
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.scrub import Scrubber
from nadi.segmentstore.server import segments
from nadi.segmentstore.server.segments import find
from nadi.segmentstore.state.records import Extent, SegmentKind, SegmentRecord
from nadi.wire import commands as wire
from nadi.wire.chunks import ChunkPart, packed_parts
from nadi.wire.errors import error_reply
from nadi.wire.fields import Buffer, WireTableEntry, WireTableKey
from nadi.wire.load_reports import packed_loads

T = TypeVar("T")
_AUDITED: dict[type[wire.Command], str] = {  # with the actions in audit records
    wire.TruncateSegment: "segment.truncate",
    wire.SealSegment: "segment.seal",
    wire.CreateTableSegment: "segment.create",
    wire.DeleteTableSegment: "segment.delete",
}


def located(record: SegmentRecord, start: int, end: int) -> tuple[list[ChunkPart], bool]:
    """Return the first chunks with bytes from `start` to `end`, at most `CHUNKS_LOCATED`, and whether these are all.
    Chunks known to be damaged are omitted: reading their bytes from the store returns intact ones, or an error.
    TruncatedError if the segment no longer has `start`."""
    if start < record.start_offset:
        raise errors.TruncatedError(record.name, start, record.start_offset)
    parts: list[ChunkPart] = []
    if start >= record.length:
        return parts, True
    extents = record.extents
    for index in range(record.extent_index(start), len(extents)):
        extent = extents[index]
        if extent.offset >= end:
            break
        if extent.chunk and not extent.aside:
            if len(parts) == CHUNKS_LOCATED:
                return parts, False
            parts.append(ChunkPart(extent.chunk, extent.offset, extent.length, extent.checksums))
    return parts, True


class TokenCheck:
    """Checks commands' tokens, by the tables of `nadi.access`; without a key, all pass. A signature is checked once per
    token and cached, with its expiry on the monotonic clock, so setting the wall clock neither ends nor prolongs a
    token. After that, each command costs only a dictionary lookup or two. Append sessions are checked at their setup
    and store their expiry."""

    def __init__(self, key: TokenKey | None = None, own_token: str = "") -> None:
        self._key = key
        self._good: LRUCache[str, Token] = LRUCache(TOKENS_CACHED)
        self.audit: AuditTrail | None = None
        self.own_token = own_token

    @property
    def checks_tokens(self) -> bool:
        return self._key is not None

    def check(self, command: Any) -> float:
        """Return when the command's token expires, on the monotonic clock (infinity: never). PermissionDeniedError if
        the token is invalid or doesn't cover the command, TokenExpiredError if it has expired."""
        if self._key is None:
            return math.inf
        token = self._good.get(command.token)
        if token is None:
            token = self._key.check(command.token)
            self._good[command.token] = token
        elif token.ends_at <= self._key.monotonic_s():
            raise errors.TokenExpiredError("the delegation token has expired: get a new one")
        if type(command) not in ACTS or not all(token.permits(segment, act) for segment, act in acts_of(command)):
            if self.audit is not None:
                segment, kind = acts_of(command)[0][0] if type(command) in ACTS else "", type(command).__name__
                act = AuditedAct(action="access", subject=segment, user=token.user or "", door="wire", request=kind)
                self.audit.note(act, "refused", "the delegation token doesn't cover it")
            raise errors.PermissionDeniedError("the delegation token doesn't cover this segment or command")
        return token.ends_at

    def user_of(self, command: Any) -> str | None:
        """Return the user of a command that was checked: "" if unknown, None for a server of this cluster."""
        if self._key is None:
            return None if command.token == self.own_token != "" else ""
        token = self._good.get(command.token)
        return token.user if token is not None else ""

    def has_ended(self, ends_at: float) -> bool:
        return self._key is not None and ends_at <= self._key.monotonic_s()


class SegmentService:
    """Handles commands. registry: the containers. reader: their bytes. access: checks tokens."""

    def __init__(
        self, registry: ContainerRegistry, reader: SegmentReader, access: TokenCheck, runtime: Runtime
    ) -> None:
        self.scrub: Scrubber | None = None  # set by the store
        self.access = access
        self.quotas = Quotas(runtime.monotonic)
        self._registry, self._container_of = registry, registry.container_of
        self._reader, self._runtime = reader, runtime
        self._handlers: dict[type[wire.Command], Callable[[Any], Awaitable[wire.Command]]] = {
            **{kind: partial(self._in_one_turn, answer) for kind, answer in segments.ANSWERS.items()},
            wire.CreateTransientSegment: self._create_transient,
            wire.LocateOffset: self._locate,
            wire.LocateChunks: self._locate_chunks,
            wire.ListEventSizes: self._list_event_sizes,
            wire.ReadTable: self._read_table,
            wire.Scrub: self._scrub,
            wire.GetSegmentLoads: self._loads,
        }

    def handles(self, command: wire.Command) -> bool:
        """Return whether a connection may send the command. Commands that use the reserve come only through
        `LocalCommands`, from a controller that frees more: else a peer could use it up on a server without tokens."""
        return type(command) in self._handlers and type(command) is not wire.UpdateTableToFreeSpace

    async def handle(self, command: Any) -> wire.Command:
        """Return the reply to a command; raise UnavailableError if the store can't answer."""
        try:
            self.access.check(command)
            if self.access.audit is not None and (act := self._audited(command)) is not None:
                return await self.access.audit.run(act, self._handled(command))
            return await self._handlers[type(command)](command)
        except errors.NadiError as error:
            writes_nothing = ACTS[type(command)] is Act.READ or isinstance(command, wire.Scrub)
            if isinstance(error, errors.StorageFullError) and writes_nothing:
                # it shared a frame with a write, or arrived while the log was being reopened: temporary
                raise errors.UnavailableError(
                    f"the container is recovering from a full disk: try again ({error})"
                ) from error
            fields = ("segment", "source", "target", "parent_segment")
            names = (getattr(command, field) for field in fields if hasattr(command, field))
            return error_reply(error, command.request_id, next(names, ""))

    async def _handled(self, command: Any) -> wire.Command:
        return await self._handlers[type(command)](command)

    def _audited(self, command: Any) -> AuditedAct | None:
        """Return the act to record if a client changes a stream or a table without the controller."""
        action, user = _AUDITED.get(type(command)), self.access.user_of(command)
        parsed = segment_of(command.segment) if action is not None and user is not None else None
        if action is None or parsed is None or parsed.is_transient or parsed.in_transaction:
            return None
        if kind_of(parsed.scope, parsed.name) not in (NameKind.STREAM, NameKind.TABLE):
            return None
        text = f"at {command.truncation_offset:,}" if isinstance(command, wire.TruncateSegment) else ""
        return AuditedAct(action=action, subject=command.segment, user=user or "", door="wire", request=text)

    async def delete(self, segment: str) -> None:
        await self._turn(segment, lambda frame: segments.delete(frame, segment))

    async def _turn(self, segment: str, function: Callable[[FrameBuilder], T], size_bytes: int = 64) -> T:
        return await self._container_of(segment).call(function, size_bytes)

    async def _in_one_turn(self, answer: segments.Answer, command: Any) -> wire.Command:
        is_merge = isinstance(command, (wire.MergeSegments, wire.MergeSegmentsBatch))
        segment, size_bytes = command.target if is_merge else command.segment, 64
        if isinstance(command, (wire.UpdateTableEntries, wire.UpdateTableToFreeSpace)):
            size_bytes = sum(len(entry.key) + len(entry.value) for entry in command.entries)
        elif isinstance(command, wire.RemoveTableKeys):
            size_bytes = sum(len(key.key) for key in command.keys)
        return await self._turn(segment, partial(answer, command), size_bytes)

    async def _create_transient(self, command: wire.CreateTransientSegment) -> wire.Command:
        name = transient_segment_name(command.parent_segment, command.writer_id, bytes.fromhex(self._runtime.unique()))
        await self._turn(name, lambda frame: segments.create(frame, name, SegmentKind.TRANSIENT))
        return wire.SegmentCreated(command.request_id, name)

    async def _locate(self, command: wire.LocateOffset) -> wire.Command:
        target = command.target_offset

        def query(frame: FrameBuilder) -> tuple[int, int, Extent | None]:
            """Return the boundaries around the target, and the extent that contains it, if any."""
            record = find(frame.state, command.segment, SegmentKind.STREAM)
            if not record.start_offset < target < record.length:
                return record.start_offset, record.length, None
            return *edges_around(record, target), record.extents[record.extent_index(target)]

        async def read(offset: int, length: int) -> Buffer:
            _, data = await self._reader.read(self._container_of(command.segment), command.segment, offset, length)
            return data

        begin, end, holding = await self._turn(command.segment, query)
        if holding is None:
            return wire.OffsetLocated(command.request_id, command.segment, begin if target <= begin else end)
        async with self._reader.walks.places:
            inner = await self._reader.event_begins(holding)
            begin = max([begin, *(edge for edge in inner if edge <= target)])
            end = min([end, *(edge for edge in inner if edge >= target)])
            offset = await self._reader.walks.boundary_from(target, begin, end, read)
        return wire.OffsetLocated(command.request_id, command.segment, offset)

    async def _locate_chunks(self, command: wire.LocateChunks) -> wire.Command:
        def query(frame: FrameBuilder) -> tuple[list[ChunkPart], bool]:
            record = find(frame.state, command.segment, SegmentKind.STREAM)
            if frame.state.sealing.overhead:
                return [], True  # clients don't have the keys
            return located(record, command.start, command.end)

        parts, is_last = await self._turn(command.segment, query)
        url, mark = await self._reader.location_of_chunks() if parts else ("", "")
        return wire.ChunksLocated(command.request_id, command.segment, url, mark, packed_parts(parts), is_last)

    async def _list_event_sizes(self, command: wire.ListEventSizes) -> wire.Command:
        container = self._container_of(command.segment)

        async def read(offset: int, length: int) -> Buffer:
            return (await self._reader.read(container, command.segment, offset, length))[1]

        return await self._reader.sizes.answer(command, read)

    async def _read_table(self, command: wire.ReadTable) -> wire.Command:
        """Read keys over several turns, so not atomically: other writes may come between."""
        entries: list[WireTableEntry] = []
        size_bytes = 0

        def query(keys: Sequence[WireTableKey], frame: FrameBuilder) -> tuple[list[WireTableEntry], int]:
            record = find(frame.state, command.segment, SegmentKind.TABLE)
            return table_segments.read(keys, size_bytes, frame.state, record)

        for begin in range(0, max(1, len(command.keys)), TABLE_READ_KEYS):
            keys = command.keys[begin : begin + TABLE_READ_KEYS]
            read, size_bytes = await self._turn(command.segment, partial(query, keys))
            entries += read
        return wire.TableRead(command.request_id, command.segment, tuple(entries))

    async def _scrub(self, command: wire.Scrub) -> wire.Command:
        if self.scrub is None or command.segment != SCRUB_SEGMENT:
            raise errors.SegmentNotFoundError(command.segment)
        if command.start:
            self.scrub.begin()
        report = msgspec.json.encode(ScrubReport(self.scrub.running, self.scrub.last))
        return wire.ScrubReported(command.request_id, command.segment, report)

    async def _loads(self, command: wire.GetSegmentLoads) -> wire.Command:
        if command.segment != LOAD_SEGMENT:
            raise errors.SegmentNotFoundError(command.segment)
        containers = self._registry.all()
        pages = [each.loads(command.after, LOAD_PAGE_SEGMENTS + 1, elastic=command.elastic) for each in containers]
        loads = sorted(chain.from_iterable(pages), key=attrgetter("segment"))
        page = packed_loads(loads[:LOAD_PAGE_SEGMENTS])
        is_last, is_complete = len(loads) <= LOAD_PAGE_SEGMENTS, not any(each.load.is_full for each in containers)
        return wire.SegmentLoads(command.request_id, command.segment, page, is_last, is_complete)
