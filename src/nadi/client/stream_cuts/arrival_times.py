"""Look up the arrival times of events in a segment's time index.

An index entry states that all bytes before an offset arrived before a time. So an event's upper bound is the time of
the first entry behind it or, behind the last entry, of the segment's last append. The bound is less than 10 s late, or
less than 1 s where 4 KiB arrived within that time. Times never decrease within a segment.
"""

from __future__ import annotations

from nadi.client.segments.byte_locations import list_moments
from nadi.client.segments.stores import SegmentStores
from nadi.wire.time_index import Moments, Numbers

UNKNOWN = -1


class Arrivals:
    """Arrival times of a segment's events before `end`; caches a page of the index for the next events."""

    def __init__(self, stores: SegmentStores, segment: str, end: int) -> None:
        self._stores, self._segment, self._end = stores, segment, end
        self._page: Moments | None = None

    async def of(self, offsets: Numbers) -> tuple[Numbers, Numbers] | None:
        """Return the arrival times of events at ascending offsets, in ms since 1970, and for each event the end offset
        of the bytes that share its index entry.

        Times are UNKNOWN, and ends 0, where the index has no entry; behind the last entry the end is `end`. Returns
        None if the server has no index.
        """
        import numpy as np

        arrivals = np.full(len(offsets), UNKNOWN, np.int64)
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
            covered = offsets[low:high]
            moments = np.append(page.moments, page.appended_ms + 1) - 1
            entries = np.searchsorted(page.offsets, covered, side="right")
            times = moments[entries]
            is_unknown = (covered < page.start) | (times <= 0)
            arrivals[low:high] = np.where(is_unknown, UNKNOWN, times)
            ends[low:high] = np.where(is_unknown, 0, np.append(page.offsets, self._end)[entries])
            low = high
        return arrivals, ends


async def arrival_times(stores: SegmentStores, segment: str, offsets: Numbers, end: int) -> Numbers:
    """Return the times of `Arrivals.of`; UNKNOWN if the server has no index."""
    return (await arrival_ranges(stores, segment, offsets, end))[0]


async def arrival_ranges(stores: SegmentStores, segment: str, offsets: Numbers, end: int) -> tuple[Numbers, Numbers]:
    """Return the result of `Arrivals.of`; UNKNOWN times and ends of 0 if the server has no index."""
    import numpy as np

    arrivals = await Arrivals(stores, segment, end).of(offsets)
    return arrivals or (np.full(len(offsets), UNKNOWN, np.int64), np.zeros(len(offsets), np.int64))
