"""Recurring warnings, throttled so that nobody can fill the disk with them.

`SeldomWarning` is for what strangers can cause: at most one line a second. `Complaints` are for what is retried
until it is fixed: a line when it starts, and when it changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cachetools import LRUCache

from nadi.errors import NadiError

EVERY_S = 1.0
_REMEMBERED = 1_000  # things whose current problem is remembered


class SeldomWarning:
    """Called for each occurrence. A line is `text`, which takes the number of occurrences since the last line, and
    then the arguments of this call."""

    def __init__(self, logger: logging.Logger, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._text = text
        self._clock = clock
        self._logged_at = clock() - EVERY_S
        self._unlogged = 0

    def __call__(self, *values: object) -> None:
        self._unlogged += 1
        now = self._clock()
        if now - self._logged_at >= EVERY_S:
            self._logger.warning(self._text, self._unlogged, *values)
            self._logged_at, self._unlogged = now, 0


class Complaints:
    """What is wrong with each thing, logged once. text: what that means, with a place for the thing."""

    def __init__(self, logger: logging.Logger, text: str) -> None:
        self._logger = logger
        self._text = text
        self._told: LRUCache[str, str] = LRUCache(_REMEMBERED)

    def tell(self, thing: str, error: Exception) -> None:
        """Log the error, unless it is the last one logged for this thing."""
        what = f"{type(error).__name__}: {error}"
        if self._told.get(thing) != what:
            self._told[thing] = what
            unforeseen = error if not isinstance(error, NadiError) else None
            self._logger.warning(f"{self._text}: %s", thing, what, exc_info=unforeseen)

    def settled(self, thing: str) -> None:
        self._told.pop(thing, None)
