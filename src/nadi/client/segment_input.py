"""The bytes of one segment in order, read ahead.

As far as the segment is known to reach, several reads are under way at computed offsets; a reply
may be shorter than asked, then its rest is asked for before anything later is given out. At the
tail there is one read, which the server answers once there is data. Lost connections are replaced
and the reads repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from nadi.client.connection import SegmentStoreConnection
from nadi.client.patience import Backoff
from nadi.client.stores import SegmentStores
from nadi.client.tokens import NO_TOKEN
from nadi.errors import ClosedError, PastEndError, PermissionDeniedError, StreamSealedError, UnavailableError
from nadi.limits import READ_AHEAD_BYTES, READ_REPLY_MAX_BYTES
from nadi.wire import commands as wire


@dataclass(slots=True)
class _Read:
    offset: int
    size: int
    reply: asyncio.Future[wire.Command]


async def read_bytes(
    stores: SegmentStores,
    segment: str,
    start: int,
    end: int | None,
    *,
    purpose: str,
    read_ahead_bytes: int = READ_AHEAD_BYTES,
) -> AsyncGenerator[memoryview, None]:
    """The bytes from `start` to `end`, or to the segment's end, waiting at the tail while it has none.

    Raises TruncatedError, SegmentNotFoundError and, without an `end`, PastEndError; what is unavailable is tried again
    for ever, so give it a timeout from outside.
    """
    known = end
    if known is None:
        known = await _length(stores, segment)
        if start > known:  # no reader was ever there, and a read would wait until writers come so far
            raise PastEndError(segment, start, known)
    position = start  # of what is given out next
    asked = start  # up to where reads are under way
    reads: deque[_Read] = deque()
    size = READ_REPLY_MAX_BYTES
    backoff = Backoff()
    connection: SegmentStoreConnection | None = None
    held = NO_TOKEN
    try:
        while end is None or position < end:
            try:
                if connection is None or not connection.is_open or time.monotonic() >= held.renew_at:
                    connection = await stores.connection(segment, purpose)
                    held = await stores.tokens.held(segment, wire.ReadSegment)
                token = held.text
                while asked < known and (not reads or asked - position < read_ahead_bytes):
                    want = min(size, known - asked)
                    reads.append(_Read(asked, want, _ask(connection, segment, asked, want, token)))
                    asked += want
                if not reads:  # at the tail
                    reads.append(_Read(position, 0, _ask(connection, segment, position, size, token)))
                read = reads.popleft()
                reply = await read.reply
            except StreamSealedError:
                return  # sealed while the read waited at its end
            except ClosedError:
                raise
            except PermissionDeniedError:
                stores.forget(segment)  # another token may do
                raise
            except UnavailableError as error:
                stores.trouble = error
                _drop(reads)
                asked = position
                connection = None
                stores.forget(segment)
                await backoff.pause()
                continue
            backoff, stores.trouble = Backoff(), None
            if not isinstance(reply, wire.SegmentRead) or reply.offset != position:
                raise UnavailableError(f"a read of {segment} was answered with {type(reply).__name__}")
            data = memoryview(reply.data)
            if end is not None:
                data = data[: end - position]
            position += len(data)
            if read.size == 0:
                asked = known = position
            elif len(data) < read.size and not reply.end_of_segment:
                rest = read.size - len(data)
                reads.appendleft(_Read(position, rest, _ask(connection, segment, position, rest, token)))
            if len(data):
                yield data
            if reply.end_of_segment:
                return
    finally:
        _drop(reads)


def _ask(
    connection: SegmentStoreConnection, segment: str, offset: int, size: int, token: str
) -> asyncio.Future[wire.Command]:
    return connection.submit(wire.ReadSegment, segment=segment, offset=offset, suggested_length=size, token=token)


def _drop(reads: deque[_Read]) -> None:
    for read in reads:
        if read.reply.done() and not read.reply.cancelled():
            read.reply.exception()  # looked at, so that asyncio does not complain
        read.reply.cancel()
    reads.clear()


async def _length(stores: SegmentStores, segment: str) -> int:
    info = await stores.call(segment, wire.GetStreamSegmentInfo, segment=segment)
    assert isinstance(info, wire.StreamSegmentInfo)
    return info.write_offset
