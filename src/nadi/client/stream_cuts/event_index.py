"""Maintain the index of events' own times, which clients update before they look up a cut by time.

The store keeps the index (`segmentstore.state.time_index`), but doesn't read events. So a client that looks up a time
first reads each segment's events behind the end of the index and adds, for each stretch of events, its end and its
earliest and latest time. Several clients may do so concurrently: the store accepts entries that begin where the index
ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from nadi.client.reading.damage import SKIP
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.segments.info import map_concurrently, segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.serializers.columns import MISFITS, array_of
from nadi.client.serializers.types import COUNTED, SECONDS
from nadi.errors import DamagedDataError, PermissionDeniedError, SegmentNotFoundError, TruncatedError
from nadi.limits import KIB, MIB, TIMES_INDEXED_AT_ONCE
from nadi.model.event import EventBlock
from nadi.model.event_time import EventTime
from nadi.model.field_path import parse_path
from nadi.model.json_events import NotJsonError, value_in, with_whole_characters
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire import commands as wire
from nadi.wire.time_index import NO_TIMES, Numbers, clock_of, packed_stretches

log = logging.getLogger("nadi.client")

Times = Callable[[Sequence[bytes]], pa.Array]  # events to times in us since 1970, null where an event has none

_AT_ONCE = 4  # number of segments
_SENT_STRETCHES = TIMES_INDEXED_AT_ONCE // 4
_STRETCH_BYTES = 64 * KIB
_LEAST_STRETCH_BYTES, _STRETCHES = 2 * KIB, 256  # a small segment has this many stretches, which are drawn as a chart
_SEARCH_BYTES = 2 * _STRETCH_BYTES  # a stretch ends at the end of an event, so it may be longer than its size
_AHEAD_BYTES = 16 * MIB  # indexed at once for a reader that advances; the last stretch ends there
_CACHED_READERS = 64
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NotJsonError)


async def index_times(
    stores: SegmentStores, scope: str, stream: str, event_time: EventTime, ids: Sequence[int]
) -> None:
    """Extend the index of these segments to their current ends, as far as permissions allow: events missing in the
    index make cuts less precise, not wrong."""
    times, clock = times_of(event_time), clock_of(str(event_time))

    async def index_segment(segment_id: int) -> None:
        try:
            await _SegmentIndexer(stores, segment_name(scope, stream, segment_id), clock, times).index()
        except (PermissionDeniedError, SegmentNotFoundError, TruncatedError) as error:
            log.debug("event times of segment %d of %s/%s aren't indexed: %s", segment_id, scope, stream, error)

    await map_concurrently(ids, index_segment, _AT_ONCE)


async def refine_cut(
    stores: SegmentStores, cut: StreamCut, event_time: EventTime, time_us: int, *, end: bool = False
) -> StreamCut:
    """Move a cut from the index closer to the time, past events of the stretch at its position that it need not
    include: earlier ones behind a start cut, later ones before an end cut, and events without a time."""

    async def offset_in(segment_id: int) -> int:
        offset = cut.positions[segment_id]
        if offset < 0:
            return offset
        try:
            return await moved(segment_name(cut.scope, cut.stream, segment_id), offset)
        except DamagedDataError:  # the cut stays less precise there
            return offset

    async def moved(name: str, offset: int) -> int:
        info = await segment_info(stores, name)
        start, stop = offset, min(offset + _SEARCH_BYTES, info.write_offset)
        if end:
            start, stop = max(offset - _SEARCH_BYTES, info.start_offset), offset
            if start > info.start_offset:
                start = (await stores.ask(wire.LocateOffset(0, name, start, ""), wire.OffsetLocated)).offset
        elif stop < info.write_offset:
            stop = (await stores.ask(wire.LocateOffset(0, name, stop, ""), wire.OffsetLocated)).offset
        near = offset
        async with aclosing(_read_times(stores, name, event_time, start, stop, NO_TIMES[not end])) as read:
            async for block, times in read:
                if end:
                    early = np.flatnonzero(times < time_us)
                    if len(early):
                        near = int(_ends(block)[early[-1]])
                elif (late := np.flatnonzero(times >= time_us)).size:
                    return int(block.offsets()[late[0]])
                else:
                    near = block.offset + block.size_bytes
        return near

    offsets = await map_concurrently(cut.positions, offset_in, _AT_ONCE)
    return StreamCut(cut.scope, cut.stream, dict(zip(cut.positions, offsets, strict=True)))


async def latest_time(stores: SegmentStores, name: str, event_time: EventTime, start: int, end: int) -> int | None:
    """Return the latest time of a segment's events from `start` to `end`, in us since 1970; None if none has a time."""
    latest = none = NO_TIMES[1]
    async with aclosing(_read_times(stores, name, event_time, start, end, none)) as read:
        async for _, times in read:
            latest = max(latest, int(times.max()))
    return None if latest == none else latest


