"""Read one segment's bytes in order, with read-ahead.

Up to the known end of the segment, several reads are in flight at computed offsets; if a reply is shorter than
requested, the remaining bytes are requested before any later ones are yielded. At the tail one read is in flight, which
the server answers once there is data. After a lost connection the reads are repeated until the client's timeout:
existing bytes must arrive within it; a read at the tail must be accepted within it, and may then wait without a limit.
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
from nadi.client.segments.tokens import NO_TOKEN, TimedToken
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

_ACCEPTED_S = 1.0  # a read at the tail that waited this long was accepted; later failures are not held against it


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
    """Yield the bytes from `start` to `end`, or to the end of a sealed segment, waiting at the tail for new ones.

    Raises TruncatedError, SegmentNotFoundError, DamagedDataError (starting where the yielded bytes end) and, without an
    `end`, PastEndError. Raises RequestTimeoutError if the store can't be reached, or doesn't return existing bytes,
    within the client's timeout: resume where the yielded bytes end.
    """
    known = end
    if known is None:
        known = (await segment_info(stores, segment)).write_offset
        if start > known:  # not a reader's position; a read would wait until writers reach it
            raise PastEndError(segment, start, known)
    position = start  # offset of the next byte to yield
    requested = start  # offset up to which reads are in flight
    reads: deque[_PendingRead] = deque()
    size = READ_REPLY_MAX_BYTES
    backoff = Backoff()
    connection: SegmentStoreConnection | None = None
    trouble: NadiError | None = None
    token = NO_TOKEN
    limit = time.monotonic() + stores.timeout_s  # time when the next bytes are overdue
    try:
        while end is None or position < end:
            tail_read_at = None  # time when a read at the tail was sent
            try:
                if connection is None or not connection.is_open or time.monotonic() >= token.renew_at:
                    async with asyncio.timeout(limit - time.monotonic()):
                        connection = await stores.connection(segment, purpose)
                        token = await stores.tokens.timed_token(segment, wire.ReadSegment)
                while requested < known and (not reads or requested - position < read_ahead_bytes):
                    count = min(size, known - requested)
                    reads.append(_PendingRead(requested, count, _ask(connection, segment, requested, count, token)))
                    requested += count
                if not reads:  # at the tail
                    reads.append(_PendingRead(position, 0, _ask(connection, segment, position, size, token)))
                    tail_read_at = time.monotonic()
                read = reads.popleft()
                if tail_read_at is not None or read.reply.done():
                    reply = _checked(await read.reply, segment, position)
                else:
                    async with asyncio.timeout(limit - time.monotonic()):
                        reply = _checked(await read.reply, segment, position)
                if not len(reply.data) and not reply.end_of_segment and _is_early(tail_read_at):
                    raise UnavailableError(f"a read of {segment} at {position:,} returned no data")
            except StreamSealedError:
                return  # sealed while the read waited at its end
            except ClosedError:
                raise
            except PermissionDeniedError:
                stores.forget(segment)  # another token may work
                raise
            except DamagedDataError as error:
                if error.end_offset <= position:
                    raise ProtocolError(f"a read at {position:,} reported damage that ends before: {error}") from error
                raise DamagedDataError(segment, position, error.end_offset, error.reason) from error
            except UnavailableError as error:
                stores.trouble = trouble = error
                if not _is_early(tail_read_at) and not isinstance(error, RequestTimeoutError):
                    backoff, limit = Backoff(), time.monotonic() + stores.timeout_s
                if time.monotonic() >= limit:
                    raise _overdue(stores, segment, position, trouble) from None
                _drop(reads)
                requested = position
                connection = None
                stores.forget(segment)
                await backoff.pause()
                continue
            except TimeoutError:
                if connection is not None:
                    known = min(known, (await segment_info(stores, segment)).write_offset)
                if connection is None or known > position:
                    raise _overdue(stores, segment, position, trouble) from None
                _drop(reads)  # the segment has not reached `end`, so nothing is overdue
                requested = position
                continue
            stores.trouble = trouble = None
            data, is_end = memoryview(reply.data), reply.end_of_segment
            limit_bytes = read.size or (end - position if end is not None else len(data))
            if len(data) > limit_bytes:  # servers return at least eight bytes: the excess is in flight or not needed
                data, is_end = data[:limit_bytes], False
            position += len(data)
            if read.size == 0:
                requested = known = position
            elif len(data) < read.size and not is_end:
                missing = read.size - len(data)
                reads.appendleft(_PendingRead(position, missing, _ask(connection, segment, position, missing, token)))
            if len(data):
                yield data
            if is_end:
                return
            backoff, limit = Backoff(), time.monotonic() + stores.timeout_s
    finally:
        _drop(reads)


def _checked(reply: wire.SegmentRead, segment: str, position: int) -> wire.SegmentRead:
    if reply.offset != position:
        raise ProtocolError(f"unexpected reply to a read of {segment} at {position:,}: {str(reply)[:200]}")
    return reply


def _is_early(tail_read_at: float | None) -> bool:
    """Return whether a read ended before it is considered accepted at the tail."""
    return tail_read_at is None or time.monotonic() - tail_read_at < _ACCEPTED_S


def _overdue(stores: SegmentStores, segment: str, position: int, trouble: NadiError | None) -> RequestTimeoutError:
    """trouble: the last read's error; other requests may succeed meanwhile."""
    trouble = trouble or stores.waits_for()
    return RequestTimeoutError(
        f"segment {segment} could not be read at {position:,} within {stores.timeout_s:g} s"
        + (f": {trouble}" if trouble else ": its store did not return the data")
    )


def _ask(
    connection: SegmentStoreConnection, segment: str, offset: int, size: int, token: TimedToken
) -> asyncio.Future[wire.SegmentRead]:
    return connection.submit(wire.ReadSegment(segment, offset, size, token.text), wire.SegmentRead)


def _drop(reads: deque[_PendingRead]) -> None:
    for read in reads:
        if read.reply.done() and not read.reply.cancelled():
            read.reply.exception()  # retrieved, so that asyncio does not complain
        read.reply.cancel()
    reads.clear()
