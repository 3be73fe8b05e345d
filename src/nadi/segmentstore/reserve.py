"""Reserves disk space for opening a container and for its state.

A recovery writes a few blocks before anything can be read, and a checkpoint before space in the log can be freed. A
container releases the reserve while it is opened, or while a checkpoint would fail without it, and reserves it again as
soon as there is space.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import lmdb

from nadi.errors import NadiError, StorageFullError, UnavailableError
from nadi.limits import KIB
from nadi.segmentstore.tier1 import disk

FULL_BELOW_BYTES = 1024 * KIB
RESERVE_BYTES = 256 * KIB  # a new epoch file, a probe of the file system, changes of folders, a small checkpoint
_FILE = "reserve"
log = logging.getLogger(__name__)


def release(folder: Path) -> bool:
    """Release the reserved space; return False if there is none."""
    path = folder / _FILE
    had = disk.allocated_bytes(path) > 0
    path.unlink(missing_ok=True)
    return had


def is_disk_full(error: Exception, folder: Path) -> bool:
    if isinstance(error, (lmdb.DiskError, StorageFullError)):
        return True
    if isinstance(error, OSError) and not isinstance(error, NadiError):
        return disk.is_disk_full(error)
    # LMDB reports a write cut short by a full disk as an input/output error
    return isinstance(error, (lmdb.Error, UnavailableError)) and free_bytes(folder) < FULL_BELOW_BYTES


@contextlib.contextmanager
def mapped_errors(folder: Path) -> Iterator[None]:
    """Map errors while a command writes to a folder. StorageFullError: the disk is full. UnavailableError: the disk
    fails."""
    try:
        yield
    except (lmdb.Error, OSError, UnavailableError) as error:
        if isinstance(error, StorageFullError):
            raise
        if is_disk_full(error, folder):
            message = f"no space in {folder} ({error}): free space on its disk, then try again"
            raise StorageFullError(message) from error
        if isinstance(error, lmdb.Error):
            message = f"the state in {folder} can't be written ({error}): check its disk, then try again"
            raise UnavailableError(message) from error
        raise


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def take(folder: Path) -> None:
    if disk.allocated_bytes(folder / _FILE) >= RESERVE_BYTES:
        return
    try:
        descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        if not disk.is_disk_full(error):
            raise
        log.info("no space reserved in %s: %s", folder, error)
