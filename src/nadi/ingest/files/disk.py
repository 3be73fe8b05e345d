"""Files as they are on disk: which there are, and whether one is still the one it was.

A file is known by its inode and by how it begins: names change with rotation, and inodes are used again.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nadi.limits import INGEST_QUIET_S

HEAD_BYTES = 1024
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".Z", ".zip", ".lzma", ".br")
_COMPARED_BYTES = 256 * 1024


class FileId(NamedTuple):
    """Where a file is on the machine, whatever its name."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Head:
    """How a file begins: a digest of its first `size` bytes."""

    size: int
    digest: str


class OpenFile:
    """A regular file that is open for reading, and stays the same through renames and its deletion."""

    def __init__(self, path: str | Path) -> None:
        """OSError if it isn't there, or isn't one."""
        self.path = str(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._fd)
            raise OSError(f"{path} is not a regular file")
        self.id = FileId(found.st_dev, found.st_ino)

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    @property
    def is_deleted(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self._fd, size, at)

    def head(self) -> Head:
        """How it begins now."""
        data = self.read(0, HEAD_BYTES)
        return Head(len(data), _digest(data))

    def is_worth_knowing(self) -> bool:
        """Whether it has a line by which to know it again, or no more comes of its first one."""
        data = self.read(0, HEAD_BYTES)
        is_quiet = time.time() - os.fstat(self._fd).st_mtime > INGEST_QUIET_S
        return b"\n" in data or len(data) == HEAD_BYTES or (bool(data) and is_quiet)

    def begins_so(self, head: Head) -> bool:
        data = self.read(0, head.size)
        return len(data) == head.size and _digest(data) == head.digest

    def is_beginning_of(self, other: OpenFile) -> bool:
        """Whether all of it is the beginning of another file: a copy that is being made of it."""
        size = self.size
        if size > other.size:
            return False
        for at in range(0, size, _COMPARED_BYTES):
            length = min(_COMPARED_BYTES, size - at)
            if self.read(at, length) != other.read(at, length):
                return False
        return True

    def close(self) -> None:
        os.close(self._fd)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def matching(patterns: Iterable[str]) -> dict[FileId, str]:
    """The regular files that match, by what they are: paths, globs, and folders, which stand for all files in them."""
    found: dict[FileId, str] = {}
    for pattern in patterns:
        paths = [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern, recursive=True))
        for path in paths:
            for one in siblings_in(path) if os.path.isdir(path) else [path]:
                if (known := identity(one)) is not None:
                    found.setdefault(known, one)
    return found


def siblings_in(folder: str) -> Iterator[str]:
    """The paths in a folder."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        yield os.path.join(folder, name)


def identity(path: str) -> FileId | None:
    """Of a regular file that isn't compressed; None for anything else."""
    if path.endswith(_COMPRESSED):
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileId(found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None
