"""Read and append the records of a revisioned stream, each only at the end that its writer expects.

The stream has one segment; a record is one event, and its revision is the offset of the event. An attribute of the
segment, the mark, is the revision to start reading at. The format is that of Pravega's RevisionedStreamClient, so each
client can read and write the other's streams.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from nadi.client.control.arguments import checked
from nadi.client.control.time_limit import TimeLimit
from nadi.client.segments.assemble import events_in
from nadi.client.segments.conditional_append import SegmentAppender
from nadi.client.segments.info import resolving_missing, segment_info
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
    """The start and end of a stream's data."""

    start: int
    end: int


class RevisionRecord(NamedTuple):
    """One record: its revision, its end offset and its bytes."""

    revision: int
    end: int
    data: bytes


@checked()
class RevisionedStream:
    """Log of records, made by `StreamManager.revisioned_stream`; one caller at a time."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str, segment_id: int) -> None:
        self.scope, self.stream, self.segment_id = scope, stream, segment_id
        self.name = f"{scope}/{stream}"
        self._stores = stores
        self._segment = segment_name(scope, stream, segment_id)
        self._appender = SegmentAppender(stores, self._segment)

    @property
    def timeout_s(self) -> float:
        """The client's timeout."""
        return self._stores.timeout_s

    @property
    def trouble(self) -> NadiError | None:
        """The reason why an append in flight, or another request, waits."""
        return self._appender.trouble or self._stores.waits_for()

    async def extent(self) -> RevisionRange:
        """Return the current start and end of the stream's data."""
        async with resolving_missing(self._stores, self._segment):
            info = await segment_info(self._stores, self._segment)
        return RevisionRange(info.start_offset, info.write_offset)

    async def read(self, start: int, end: int) -> AsyncGenerator[RevisionRecord, None]:
        """Yield the records between two revisions; raise TruncatedError if the first one was truncated away."""
        if start >= end:
            return
        at = start
        pieces = read_bytes(self._stores, self._segment, start, end, purpose=REQUESTS)
        reading = events_in(pieces, self._segment, start, end)
        async with resolving_missing(self._stores, self._segment), aclosing(reading) as blocks:
            async for block in blocks:
                for data in block:
                    revision, at = at, at + HEADER_BYTES + len(data)
                    yield RevisionRecord(revision, at, data)
        if at != end:
            raise InvalidStreamCutError(
                f"{end:,} is not a revision of {self.name}: use a stream cut of this stream, such as its tail"
            )

    async def boundary(self, offset: int) -> int:
        """Return the first revision at or after an offset."""
        async with resolving_missing(self._stores, self._segment):
            return (await self._stores.ask(wire.LocateOffset(0, self._segment, offset, ""), wire.OffsetLocated)).offset

    async def append(self, data: bytes, expected_end: int) -> int:
        """Append a record if the stream ends at `expected_end`; return the new end.

        Raises ConditionFailedError if it ends elsewhere, StorageFullError if the server's storage is full, and
        RequestTimeoutError after the client's timeout, when the record may or may not be stored later.
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
        """Return the revision to start reading at, or None if it isn't set."""
        request = wire.GetSegmentAttribute(0, self._segment, REVISION_MARK, "")
        async with resolving_missing(self._stores, self._segment):
            value = (await self._stores.ask(request, wire.SegmentAttribute)).value
        return None if value == NO_VERSION else value

    async def set_mark(self, revision: int, expected: int | None) -> bool:
        """Set the mark if it still is `expected`; return False if it differs."""
        expected_value = NO_VERSION if expected is None else expected
        update = wire.UpdateSegmentAttribute(0, self._segment, REVISION_MARK, revision, expected_value, "")
        async with resolving_missing(self._stores, self._segment):
            reply = await self._stores.ask(update, wire.SegmentAttributeUpdated)
        return reply.success or await self.mark() == revision  # a repeated request fails if the first one succeeded

    async def truncate(self, revision: int) -> None:
        """Truncate the records before `revision`."""
        cut = StreamCut(self.scope, self.stream, {self.segment_id: revision})
        await self._stores.controller.truncate_stream(cut)


async def open_revisioned_stream(stores: SegmentStores, scope: str, stream: str) -> RevisionedStream:
    """Open a stream's records; raise InvalidArgumentError unless the stream has exactly one segment."""
    head = await stores.controller.head(scope, stream)
    if len(head.positions) != 1:
        raise InvalidArgumentError(
            f"{scope}/{stream} has {len(head.positions)} segments, but shared state requires one: "
            "create a stream with one segment and a fixed scaling policy"
        )
    return RevisionedStream(stores, scope, stream, next(iter(head.positions)))
