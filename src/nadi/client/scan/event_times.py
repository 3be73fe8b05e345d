"""What is known of the event time of rows: the column `event_time`.

Writers note how far they have got in time, and the controller makes watermarks of that (`docs/event-time.md`). A row's
event time is the lower bound of the last watermark at or before the row: neither the row nor what follows it in its
segment has an earlier time. It is null before the oldest watermark that is left, and where nothing was noted.

A watermark lies at or before a row if its cut does under all keys of the row's segment, by the rules of
`model.cutorder.compare_shared`. So each watermark is one offset of the piece's segment: from there on it holds.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import known_ranges
from nadi.client.reading.watermarks import find_last, watermarks
from nadi.client.scan.connection import Client
from nadi.client.scan.pieces import Piece
from nadi.errors import InvalidArgumentError
from nadi.limits import WATERMARKS_AT_ONCE
from nadi.model.segments import SegmentRange, oldest_by_key, share_keys
from nadi.model.streamcut import StreamCut
from nadi.model.watermark import Watermark
from nadi.naming import NO_UNIT, PER_SECOND
from nadi.wire.moments import Numbers

_NONE = np.empty(0, np.int64)
_EARLIEST_S, _END_S = -62_135_596_800, 253_402_300_800  # of the years 1 to 9999, beyond which Python has no times
_PER_SECOND_US = 1_000_000
_INT64 = np.iinfo(np.int64)


def holds_from(watermark: Watermark, segment: SegmentRange) -> int | None:
    """The offset of the segment from which on events come after the watermark's cut; None if all come before it under
    some key.

    >>> from nadi.model.watermark import SegmentPosition
    >>> old, new = SegmentRange(0, 0.0, 1.0), SegmentRange(1 << 32, 0.0, 0.5)
    >>> watermark = Watermark(1, 2, (SegmentPosition(0, 0.0, 1.0, 40),))
    >>> holds_from(watermark, old), holds_from(watermark, new)
    (40, 0)
    >>> holds_from(Watermark(3, 4, (SegmentPosition(1 << 32, 0.0, 0.5, 7),)), old)
    """
    places = [place for place in watermark.cut if share_keys(place, segment)]
    if len(places) > 1:
        stands_in = {one.segment_id for one in oldest_by_key(places) if share_keys(one, segment)}
        places = [place for place in places if place.segment_id in stands_in]
    if any(place.segment_id > segment.segment_id for place in places):
        return None
    return max((place.offset for place in places if place.segment_id == segment.segment_id), default=0)


@dataclass(frozen=True, slots=True)
class _Page:
    """Watermarks in order: the offset from which each holds, and its lower bound. is_last: those that follow, if any,
    lie behind the piece. before: the bound of the last watermark of the page before."""

    offsets: Numbers
    bounds: Numbers
    is_last: bool
    before: int | None


class EventTimes:
    """Those of a piece's rows; watermarks are fetched a page at a time, as rows come to need them."""

    def __init__(self, client: Client, scope: str, piece: Piece, unit: str) -> None:
        self._client, self._scope, self._piece, self._unit = client, scope, piece, unit
        self._segment: SegmentRange | None = None
        self._next = 0  # the entry that the next page begins with
        self._page = _Page(_NONE, _NONE, False, None)

    def of(self, offsets: Numbers) -> pa.Array:
        """Of rows in offset order: times, or numbers if they have no unit."""
        found, known = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), bool)
        low = 0
        while low < len(offsets):
            page = self._page
            if not page.is_last and (not len(page.offsets) or page.offsets[-1] <= offsets[low]):
                page = self._page = self._client.run(self._fetched(int(offsets[low])))
            high = len(offsets) if page.is_last else int(np.searchsorted(offsets, page.offsets[-1]))
            behind = np.searchsorted(page.offsets, offsets[low:high], side="right")
            found[low:high] = np.append(page.before or 0, page.bounds)[behind]
            known[low:high] = (behind > 0) | (page.before is not None)
            low = high
        return self._as_column(found, known)

    async def _fetched(self, offset: int) -> _Page:
        """The next page; or, if that ends before the offset, one that doesn't."""
        before = int(self._page.bounds[-1]) if len(self._page.bounds) else self._page.before
        stores = stores_of(self._client.manager)
        if self._segment is None:
            asked = StreamCut(self._scope, self._piece.stream, {self._piece.segment_id: 0})
            ranges = await known_ranges(stores, asked)
            if not ranges:
                return _Page(_NONE, _NONE, True, None)  # it was truncated, so long ago that it is forgotten
            self._segment = ranges[0]
        else:
            page = await self._read(self._next, before, self._segment)
            if page.is_last or page.offsets[-1] > offset:
                return page
            before = int(page.bounds[-1])
        segment = self._segment

        def is_at_or_before(watermark: Watermark) -> bool:
            at = holds_from(watermark, segment)
            return at is not None and at <= offset

        last = await find_last(stores, self._scope, self._piece.stream, is_at_or_before)
        return await self._read(max(self._next, last), before, segment)

    async def _read(self, start: int, before: int | None, segment: SegmentRange) -> _Page:
        offsets, bounds, is_last = list[int](), list[int](), True
        stores = stores_of(self._client.manager)
        self._next = start
        async with aclosing(watermarks(stores, self._scope, self._piece.stream, start)) as found:
            async for end, watermark in found:
                at = holds_from(watermark, segment)
                if at is None or at >= self._piece.end:
                    break
                offsets.append(at)
                bounds.append(watermark.lower)
                self._next = end
                if len(offsets) == WATERMARKS_AT_ONCE:
                    is_last = False
                    break
        return _Page(np.array(offsets, np.int64), np.array(bounds, np.int64), is_last, before)

    def _as_column(self, found: Numbers, known: Numbers) -> pa.Array:
        if self._unit == NO_UNIT:
            return pa.array(found, mask=~known)
        per_s = PER_SECOND[self._unit]
        first, last = max(_EARLIEST_S * per_s, _INT64.min), min(_END_S * per_s - 1, _INT64.max)
        for wrong in found[known & ((found < first) | (found > last))]:
            raise InvalidArgumentError(
                f"the writers of {self._scope}/{self._piece.stream} noted the time {wrong}, which as {self._unit} "
                "since 1970 lies outside the years 1 to 9999: give the option 'eventTimeUnit' the unit that they note, "
                f"of {', '.join(PER_SECOND)}, or {NO_UNIT!r} to get the numbers"
            )
        times = found // (per_s // _PER_SECOND_US) if per_s > _PER_SECOND_US else found * (_PER_SECOND_US // per_s)
        return pa.array(times, pa.timestamp("us", "UTC"), mask=~known)
