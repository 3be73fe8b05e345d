"""Fences owners of a log of files, by the `epoch` file: one line `nadi-log-epoch <log id> <epoch> <crc>`.

Opening a log replaces the file by one with the next epoch, before anything is read. An owner keeps its file open and
checks, before and after each write, that the name still refers to it: if not, the write isn't acknowledged. The new
owner starts a new log file, so a late write of the old owner can't overwrite its frames.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Self

from nadi.errors import ClosedError
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.segmentstore.tier1.disk import read_line, replace_line, sync_folder, write_all

EPOCH_FILE, LATEST_FILE = "epoch", "latest"
_LINE = re.compile(r"nadi-log-epoch ([0-9a-f]{32}) (\d+)")
_LATEST_BYTES = 512
_LATEST_LINE = re.compile(rb"nadi-log-latest ([0-9a-f]{32}) (\d+)")
_logger = logging.getLogger(__name__)


def read_epoch(folder: Path) -> tuple[bytes, int] | None:
    """Return the log's id and the latest owner's epoch, or None without an intact epoch file."""
    try:
        match = _LINE.fullmatch(read_line(folder / EPOCH_FILE))
    except FileNotFoundError:
        return None
    if match is None:
        _logger.warning("%s is damaged: the epoch is taken from the log files", folder / EPOCH_FILE)
        return None
    return bytes.fromhex(match[1]), int(match[2])


class Fence:
    """An owner's fence: `check` raises ClosedError once another owner has opened the log."""

    def __init__(self, folder: Path, epoch: int, fd: int) -> None:
        self.epoch = epoch
        self._path = folder / EPOCH_FILE
        self._fd = fd  # kept open, so that no later file can get the same inode
        status = os.fstat(fd)
        self._identity = (status.st_dev, status.st_ino)

    @classmethod
    def take(cls, folder: Path, log_id: bytes, epoch: int) -> Self:
        """Become the owner with that epoch, durably."""
        replace_line(folder / EPOCH_FILE, f"nadi-log-epoch {log_id.hex()} {epoch}")
        return cls(folder, epoch, os.open(folder / EPOCH_FILE, os.O_RDONLY | os.O_CLOEXEC))

    def check(self) -> None:
        status = os.stat(self._path)
        if (status.st_dev, status.st_ino) != self._identity:
            raise ClosedError(
                f"the log {self._path.parent} was opened by another owner (this one had epoch {self.epoch}): "
                "open it again if this server still owns it"
            )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def latest(folder: Path, log_id: bytes | None) -> int:
    """Return the number of the last file in use, 0 if unknown. log_id: None accepts any log's."""
    try:
        line = value_of((folder / LATEST_FILE).read_bytes().rstrip(b" ")) or b""
    except FileNotFoundError:
        return 0
    match = _LATEST_LINE.fullmatch(line)
    return int(match[2]) if match is not None and log_id in (None, bytes.fromhex(match[1].decode())) else 0


def note(folder: Path, log_id: bytes, number: int) -> None:
    """Record, durably, that file `number` is in use; blocking. The file is overwritten in place, so this works on a
    full disk; if that write is torn, the number is unknown until the next one. OSError: the disk fails, or is full and
    the file is new."""
    path = folder / LATEST_FILE
    is_new = not path.exists()
    line = line_of(b"nadi-log-latest %s %d" % (log_id.hex().encode(), number))
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, memoryview(line.ljust(_LATEST_BYTES)), 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    if is_new:
        sync_folder(folder)
