"""Byte streams as files: `io.RawIOBase` over the readers and writers of `byte_stream`, for threads.

They work wherever Python takes a binary file: `io.BufferedReader`, `io.TextIOWrapper`, `shutil.copyfileobj`,
`zipfile`, `pyarrow`. What was received is handed out in the caller's own thread; only for the next block does
it wait for the client's. Wrap small writes in `io.BufferedWriter(writer, 1 << 20)`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from nadi.client.blocking.loop_thread import LoopThread
from nadi.client.bytestream import byte_stream
from nadi.errors import ClosedError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class ByteStreamReader(io.RawIOBase):
    """See nadi.client.aio.ByteStreamReader."""

    def __init__(self, thread: LoopThread, core: byte_stream.ByteStreamReader) -> None:
        self._thread, self._core = thread, core

    def readable(self) -> bool:
        """True: it reads."""
        return True

    def seekable(self) -> bool:
        """True: `seek` goes anywhere from the head on."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` as far as data is at hand, waiting for the first byte; 0 at the end."""
        self._check_open()
        view = memoryview(buffer).cast("B")
        taken = self._core.take(view)
        if taken == 0 and len(view) and self._thread.run(self._core.fill()):
            taken = self._core.take(view)
        return taken

    def readall(self) -> bytes:
        """Everything up to the present tail."""
        self._check_open()
        return self._thread.run(self._core.read())

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to an offset from the stream's beginning, from here, or from its present tail."""
        self._check_open()
        return self._thread.run(self._core.seek(offset, whence))

    def tell(self) -> int:
        """The offset of the next byte, from the first that the stream ever had."""
        self._check_open()
        return self._core.tell()

    def head(self) -> int:
        """The first offset that can be read: what lies before was truncated away."""
        return self._thread.run(self._core.head())

    def tail(self) -> int:
        """Where the stream ends now."""
        return self._thread.run(self._core.tail())

    def close(self) -> None:
        """End at once, also for who waits in a read."""
        if not self.closed:
            _unless_closed(self._thread, self._core.close())
        super().close()

    def __del__(self) -> None:
        """Not closed by the garbage collector, which may run in the client's thread or at the program's end."""

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the reader of {self._core.scope}/{self._core.stream} was closed")


class ByteStreamWriter(io.RawIOBase):
    """See nadi.client.aio.ByteStreamWriter. `flush` returns once everything is on the server's disk."""

    def __init__(self, thread: LoopThread, core: byte_stream.ByteStreamWriter, timeout: float | None) -> None:
        self._thread, self._core, self._timeout = thread, core, timeout

    def writable(self) -> bool:
        """True: it writes."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Take all of `data`, waiting while too much is not stored yet; TypeError for what is no buffer."""
        self._check_open()
        taken = data if isinstance(data, bytes) else memoryview(data).tobytes()
        return self._thread.run(self._core.write(taken, self._timeout))

    def flush(self) -> None:
        """Return once everything written so far is on the server's disk; RequestTimeoutError after the timeout."""
        if not self.closed and not self._core.is_closed:
            self._thread.run(self._core.flush(self._timeout))

    def tell(self) -> int:
        """Where the next written byte goes."""
        self._check_open()
        return self._core.tell()

    def truncate_before(self, offset: int) -> None:
        """Forget the bytes before `offset`; they can't be read any more."""
        self._thread.run(self._core.truncate_before(offset))

    def close(self) -> None:
        """Flush, then end; raises what kept bytes from being stored."""
        if self.closed:
            return
        try:
            if self._core.is_closed:  # with the client
                self._core.check_lost()
            else:
                self._thread.run(self._core.close(self._timeout))
        finally:
            super().close()

    def close_and_seal(self) -> None:
        """Close, and let nobody write to the stream any more: readers come to its end."""
        self._check_open()
        try:
            self._thread.run(self._core.close_and_seal(self._timeout))
        finally:
            super().close()

    def __del__(self) -> None:
        """Not closed by the garbage collector: what was written is stored as long as the client lives."""

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the writer of {self._core.scope}/{self._core.stream} was closed")


def _unless_closed(thread: LoopThread, work: Coroutine[Any, Any, None]) -> None:
    try:
        thread.run(work)
    except ClosedError:
        pass  # the client, closed before, has closed this
