"""Writer of a byte stream: stores pieces of any size in order.

Large pieces are pipelined; small ones are joined while an append is in flight. Appends go to the end of the stream and
are conditional on it: if another writer appends meanwhile, the writer fails instead of mixing the bytes of both.
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
from nadi.client.segments.info import resolving_missing, segment_info
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

_SECOND_APPEND_BYTES = BYTE_JOIN_BYTES // 4  # waiting bytes that start another append while one is in flight


@checked(without=("write",))
class ByteStreamWriter(Closing):
    """A writer of bytes, created by `StreamManager.create_byte_writer`; not for concurrent use.

    It fails if no pending byte is stored for `ack_timeout`.
    """

    def __init__(
        self, stores: SegmentStores, scope: str, stream: str, segment_id: int, offset: int, ack_timeout_s: float
    ) -> None:
        check_ack_timeout(ack_timeout_s)
        self.scope, self.stream, self.segment_id = scope, stream, segment_id
        self._stores = stores
        self._ack_timeout_s = ack_timeout_s
        self._appender = SegmentAppender(stores, segment_name(scope, stream, segment_id))
        self._offset = offset  # end of the stored bytes
        self._pieces: deque[Buffer] = deque()  # not sent yet
        self._pending_bytes = 0  # not stored yet
        self._in_flight_bytes = 0  # of these, in appends that were sent
        self._progress = asyncio.Event()  # set when something was stored or has failed
        self._error: NadiError | None = None
        self._lost: NadiError | None = None  # why pending bytes were lost when the writer was stopped
        self._closed = False

    def tell(self) -> int:
        """Return the offset of the next byte written."""
        return self._offset + self._pending_bytes

    async def write(self, data: Buffer, timeout: float | None = None) -> int:
        """Accept all of `data`, waiting while too many bytes are pending; return its length.

        Up to 8 MiB are stored atomically, more in parts of 8 MiB. A mutable buffer is copied; TypeError for anything
        but a buffer. Raises the error that prevented earlier bytes from being stored, and RequestTimeoutError after
        `timeout` s. The writer fails if nothing is stored for `ack_timeout`, with StorageFullError if the server's disk
        is full.
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
        """Flush, then close; raises the error that prevented bytes from being stored."""
        if self._closed:
            check_lost(self)
        else:
            try:
                await self.flush(timeout)
            finally:
                stop(self, ClosedError(f"the writer of {self.scope}/{self.stream} was closed"))

    async def close_and_seal(self, timeout: float | None = None) -> None:
        """Close and seal the stream: it can't be written to any more, and readers reach its end."""
        await self.close(timeout)
        segment = segment_name(self.scope, self.stream, self.segment_id)
        async with resolving_missing(self._stores, segment):
            await segment_info(self._stores, segment)  # raises if the stream was recreated: don't seal the new one
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
        """Wait until bytes are stored; a timeout ends the writer."""
        name = f"{self.scope}/{self.stream}"
        try:
            async with TimeLimit(
                self._ack_timeout_s,
                lambda: (
                    f"none of {self._pending_bytes:,} bytes for {name} were stored for {self._ack_timeout_s} s: "
                    "check the stream's tail, then open a new writer"
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
        """Send one append, or several if much is waiting; remaining pieces wait for an answer and are joined."""
        while self._pieces:
            waiting = self._pending_bytes - self._in_flight_bytes
            after = self._in_flight_bytes + len(self._pieces[0])
            if self._in_flight_bytes and (waiting < _SECOND_APPEND_BYTES or after > BYTE_UNDER_WAY_BYTES):
                return
            data = self._next()
            stored = self._appender.submit(data, self._offset + self._in_flight_bytes)
            self._in_flight_bytes += len(data)
            stored.add_done_callback(partial(self._answered, len(data)))

    def _answered(self, size: int, stored: asyncio.Future[int]) -> None:
        if stored.cancelled():
            return
        error = stored.exception()
        if error is None:
            self._offset += size
            self._pending_bytes -= size
            self._in_flight_bytes -= size
            self._progress.set()
            self._send()
        elif isinstance(error, ConditionFailedError):
            self._fail(
                ConditionFailedError(
                    f"another writer appended to {self.scope}/{self.stream}: it no longer ends at {self._offset:,}, "
                    f"and {self._pending_bytes:,} bytes were not stored. Read the stream, then open a new writer"
                )
            )
        elif isinstance(error, StreamSealedError):
            self._fail(StreamSealedError(f"{self.scope}/{self.stream}"))
        else:
            assert isinstance(error, NadiError)
            self._fail(error)

    def _next(self) -> Buffer:
        """Return the next append's data: a large piece, or several small ones joined."""
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


# --- for other modules of the client ----------------------------------------------------------


def is_closed(writer: ByteStreamWriter) -> bool:
    return writer._closed


def stop(writer: ByteStreamWriter, error: NadiError) -> None:
    """Close without waiting: pending bytes fail with `error`."""
    if writer._pending_bytes and not writer._closed:
        writer._lost = writer._error or error
    writer._closed = True
    writer._fail(error)


def check_lost(writer: ByteStreamWriter) -> None:
    """Raise, once, the error that lost the bytes pending when the writer was stopped."""
    lost, writer._lost = writer._lost, None
    if lost is not None:
        raise lost
