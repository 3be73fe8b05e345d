"""Byte streams: a stream of one segment that holds plain bytes, without events, as the official clients do.

A `ByteStreamWriter` takes pieces of any size and stores them in order: several appends are under way where pieces are
large, and small ones are joined in the next while one is. It goes on at the end of the stream, and every append is
conditional on that end: if somebody else writes meanwhile, the writer fails instead of mixing its bytes with theirs.
A `ByteStreamReader` reads ahead from any offset, and at the tail either ends or follows. Offsets count from
the stream's first byte ever, so they stay the same when the head is truncated.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial

from nadi.client.control.arguments import check_ack_timeout, checked
from nadi.client.control.patience import TimeLimit
from nadi.client.segments.conditional_append import ConditionalAppender
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.client.writing.writer import ACK_TIMEOUT_S
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    InvalidArgumentError,
    NadiError,
    RequestTimeoutError,
    StorageFullError,
    StreamSealedError,
)
from nadi.limits import (
    BYTE_APPEND_BYTES,
    BYTE_JOIN_BYTES,
    BYTE_UNDER_WAY_BYTES,
    READ_AHEAD_BYTES,
    WRITER_PENDING_BYTES,
)
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import Buffer

READ_TIMEOUT_S = 30.0
_SECOND_APPEND_BYTES = BYTE_JOIN_BYTES // 4  # while one is under way another goes out if so much waits
_BLOCKS_BEFORE_READING_AHEAD = 2  # after a seek: who reads here and there needs no more than it asks for
_ids = itertools.count()


@checked(without=("write",))
class ByteStreamWriter:
    """Made by `open_byte_writer`; one user at a time. Where nothing is stored for `ack_timeout_s`, it fails."""

    def __init__(
        self, stores: SegmentStores, scope: str, stream: str, segment_id: int, offset: int, ack_timeout_s: float
    ) -> None:
        check_ack_timeout(ack_timeout_s)
        self.scope, self.stream, self.segment_id = scope, stream, segment_id
        self._stores = stores
        self._ack_timeout_s = ack_timeout_s
        self._appender = ConditionalAppender(stores, segment_name(scope, stream, segment_id))
        self._offset = offset  # up to where everything is stored
        self._pieces: deque[Buffer] = deque()  # not sent yet
        self._pending_bytes = 0  # not stored yet
        self._under_way_bytes = 0  # of these, in appends that were sent
        self._progress = asyncio.Event()  # set when something was stored or has failed
        self._error: NadiError | None = None
        self._lost: NadiError | None = None  # why pending bytes were given up when the writer was stopped
        self._closed = False

    def tell(self) -> int:
        """Where the next written byte goes."""
        return self._offset + self._pending_bytes

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def write(self, data: Buffer, timeout: float | None = None) -> int:
        """Take all of `data`, waiting while too much is not stored yet; its length.

        Up to 8 MiB are stored as a whole or not at all, more in parts of so many. A buffer that may change is
        copied; TypeError for what is no buffer. Raises what kept earlier bytes from being stored, and
        RequestTimeoutError after `timeout` s; also without one a wait in which nothing is stored has an end, as
        `ack_timeout` says, and with it the writer: StorageFullError if the server has no room.
        """
        view = memoryview(data if isinstance(data, bytes) else memoryview(data).tobytes())
        await self._until(lambda: self._pending_bytes <= WRITER_PENDING_BYTES, timeout)
        for start in range(0, len(view), BYTE_APPEND_BYTES):
            self._pieces.append(view[start : start + BYTE_APPEND_BYTES])
        self._pending_bytes += len(view)
        self._send()
        return len(view)

    async def flush(self, timeout: float | None = None) -> None:
        """Return once everything written so far is on the server's disk; RequestTimeoutError after `timeout` s."""
        target = self.tell()
        await self._until(lambda: self._offset >= target, timeout)

    async def truncate_before(self, offset: int) -> None:
        """Forget the bytes before `offset`; they can't be read any more."""
        cut = StreamCut(self.scope, self.stream, {self.segment_id: offset})
        await self._stores.controller.truncate_stream(cut)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then end; raises what kept bytes from being stored."""
        if self._closed:
            self.check_lost()
        else:
            try:
                await self.flush(timeout)
            finally:
                self.stop(ClosedError(f"the writer of {self.scope}/{self.stream} was closed"))

    async def close_and_seal(self, timeout: float | None = None) -> None:
        """Close, and let nobody write to the stream any more: readers come to its end."""
        await self.close(timeout)
        await self._stores.controller.seal_stream(self.scope, self.stream)

    def check_lost(self) -> None:
        """Raise, once, why bytes were not stored that were pending when the writer was stopped."""
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def stop(self, error: NadiError) -> None:
        """End without waiting: what is not stored by now fails with `error`."""
        if self._pending_bytes and not self._closed:
            self._lost = self._error or error
        self._closed = True
        self._fail(error)

    async def __aenter__(self) -> ByteStreamWriter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _until(self, holds: Callable[[], bool], timeout: float | None) -> None:
        async with TimeLimit(
            timeout,
            lambda: f"{self._pending_bytes:,} bytes for {self.scope}/{self.stream} are not stored after {timeout} s",
            lambda: self._appender.trouble,
        ):
            while True:
                if self._error is not None:
                    raise self._error
                if holds():
                    return
                self._progress.clear()
                await self._next_progress()

    async def _next_progress(self) -> None:
        """Wait until something was stored; that nothing is for too long ends the writer."""
        name = f"{self.scope}/{self.stream}"
        try:
            async with TimeLimit(
                self._ack_timeout_s,
                lambda: (
                    f"none of {self._pending_bytes:,} bytes for {name} were stored for {self._ack_timeout_s} s: "
                    "see how far it got, then open a new writer"
                ),
                lambda: self._appender.trouble or self._stores.waits_for(),
            ):
                await self._progress.wait()
        except RequestTimeoutError as late:
            full = isinstance(late.__cause__, StorageFullError)
            error = StorageFullError(str(late)) if full else late
            self._fail(error)
            raise error from late.__cause__

    def _send(self) -> None:
        """Send one append, or more where there is much to send; the rest waits for an answer, and is joined."""
        while self._pieces:
            waiting = self._pending_bytes - self._under_way_bytes
            after = self._under_way_bytes + len(self._pieces[0])
            if self._under_way_bytes and (waiting < _SECOND_APPEND_BYTES or after > BYTE_UNDER_WAY_BYTES):
                return
            data = self._next()
            stored = self._appender.submit(data, self._offset + self._under_way_bytes)
            self._under_way_bytes += len(data)
            stored.add_done_callback(partial(self._answered, len(data)))

    def _answered(self, size: int, stored: asyncio.Future[None]) -> None:
        if stored.cancelled():
            return
        error = stored.exception()
        if error is None:
            self._offset += size
            self._pending_bytes -= size
            self._under_way_bytes -= size
            self._progress.set()
            self._send()
        elif isinstance(error, ConditionFailedError):
            self._fail(
                ConditionFailedError(
                    f"somebody else wrote to {self.scope}/{self.stream}: it no longer ended at {self._offset:,}, and "
                    f"{self._pending_bytes:,} bytes were not stored. Read what was written, then open a new writer"
                )
            )
        elif isinstance(error, StreamSealedError):
            self._fail(StreamSealedError(f"{self.scope}/{self.stream}"))
        else:
            assert isinstance(error, NadiError)
            self._fail(error)

    def _next(self) -> Buffer:
        """The next append: a large piece as it is, small ones joined."""
        pieces = [self._pieces.popleft()]
        size = len(pieces[0])
        while self._pieces and size + len(self._pieces[0]) <= BYTE_JOIN_BYTES:
            size += len(self._pieces[0])
            pieces.append(self._pieces.popleft())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _fail(self, error: NadiError) -> None:
        self._error = self._error or error
        self._pieces.clear()
        self._appender.close()
        self._progress.set()


@checked(without=("read", "readinto", "take"))
class ByteStreamReader:
    """Made by `open_byte_reader`; one user at a time."""

    def __init__(
        self,
        stores: SegmentStores,
        scope: str,
        stream: str,
        segment_id: int,
        start: int,
        *,
        follow: bool,
        timeout: float | None,
    ) -> None:
        self.scope, self.stream, self.segment_id = scope, stream, segment_id
        self._stores = stores
        self._segment = segment_name(scope, stream, segment_id)
        self._follow, self._timeout = follow, timeout
        self._purpose = f"byte reader {next(_ids)}"
        self._position = start
        self._block = memoryview(b"")  # what was received and not taken yet
        self._chunks: AsyncGenerator[memoryview, None] | None = None
        self._in_order = 0  # blocks since the last seek
        self._waiting: asyncio.Task[object] | None = None  # who waits in `fill`
        self._closed = False

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._position

    async def head(self) -> int:
        """The first offset that can be read: what lies before was truncated away."""
        return (await self._info()).start_offset

    async def tail(self) -> int:
        """Where the stream ends now."""
        return (await self._info()).write_offset

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset from the stream's beginning, from here, or from its present tail; the new offset."""
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += await self.tail()
        elif whence != os.SEEK_SET:
            raise InvalidArgumentError(f"whence is 0, 1 or 2, not {whence}")
        if offset < 0:
            raise InvalidArgumentError(f"there is no offset {offset}")
        ahead = offset - self._position
        if 0 <= ahead <= len(self._block):
            self._block = self._block[ahead:]
        else:
            await self._forget()
            self._in_order = 0
        self._position = offset
        return offset

    def take(self, target: memoryview) -> int:
        """Copy what is at hand into `target`; how much that was."""
        size = min(len(target), len(self._block))
        target[:size] = self._block[:size]
        self._block = self._block[size:]
        self._position += size
        return size

    async def fill(self) -> bool:
        """Have something at hand; False at the end: of a sealed stream, or of one that is not followed.

        TruncatedError if the position was truncated away: seek to its `start_offset`. PastEndError if the tail is
        followed and lies before the position. RequestTimeoutError if nothing came within the reader's timeout: ask
        again.
        """
        if self._closed:
            raise ClosedError(f"the reader of {self.scope}/{self.stream} was closed")
        if self._block:
            return True
        self._waiting = waiting = asyncio.current_task()
        try:
            async with TimeLimit(
                self._timeout,
                lambda: f"nothing to read in {self.scope}/{self.stream} at {self._position:,} for {self._timeout} s",
                self._stores.waits_for,
            ):
                if self._chunks is not None and self._in_order == _BLOCKS_BEFORE_READING_AHEAD:
                    await self._forget()
                if self._chunks is None:
                    self._chunks = await self._begin()
                self._block = await anext(self._chunks, memoryview(b""))
                if not self._block and not self._follow:  # at what was the tail: there may be more by now
                    self._chunks = await self._begin()
                    self._block = await anext(self._chunks, memoryview(b""))
        except asyncio.CancelledError:
            self._chunks = None
            if self.is_closed and waiting is not None and waiting.uncancel() == 0:
                raise ClosedError(f"the reader of {self.scope}/{self.stream} was closed") from None
            raise
        except BaseException:
            self._chunks = None  # it has ended, also where its wait took too long and was cancelled
            raise
        finally:
            self._waiting = None
        if not self._block:
            self._chunks = None
            return False
        self._in_order += 1
        return True

    async def readinto(self, target: bytearray | memoryview) -> int:
        """Fill `target` as far as data is at hand, waiting for the first byte; 0 at the end."""
        view = memoryview(target).cast("B")
        return self.take(view) if not len(view) or await self.fill() else 0

    async def read(self, size: int = -1) -> bytes:
        """`size` bytes, less only at the end; all up to the present tail if `size` is negative."""
        if size < 0:
            size = max(await self.tail() - self._position, 0)
        target = memoryview(bytearray(size))
        filled = 0
        while filled < size and await self.fill():
            filled += self.take(target[filled:])
        return bytes(target[:filled])

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        """End; who waits for data in another task gets ClosedError."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            await self._forget()
        self._stores.release(self._purpose)

    async def __aenter__(self) -> ByteStreamReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _begin(self) -> AsyncGenerator[memoryview, None]:
        """The bytes from here on: to the present tail, or for ever if the tail is followed."""
        end = None if self._follow else await self.tail()
        ahead = READ_AHEAD_BYTES if self._in_order >= _BLOCKS_BEFORE_READING_AHEAD else 1
        return read_bytes(
            self._stores, self._segment, self._position, end, purpose=self._purpose, read_ahead_bytes=ahead
        )

    async def _forget(self) -> None:
        self._block = memoryview(b"")
        if self._chunks is not None:
            chunks, self._chunks = self._chunks, None
            await chunks.aclose()

    async def _info(self) -> wire.StreamSegmentInfo:
        timeout_s = self._stores.timeout_s  # data may be waited for longer, the server may not
        if self._timeout:
            timeout_s = min(timeout_s, self._timeout)
        info = await self._stores.call(self._segment, wire.GetStreamSegmentInfo, timeout_s, segment=self._segment)
        assert isinstance(info, wire.StreamSegmentInfo)
        return info


async def open_byte_writer(
    stores: SegmentStores, scope: str, stream: str, ack_timeout_s: float = ACK_TIMEOUT_S
) -> ByteStreamWriter:
    """A writer at the stream's present end."""
    current = await stores.controller.current_segments(scope, stream)
    if not current:
        raise StreamSealedError(f"{scope}/{stream}")
    segment_id = _only(scope, stream, [piece.segment_id for piece in current])
    segment = segment_name(scope, stream, segment_id)
    info = await stores.call(segment, wire.GetStreamSegmentInfo, segment=segment)
    assert isinstance(info, wire.StreamSegmentInfo)
    return ByteStreamWriter(stores, scope, stream, segment_id, info.write_offset, ack_timeout_s)


async def open_byte_reader(
    stores: SegmentStores, scope: str, stream: str, *, start: int | None, follow: bool, timeout: float | None
) -> ByteStreamReader:
    """A reader at `start`, or at the head."""
    head = await stores.controller.head(scope, stream)
    segment_id = _only(scope, stream, list(head.positions))
    reader = ByteStreamReader(
        stores, scope, stream, segment_id, head.positions[segment_id], follow=follow, timeout=timeout
    )
    await reader.seek(await reader.head() if start is None else start)
    return reader


def _only(scope: str, stream: str, segment_ids: list[int]) -> int:
    if len(segment_ids) != 1:
        raise InvalidArgumentError(
            f"{scope}/{stream} has {len(segment_ids)} segments and a byte stream has one: "
            "create a stream of one segment that never scales"
        )
    return segment_ids[0]
