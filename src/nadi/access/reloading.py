"""Values read from files that may change while the server runs: users, certificates, revocation lists.

The files are checked before each use, and read again if one has changed. If they are then invalid, an error is logged
and the previous value stays in effect, so that an unfinished edit doesn't change anyone's access.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from nadi.errors import InvalidArgumentError

log = logging.getLogger(__name__)
T = TypeVar("T")

FileStamp = tuple[tuple[int, int, int] | None, ...]


def stamp_of(paths: Sequence[Path]) -> FileStamp:
    """Return a value that differs once one of the files was changed or replaced."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class Reloaded(Generic[T]):
    """The value that `read` makes of files, which may raise InvalidArgumentError. name: for log messages."""

    def __init__(self, name: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        self._name, self._paths, self._read = name, paths, read
        self._seen = stamp_of(paths)
        self._value = read()

    def current(self) -> T:
        """Return the value of the present files, or of the last valid ones."""
        stamp = stamp_of(self._paths)
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._value = self._read()
                log.info("reloaded %s", self._name)
            except InvalidArgumentError as error:
                log.error("%s could not be reloaded, the previous contents stay in effect: %s", self._name, error)
        return self._value
