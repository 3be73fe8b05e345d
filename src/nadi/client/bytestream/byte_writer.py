"""Writing a byte stream: pieces of any size, stored in order.

Several appends are under way where pieces are large, and small ones are joined in the next while one is. The writer
goes on at the end of the stream, and every append is conditional on that end: if somebody else writes meanwhile, it
fails instead of mixing its bytes with theirs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from nadi.client.control.arguments import check_ack_timeout, checked
from nadi.client.control.closing import Closing
from nadi.client.control.time_limit import TimeLimit
from nadi.client.segments.conditional_append import SegmentAppender
from nadi.client.segments.info import explained, segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    ClosedError,
    ConditionFailedError,
    NadiError,
    RequestTimeoutError,
    StorageFullError,
    StreamSealedError,
)
from nadi.limits import BYTE_APPEND_BYTES, BYTE_JOIN_BYTES, BYTE_UNDER_WAY_BYTES, WRITER_PENDING_BYTES
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire.fields import Buffer

_SECOND_APPEND_BYTES = BYTE_JOIN_BYTES // 4  # while one is under way another goes out if so much waits


@checked(without=("write",))
class ByteStreamWriter(Closing):
    """Made by `StreamManager.create_byte_writer`; one user at a time. Where nothing is stored for `ack_timeout`, it
    fails."""

    def __init__(
        self, stores: SegmentStores, scope: str, stream: str, segment_id: int, offset: int, ack_timeout_s: float
    ) -> None:
        check_ack_timeout(ack_timeout_s)
        self.scope, self.stream, self.segment_id = scope, stream, segment_id
        self._stores = stores
        self._ack_timeout_s = ack_timeout_s
        self._appender = SegmentAppender(stores, segment_name(scope, stream, segment_id))
        self._offset = offset  # up to where everything is stored
        self._pieces: deque[Buffer] = deque()  # not sent yet
        self._pending_bytes = 0  # not stored yet
        self._under_way_bytes = 0  # of these, in appends that were sent
        self._progress = asyncio.Event()  # set when something was stored or has failed
        self._error: NadiError | None = None
        self._lost: NadiError | None = None  # why pending bytes were given up when the writer was stopped
        self._closed = False

    def tell(self) -> int:
        """Return the offset of the next byte written."""
        return self._offset + self._pending_bytes

    async def write(self, data: Buffer, timeout: float | None = None) -> int:
        """Accept all of `data`, waiting while too much is not stored yet; return its length.

        Up to 8 MiB are stored atomically, more in parts of 8 MiB. A mutable buffer is
        copied; TypeError for anything but a buffer. Raises whatever kept earlier bytes from being stored, and
        RequestTimeoutError after `timeout` s; even without one, the writer fails if nothing is stored for
        `ack_timeout`: with StorageFullError if the server's disk is full.
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
        """Delete the bytes before `offset`; they can no longer be read."""
        cut = StreamCut(self.scope, self.stream, {self.segment_id: offset})
        await self._stores.controller.truncate_stream(cut)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close; raise whatever kept bytes from being stored."""
        if self._closed:
            check_lost(self)
        else:
            try:
                await self.flush(timeout)
            finally:
                stop(self, ClosedError(f"the writer of {self.scope}/{self.stream} was closed"))

    async def close_and_seal(self, timeout: float | None = None) -> None:
        """Close and seal the stream: nobody can write to it any more, and readers reach its end."""
        await self.close(timeout)
        segment = segment_name(self.scope, self.stream, self.segment_id)
        async with explained(self._stores, segment):
            await segment_info(self._stores, segment)  # a stream that was recreated under the name stays open
        await self._stores.controller.seal_stream(self.scope, self.stream)

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

    def _answered(self, size: int, stored: asyncio.Future[int]) -> None:
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


# --- what the rest of the client asks of it ---------------------------------------------------


def is_closed(writer: ByteStreamWriter) -> bool:
    return writer._closed


def stop(writer: ByteStreamWriter, error: NadiError) -> None:
    """End without waiting: what is not stored by now fails with `error`."""
    if writer._pending_bytes and not writer._closed:
        writer._lost = writer._error or error
    writer._closed = True
    writer._fail(error)


def check_lost(writer: ByteStreamWriter) -> None:
    """Raise, once, why bytes were not stored that were pending when the writer was stopped."""
    lost, writer._lost = writer._lost, None
    if lost is not None:
        raise lost
