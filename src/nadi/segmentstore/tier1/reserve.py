"""Room that a log keeps for its own opening on a full disk.

To open a log a few blocks must be written (the epoch that keeps its former owner out), and a disk can be
full to the last of them: then a container that failed for want of room could not even be read again
before somebody makes some. So a small file is kept beside the log, and given up when it comes to that.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from nadi.limits import LOG_RESERVE_BYTES
from nadi.segmentstore.tier1 import disk

RESERVE_FILE = "reserve"
_logger = logging.getLogger(__name__)


def keep_reserve(folder: Path) -> None:
    """Make the reserve, if it isn't there and there is room for it."""
    path = folder / RESERVE_FILE
    if path.exists():
        return
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(bytes(LOG_RESERVE_BYTES))
        temporary.rename(path)
        disk.sync_folder(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno != errno.ENOSPC:
            raise


def give_up_reserve(folder: Path) -> bool:
    """Free the reserve's room; False if it was given up already."""
    try:
        (folder / RESERVE_FILE).unlink()
    except FileNotFoundError:
        return False
    _logger.warning("the disk of %s is full: its reserve is given up to open the log", folder)
    return True
