"""Byte streams as files: blocking `io.RawIOBase` classes over the readers and writers of `nadi.client.bytestream`.

They work wherever Python takes a binary file: `io.BufferedReader`, `io.TextIOWrapper`, `shutil.copyfileobj`, `zipfile`,
`pyarrow`. Buffered bytes are returned in the caller's thread; only the next block is awaited in the client's. Wrap
small writes in `io.BufferedWriter(writer, 1 << 20)`.
"""

from __future__ import annotations

import io
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nadi.client import aio
from nadi.client.blocking.face import Face, waits
from nadi.client.bytestream.byte_reader import hands_of
from nadi.client.bytestream.byte_writer import check_lost, is_closed
from nadi.client.control.loop_thread import LoopThread
from nadi.errors import ClosedError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class ByteStreamReader(Face[aio.ByteStreamReader], io.RawIOBase):
    """A file that reads a byte stream, created by `StreamManager.create_byte_reader`; not for concurrent use."""

    head = waits(aio.ByteStreamReader.head)
    tail = waits(aio.ByteStreamReader.tail)

    def __init__(self, thread: LoopThread, core: aio.ByteStreamReader) -> None:
        super().__init__(thread, core)
        self._take, self._fill = hands_of(core)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True: all offsets from the head on."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read available bytes into `buffer`, waiting for the first; return their number, 0 at the end."""
        self._check_open()
        view = memoryview(buffer).cast("B")
        count = self._take(view)
        if count == 0 and len(view) and self._thread.run(self._fill()):
            count = self._take(view)
        return count

    def readall(self) -> bytes:
        """Return everything up to the current tail."""
        self._check_open()
        return self._thread.run(self._core.read())

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to an offset relative to the stream's start, the position, or the current tail."""
        self._check_open()
        return self._thread.run(self._core.seek(offset, whence))

    def tell(self) -> int:
        """Return the offset of the next byte, counted from the first byte ever written."""
        self._check_open()
        return self._core.tell()

    def close(self) -> None:
        """Close immediately; a pending read in another thread raises ClosedError."""
        if not self.closed:
            with suppress(ClosedError):  # already closed with the client
                self._thread.run(self._core.close())
        super().close()

    def __del__(self) -> None:
        """Do nothing: the garbage collector may run in the client's thread or at the program's end."""

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the reader of {self._core.scope}/{self._core.stream} was closed")


class ByteStreamWriter(Face[aio.ByteStreamWriter], io.RawIOBase):
    """A file that writes a byte stream; `flush` returns once everything is on the server's disk.

    Created by `StreamManager.create_byte_writer`; not for concurrent use.
    """

    truncate_before = waits(aio.ByteStreamWriter.truncate_before)

    def __init__(self, thread: LoopThread, core: aio.ByteStreamWriter, timeout: float | None) -> None:
        super().__init__(thread, core)
        self._timeout = timeout

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Accept all of `data`, waiting while too many bytes are pending; TypeError for anything but a buffer."""
        self._check_open()
        copied = data if isinstance(data, bytes) else memoryview(data).tobytes()
        return self._thread.run(self._core.write(copied, self._timeout))

    def flush(self) -> None:
        """Return once everything written so far is on the server's disk; RequestTimeoutError after the timeout."""
        if not self.closed and not is_closed(self._core):
            self._thread.run(self._core.flush(self._timeout))

    def tell(self) -> int:
        """Return the offset of the next byte written."""
        self._check_open()
        return self._core.tell()

    def close(self) -> None:
        """Flush, then close; raises the error that prevented bytes from being stored."""
        if self.closed:
            return
        try:
            if is_closed(self._core):  # closed with the client
                check_lost(self._core)
            else:
                self._thread.run(self._core.close(self._timeout))
        finally:
            super().close()

    def close_and_seal(self) -> None:
        """Close and seal the stream: it can't be written to any more, and readers reach its end."""
        self._check_open()
        try:
            self._thread.run(self._core.close_and_seal(self._timeout))
        finally:
            super().close()

    def __del__(self) -> None:
        """Do nothing: written bytes are stored as long as the client lives."""

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the writer of {self._core.scope}/{self._core.stream} was closed")
