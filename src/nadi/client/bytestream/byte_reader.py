"""Reading a byte stream: ahead, from any offset on, and at the tail either to an end or after what comes."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from nadi.client.control.arguments import checked
from nadi.client.control.closing import Closing
from nadi.client.control.time_limit import TimeLimit
from nadi.client.segments.info import SegmentInfo, explained, segment_info
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.errors import ClosedError, InvalidArgumentError
from nadi.limits import READ_AHEAD_BYTES
from nadi.naming import segment_name

READ_TIMEOUT_S = 30.0
_BLOCKS_BEFORE_READING_AHEAD = 2  # after a seek: random reads need no more than they ask for
_ids = itertools.count()


@checked(without=("read", "readinto"))
class ByteStreamReader(Closing):
    """Made by `StreamManager.create_byte_reader`; one user at a time."""

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
        self._waiting: asyncio.Task[object] | None = None  # whoever waits in `_fill`
        self._closed = False

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._position

    async def head(self) -> int:
        """Return the first offset that can be read: everything before was truncated away."""
        return (await self._info()).start_offset

    async def tail(self) -> int:
        """Return the stream's current end."""
        return (await self._info()).write_offset

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset from the stream's start, from here, or from its current tail; return the new offset."""
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

    def _take(self, target: memoryview) -> int:
        """Copy what is at hand into `target`; how much that was."""
        size = min(len(target), len(self._block))
        target[:size] = self._block[:size]
        self._block = self._block[size:]
        self._position += size
        return size

    async def _fill(self) -> bool:
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
                async with explained(self._stores, self._segment):
                    self._block = await anext(self._chunks, memoryview(b""))
                    if not self._block and not self._follow:  # at what was the tail: there may be more by now
                        self._chunks = await self._begin()
                        self._block = await anext(self._chunks, memoryview(b""))
        except BaseException as error:
            self._chunks = None  # it has ended, also where its wait took too long and was cancelled
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
        """Fill `target` with the data available, waiting for the first byte; return 0 at the end."""
        view = memoryview(target).cast("B")
        return self._take(view) if not len(view) or await self._fill() else 0

    async def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, less only at the end; all up to the current tail if `size` is negative."""
        if size < 0:
            size = max(await self.tail() - self._position, 0)
        target = memoryview(bytearray(size))
        filled = 0
        while filled < size and await self._fill():
            filled += self._take(target[filled:])
        return bytes(target[:filled])

    async def close(self) -> None:
        """Close at once; whoever waits for data gets ClosedError."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            await self._forget()
        self._stores.release(self._purpose)

    async def _begin(self) -> AsyncGenerator[memoryview, None]:
        """The bytes from here on: to the current tail, or forever if the tail is followed."""
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

    async def _info(self) -> SegmentInfo:
        timeout_s = self._stores.timeout_s  # data may be waited for longer, the server may not
        if self._timeout:
            timeout_s = min(timeout_s, self._timeout)
        async with explained(self._stores, self._segment):
            return await segment_info(self._stores, self._segment, timeout_s)


# --- what the rest of the client asks of it ---------------------------------------------------


def is_closed(reader: ByteStreamReader) -> bool:
    return reader._closed


def hands_of(reader: ByteStreamReader) -> tuple[Callable[[memoryview], int], Callable[[], Coroutine[Any, Any, bool]]]:
    """What copies that which is at hand, in any thread, and what has something at hand."""
    return reader._take, reader._fill
