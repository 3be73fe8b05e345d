"""A stream's events as they arrive, for a viewer: excess events are counted or skipped.

Batches are sent as often as a browser can show them, depending on their size. A batch contains the latest events if
there are too many. If the stream is too fast to be read, or the viewer too slow, reading continues at the tail.
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
from nadi.errors import InvalidArgumentError, RequestTimeoutError, SegmentTruncatedError, TruncatedError
from nadi.limits import PAGE_BATCH_BYTES, PAGE_BATCH_EVENTS, PAGE_BEAT_S, PAGE_TAIL_BYTES_A_S, PAGE_TAIL_SEGMENTS
from nadi.model.event import EventBlock
from nadi.model.framing import HEADER_BYTES
from nadi.model.streamcut import StreamCut
from nadi.web.bodies import EventBody, EventsMessage
from nadi.web.reading.payloads import pause_s, seen, size_of


async def tail(
    manager: StreamManager, scope: str, stream: str, start: StreamCut | None = None
) -> AsyncGenerator[EventsMessage, None]:
    """Yield batches of events from `start` or the tail, and an empty one every few seconds, until the stream is
    sealed."""
    is_behind = False
    while True:
        at = start or await manager.cuts(scope, stream).tail()
        start = None
        if len(at.positions) > PAGE_TAIL_SEGMENTS:
            raise InvalidArgumentError(
                f"the tail has {len(at.positions):,} segments, and at most {PAGE_TAIL_SEGMENTS:,} can be shown: "
                "play a range of the stream, or read it with a client"
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
        await asyncio.sleep(1 - time.monotonic() % 1)  # this second's byte limit is used up


class _LatestEvents:
    """The latest events of a reader that fit into a batch; earlier ones are counted."""

    def __init__(self, reader: SliceReader, *, is_behind: bool) -> None:
        self._reader = reader
        self._was_behind = is_behind
        self.is_behind = False
        self._events: deque[EventBody] = deque(maxlen=PAGE_BATCH_EVENTS)
        self._size = self._passed = 0
        self._sent_s = self._pause_s = 0.0
        self._second, self._read_bytes = 0, 0
        self._has_ended = False

    async def wait(self) -> bool:
        """Wait until a batch, possibly empty, is due; return False at the end."""
        if self._has_ended:
            return False
        due_s = self._sent_s + self._pause_s
        while not self._has_ended and not self.is_behind:
            remaining_s = PAGE_BEAT_S if not self._events else due_s - time.monotonic()
            if remaining_s <= 0:
                break
            try:
                block = await self._reader.next_block(remaining_s)
            except RequestTimeoutError:
                break
            except (TruncatedError, SegmentTruncatedError):
                continue  # the reader continues after it
            if block is None:
                self._has_ended = True
                break
            self._add(*block)
        return bool(self._events) or not self._has_ended

    def batch(self) -> EventsMessage:
        events, passed = list(self._events), self._passed
        self._events.clear()
        self._size = self._passed = 0
        self._sent_s, self._pause_s = time.monotonic(), pause_s(events)
        is_behind, self._was_behind = self._was_behind, False
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
        boundaries = [*block.starts[first:].tolist(), block.size_bytes]
        for begin, end in zip(boundaries, islice(boundaries, 1, None), strict=False):
            data = bytes(block.data[begin + HEADER_BYTES : end])
            self._append(seen(data, segment, block.offset + begin, now_ms))

    def _append(self, event: EventBody) -> None:
        """Add an event, dropping the oldest ones if there are too many."""
        size = size_of(event)
        while self._events and (len(self._events) == PAGE_BATCH_EVENTS or self._size + size > PAGE_BATCH_BYTES):
            self._size -= size_of(self._events.popleft())
            self._passed += 1
        self._events.append(event)
        self._size += size
