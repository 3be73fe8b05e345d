"""Durable writes of files and folder entries, and detection of a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        count = os.pwrite(fd, data[done:], offset + done)
        if count <= 0:
            raise OSError(errno.EIO, "the disk wrote no bytes")
        done += count


def sync_folder(folder: Path) -> None:
    """Make created, renamed and deleted names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_disk_full(error: object) -> bool:
    """Return whether the error means that the disk is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
