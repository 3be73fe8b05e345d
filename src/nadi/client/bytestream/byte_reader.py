"""Reader of a byte stream from any offset, with read-ahead, up to the tail or following it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from nadi.client.control.arguments import checked
from nadi.client.control.closing import Closing
from nadi.client.control.time_limit import TimeLimit
from nadi.client.segments.info import SegmentInfo, resolving_missing, segment_info
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import ClosedError, InvalidArgumentError
from nadi.limits import READ_AHEAD_BYTES
from nadi.naming import segment_name

READ_TIMEOUT_S = 30.0
_BLOCKS_BEFORE_READING_AHEAD = 2  # after a seek: random reads don't benefit from read-ahead
_ids = itertools.count()


@checked(without=("read", "readinto"))
class ByteStreamReader(Closing):
    """A reader of bytes, created by `StreamManager.create_byte_reader`; not for concurrent use."""

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
        self._block = memoryview(b"")  # received but not returned yet
        self._chunks: AsyncGenerator[memoryview, None] | None = None
        self._in_order = 0  # blocks since the last seek
        self._waiting: asyncio.Task[object] | None = None  # the caller that waits in `_fill`
        self._closed = False

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._position

    async def head(self) -> int:
        """Return the first offset that wasn't truncated."""
        return (await self._info()).start_offset

    async def tail(self) -> int:
        """Return the stream's current end."""
        return (await self._info()).write_offset

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset relative to the stream's start, the position or the tail; return the new offset."""
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += await self.tail()
        elif whence != os.SEEK_SET:
            raise InvalidArgumentError(f"whence must be 0, 1 or 2, not {whence}")
        if offset < 0:
            raise InvalidArgumentError(f"the offset can't be negative: {offset}")
        ahead = offset - self._position
        if 0 <= ahead <= len(self._block):
            self._block = self._block[ahead:]
        else:
            await self._discard()
            self._in_order = 0
        self._position = offset
        return offset

    def _take(self, target: memoryview) -> int:
        """Copy buffered bytes into `target`; return their number."""
        size = min(len(target), len(self._block))
        target[:size] = self._block[:size]
        self._block = self._block[size:]
        self._position += size
        return size

    async def _fill(self) -> bool:
        """Fill the buffer unless it has bytes; return False at the end of a sealed stream, or of one without follow.

        TruncatedError if the position was truncated: seek to the error's `start_offset`. PastEndError if the position
        is past the tail while following. RequestTimeoutError if nothing arrived within the reader's timeout: retry.
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
                    await self._discard()
                if self._chunks is None:
                    self._chunks = await self._open_chunks()
                async with resolving_missing(self._stores, self._segment):
                    self._block = await anext(self._chunks, memoryview(b""))
                    if not self._block and not self._follow:  # at the earlier tail: more may have been written since
                        self._chunks = await self._open_chunks()
                        self._block = await anext(self._chunks, memoryview(b""))
        except BaseException as error:
            self._chunks = None  # the generator has ended, even if a timeout cancelled it
            if isinstance(error, asyncio.CancelledError) and is_closed(self) and waiting and waiting.uncancel() == 0:
                raise ClosedError(f"the reader of {self.scope}/{self.stream} was closed") from None
            raise
        finally:
            self._waiting = None
        if not self._block:
            self._chunks = None
            return False
        self._in_order += 1
        return True

    async def readinto(self, target: bytearray | memoryview) -> int:
        """Read available bytes into `target`, waiting for the first; return their number, 0 at the end."""
        view = memoryview(target).cast("B")
        return self._take(view) if not len(view) or await self._fill() else 0

    async def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer only at the end; all up to the current tail if `size` is negative."""
        if size < 0:
            size = max(await self.tail() - self._position, 0)
        target = memoryview(bytearray(size))
        filled = 0
        while filled < size and await self._fill():
            filled += self._take(target[filled:])
        return bytes(target[:filled])

    async def close(self) -> None:
        """Close immediately; a pending read raises ClosedError."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            await self._discard()
        self._stores.release(self._purpose)

    async def _open_chunks(self) -> AsyncGenerator[memoryview, None]:
        """Return an iterator of the bytes from the position to the current tail, or endless when following."""
        end = None if self._follow else await self.tail()
        ahead = READ_AHEAD_BYTES if self._in_order >= _BLOCKS_BEFORE_READING_AHEAD else 1
        return read_bytes(
            self._stores, self._segment, self._position, end, purpose=self._purpose, read_ahead_bytes=ahead
        )

    async def _discard(self) -> None:
        self._block = memoryview(b"")
        if self._chunks is not None:
            chunks, self._chunks = self._chunks, None
            await chunks.aclose()

    async def _info(self) -> SegmentInfo:
        timeout_s = self._stores.timeout_s  # limits the server's answer; the wait for data may be longer
        if self._timeout:
            timeout_s = min(timeout_s, self._timeout)
        async with resolving_missing(self._stores, self._segment):
            return await segment_info(self._stores, self._segment, timeout_s)


# --- for other modules of the client ----------------------------------------------------------


def is_closed(reader: ByteStreamReader) -> bool:
    return reader._closed


def hands_of(reader: ByteStreamReader) -> tuple[Callable[[memoryview], int], Callable[[], Coroutine[Any, Any, bool]]]:
    """Return functions that copy buffered bytes, in any thread, and that fill the buffer."""
    return reader._take, reader._fill
