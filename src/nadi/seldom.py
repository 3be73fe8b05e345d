"""Warnings that strangers can cause: at most one line a second, so that nobody fills the disk with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

EVERY_S = 1.0


class SeldomWarning:
    """Called for each occasion. A line is `text`, which takes the number of occasions since the last line, and
    then what this occasion was called with."""

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
