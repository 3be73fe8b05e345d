"""The folder on a cluster's server where its copies of states are: empty at each start, for others may have had the
containers since."""

from __future__ import annotations

import shutil
from pathlib import Path

from nadi.errors import DataFolderError
from nadi.segmentstore.datafolder import FolderLock, find_format

_COPIES = "copies"


def emptied_cache(folder: Path) -> tuple[FolderLock, Path]:
    """Empty what a former server left there; return the lock on the folder, and the folder in it for copies. Blocking.

    Raises:
        DataFolderLockedError: another server uses it.
        DataFolderError: it has the data of a server without a cluster; nothing is changed.
    """
    if find_format(folder).format is not None:
        raise DataFolderError(
            f"{folder} has the data of a server without a cluster: give the cache a folder of its own"
        )
    lock = FolderLock(folder)
    try:
        shutil.rmtree(folder / _COPIES, ignore_errors=True)
    except BaseException:
        lock.release()
        raise
    return lock, folder / _COPIES
