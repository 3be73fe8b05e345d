"""Reading a chunk that is a file here: a thread reads a piece and checks it while it is in the processor's cache."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
from crc32c import crc32c

from nadi.limits import KIB
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES, is_right, seed_of

_PIECE_BYTES = 256 * KIB


def read_checked(path: Path, name: str, position: int, length: int, checksums: bytes) -> tuple[memoryview, list[int]]:
    """Return bytes of the chunk of that name, fewer if it is shorter, and which blocks aren't what was stored.

    position: where a block begins. checksums: of the whole chunk, or none. Blocking; OSError if the disk fails.
    """
    data = np.empty(length, np.uint8).data  # doesn't clear the memory
    damaged: list[int] = []
    read = 0
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place would make it wait
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EIO, "it is no file")
        for begin in range(0, length, BLOCK_BYTES):
            number, end = (position + begin) // BLOCK_BYTES, min(begin + BLOCK_BYTES, length)
            checksum = seed_of(name, number)
            while read < end:
                piece = data[read : min(read + _PIECE_BYTES, end)]
                count = os.preadv(file, [piece], position + read)
                if not count:
                    break
                checksum = crc32c(piece[:count], checksum)
                read += count
            if read < end or not is_right(checksums, number, checksum):
                damaged.append(number)
    finally:
        os.close(file)
    return data[:read], damaged
