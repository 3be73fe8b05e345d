"""A revisioned stream: records that are added only where their writer believes the stream to end.

The stream has one segment; a record is one event in it, its revision the offset where it begins. An
attribute of the segment, the mark, says from which revision on to read. This is the form of Pravega's
RevisionedStreamClient, so its streams can be read and written here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from nadi.client.control.arguments import checked
from nadi.client.control.time_limit import TimeLimit
from nadi.client.segments.assemble import events_in
from nadi.client.segments.conditional_append import SegmentAppender
from nadi.client.segments.info import explained, segment_info
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import REQUESTS, SegmentStores
from nadi.errors import EventTooLargeError, InvalidArgumentError, InvalidStreamCutError, NadiError
from nadi.limits import MAX_EVENT_BYTES
from nadi.model.framing import HEADER_BYTES
from nadi.model.streamcut import StreamCut
from nadi.naming import REVISION_MARK, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION


class RevisionRange(NamedTuple):
    start: int
    end: int


class RevisionRecord(NamedTuple):
    """One record: its revision, where it ends, and its bytes."""

    revision: int
    end: int
    data: bytes


@checked()
class RevisionedStream:
    """Made by `StreamManager.revisioned_stream`; one user at a time."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str, segment_id: int) -> None:
        self.scope, self.stream, self.segment_id = scope, stream, segment_id
        self.name = f"{scope}/{stream}"
        self._stores = stores
        self._segment = segment_name(scope, stream, segment_id)
        self._appender = SegmentAppender(stores, self._segment)

    @property
    def timeout_s(self) -> float:
        """How long the client waits for its server."""
        return self._stores.timeout_s

    @property
    def trouble(self) -> NadiError | None:
        """What an append under way, or any other request, waits for."""
        return self._appender.trouble or self._stores.waits_for()

    async def extent(self) -> RevisionRange:
        """Where the stream's data begins and ends now."""
        async with explained(self._stores, self._segment):
            info = await segment_info(self._stores, self._segment)
        return RevisionRange(info.start_offset, info.write_offset)

    async def read(self, start: int, end: int) -> AsyncGenerator[RevisionRecord, None]:
        """The records between two revisions; TruncatedError if the first of them is gone."""
        if start >= end:
            return
        at = start
        pieces = read_bytes(self._stores, self._segment, start, end, purpose=REQUESTS)
        reading = events_in(pieces, self._segment, start, end)
        async with explained(self._stores, self._segment), aclosing(reading) as blocks:
            async for block in blocks:
                for data in block:
                    revision, at = at, at + HEADER_BYTES + len(data)
                    yield RevisionRecord(revision, at, data)
        if at != end:
            raise InvalidStreamCutError(
                f"{end:,} is not a revision of {self.name}: use one of its stream cuts, such as its tail"
            )

    async def boundary(self, offset: int) -> int:
        """The first revision at or after an offset."""
        async with explained(self._stores, self._segment):
            return (await self._stores.ask(wire.LocateOffset(0, self._segment, offset, ""), wire.OffsetLocated)).offset

    async def append(self, data: bytes, expected_end: int) -> int:
        """Add a record if the stream ends at `expected_end`, and say where it ends then.

        ConditionFailedError if it ends elsewhere. StorageFullError if the server has no room.
        RequestTimeoutError if it isn't within the client's time, as with any request: whether it will be is not known.
        """
        if len(data) > MAX_EVENT_BYTES:
            raise EventTooLargeError(len(data), MAX_EVENT_BYTES)
        async with TimeLimit(
            self._stores.timeout_s,
            lambda: f"a record for {self.name} was not stored within {self._stores.timeout_s} s",
            lambda: self.trouble,
        ):
            await self._appender.append(data, expected_end)
        return expected_end + HEADER_BYTES + len(data)

    async def mark(self) -> int | None:
        """The revision from which on to read, if one was set."""
        asked = wire.GetSegmentAttribute(0, self._segment, REVISION_MARK, "")
        async with explained(self._stores, self._segment):
            value = (await self._stores.ask(asked, wire.SegmentAttribute)).value
        return None if value == NO_VERSION else value

    async def set_mark(self, revision: int, expected: int | None) -> bool:
        """Set the mark if it still is `expected`; False if it is another one."""
        believed = NO_VERSION if expected is None else expected
        update = wire.UpdateSegmentAttribute(0, self._segment, REVISION_MARK, revision, believed, "")
        async with explained(self._stores, self._segment):
            reply = await self._stores.ask(update, wire.SegmentAttributeUpdated)
        return reply.success or await self.mark() == revision  # a repeated request finds what it did itself

    async def truncate(self, revision: int) -> None:
        """Forget what lies before `revision`."""
        cut = StreamCut(self.scope, self.stream, {self.segment_id: revision})
        await self._stores.controller.truncate_stream(cut)


async def open_revisioned_stream(stores: SegmentStores, scope: str, stream: str) -> RevisionedStream:
    """The stream's records; InvalidArgumentError unless it has just one segment."""
    head = await stores.controller.head(scope, stream)
    if len(head.positions) != 1:
        raise InvalidArgumentError(
            f"{scope}/{stream} has {len(head.positions)} segments and shared state needs one: "
            "create a stream of one segment that never scales"
        )
    return RevisionedStream(stores, scope, stream, next(iter(head.positions)))
