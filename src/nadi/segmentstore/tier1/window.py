"""A file read from front to back through aligned memory, the next piece while the last is looked at.

Read past the page cache where that is possible: then what recovery sees is what the disk holds, even
after a failed sync has left pages in the cache that were never written.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from nadi.limits import MIB
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, padded

_PIECE_BYTES = 4 * MIB
_HEADROOM_BYTES = 5 * MIB  # before a piece: what is still needed of the one before (a full frame at most)


class Window:
    """`open` a file, then `view` it at positions that never go back; `close` at the end of all files."""

    def __init__(self, *, direct: bool) -> None:
        self._direct = direct
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="nadi-log-reader")
        self._buffers = [disk.aligned_buffer(_HEADROOM_BYTES + _PIECE_BYTES) for _ in range(2)]
        self._current = 0  # the buffer that `_data` lies in; the other one is read into
        self._data = memoryview(b"")  # bytes `_end - len(_data)` to `_end` of the file
        self._end = 0
        self._size = 0
        self._fd = -1
        self._ahead: Future[int] | None = None

    def open(self, path: Path) -> None:
        self._let_go()
        self._fd = disk.open_file(path, os.O_RDONLY, direct=self._direct)
        self._size = os.fstat(self._fd).st_size
        self._data, self._end = memoryview(b""), 0
        self._read_ahead()

    def view(self, position: int, length: int) -> memoryview:
        """The bytes there, fewer at the end of the file; valid until the next call."""
        while position + length > self._end and self._ahead is not None:
            self._move_to(position)
        begin = max(0, position - (self._end - len(self._data)))
        return self._data[begin : begin + length]

    def close(self) -> None:
        self._let_go()
        self._reader.shutdown()
        self._data = memoryview(b"")
        self._buffers.clear()  # they are large, and the log lives on

    def _move_to(self, position: int) -> None:
        """Keep what was read from `position` on, and put the next piece after it."""
        assert self._ahead is not None
        count = self._ahead.result()
        self._current = 1 - self._current
        buffer = memoryview(self._buffers[self._current])
        kept = self._data[max(0, len(self._data) - max(0, self._end - position)) :]
        if len(kept) <= _HEADROOM_BYTES:
            begin = _HEADROOM_BYTES - len(kept)
            data = buffer[begin : _HEADROOM_BYTES + count]
            data[: len(kept)] = kept
        else:  # inside a giant frame
            data = memoryview(b"".join([kept, buffer[_HEADROOM_BYTES : _HEADROOM_BYTES + count]]))
        self._data = data
        self._end += count
        self._ahead = None
        if count == _PIECE_BYTES:
            self._read_ahead()

    def _read_ahead(self) -> None:
        buffer = self._buffers[1 - self._current]
        self._ahead = self._reader.submit(self._read, buffer, self._fd, self._end, self._size)

    @staticmethod
    def _read(buffer: mmap.mmap, fd: int, offset: int, size: int) -> int:
        done, wanted = 0, min(_PIECE_BYTES, padded(max(0, size - offset)))
        piece = memoryview(buffer)[_HEADROOM_BYTES : _HEADROOM_BYTES + wanted]
        while done < wanted:
            count = os.preadv(fd, [piece[done:]], offset + done)
            done += count
            if not count or count % BLOCK_BYTES:
                break  # the end of the file
        return done

    def _let_go(self) -> None:
        if self._ahead is not None:
            with contextlib.suppress(OSError):  # nobody looks at that piece any more
                self._ahead.result()
        self._ahead = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