async def time_at(stores: SegmentStores, name: str, event_time: EventTime, offset: int, end: int) -> int | None:
    """Return the time of the event at `offset`, in us since 1970; None if it has none. end: the end offset of this or a
    later event."""
    async with aclosing(read_segment_range(stores, name, offset, end, SKIP)) as blocks:
        async for block in blocks:
            return times_of(event_time)([next(iter(block))])[0].as_py()  # type: ignore[no-any-return]
    return None


async def first_later(
    stores: SegmentStores, name: str, event_time: EventTime, start: int, end: int, time_us: int
) -> int:
    """Return the offset of a segment's first event from `start` to `end` that is later than `time_us`; `end` if none
    is. If the index reaches `start`, it is extended to `end`."""
    clock = clock_of(str(event_time))
    try:
        await _SegmentIndexer(stores, name, clock, times_of(event_time)).index(start, end)
    except PermissionDeniedError as error:
        log.debug("event times of %s aren't indexed: %s", name, error)
    located = await stores.ask(wire.LocateMoment(0, name, time_us + 1, clock, ""), wire.MomentLocated)
    start = min(max(start, located.offset), end)
    async with aclosing(_read_times(stores, name, event_time, start, end, NO_TIMES[1])) as read:
        async for block, times in read:
            if (late := np.flatnonzero(times > time_us)).size:
                return int(block.offsets()[late[0]])
    return end


async def _read_times(
    stores: SegmentStores, name: str, event_time: EventTime, start: int, end: int, none: int
) -> AsyncGenerator[tuple[EventBlock, Numbers], None]:
    """Yield blocks of events and the events' times, `none` for an event without a time."""
    times = times_of(event_time)
    async with aclosing(read_segment_range(stores, name, start, end, SKIP)) as blocks:
        async for block in blocks:
            yield block, np.asarray((await asyncio.to_thread(times, block.events())).fill_null(none))


