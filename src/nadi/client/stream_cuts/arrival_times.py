"""When events came, as far as a segment's time index tells.

An entry of the index says that all bytes before an offset came before a moment. So an event came, at the latest, at
the moment of the first entry behind it; behind the last entry, at the segment's last append. That is late by less than
10 s, or than 1 s where 4 KiB came in that time. Times never fall within a segment.
"""

from __future__ import annotations

from nadi.client.segments.byte_locations import list_moments
from nadi.client.segments.stores import SegmentStores
from nadi.wire.time_index import Moments, Numbers

UNKNOWN = -1


class Arrivals:
    """By when events of a segment before `end` had come; a page of the index is kept for those that follow."""

    def __init__(self, stores: SegmentStores, segment: str, end: int) -> None:
        self._stores, self._segment, self._end = stores, segment, end
        self._page: Moments | None = None

    async def of(self, offsets: Numbers) -> tuple[Numbers, Numbers] | None:
        """Of events in offset order, the times in ms since 1970, UNKNOWN where the index doesn't reach; and where the
        bytes end of which it says no more than that they had come by then: `end` behind its last entry, 0 where nothing
        is known. None of a server that has no index."""
        import numpy as np

        found = np.full(len(offsets), UNKNOWN, np.int64)
        ends = np.zeros(len(offsets), np.int64)
        low = 0
        while low < len(offsets):
            page = self._page
            if page is None or not (page.is_last or (len(page.offsets) and page.offsets[-1] > offsets[low])):
                page = self._page = await list_moments(self._stores, self._segment, int(offsets[low]), self._end)
            if page is None:
                return None
            is_behind_all = page.is_last or not len(page.offsets)
            high = len(offsets) if is_behind_all else int(np.searchsorted(offsets, page.offsets[-1]))
            some = offsets[low:high]
            moments = np.append(page.moments, page.appended_ms + 1) - 1
            places = np.searchsorted(page.offsets, some, side="right")
            times = moments[places]
            is_unknown = (some < page.start) | (times <= 0)
            found[low:high] = np.where(is_unknown, UNKNOWN, times)
            ends[low:high] = np.where(is_unknown, 0, np.append(page.offsets, self._end)[places])
            low = high
        return found, ends


async def came_by(stores: SegmentStores, segment: str, offsets: Numbers, end: int) -> Numbers:
    """The times of `Arrivals.of`; UNKNOWN too of a server that has no index."""
    return (await came_within(stores, segment, offsets, end))[0]


async def came_within(stores: SegmentStores, segment: str, offsets: Numbers, end: int) -> tuple[Numbers, Numbers]:
    """`Arrivals.of`; UNKNOWN too of a server that has no index."""
    import numpy as np

    found = await Arrivals(stores, segment, end).of(offsets)
    return found or (np.full(len(offsets), UNKNOWN, np.int64), np.zeros(len(offsets), np.int64))
