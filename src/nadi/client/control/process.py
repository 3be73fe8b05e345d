"""The process that a client belongs to."""

from __future__ import annotations

import os

from nadi.errors import ClosedError


class OwnProcess:
    """The process that created this object. In a process forked from it, no part of the client works."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_this(self) -> bool:
        return os.getpid() == self._id

    def check(self) -> None:
        """Raise ClosedError in any other process."""
        if os.getpid() != self._id:
            raise ClosedError(
                "this client was made before the process forked, and its thread stayed behind: "
                "start processes by multiprocessing's spawn or forkserver, and make a client in each"
            )
