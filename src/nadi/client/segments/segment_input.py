"""The bytes of one segment in order, read ahead.

As far as the segment is known to reach, several reads are in flight at computed offsets; if a reply
is shorter than requested, its rest is requested before anything later is given out. At the tail
there is one read, which the server answers once there is data. Lost connections are replaced
and the reads repeated, as long as the client waits for its server: bytes that exist must arrive within that time,
and a read at the tail must be accepted within it; after that, nothing is overdue.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from nadi.backoff import Backoff
from nadi.client.segments.connection import SegmentStoreConnection
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.segments.tokens import NO_TOKEN
from nadi.errors import (
    ClosedError,
    DamagedDataError,
    NadiError,
    PastEndError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
    StreamSealedError,
    UnavailableError,
)
from nadi.limits import READ_AHEAD_BYTES, READ_REPLY_MAX_BYTES
from nadi.wire import commands as wire

_TAKEN_S = 1.0  # a read at the tail that the server lets wait so long was taken: what ends it then is not its fault


@dataclass(slots=True)
class _PendingRead:
    offset: int
    size: int
    reply: asyncio.Future[wire.SegmentRead]


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

    Raises TruncatedError, SegmentNotFoundError, DamagedDataError (from where the bytes given out end) and,
    without an `end`, PastEndError. RequestTimeoutError if the store can't be reached, or keeps back what it has, for
    as long as the client waits for its server: resume from where the bytes end.
    """
    known = end
    if known is None:
        known = (await segment_info(stores, segment)).write_offset
        if start > known:  # no reader was ever there, and a read would wait until writers come so far
            raise PastEndError(segment, start, known)
    position = start  # of what is given out next
    asked = start  # up to where reads are in flight
    reads: deque[_PendingRead] = deque()
    size = READ_REPLY_MAX_BYTES
    backoff = Backoff()
    connection: SegmentStoreConnection | None = None
    trouble: NadiError | None = None
    held = NO_TOKEN
    limit = time.monotonic() + stores.timeout_s  # when the next bytes are overdue
    try:
        while end is None or position < end:
            asked_at = None  # when a read at the tail was sent
            try:
                if connection is None or not connection.is_open or time.monotonic() >= held.renew_at:
                    async with asyncio.timeout(limit - time.monotonic()):
                        connection = await stores.connection(segment, purpose)
                        held = await stores.tokens.held(segment, wire.ReadSegment)
                token = held.text
                while asked < known and (not reads or asked - position < read_ahead_bytes):
                    want = min(size, known - asked)
                    reads.append(_PendingRead(asked, want, _ask(connection, segment, asked, want, token)))
                    asked += want
                if not reads:  # at the tail
                    reads.append(_PendingRead(position, 0, _ask(connection, segment, position, size, token)))
                    asked_at = time.monotonic()
                read = reads.popleft()
                if asked_at is not None or read.reply.done():
                    reply = _checked(await read.reply, segment, position)
                else:
                    async with asyncio.timeout(limit - time.monotonic()):
                        reply = _checked(await read.reply, segment, position)
                if not len(reply.data) and not reply.end_of_segment and _is_early(asked_at):
                    raise UnavailableError(f"a read of {segment} at {position:,} was answered without data")
            except StreamSealedError:
                return  # sealed while the read waited at its end
            except ClosedError:
                raise
            except PermissionDeniedError:
                stores.forget(segment)  # another token may work
                raise
            except DamagedDataError as error:
                if error.end_offset <= position:
                    raise ProtocolError(f"a read at {position:,} met damage that ends before it: {error}") from error
                raise DamagedDataError(segment, position, error.end_offset, error.reason) from error
            except UnavailableError as error:
                stores.trouble = trouble = error
                if not _is_early(asked_at) and not isinstance(error, RequestTimeoutError):
                    backoff, limit = Backoff(), time.monotonic() + stores.timeout_s
                if time.monotonic() >= limit:
                    raise _overdue(stores, segment, position, trouble) from None
                _drop(reads)
                asked = position
                connection = None
                stores.forget(segment)
                await backoff.pause()
                continue
            except TimeoutError:
                if connection is not None:
                    known = min(known, (await segment_info(stores, segment)).write_offset)
                if connection is None or known > position:
                    raise _overdue(stores, segment, position, trouble) from None
                _drop(reads)  # an `end` that the segment has not reached: nothing is owed
                asked = position
                continue
            stores.trouble = trouble = None
            data, is_end = memoryview(reply.data), reply.end_of_segment
            most = read.size or (end - position if end is not None else len(data))
            if len(data) > most:  # servers give at least eight bytes: what follows is on its way or not wanted
                data, is_end = data[:most], False
            position += len(data)
            if read.size == 0:
                asked = known = position
            elif len(data) < read.size and not is_end:
                rest = read.size - len(data)
                reads.appendleft(_PendingRead(position, rest, _ask(connection, segment, position, rest, token)))
            if len(data):
                yield data
            if is_end:
                return
            backoff, limit = Backoff(), time.monotonic() + stores.timeout_s
    finally:
        _drop(reads)


def _checked(reply: wire.SegmentRead, segment: str, position: int) -> wire.SegmentRead:
    if reply.offset != position:
        raise ProtocolError(f"a read of {segment} at {position:,} was answered with {str(reply)[:200]}")
    return reply


def _is_early(asked_at: float | None) -> bool:
    """Whether a read ended before the server has shown that it lets it wait at the tail."""
    return asked_at is None or time.monotonic() - asked_at < _TAKEN_S


def _overdue(stores: SegmentStores, segment: str, position: int, trouble: NadiError | None) -> RequestTimeoutError:
    """trouble: what the last read met; other requests may be answered meanwhile."""
    trouble = trouble or stores.waits_for()
    return RequestTimeoutError(
        f"nothing of segment {segment} could be read at {position:,} for {stores.timeout_s:g} s"
        + (f": {trouble}" if trouble else ": its store keeps it back")
    )


def _ask(
    connection: SegmentStoreConnection, segment: str, offset: int, size: int, token: str
) -> asyncio.Future[wire.SegmentRead]:
    return connection.submit(wire.ReadSegment(segment, offset, size, token), wire.SegmentRead)


def _drop(reads: deque[_PendingRead]) -> None:
    for read in reads:
        if read.reply.done() and not read.reply.cancelled():
            read.reply.exception()  # looked at, so that asyncio does not complain
        read.reply.cancel()
    reads.clear()
