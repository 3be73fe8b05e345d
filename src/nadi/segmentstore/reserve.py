"""Room kept aside for opening a container: a recovery writes a few blocks before anything can be read.

Writers fill a disk to its last block, and the container whose write failed recovers from what is on disk. It
gives this room up for that moment, and takes it again once it is open; so on a full disk reading goes on.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from nadi.limits import KIB

_FULL_BELOW_BYTES = 1024 * KIB
RESERVE_BYTES = 64 * KIB  # a new epoch file, a probe of the file system, changes of folders: some blocks each
_FILE = "reserve"
log = logging.getLogger(__name__)


def release(folder: Path) -> bool:
    """Give the room up; False if there was none."""
    path = folder / _FILE
    had = _held_bytes(path) > 0
    path.unlink(missing_ok=True)
    return had


def disk_is_full(folder: Path) -> bool:
    """Whether there is next to no room: LMDB tells a write cut short by a full disk as an input/output error."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize < _FULL_BELOW_BYTES


def _held_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def take(folder: Path) -> None:
    """Take the room, where there is any and it isn't held already."""
    if _held_bytes(folder / _FILE) >= RESERVE_BYTES:
        return
    descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.info("no room is kept aside in %s: %s", folder, error)
    finally:
        os.close(descriptor)
