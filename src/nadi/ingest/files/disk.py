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


class State(NamedTuple):
    """What changes when a file is written to."""

    size: int
    changed_ns: int


class Seen(NamedTuple):
    """A file by a name that it has."""

    path: str
    state: State


@dataclass(frozen=True, slots=True)
class Head:
    """A part of a file to know it by, as how it begins: a digest of `size` bytes."""

    size: int
    digest: str

    @classmethod
    def of(cls, data: bytes) -> Head:
        return cls(len(data), _digest(data))


class OpenFile:
    """A regular file that is open for reading, and stays the same through renames and its deletion."""

    def __init__(self, path: str | Path) -> None:
        """OSError if it isn't there, or isn't one."""
        self.path = str(path)
        self.folder = folder_of(self.path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._fd)
            raise OSError(f"{path} is not a regular file")
        self.id = _id(found)

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    @property
    def state(self) -> State:
        return _state(os.fstat(self._fd))

    @property
    def is_deleted(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def read(self, at: int, size: int) -> bytes:
        return os.pread(self._fd, size, at)

    def head(self) -> Head:
        """How it begins now."""
        return Head.of(self.read(0, HEAD_BYTES))

    def is_worth_knowing(self) -> bool:
        """Whether it has a line by which to know it again, or no more comes of its first one."""
        data = self.read(0, HEAD_BYTES)
        is_quiet = time.time() - os.fstat(self._fd).st_mtime > INGEST_QUIET_S
        return b"\n" in data or len(data) == HEAD_BYTES or (bool(data) and is_quiet)

    def begins_so(self, head: Head) -> bool:
        data = self.read(0, head.size)
        return len(data) == head.size and _digest(data) == head.digest

    def has_before(self, at: int, part: Head) -> bool:
        """Whether that part of it ends there."""
        data = self.read(at - part.size, part.size)
        return len(data) == part.size and _digest(data) == part.digest

    def is_copy_of(self, other: OpenFile) -> bool:
        """Whether all of it is the beginning of another file beside it: a copy that is being made of it."""
        size = self.size
        if self.folder != other.folder or size > other.size:
            return False
        if self.read(0, HEAD_BYTES) != other.read(0, min(size, HEAD_BYTES)):
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


def _state(found: os.stat_result) -> State:
    return State(found.st_size, found.st_mtime_ns)


def folder_of(path: str) -> str:
    """Where a file really is, if its path is a link, or goes through one."""
    return os.path.dirname(os.path.realpath(path))


def matching(patterns: Iterable[str]) -> dict[FileId, Seen]:
    """The regular files that match, by what they are: paths, globs, and folders, which stand for all files in them."""
    found: dict[FileId, Seen] = {}
    for pattern in map(os.path.abspath, patterns):
        paths = [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern, recursive=True))
        for path in paths:
            add_seen(found, siblings_in(path) if os.path.isdir(path) else [path])
    return found


def add_seen(found: dict[FileId, Seen], paths: Iterable[str]) -> None:
    """Those of the paths that are files to read, and aren't there by another name."""
    for path in paths:
        if (stated := _stated(path)) is not None:
            found.setdefault(_id(stated), Seen(path, _state(stated)))


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
    stated = _stated(path)
    return _id(stated) if stated is not None else None


def _stated(path: str) -> os.stat_result | None:
    if path.endswith(_COMPRESSED):
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _id(stated: os.stat_result) -> FileId:
    return FileId(stated.st_dev, stated.st_ino)
