"""Head and tail of a stream, and the distribution of its events over event time, for the page's picture.

If the index of event times lags behind, one task updates it for all callers; each response contains the remaining
bytes.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from weakref import WeakKeyDictionary

import numpy as np

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import segments_between
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.errors import NotFoundError, UnavailableError
from nadi.limits import PAGE_INDEX_S, PAGE_INDEXED_AT_ONCE, PAGE_MOMENTS_PAGES, PAGE_QUERIES_AT_ONCE, PAGE_STEPS
from nadi.model.event_time import EventTime
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.web.bodies import CutBody, SegmentSteps, StreamSpan
from nadi.web.reading.times import CutTimes, Numbers, clock_by, entries, event_time_of, is_indexed
from nadi.wire.time_index import earliest_of

_LEAST_STEPS, _MOST_STEPS = 20, 400  # of a segment
_Distribution = tuple[int, Numbers, Numbers]  # a segment, times, and the number of its bytes before each time
_indexing: WeakKeyDictionary[SegmentStores, dict[object, asyncio.Task[None]]] = WeakKeyDictionary()


async def stream_span(manager: StreamManager, scope: str, stream: str, by: str | None) -> StreamSpan:
    """Return a stream's ends and, by event time, the distribution of its bytes. by: as in `event_time_of`."""
    info, event_time = await asyncio.gather(
        manager.stream_info(scope, stream), event_time_of(manager, scope, stream, by)
    )
    if event_time is None:
        times = CutTimes(manager, by)
        begins_ms, ends_ms = await asyncio.gather(times.of(info.head), times.of(info.tail))
        return StreamSpan(_cut(info.head, begins_ms), _cut(info.tail, ends_ms), info.is_sealed)
    stores, turns = stores_of(manager), asyncio.Semaphore(PAGE_QUERIES_AT_ONCE)
    ids = await segments_between(stores, info.head, info.tail)
    is_done = await _index(stores, scope, stream, event_time, ids)

    async def distribution(segment: int) -> tuple[int, Numbers, Numbers, int] | None:
        async with turns:
            try:
                return segment, *await _distribution(stores, segment_name(scope, stream, segment), clock_by(event_time))
            except NotFoundError:  # truncated away
                return None

    segments = [segment for segment in await asyncio.gather(*map(distribution, ids)) if segment is not None]
    unknown = None if is_done else sum(unknown for *_, unknown in segments)
    known = [(segment, times, offsets) for segment, times, offsets, _ in segments if len(times)]
    first_ms = min((int(times[0]) for _, times, _ in known), default=None)
    last_ms = max((int(times[-1]) for _, times, _ in known), default=None)
    steps = [] if first_ms is None or last_ms is None else _steps(known, first_ms, last_ms)
    head, tail = _cut(info.head, first_ms), _cut(info.tail, last_ms)
    return StreamSpan(head, tail, info.is_sealed, event_time.path, steps, unknown)


def _cut(cut: StreamCut, time_ms: int | None) -> CutBody:
    return CutBody(cut.as_text(), time_ms)


async def _index(stores: SegmentStores, scope: str, stream: str, event_time: EventTime, ids: Sequence[int]) -> bool:
    """Update the index; return whether it is complete within PAGE_INDEX_S. Otherwise the update continues."""
    from nadi.client.stream_cuts.event_index import index_times

    running, key = _indexing.setdefault(stores, {}), (scope, stream, event_time)
    if key not in running:
        if len(running) >= PAGE_INDEXED_AT_ONCE:
            raise UnavailableError(f"event times of {len(running)} streams are already being read: try again later")
        task = running[key] = asyncio.create_task(index_times(stores, scope, stream, event_time, ids))
        task.add_done_callback(lambda done: running.pop(key) and not done.cancelled() and done.exception())
    done, _ = await asyncio.wait({running[key]}, timeout=PAGE_INDEX_S)
    for task in done:
        task.result()
    return bool(done)


async def _distribution(stores: SegmentStores, segment: str, clock: int) -> tuple[Numbers, Numbers, int]:
    """Return times between which a segment's bytes count as evenly distributed, the number of bytes before each, and
    the number of bytes that aren't in the index."""
    info = await segment_info(stores, segment)
    latest, earliest = await asyncio.gather(
        *(_entries(stores, segment, each, info.start_offset, info.write_offset) for each in (clock, earliest_of(clock)))
    )
    reached = max([info.start_offset, *(offset for offset, _ in earliest)])
    unknown = 0 if await is_indexed(stores, segment, clock) else info.write_offset - reached
    times, offsets, before = list[int](), list[int](), info.start_offset
    for offset, time in latest:
        index = bisect_right(earliest, before, key=itemgetter(0))  # of the earliest time after `before`
        times += [*(first for _, first in earliest[index : index + 1]), time - 1]
        offsets += [before] * (len(times) - len(offsets) - 1) + [offset]
        before = offset
    return np.maximum.accumulate(np.array(times, np.int64)), np.array(offsets, np.int64), unknown


async def _entries(stores: SegmentStores, segment: str, clock: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return offsets and times of a clock's entries: all of them, or a sample for a very large segment."""
    sampled, at, stride = list[tuple[int, int]](), start, (end - start) // PAGE_MOMENTS_PAGES
    while at < end:
        page = await entries(stores, segment, at, end, clock)
        if page is None or not len(page.offsets):
            break
        sampled += zip(page.offsets.tolist(), page.moments.tolist(), strict=True)
        if page.is_last:
            break
        at = max(at + stride, sampled[-1][0])
    return sampled


def _steps(known: Sequence[_Distribution], first_ms: int, last_ms: int) -> list[SegmentSteps]:
    count = min(max(PAGE_STEPS // len(known), _LEAST_STEPS), _MOST_STEPS)
    grid = np.linspace(first_ms, max(last_ms, first_ms + 1), count + 1)
    steps = []
    for segment, times, offsets in known:
        before = np.interp(grid, times, offsets)
        before[0], before[-1] = offsets[0], offsets[-1]
        steps.append(SegmentSteps(segment, np.diff(np.round(before).astype(np.int64)).tolist()))
    return steps
