"""A stream's events as they come, for somebody who looks on: what is too much for that is counted, or passed over.

Batches go out as often as their sizes let a browser show them. If more comes than a browser is given, a batch has the
latest of it. If more comes than is worth reading for that, or did while whoever looks on was slow to take a batch, it
goes on at the tail.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import closing
from itertools import islice

from nadi.client.aio import StreamManager
from nadi.client.reading.reader import SliceReader
from nadi.errors import InvalidArgumentError, RequestTimeoutError, SegmentGoneError, TruncatedError
from nadi.limits import PAGE_BATCH_BYTES, PAGE_BATCH_EVENTS, PAGE_BEAT_S, PAGE_TAIL_BYTES_A_S, PAGE_TAIL_SEGMENTS
from nadi.model.event import EventBlock
from nadi.model.framing import HEADER_BYTES
from nadi.model.streamcut import StreamCut
from nadi.web.bodies import EventSeen, EventsMessage
from nadi.web.reading.payloads import pause_s, seen, size_of


async def tail(
    manager: StreamManager, scope: str, stream: str, start: StreamCut | None = None
) -> AsyncGenerator[EventsMessage, None]:
    """Batches of events from `start` on, or from the tail; one without events every few seconds. It ends with a sealed
    stream."""
    is_behind = False
    while True:
        at = start or await manager.cuts(scope, stream).tail()
        start = None
        if len(at.positions) > PAGE_TAIL_SEGMENTS:
            raise InvalidArgumentError(
                f"the tail of {len(at.positions):,} segments at once isn't shown, only of up to {PAGE_TAIL_SEGMENTS:,}:"
                " play a stretch of the stream, or read it with a client"
            )
        with closing(await manager.create_reader(scope, stream, start=at, on_damage="skip")) as reader:
            latest = _LatestEvents(reader, is_behind=is_behind)
            yield latest.batch()
            while await latest.wait():
                yield latest.batch()
                if latest.is_behind:
                    break
            else:
                return
        is_behind = True
        await asyncio.sleep(1 - time.monotonic() % 1)  # what may be read in this second was


class _LatestEvents:
    """The latest events of a reader, up to what makes a batch; `passed` counts those before them."""

    def __init__(self, reader: SliceReader, *, is_behind: bool) -> None:
        self._reader = reader
        self._begins_behind = is_behind
        self.is_behind = False
        self._events: deque[EventSeen] = deque(maxlen=PAGE_BATCH_EVENTS)
        self._size = self._passed = 0
        self._given_s = self._pause_s = 0.0
        self._second, self._read_bytes = 0, 0
        self._is_over = False

    async def wait(self) -> bool:
        """Wait until there is a batch to give, at the latest when somebody must hear something; False at the end."""
        if self._is_over:
            return False
        ends_s = self._given_s + self._pause_s
        while not self._is_over and not self.is_behind:
            left_s = PAGE_BEAT_S if not self._events else ends_s - time.monotonic()
            if left_s <= 0:
                break
            try:
                found = await self._reader.next_block(left_s)
            except RequestTimeoutError:
                break
            except (TruncatedError, SegmentGoneError):
                continue  # the reader goes on behind that
            if found is None:
                self._is_over = True
                break
            self._add(*found)
        return bool(self._events) or not self._is_over

    def batch(self) -> EventsMessage:
        events, passed = list(self._events), self._passed
        self._events.clear()
        self._size = self._passed = 0
        self._given_s, self._pause_s = time.monotonic(), pause_s(events)
        is_behind, self._begins_behind = self._begins_behind, False
        return EventsMessage(time.time_ns() // 1_000_000, events, passed, is_behind)

    def _add(self, segment: int, block: EventBlock) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._read_bytes = second, 0
        self._read_bytes += block.size_bytes
        self.is_behind = self.is_behind or self._read_bytes > PAGE_TAIL_BYTES_A_S
        count, now_ms = len(block), time.time_ns() // 1_000_000
        first = max(count - PAGE_BATCH_EVENTS, 0)
        self._passed += first
        borders = [*block.starts[first:].tolist(), block.size_bytes]
        for begin, end in zip(borders, islice(borders, 1, None), strict=False):
            data = bytes(block.data[begin + HEADER_BYTES : end])
            self._put(seen(data, segment, block.offset + begin, now_ms))

    def _put(self, event: EventSeen) -> None:
        """Add it, in place of the oldest ones if there are too many."""
        size = size_of(event)
        while self._events and (len(self._events) == PAGE_BATCH_EVENTS or self._size + size > PAGE_BATCH_BYTES):
            self._size -= size_of(self._events.popleft())
            self._passed += 1
        self._events.append(event)
        self._size += size
