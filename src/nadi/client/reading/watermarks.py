"""Look up a stream's watermarks: the time window of a position, and cuts for an event time.

Watermarks are stored in the stream's mark stream, oldest first, and are looked up there for every request; only the
offset to resume at is cached. From one watermark to the next, bounds never decrease and cuts never go back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass

from nadi.client.reading.boundary import segment_ranges
from nadi.client.segments.stores import SegmentStores
from nadi.client.state_sync.revisioned_stream import RevisionedStream, RevisionRange, open_revisioned_stream
from nadi.errors import InvalidStreamCutError, StreamNotFoundError, TruncatedError
from nadi.limits import KIB, MIB
from nadi.model.cutorder import CutOrder, compare_shared
from nadi.model.streamcut import StreamCut
from nadi.model.watermark import Watermark, decode_watermark
from nadi.naming import MARK_PREFIX

ENTRY_MAX_BYTES = 1 * MIB  # above the size of an entry with the maximum number of segments
SCANNED_BYTES = 256 * KIB  # a range of a mark stream that is short enough to read completely
_NEAR_BYTES = 16 * KIB  # the same for frequent callers
_ENTRY_USUAL_BYTES = 4 * KIB
_TRIES = 5  # attempts when the mark stream is truncated during a read


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The window of event time at a reader's position; None for an unknown bound.

    lower: later events have no time before it, according to the times that writers had noted at the reader's position.
    upper: the time that writers had noted at the reader's position or just behind it.
    """

    lower: int | None
    upper: int | None


async def watermarks(
    stores: SegmentStores, scope: str, stream: str, start: int = 0
) -> AsyncGenerator[tuple[int, Watermark], None]:
    """Yield (end offset of the entry, watermark) from the entry at `start`, or from the oldest stored one, at least up
    to the last that existed at the call."""
    marks = await _opened(stores, scope, stream)
    for attempt in range(_TRIES):
        extent = await marks.extent()
        try:
            async with aclosing(marks.read(max(start, extent.start), extent.end)) as records:
                async for record in records:
                    start = record.end
                    yield record.end, decode_watermark(record.data)
            return
        except TruncatedError:
            if attempt == _TRIES - 1:
                raise


class TimeWindows:
    """Time windows of one stream's positions, which mostly advance: earlier watermarks are not read again."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self._stores, self._scope, self._stream = stores, scope, stream
        self._passed: Watermark | None = None  # the last watermark at or before the position
        self._next = 0  # offset of the entry after it
        self._ranges: dict[int, tuple[float, float]] = {}

    async def at(self, position: Mapping[int, int]) -> TimeWindow:
        """Return the window of a position, which may lack some keys: lower from the last watermark at or before it,
        upper from the first after it."""
        if not position:
            return TimeWindow(None, None)
        await self._learn(position)
        if self._passed is not None and not self._order(self._passed, position).is_at_or_before:
            self._passed = None  # the position went back
        if self._passed is None:
            self._next = await find_start(
                self._stores, self._scope, self._stream, lambda mark: self._order(mark, position).is_at_or_before
            )
        upper = None
        is_passing = True
        async with aclosing(watermarks(self._stores, self._scope, self._stream, self._next)) as entries:
            async for end, watermark in entries:
                order = self._order(watermark, position)
                is_passing = is_passing and order.is_at_or_before
                if is_passing:
                    self._passed, self._next = watermark, end
                elif order is CutOrder.AFTER:
                    upper = watermark.upper
                    break
        return TimeWindow(self._passed.lower if self._passed is not None else None, upper)

    def _order(self, watermark: Watermark, position: Mapping[int, int]) -> CutOrder:
        return compare_shared(watermark.positions(), position, {**self._ranges, **watermark.ranges()})

    async def _learn(self, position: Mapping[int, int]) -> None:
        """Cache the key ranges of the position's segments, and drop all others."""
        known = {segment: self._ranges[segment] for segment in position if segment in self._ranges}
        unknown = StreamCut(self._scope, self._stream, {segment: 0 for segment in position if segment not in known})
        for piece in await segment_ranges(self._stores, self._scope, self._stream, unknown):
            known[piece.segment_id] = (piece.low, piece.high)
        self._ranges = known


async def cut_before(stores: SegmentStores, scope: str, stream: str, time: int) -> StreamCut | None:
    """Return the last known cut before all events of `time` or later; None if the watermarks don't reach back to
    `time`."""
    floor: Mapping[int, int] = {}
    start = await find_start(stores, scope, stream, lambda watermark: watermark.lower < time)
    async with aclosing(watermarks(stores, scope, stream, start)) as entries:
        async for _, watermark in entries:
            if watermark.lower >= time:
                break
            floor = watermark.floor or floor
    return StreamCut(scope, stream, dict(floor)) if floor else None


async def cut_after(stores: SegmentStores, scope: str, stream: str, time: int) -> StreamCut | None:
    """Return the first known cut behind all events with a time before `time`; None if not known yet."""
    start = await find_start(stores, scope, stream, lambda watermark: watermark.lower < time)
    async with aclosing(watermarks(stores, scope, stream, start)) as entries:
        async for _, watermark in entries:
            if watermark.lower >= time:
                return StreamCut(scope, stream, watermark.positions())
    return None


async def find_start(stores: SegmentStores, scope: str, stream: str, is_before: Callable[[Watermark], bool]) -> int:
    """Return the offset of an entry from which the last two watermarks that `is_before` accepts can be read.

    A year of watermarks costs about forty requests.
    """
    marks = await _opened(stores, scope, stream)
    try:
        extent = await marks.extent()
        back = await _narrowed(marks, extent, is_before, SCANNED_BYTES) - ENTRY_MAX_BYTES
        return await marks.boundary(back) if back > extent.start else extent.start
    except TruncatedError:
        return 0  # truncated meanwhile, so few entries remain


async def find_last(stores: SegmentStores, scope: str, stream: str, is_before: Callable[[Watermark], bool]) -> int:
    """Return the offset of an entry shortly before the last watermark that `is_before` accepts, or the oldest entry.

    The search starts at the end, so that the last entries cost two requests.
    """
    marks = await _opened(stores, scope, stream)
    try:
        return await _narrowed(marks, await marks.extent(), is_before, _NEAR_BYTES)
    except TruncatedError:
        return 0


async def _narrowed(
    marks: RevisionedStream, extent: RevisionRange, is_before: Callable[[Watermark], bool], most_bytes: int
) -> int:
    """Return the oldest entry, or one that `is_before` accepts less than `most_bytes` before the last accepted one."""
    low, high, step = extent.start, extent.end, most_bytes
    while high - low > most_bytes:
        middle = max((low + high) // 2, high - step)
        at = await marks.boundary(middle)
        if at < high and is_before(await _first(marks, at, extent.end)):
            low = at
        else:
            high = middle  # no entry begins between `middle` and `at`
        step *= 4
    return low


async def _first(marks: RevisionedStream, start: int, end: int) -> Watermark:
    for most_bytes in (_ENTRY_USUAL_BYTES, ENTRY_MAX_BYTES):
        with suppress(InvalidStreamCutError):  # the entry is longer
            async with aclosing(marks.read(start, min(end, start + most_bytes))) as records:
                async for record in records:
                    return decode_watermark(record.data)
    raise AssertionError("an entry begins there")


async def _opened(stores: SegmentStores, scope: str, stream: str) -> RevisionedStream:
    try:
        return await open_revisioned_stream(stores, scope, MARK_PREFIX + stream)
    except StreamNotFoundError:
        raise StreamNotFoundError(scope, stream) from None
