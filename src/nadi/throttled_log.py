"""Throttled warnings, so that recurring problems can't fill the disk with log lines.

`SeldomWarning` covers problems that strangers can cause: at most one line a second, and one a minute if they persist.
`ProblemLog` cover operations that are retried until they succeed: a line when the problem starts and when it changes.
Errors of one type are logged at most once a minute, because their texts vary with file names and request numbers.
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
_REMEMBERED = 1_000  # subjects whose current problem is remembered


class SeldomWarning:
    """A warning to call for each occurrence.

    text: a format that takes the number of occurrences since the last line, then the call's arguments.
    """

    def __init__(self, logger: logging.Logger, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._text = text
        self._clock = clock
        self._pause_s = EVERY_S
        self._last_at = self._logged_at = clock() - LONGEST_S
        self._unlogged = 0

    def __call__(self, *values: object) -> None:
        self._unlogged += 1
        now = self._clock()
        if now - self._last_at >= LONGEST_S:
            self._pause_s = EVERY_S / 2
        self._last_at = now
        if now - self._logged_at >= self._pause_s:
            self._logger.warning(self._text, self._unlogged, *values)
            self._logged_at, self._unlogged = now, 0
            self._pause_s = min(self._pause_s * 2, LONGEST_S)


class _Logged(NamedTuple):
    kind: type[Exception]
    text: str
    at: float


class ProblemLog:
    """The current problem of each subject, logged once; text: a format that takes the subject."""

    def __init__(self, logger: logging.Logger, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._text = text
        self._clock = clock
        self._logged: LRUCache[str, _Logged] = LRUCache(_REMEMBERED)

    def report(self, thing: str, error: Exception) -> None:
        """Log the error, unless it is already the last one logged for this subject."""
        kind, text, now = type(error), f"{type(error).__name__}: {error}", self._clock()
        last = self._logged.get(thing)
        if last is None or last.kind is not kind or (last.text != text and now - last.at >= LONGEST_S):
            self._logged[thing] = _Logged(kind, text, now)
            unforeseen = error if not isinstance(error, NadiError) else None
            self._logger.warning(f"{self._text}: %s", thing, text, exc_info=unforeseen)

    def settled(self, thing: str) -> None:
        self._logged.pop(thing, None)

    @contextmanager
    def about(self, thing: str, kind: type[Exception] = Exception) -> Iterator[None]:
        """Log and suppress an error of that type in the block; without one, mark the subject as settled."""
        try:
            yield
        except kind as error:
            self.report(thing, error)
        else:
            self.settled(thing)
