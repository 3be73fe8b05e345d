"""Which appends may be under way to a segment at a time.

One is, while events gather for the next; or two when there is much to send. Where acknowledgements take long, as from a
log in an object store, an event would wait twice so: for the append before, and for its own. There a few small ones may
be under way, each some milliseconds after the one before: what a server gets while it stores something, it stores
together next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sized
from functools import partial
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

    __slots__ = ("_in_flight", "_outputs", "_sent_at", "_ticks", "_took_s", "_waiting")

    def __init__(self, waiting: deque[Batch], in_flight: deque[Batch], outputs: Sized) -> None:
        self._waiting, self._in_flight, self._outputs = waiting, in_flight, outputs
        self._sent_at = self._took_s = 0.0
        self._ticks = False

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
            return len(self._in_flight) == 1 or self._wait_s(self._waiting[0].size) == 0
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
        if wait_s is not None and not self._ticks:
            self._ticks = True
            asyncio.get_running_loop().call_later(wait_s, partial(self._tick, send))
        return SECOND_APPEND_BYTES if len(self._in_flight) == 1 else None

    def _tick(self, send: Callable[[], None]) -> None:
        self._ticks = False
        send()

    def _wait_s(self, size: int) -> float | None:
        """How long until so many bytes may follow as a small append; None: not before something is acknowledged."""
        if self._took_s < SLOW_S or len(self._in_flight) >= min(_SMALL_ONES, _OF_ALL // max(len(self._outputs), 1)):
            return None
        if sum(batch.size for batch in self._in_flight) + size > SECOND_APPEND_BYTES:
            return None
        gap_s = max(_GAP_S, self._took_s / _SMALL_ONES)
        return max(self._sent_at + gap_s - time.monotonic(), 0.0)
