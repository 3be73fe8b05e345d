"""One file beside the log, while it is being written: the bytes of one segment, from some offset of it on, end to end.

Only whole blocks are written, and none twice, so that what was acknowledged is never written over. What a run has
beyond its last whole block is kept in its frame of the log, and carried: the next run's first block begins with it. So
are small appends that come between large ones. Then the file has no gap, and can become a chunk as it is.

    segment    …small| large run 1 ……………|r1| small |large run 2 ………|r2|
    file             |…whole blocks……|r1+small+run 2, whole blocks|
    log        small |                |r1  small                    |r2

The checksums of its MiBs are computed as they are written, for the chunk that it becomes.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from nadi.limits import MIB, RUN_CARRY_BYTES
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, pack_checksum
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)

_CARRIED_PART = 32  # of a file that ended, what it carries is no more than this part: memory for many small ones


class Piece:
    """What one frame writes to one file: what was carried, and the whole blocks of a large run.

    position: of the run in the file. length: how much of the run is there, the rest stays in the frame. checksum: of
    that part of the run, once it was written.
    """

    __slots__ = ("at", "carried", "checksum", "data", "file", "length", "position")

    def __init__(self, file: RunFile, at: int, carried: list[Buffer], data: Buffer, position: int, length: int) -> None:
        self.file, self.at, self.carried, self.data = file, at, carried, data
        self.position, self.length = position, length
        self.checksum = b""


class RunFile:
    """A prepared file, from its first run until it has become a chunk, or is of no more use."""

    def __init__(self, number: int, path: Path, fd: int, size_bytes: int, segment: int, offset: int) -> None:
        self.number, self.path = number, path
        self.segment, self.next_offset = segment, offset
        self.used_at = 0.0  # on the monotonic clock
        self.end = 0  # of the whole blocks: written, or under way
        self.closed = False  # takes no more runs
        self._fd, self._size_bytes = fd, size_bytes
        self._lock = threading.Lock()  # over the descriptor
        self._is_written = False  # a piece is, or will be right away
        self._carried: list[Buffer] = []
        self._carried_bytes = 0
        self._crcs: list[int] = []  # of whole MiBs
        self._crc = 0

    @property
    def is_settled(self) -> bool:
        """Whether it is closed, and all pieces were written."""
        return self.closed and not self._is_written

    @property
    def length(self) -> int:
        """How many of the segment's bytes it has, with those that are carried."""
        return self.end + self._carried_bytes

    def takes(self, offset: int, size: int) -> bool:
        """Whether a large run from that offset of the segment on goes on where the file ends, and fits."""
        return not self.closed and offset == self.next_offset and self.length + size <= self._size_bytes

    def carry(self, offset: int, block: Buffer) -> bool:
        """Carry a small run, which is in the log; False if that isn't possible: then the file must be closed."""
        if self.closed or offset != self.next_offset or self._carried_bytes + len(block) > RUN_CARRY_BYTES:
            return False
        self._carried.append(block)
        self._carried_bytes += len(block)
        self.next_offset += len(block)
        return True

    def add(self, block: Buffer) -> Piece:
        """A large run, which the file `takes`: say what is to be written. The rest of it is carried."""
        size = len(block)
        assert size >= BLOCK_BYTES, "a large run has a whole block"
        position, at = self.length, self.end
        self.end = (position + size) // BLOCK_BYTES * BLOCK_BYTES
        length = self.end - position
        piece = Piece(self, at, self._carried, block, position, length)
        rest = bytes(memoryview(block)[length:])  # a view would keep all of the run
        self._carried, self._carried_bytes = [rest] if rest else [], len(rest)
        self.next_offset += size
        self._is_written = True
        return piece

    def drop_carried(self) -> None:
        """Before it is closed: carry nothing, if that is much for a file of this size; it is copied from the log."""
        if self._carried_bytes > self.end // _CARRIED_PART:
            self._carried, self._carried_bytes = [], 0

    def write(self, piece: Piece, staging: memoryview) -> None:
        """Make a piece durable; blocking, one at a time. `staging` is aligned, and of the piece's size.

        Raises: OSError.
        """
        try:
            self._write(piece, staging)
        finally:
            with self._lock:
                if self.closed:
                    self._close()
                self._is_written = False  # last: whoever finds the file settled may write to its end

    def _write(self, piece: Piece, staging: memoryview) -> None:
        place = 0
        for part in [*piece.carried, memoryview(piece.data)[: piece.length]]:
            staging[place : place + len(part)] = part
            place += len(part)
        assert place == len(staging), "whole blocks"
        piece.checksum = pack_checksum(crc32c(staging[place - piece.length :]))
        disk.write_all(self._fd, staging, piece.at)
        os.fdatasync(self._fd)
        self._sum(staging, piece.at)

    def _sum(self, data: Buffer, at: int) -> None:
        """Go on with the checksums of the file's MiBs; they are not seeded."""
        view = memoryview(data)
        while view:
            left = MIB - at % MIB
            self._crc = crc32c(view[:left], self._crc)
            at += len(view[:left])
            view = view[left:]
            if not at % MIB:
                self._crcs.append(self._crc)
                self._crc = 0

    def finish(self) -> tuple[bytes, list[int]]:
        """Once it is closed, and all pieces are written: what is still carried, and the checksums of the MiBs of all of
        it, not seeded."""
        assert self.is_settled
        carried = b"".join(self._carried)
        crcs, crc = list(self._crcs), self._crc
        self._sum(carried, self.end)
        found = [*self._crcs, self._crc] if self.length % MIB else list(self._crcs)
        self._crcs, self._crc = crcs, crc  # so that it can be done again after a failure
        return carried, found

    def complete(self, tail: Sequence[Buffer]) -> None:
        """Write what follows the whole blocks, and give back what the file doesn't need; durable. Blocking.

        Raises: OSError.
        """
        data = b"".join(tail)
        fd = disk.open_file(self.path, os.O_WRONLY, direct=False)
        try:
            disk.write_all(fd, memoryview(data), self.end)
            os.ftruncate(fd, self.end + len(data))
            os.fsync(fd)
        finally:
            os.close(fd)

    def shut(self) -> None:
        """Take no more runs; close the descriptor and give back the room that is left, once no piece is being
        written."""
        with self._lock:
            self.closed = True
            if not self._is_written:
                self._close()

    def abandon(self) -> None:
        """`shut`, when no thread is writing: what was placed but not written never will be."""
        self._is_written = False
        self.shut()

    def _close(self) -> None:
        if self._fd < 0:
            return
        try:
            os.ftruncate(self._fd, self.end)  # about 50 us; it may be long until the file is a chunk, or deleted
        except OSError as error:  # nothing is lost but room: `complete` tries again
            log.warning("%s keeps room that it doesn't need: %s", self.path, error)
        fd, self._fd = self._fd, -1
        os.close(fd)
