"""When events came, as far as a segment's time index tells.

An entry of the index says that all bytes before an offset came before a moment. So an event came, at the latest, at
the moment of the first entry behind it; behind the last entry, at the segment's last append. That is late by less than
10 s, or than 1 s where 4 KiB came in that time.
"""

from __future__ import annotations

from nadi.client.segments.located import list_moments
from nadi.client.segments.stores import SegmentStores
from nadi.wire.moments import Numbers

UNKNOWN = -1


async def came_by(stores: SegmentStores, segment: str, offsets: Numbers, end: int) -> Numbers:
    """The time in ms since 1970 by which each event had come, of events in offset order before `end`; UNKNOWN where
    the index doesn't reach, and of a server that has none."""
    return (await came_within(stores, segment, offsets, end))[0]


async def came_within(stores: SegmentStores, segment: str, offsets: Numbers, end: int) -> tuple[Numbers, Numbers]:
    """`came_by`, and where the bytes end of which the index says no more than that they had come by then: `end` behind
    its last entry, 0 where nothing is known."""
    import numpy as np

    found = np.full(len(offsets), UNKNOWN, np.int64)
    ends = np.zeros(len(offsets), np.int64)
    low = 0
    while low < len(offsets):
        page = await list_moments(stores, segment, int(offsets[low]), end)
        if page is None:
            break
        is_behind_all = page.is_last or not len(page.offsets)
        high = len(offsets) if is_behind_all else int(np.searchsorted(offsets, page.offsets[-1]))
        some = offsets[low:high]
        moments = np.append(page.moments, page.appended_ms + 1) - 1
        places = np.searchsorted(page.offsets, some, side="right")
        times = moments[places]
        is_unknown = (some < page.start) | (times <= 0)
        found[low:high] = np.where(is_unknown, UNKNOWN, times)
        ends[low:high] = np.where(is_unknown, 0, np.append(page.offsets, end)[places])
        low = high
    return found, ends
