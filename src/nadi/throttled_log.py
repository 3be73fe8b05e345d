"""Recurring warnings, throttled so that nobody can fill the disk with them.

`SeldomWarning` is for what strangers can cause: at most one line a second, and one a minute if it goes on. `Complaints`
are for what is retried until it is fixed: a line when it starts, and when it changes, but of one kind at most one a
minute, for texts have names of files and numbers of requests in them that are others each time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from cachetools import LRUCache

from nadi.errors import NadiError

EVERY_S, LONGEST_S = 1.0, 60.0
_REMEMBERED = 1_000  # things whose current problem is remembered


class SeldomWarning:
    """Called for each occurrence. A line is `text`, which takes the number of occurrences since the last line, and
    then the arguments of this call."""

    def __init__(self, logger: logging.Logger, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._text = text
        self._clock = clock
        self._pause_s = EVERY_S
        self._came_at = self._logged_at = clock() - LONGEST_S
        self._unlogged = 0

    def __call__(self, *values: object) -> None:
        self._unlogged += 1
        now = self._clock()
        if now - self._came_at >= LONGEST_S:
            self._pause_s = EVERY_S / 2
        self._came_at = now
        if now - self._logged_at >= self._pause_s:
            self._logger.warning(self._text, self._unlogged, *values)
            self._logged_at, self._unlogged = now, 0
            self._pause_s = min(self._pause_s * 2, LONGEST_S)


class _Told(NamedTuple):
    kind: type[Exception]
    what: str
    at: float


class Complaints:
    """What is wrong with each thing, logged once. text: what that means, with a place for the thing."""

    def __init__(self, logger: logging.Logger, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._text = text
        self._clock = clock
        self._told: LRUCache[str, _Told] = LRUCache(_REMEMBERED)

    def tell(self, thing: str, error: Exception) -> None:
        """Log the error, unless it is the last one logged for this thing."""
        kind, what, now = type(error), f"{type(error).__name__}: {error}", self._clock()
        told = self._told.get(thing)
        if told is None or told.kind is not kind or (told.what != what and now - told.at >= LONGEST_S):
            self._told[thing] = _Told(kind, what, now)
            unforeseen = error if not isinstance(error, NadiError) else None
            self._logger.warning(f"{self._text}: %s", thing, what, exc_info=unforeseen)

    def settled(self, thing: str) -> None:
        self._told.pop(thing, None)

    @contextmanager
    def about(self, thing: str, kind: type[Exception] = Exception) -> Iterator[None]:
        """Log an error of that kind, which ends the block alone. Without one, nothing is wrong with the thing."""
        try:
            yield
        except kind as error:
            self.tell(thing, error)
        else:
            self.settled(thing)
