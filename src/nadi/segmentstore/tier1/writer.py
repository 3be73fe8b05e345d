"""Writing frames to the current log file and moving on to the next: the part that the writer thread runs.

Everything here blocks, and is called by one thread at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from crc32c import crc32c

from nadi.limits import MIB
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.disk import is_no_room
from nadi.segmentstore.tier1.fence import Fence, note
from nadi.segmentstore.tier1.layout import (
    BLOCK_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAX_PAYLOAD_BYTES,
    FileHeader,
    FrameHeader,
    checksum_at,
    encode_table,
    frame_bytes,
)
from nadi.segmentstore.tier1.log import Appended, LogAddress
from nadi.segmentstore.tier1.recovery import LogFile
from nadi.segmentstore.tier1.supply import FileSupply

_STAGING_BYTES = 5 * MIB  # a full frame (limits.FRAME_MAX_BYTES) and what may be added to it
_LARGE_BYTES = 64 * MIB  # more than the largest frame
_PLENTY_BYTES = 1 << 62
_SMALL_PART_BYTES = 2048  # below this, one join is faster than a copy each


class FrameWriter:
    """Writes frame after frame, each durable before `write` returns.

    `on_new_file` is called with each file before its first frame is written.
    """

    def __init__(
        self,
        log_id: bytes,
        fence: Fence,
        supply: FileSupply,
        on_new_file: Callable[[LogFile], None],
    ) -> None:
        self._log_id, self._fence, self._supply = log_id, fence, supply
        self._log_crc = crc32c(log_id)
        self._on_new_file = on_new_file
        self._next_number = 0  # known at `prepare`
        self._file: LogFile | None = None
        self._file_bytes = 0
        self._in_kept = False  # whether the current file is the one that was kept aside
        self._fd = -1
        self._staging = disk.aligned_buffer(_STAGING_BYTES)

    def write(self, parts: Sequence[bytes], sequence: int) -> Appended:
        """Make a frame durable.

        Raises:
            OSError: the frame may be on disk in full, in part, or not at all.
            ClosedError: another owner has opened the log.
        """
        head, data = (parts[0], parts[1:]) if parts else (b"", parts)
        payload_bytes = sum(map(len, parts))
        assert payload_bytes <= FRAME_MAX_PAYLOAD_BYTES, "the size field has 32 bits"
        size = frame_bytes(payload_bytes, len(data))
        self._fence.check()
        file = self._file
        if file is None or not self._fits(file, size):
            file = self._next_file(sequence)
        offset, place = file.end, file.end + FRAME_HEADER_BYTES
        table, checksums = encode_table(data, self._log_crc, file.number, place + len(head))
        frame = self._stage([*parts, table], payload_bytes + len(table), size)
        header = FrameHeader(
            payload_bytes,
            sequence,
            file.epoch,
            file.number,
            offset,
            len(head),
            checksum_at(head, self._log_crc, file.number, place),
            len(data),
            checksum_at(table, self._log_crc, file.number, place + payload_bytes),
        )
        header.encode_into(frame, self._log_crc)
        disk.write_all(self._fd, frame, offset)
        os.fdatasync(self._fd)
        self._fence.check()
        file.end = offset + size
        file.size_bytes = max(file.size_bytes, file.end)
        return Appended(LogAddress(sequence, file.number, place), checksums)

    def begin(self, sequence: int) -> None:
        """Move on to this owner's first file, whose header is then durable; a frame of that number will be its first.

        Raises: as `write`.
        """
        self._fence.check()
        if self._file is None:
            self._next_file(sequence)

    def has_room(self, payload_bytes: int, parts: int = 0) -> bool:
        """Whether such a frame fits the current file: then `write` waits for nothing but the disk."""
        return self._file is not None and self._fits(self._file, frame_bytes(payload_bytes, parts))

    def _fits(self, file: LogFile, size: int) -> bool:
        if self._in_kept and self._supply.ready is not None:
            return False  # there is room again
        if file.end == BLOCK_BYTES:
            return True  # an empty one is enlarged if needed
        return file.end + size <= self._file_bytes

    def is_settled(self, payload_bytes: int) -> bool:
        """Whether it is known that there is room for such a frame, or that there is none."""
        supply = self._supply
        return supply.ready is not None or supply.failure is not None or self.has_room(payload_bytes)

    @property
    def sure_bytes(self) -> int:
        """As in `DurableLog`: what the rest of the current file takes."""
        if self._file is None or self._in_kept:
            return 0
        return self._file_bytes - self._file.end - 2 * BLOCK_BYTES

    def room_bytes(self, of_kept: float) -> int:
        """As in `DurableLog`."""
        supply = self._supply
        if not supply.is_full:
            if supply.ready is None or supply.ready.size_bytes >= _LARGE_BYTES:
                return _PLENTY_BYTES
            # a frame that is larger than its file makes it larger
            return max(supply.ready.size_bytes, self._rest_bytes(of_kept), supply.room_to_spare()) - 2 * BLOCK_BYTES
        return max(self._rest_bytes(of_kept), int(of_kept * supply.kept_bytes) - BLOCK_BYTES) - BLOCK_BYTES

    def _rest_bytes(self, of_kept: float) -> int:
        """What is left of the current file for frames that may use that much of what is kept aside."""
        if self._file is None:
            return 0
        not_theirs = int((1 - of_kept) * self._file_bytes) if self._in_kept else 0
        return self._file_bytes - self._file.end - not_theirs

    def prepare(self, number: int) -> None:
        """Have the first file made ready, under that number."""
        self._next_number = number
        self._supply.request(number)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _next_file(self, first_sequence: int) -> LogFile:
        """Move on to a new file. Its header is durable before any frame: recovery relies on that."""
        prepared = self._supply.take()
        self.close()
        assert prepared.number == self._next_number, "files are taken in the order they were requested"
        self._fd, self._file_bytes, self._in_kept = prepared.fd, prepared.size_bytes, prepared.is_kept
        header = FileHeader(self._log_id, prepared.number, first_sequence, self._fence.epoch, prepared.size_bytes)
        block = disk.aligned_buffer(BLOCK_BYTES)
        block[:] = header.encode()
        disk.write_all(self._fd, memoryview(block), 0)
        os.fdatasync(self._fd)
        self._note_latest(prepared.path.parent)
        self._next_number += 1
        self._supply.request(self._next_number)
        self._file = LogFile(
            prepared.number, prepared.path, first_sequence, header.epoch, BLOCK_BYTES, prepared.size_bytes
        )
        self._on_new_file(self._file)
        return self._file

    def _note_latest(self, folder: Path) -> None:
        try:
            note(folder, self._log_id, self._next_number)
        except OSError as error:
            if not is_no_room(error):
                raise  # else it is noted with the next file: what can be done on a full disk comes first

    def _stage(self, parts: Sequence[bytes], parts_bytes: int, size: int) -> memoryview:
        """The frame in aligned memory, its header still to be filled in."""
        if size > len(self._staging) or len(self._staging) > _STAGING_BYTES:
            self._staging = disk.aligned_buffer(max(size, _STAGING_BYTES))
        frame = memoryview(self._staging)[:size]
        position = FRAME_HEADER_BYTES
        if parts_bytes < _SMALL_PART_BYTES * len(parts):
            parts = [b"".join(parts)]
        for part in parts:
            frame[position : position + len(part)] = part
            position += len(part)
        frame[position:] = bytes(size - position)
        return frame
