"""Chunks that are files here: making them durable, and giving a file that exists a second name as a chunk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def adopt(root: Path, file: Path, name: str, complete: Callable[[], None]) -> None:
    """`complete` the file, and make it the chunk of that name in the folder `root`, durably; blocking.

    Raises: OSError.
    """
    complete()
    path = root / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.link(file, path)
    sync(root, path)


def sync(root: Path, file: Path) -> None:
    """Make a file of the folder `root` durable, and the folders that lead to it; blocking.

    Raises: OSError.
    """
    for path in (file, *file.parents):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            mode = 0o600 if path is file else 0o700  # `obstore` leaves it to the umask
            if os.fstat(descriptor).st_mode & 0o777 != mode:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path == root:
            return
