"""Which appends may be under way to a segment at a time.

One is, while events gather for the next; or two when there is much to send. Where acknowledgements take long, as from a
log in an object store, an event would wait twice so: for the append before, and for its own. There a few small ones may
be under way, each some milliseconds after the one before: what a server gets while it stores something, it stores
together next. So the first of those that are stored together takes up to twice as long as the last, and a few are as
many as follow each other in that time.

Batches that wait already, as those that a sealed segment leaves to another, follow each other at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING

from nadi.limits import WRITER_BLOCK_BYTES

if TYPE_CHECKING:
    from collections import deque

    from nadi.client.writing.batch import Batch

SECOND_APPEND_BYTES = WRITER_BLOCK_BYTES // 4  # a second append goes out if it is at least this large
SLOW_S = 0.010  # acknowledgements that take longer are slow
_GAP_S = 0.005  # at least, between two small ones
_SMALL_ONES = 8
_OF_ALL = 32  # small ones of a writer's segments together: those of many keep a server busy anyhow


class Pace:
    """Of one segment's output, whose batches it looks at. outputs: all those of its writer."""

    __slots__ = ("_in_flight", "_outputs", "_sent_at", "_tick", "_tick_at", "_took_s", "_waiting")

    def __init__(self, waiting: deque[Batch], in_flight: deque[Batch], outputs: Sized) -> None:
        self._waiting, self._in_flight, self._outputs = waiting, in_flight, outputs
        self._sent_at = self._took_s = 0.0
        self._tick: asyncio.TimerHandle | None = None
        self._tick_at = 0.0

    def sent(self, batch: Batch) -> None:
        batch.sent_at = self._sent_at = time.monotonic()

    def acknowledged(self, batch: Batch, now: float) -> None:
        self._took_s = now - batch.sent_at

    def may_send(self, current: Batch) -> bool:
        """Whether what waits, or else the growing batch, may be sent now."""
        if not self._in_flight:
            return bool(self._waiting or current.entries)
        if self._waiting:
            if self._waiting[0].is_large or self._in_flight[0].is_large:
                return False
            return len(self._in_flight) == 1 or self._has_room(self._waiting[0].size, _OF_ALL)
        if not current.entries or self._in_flight[0].is_large:
            return False
        if len(self._in_flight) == 1 and current.size >= SECOND_APPEND_BYTES:
            return True
        return self._took_s >= SLOW_S and self._wait_s(current.size) == 0

    def next_notice(self, current: Batch, send: Callable[[], None]) -> int | None:
        """The size of the growing batch at which it may be sent beside what is in flight, if it may; or `send` is
        called, when so much time has passed that a small one may."""
        wait_s = None
        if self._took_s >= SLOW_S and not self._waiting and self._in_flight and not self._in_flight[0].is_large:
            wait_s = self._wait_s(current.size)
            if wait_s == 0 and not current.entries:
                return 1
        if wait_s is not None:
            self._tick_after(wait_s, send)
        return SECOND_APPEND_BYTES if len(self._in_flight) == 1 else None

    def _tick_after(self, wait_s: float, send: Callable[[], None]) -> None:
        """Have `send` called then, or earlier if that is said already."""
        loop = asyncio.get_running_loop()
        at = loop.time() + wait_s
        if self._tick is not None:
            if self._tick_at <= at:
                return
            self._tick.cancel()  # an acknowledgement took very long, and the next one didn't
        self._tick, self._tick_at = loop.call_at(at, self._ticked, send), at

    def _ticked(self, send: Callable[[], None]) -> None:
        self._tick = None
        send()

    def _wait_s(self, size: int) -> float | None:
        """How long until so many bytes may follow as a small append; None: not before something is acknowledged."""
        if self._took_s < SLOW_S or not self._has_room(size, _SMALL_ONES):
            return None
        gap_s = max(_GAP_S, 2 * self._took_s / _SMALL_ONES)
        return max(self._sent_at + gap_s - time.monotonic(), 0.0)

    def _has_room(self, size: int, most: int) -> bool:
        """Whether there are fewer under way than that, and all of them are small, with so many bytes more."""
        if len(self._in_flight) >= min(most, _OF_ALL // max(len(self._outputs), 1)):
            return False
        return sum(batch.size for batch in self._in_flight) + size <= SECOND_APPEND_BYTES