class _SegmentIndexer:
    """Extends the time index of one segment."""

    def __init__(self, stores: SegmentStores, name: str, clock: int, times: Times) -> None:
        self._stores, self._name, self._clock, self._times = stores, name, clock, times

    async def index(self, since: int = 0, to: int | None = None) -> None:
        """Extend the index to the segment's end; or, with `to`, a little beyond `to`, if it already reaches `since`."""
        until = await self._add(0, [])
        if to is not None and not since <= until < to:
            return
        end = (await segment_info(self._stores, self._name)).write_offset
        if to is not None and to + _AHEAD_BYTES < end:
            ahead = wire.LocateOffset(0, self._name, to + _AHEAD_BYTES, "")
            end = (await self._stores.ask(ahead, wire.OffsetLocated)).offset
        reached = -1
        while reached < until < end:  # damaged data at the end is indexed once more events follow
            reached, until = until, await self._index(until, end)

    async def _index(self, start: int, end: int) -> int:
        """Index the events from `start`, the end of the index, to `end`; return the new end of the index."""
        until, pending = start, list[tuple[Numbers, Numbers, Numbers]]()
        size = min(max(end // _STRETCHES, _LEAST_STRETCH_BYTES), _STRETCH_BYTES)
        async with aclosing(read_segment_range(self._stores, self._name, start, end, SKIP)) as blocks:
            async for block in blocks:
                pending.append(await asyncio.to_thread(_stretches, block, self._times, size))
                if sum(len(ends) for ends, _, _ in pending) >= _SENT_STRETCHES:
                    sent, pending = pending, []
                    expected = int(sent[-1][0][-1])
                    until = await self._add(until, sent)
                    if until != expected:
                        return until  # another client is indexing, too
        return await self._add(until, pending)

    async def _add(self, start: int, stretches: Sequence[tuple[Numbers, Numbers, Numbers]]) -> int:
        """Add stretches that begin at `start` to the index; return its end, which differs from theirs if another client
        was faster."""
        packed = b"".join(packed_stretches(*part) for part in stretches)
        request = wire.IndexTimes(0, self._name, self._clock, start, packed, "")
        return (await self._stores.ask(request, wire.TimesIndexed)).until


def _stretches(block: EventBlock, times: Times, size_bytes: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return the end offset and the earliest and latest time of each stretch of a block."""
    event_times = times(block.events())
    earliest, latest = (np.asarray(event_times.fill_null(none), np.int64) for none in NO_TIMES)
    ends = _ends(block)
    first, firsts, at = 0, list[int](), block.offset
    while first < len(ends):
        firsts.append(first)
        last = min(int(np.searchsorted(ends, at + size_bytes)), len(ends) - 1)
        first, at = last + 1, int(ends[last])
    return (
        ends[[*(first - 1 for first in firsts[1:]), -1]],
        np.minimum.reduceat(earliest, firsts),
        np.maximum.reduceat(latest, firsts),
    )


def _ends(block: EventBlock) -> Numbers:
    return np.append(block.starts[1:], block.size_bytes) + block.offset


# --- the time of an event --------------------------------------------------------------------------------------


@lru_cache(_CACHED_READERS)
def times_of(event_time: EventTime) -> Times:
    kind = SECONDS if event_time.unit == "s" else COUNTED[event_time.unit]
    read = _reader(event_time)

    def time_of_value(value: Any) -> int | None:
        try:
            return array_of([value], kind, _no_fields).cast(pa.int64())[0].as_py()  # type: ignore[no-any-return]
        except MISFITS:
            return None  # the value is not a time

    def times(events: Sequence[bytes]) -> pa.Array:
        values = read(events)
        try:
            return array_of(values, kind, _no_fields).cast(pa.int64())
        except MISFITS:
            return pa.array(map(time_of_value, values), pa.int64())

    return times


def _no_fields(values: Sequence[Any], kind: pa.DataType, number: int) -> list[Any]:
    raise AssertionError("a time has no fields")


def _reader(event_time: EventTime) -> Callable[[Sequence[bytes]], list[Any]]:
    """Return a function that extracts the time field from events, with None where it is missing."""
    path, is_json = parse_path(event_time.path), event_time.format == "json"
    form = msgspec.json if is_json else msgspec.msgpack
    decode: Callable[[Any], Any] = form.Decoder().decode
    member = msgspec.defstruct("Member", [("time", Any, None)], rename={"time": path.name or ""}, gc=False)
    decode_member = form.Decoder(member).decode

    def value_of(event: bytes) -> Any:
        if path.name is not None:
            with suppress(*_DECODE_ERRORS):
                return decode_member(event).time
        try:  # decode only the field, because a neighbouring number may be too large for Python
            if not is_json:
                return path.find(decode(event))
            value = value_in(event, path)
            return decode(with_whole_characters(bytes(value))) if isinstance(value, msgspec.Raw) else value
        except _DECODE_ERRORS:
            return None

    def read(events: Sequence[bytes]) -> list[Any]:
        if path.name is not None:
            try:
                return [decode_member(event).time for event in events]
            except _DECODE_ERRORS:
                pass  # an event isn't an object, or contains a lone surrogate
        return list(map(value_of, events))

    return read
