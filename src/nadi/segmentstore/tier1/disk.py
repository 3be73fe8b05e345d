"""Wraps the operating system calls of a log in files.

Direct I/O (`O_DIRECT`) bypasses the page cache: measured 2 to 3 times as fast as buffered writing at a fraction of the
CPU, but memory, offsets and sizes must be multiples of blocks. If a file system refuses it, writing is buffered.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from nadi.durable_io import is_disk_full as is_disk_full
from nadi.durable_io import sync_folder as sync_folder
from nadi.durable_io import write_all as write_all
from nadi.limits import DISK_RESERVED_BYTES, DISK_RESERVED_PART, MIB
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.segmentstore.tier1.layout import BLOCK_BYTES

_ZEROS_BYTES = MIB


def aligned_buffer(size_bytes: int) -> mmap.mmap:
    """Return zeroed, page-aligned memory, as required by O_DIRECT."""
    return mmap.mmap(-1, size_bytes)


def supports_direct(folder: Path) -> bool:
    """Return whether O_DIRECT works in `folder`: some file systems refuse at open, some at the first write."""
    if not hasattr(os, "O_DIRECT"):
        return False
    probe = folder / f"probe-{os.getpid()}.tmp"
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            os.pwrite(fd, aligned_buffer(BLOCK_BYTES), 0)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP):
            return False
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            probe.unlink()
    return True


def open_file(path: Path, flags: int, *, direct: bool) -> int:
    return os.open(path, flags | os.O_CLOEXEC | (os.O_DIRECT if direct else 0), 0o600)


def open_for_reading(path: Path) -> int:
    """Open a file for single reads: through the page cache, without read-ahead."""
    fd = open_file(path, os.O_RDONLY, direct=False)
    # Read-ahead would cache blocks that are not written yet.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd


def write_zeros(fd: int, size_bytes: int, pause: Callable[[], object] = lambda: None) -> None:
    """Fill a new file, so that later writes allocate nothing (fallocate leaves slow, unwritten extents). `pause` is
    called after each piece, to yield the disk."""
    zeros = memoryview(aligned_buffer(min(_ZEROS_BYTES, size_bytes)))
    for offset in range(0, size_bytes, len(zeros)):
        write_all(fd, zeros[: size_bytes - offset], offset)
        pause()
    os.fdatasync(fd)


def spare_bytes(folder: Path) -> int:
    """Return the bytes that the log may still take on the disk; below 0 if it has taken too many."""
    status = os.statvfs(folder)
    if not status.f_blocks:  # the file system doesn't report its size
        return 1 << 62
    kept_free = min(DISK_RESERVED_BYTES, status.f_blocks * status.f_frsize // DISK_RESERVED_PART)
    return status.f_bavail * status.f_frsize - kept_free


def allocated_bytes(path: Path) -> int:
    """Return the bytes of the disk allocated to a file: fewer than its size if it is sparse, 0 if it is missing."""
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def aside_name(name: str, now: datetime | None = None) -> str:
    """Return the new name of a file, folder or object that is set aside because it is damaged."""
    return f"{name}.damaged-{now or datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def free_name(path: Path) -> Path:
    """Return the path, with a number appended if it already exists."""
    free, count = path, 1
    while free.exists():
        count += 1
        free = path.with_name(f"{path.name}-{count}")
    return free


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file atomically: after a crash it has either the old or the new content."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, memoryview(content), 0)
        os.fsync(fd)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # free the space
        raise
    finally:
        os.close(fd)
    sync_folder(path.parent)


def replace_line(path: Path, line: str) -> None:
    """`replace_file` with one line and its checksum."""
    replace_file(path, line_of(line.encode()))


def read_line(path: Path) -> str:
    """Return the line that `replace_line` wrote; "" if it is damaged."""
    return (value_of(path.read_bytes()) or b"").decode()
