"""The number of a log's last file in use, beside the log: without it a log whose last file is gone looks complete.

The file `latest` has two slots of 512 bytes, written alternately and in place, so that it takes no room on a full
disk and a torn write leaves the other slot: each a line `nadi-log-latest <log id> <count> <number> <crc>`; the one
with the higher count holds. It is durable before the first frame of a file. If it is missing or damaged, nothing
is known, as in logs of earlier versions.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from crc32c import crc32c

from nadi.segmentstore.tier1 import disk

LATEST_FILE = "latest"
_PLACE_BYTES = 512
_LINE = re.compile(rb"(nadi-log-latest ([0-9a-f]{32}) (\d+) (\d+)) ([0-9a-f]{8})\n *")


def latest(folder: Path, log_id: bytes | None) -> int:
    """The number of the last file that the log had in use; 0: not known. `log_id` None: of any log."""
    return _read(folder, log_id)[1]


def _read(folder: Path, log_id: bytes | None) -> tuple[int, int]:
    """Count and number."""
    try:
        text = (folder / LATEST_FILE).read_bytes()
    except FileNotFoundError:
        return 0, 0
    found = [(0, 0)]
    for begin in (0, _PLACE_BYTES):
        match = _LINE.fullmatch(text[begin : begin + _PLACE_BYTES])
        is_whole = match is not None and int(match[5], 16) == crc32c(match[1])
        if match is not None and is_whole and (log_id is None or bytes.fromhex(match[2].decode()) == log_id):
            found.append((int(match[3]), int(match[4])))
    return max(found)


def note(folder: Path, log_id: bytes, number: int) -> None:
    """Record, durably, that file `number` is in use; blocking.

    Raises:
        OSError: there was no `latest` yet, and there is no room for it; or the disk fails.
    """
    path = folder / LATEST_FILE
    count = _read(folder, log_id)[0] + 1
    line = b"nadi-log-latest %s %d %d" % (log_id.hex().encode(), count, number)
    place = b"%s %08x\n" % (line, crc32c(line))
    is_new = not path.exists()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if is_new or os.fstat(fd).st_size < 2 * _PLACE_BYTES:
            disk.write_all(fd, memoryview(bytes(2 * _PLACE_BYTES)), 0)
        disk.write_all(fd, memoryview(place.ljust(_PLACE_BYTES)), count % 2 * _PLACE_BYTES)
        os.fsync(fd)
    finally:
        os.close(fd)
    if is_new:
        disk.sync_folder(folder)


def forget(folder: Path) -> None:
    """Forget the number, for a log that an operator cuts before that file; blocking."""
    (folder / LATEST_FILE).unlink(missing_ok=True)
    disk.sync_folder(folder)
