"""Advance a streaming query from one stream cut to the next, in batches that Spark may repeat.

A query's offset is a legal stream cut (see `nadi.model.frontier`), as are all cuts made here. A batch first replaces
segments that earlier batches have finished by their successors. Then it reads, up to its limits, only segments that the
frontier allows, and never moves past one that it reads itself. So it takes each key from one segment, and a key's
events keep their order whichever tasks read them.

The events of a batch follow from its two offsets alone: a repeated batch reads the same events.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import check_boundary, check_cut, known_ranges, segment_ranges
from nadi.client.reading.damage import RAISE, OnDamage
from nadi.client.reading.segment_range import event_places, read_segment_range
from nadi.client.segments.info import SegmentInfo
from nadi.client.stream_cuts.cuts import SegmentSlice
from nadi.client.stream_cuts.segment_ends import SegmentEnds, pass_finished
from nadi.errors import (
    DamagedDataError,
    EpochExpiredError,
    InvalidArgumentError,
    InvalidStreamCutError,
    PastEndError,
    QueryTruncatedError,
    TruncatedError,
    UnavailableError,
)
from nadi.limits import KIB
from nadi.model import cutorder
from nadi.model.event_time import EventTime
from nadi.model.frontier import Bound, Frontier
from nadi.model.segments import SegmentRange, gaps
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.spark.reading.admission import UNLIMITED, Capacity, PlannedRead, dealt, shares
from nadi.spark.reading.offsets import Offset
from nadi.wire import commands as wire

END = "end"  # the bound that a query's options set
_logger = logging.getLogger(__name__)
_QUESTIONS = 8  # requests per slice to find an event boundary near a size
_NEAR = 8  # an end may exceed the size by this fraction of it
_FIRST_PROBE_BYTES = 64 * KIB
_TRIES = 5  # while planned events are being truncated


class StreamView:
    def __init__(self, manager: StreamManager, scope: str, stream: str, on_damage: OnDamage = RAISE) -> None:
        self.scope, self.stream = scope, stream
        self._manager, self._stores, self._on_damage = manager, stores_of(manager), on_damage
        self.ends = SegmentEnds(self._stores, scope, stream)
        self._ranges: dict[int, SegmentRange] = {}

    def name_of(self, segment_id: int) -> str:
        return segment_name(self.scope, self.stream, segment_id)

    async def ranges(self, cut: StreamCut) -> list[SegmentRange]:
        """Return the segments of a cut, cached as they never change; InvalidStreamCutError if one isn't of the
        stream."""
        if not cut.positions.keys() <= self._ranges.keys():
            self.learn(await segment_ranges(self._stores, self.scope, self.stream, cut))
        return [self._ranges[segment_id] for segment_id in cut.positions]

    def learn(self, pieces: Iterable[SegmentRange]) -> None:
        """Cache the segments of the cut that is requested next."""
        self._ranges = {piece.segment_id: piece for piece in pieces}

    async def check(self, cut: StreamCut) -> None:
        check_cut(cut, self.scope, self.stream)
        await check_boundary(self._stores, cut)

    async def known_ranges(self, cut: StreamCut) -> list[SegmentRange]:
        return await known_ranges(self._stores, cut)

    async def head(self) -> StreamCut:
        return await self._stores.controller.head(self.scope, self.stream)

    async def event_time(self) -> EventTime | None:
        return (await self._manager.stream_configuration(self.scope, self.stream)).event_time

    async def take(self, piece: SegmentSlice, events: int) -> tuple[int, SegmentSlice]:
        """Return the head of the slice with up to that many events, and their number. A server that can't count sends
        the events."""
        count, end = 0, piece.start
        name = self.name_of(piece.segment_id)
        places = event_places(self._stores, name, piece.start, piece.end, self._on_damage, most=events)
        async with aclosing(places) as blocks:
            async for block in blocks:
                if count + len(block) > events:
                    end = block.offset + int(block.starts[events - count])
                    return events, SegmentSlice(piece.segment_id, piece.start, end)
                count += len(block)
                end = block.offset + block.size_bytes
                if count == events:
                    return count, SegmentSlice(piece.segment_id, piece.start, end)
        return count, piece

    async def cut_short(self, given: Mapping[SegmentSlice, int]) -> list[SegmentSlice]:
        """Return a head of each slice with whole events and about that many bytes; slightly more, or none."""
        return await asyncio.gather(*(self._cut_short(piece, size) for piece, size in given.items()))

    async def _cut_short(self, piece: SegmentSlice, size: int) -> SegmentSlice:
        if size >= piece.size_bytes:
            return piece
        end = piece.start
        if size > 0:
            try:
                end = await self._end_near(piece, size)
            except DamagedDataError:  # only reading finds the events after the damage
                name = self.name_of(piece.segment_id)
                with suppress(InvalidArgumentError):  # the size ends within an event: stop before it
                    async for block in read_segment_range(
                        self._stores, name, piece.start, piece.start + size, self._on_damage
                    ):
                        end = block.offset + block.size_bytes
        return SegmentSlice(piece.segment_id, piece.start, end)

    async def _end_near(self, piece: SegmentSlice, size: int) -> int:
        limit = piece.start + size
        end = await self._end_at_or_after(piece, limit)
        if end - limit <= size // _NEAR:
            return end
        low, high = piece.start, limit  # an event's end, and an offset with no end between it and `limit`
        probe = low + 1
        for _ in range(_QUESTIONS):
            end = await self._end_at_or_after(piece, probe)
            if end <= limit:
                low = end
            else:
                high = probe
            if high - low <= 1 or (low - piece.start) * 4 >= size * 3:
                break
            probe = (low + high + 1) // 2
        return low

    async def _end_at_or_after(self, piece: SegmentSlice, offset: int) -> int:
        request = wire.LocateOffset(0, self.name_of(piece.segment_id), offset, "")
        return min((await self._stores.ask(request, wire.OffsetLocated)).offset, piece.end)


class QueryProgress:
    """The batches of a query in one stream. skip_truncated: continue after truncated events instead of failing."""

    def __init__(self, view: StreamView, *, skip_truncated: bool = False) -> None:
        self.view, self._skips = view, skip_truncated
        self._bounds: dict[str, Bound] = {}
        self._checked: StreamCut | None = None  # created or verified here
        self._is_new = True  # nothing was planned yet: events of the checkpoint's batch may be truncated
        self._turn = 0
        self.is_at_tail = False  # after the last batch, as far as known
        self.skipped_bytes = 0  # a lower bound of truncated bytes
        self.ends_at: StreamCut | None = None  # the query's end in this stream; None if it has none
        self.events = 0  # of the last batch, if events were limited
        self._active: list[PlannedRead] = []  # the reads available to the last batch
        self._planned: Offset  # its end by capacity alone

    async def limit_to(self, name: str, cut: StreamCut | None) -> None:
        """Let no batch pass this cut; it replaces the cut of that name, None removes it."""
        if cut is None:
            self._bounds.pop(name, None)
            return
        try:
            ranges = await self.view.ranges(cut)
        except EpochExpiredError:
            cut = await self._latest_with_head(cut)
            ranges = await self.view.ranges(cut)
        self._bounds[name] = Bound(cut.positions, ranges)
        self.ends_at = cut if name == END else self.ends_at

    async def next(self, start: Offset, capacity: Capacity = UNLIMITED) -> Offset:
        """Return the end of a batch that starts at `start`; `start` itself if nothing can be read.

        capacity: approximate limits; one segment of each batch in turn yields at least one event. QueryTruncatedError
        if the next events were truncated and mustn't be skipped.
        """
        cut, skipped_to = start.cut, None
        for _ in range(_TRIES):
            try:
                await self._check(cut)
                end = await self._advance(cut, capacity)
            except TruncatedError as error:
                cut = skipped_to = await self._after_truncation(cut, error)
                continue
            self._checked, self._is_new = end, False
            self._planned = start if end == start.cut else Offset(end, skipped_to)
            return self._planned
        raise UnavailableError(f"{self._name} is being truncated repeatedly: try again")

    async def slices(self, start: Offset, end: Offset) -> list[SegmentSlice]:
        """Return what a batch reads between two offsets, the second made by `next`."""
        try:
            await self._check(end.cut)
        except EpochExpiredError as error:
            if not self._skips:
                raise QueryTruncatedError(self._name, error) from error
            return []
        slices = slices_of(start, end)
        if self._skips:
            return await self._not_truncated(slices)
        if self._is_new:  # events planned before a restart may be truncated
            try:
                infos = await self.view.ends.infos({piece.segment_id: piece.start for piece in slices})
                for piece in slices:
                    self._end(piece.segment_id, piece.start, infos[piece.segment_id], piece.end)
            except TruncatedError as error:
                await self._after_truncation(start.cut, error)
        return slices

    def planned(self, end: Offset) -> list[PlannedRead]:
        """Return the reads of the last batch if it ends at `end`. Sealed segments are assumed to have successors."""
        positions = end.cut.positions
        return [replace(plan, end=max(plan.start, positions.get(plan.segment_id, 0))) for plan in self._active]

    async def timed(self, end: Offset) -> dict[PlannedRead, EventTime]:
        """Return the same with known successors, and with the event time; empty if the stream has none."""
        event_time = await self.view.event_time()
        if event_time is None:
            return {}
        plans = self.planned(end)
        following = await self.view.ends.successors(plan.segment_id for plan in plans if plan.is_followed)
        return {replace(plan, is_followed=bool(following.get(plan.segment_id))): event_time for plan in plans}

    def lead_back(self, ends: Mapping[int, int]) -> Offset:
        """Move the end of the last batch back to these offsets of its segments; return it."""
        self._checked = self._cut({**self._planned.cut.positions, **ends})
        self.is_at_tail = False
        return replace(self._planned, cut=self._checked)

    # --- inside -----------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"{self.view.scope}/{self.view.stream}"

    def _cut(self, positions: Mapping[int, int]) -> StreamCut:
        return StreamCut(self.view.scope, self.view.stream, positions)

    async def _check(self, cut: StreamCut) -> None:
        """Check a cut: a checkpoint may contain an illegal one, made by an early version of nadi."""
        if cut == self._checked:
            return
        try:
            await self.view.check(cut)
        except InvalidStreamCutError as error:
            raise InvalidStreamCutError(
                f"this query can't continue at an offset of its checkpoint: {error}. Give it a new checkpoint, and a "
                "start (a bookmark, a time, or the last valid offset before this one)"
            ) from error
        self._checked = cut

    async def _advance(self, start: StreamCut, capacity: Capacity) -> StreamCut:
        frontier = Frontier(
            await self.view.ranges(start), [segment for segment, offset in start.positions.items() if offset < 0]
        )
        offsets = {segment: max(start.positions[segment], 0) for segment in frontier.active}
        infos = await pass_finished(self.view.ends, frontier, offsets)
        slices, self._active = [], []
        for segment, piece in frontier.active.items():
            limits = [limit for bound in self._bounds.values() if (limit := bound.limit(piece)) is not None]
            limit = min(limits, default=None)
            end = self._end(segment, offsets[segment], infos[segment], limit)
            is_followed = infos[segment].is_sealed and limit is None
            self._active.append(
                PlannedRead(self.view.name_of(segment), segment, offsets[segment], end, end, is_followed)
            )
            if end > offsets[segment]:
                slices.append(SegmentSlice(segment, offsets[segment], end))
        self._turn += capacity.is_limited
        if slices and (capacity.size_bytes, capacity.segment_bytes) != (None, None):
            slices = await self._within(slices, capacity)
        if slices and capacity.events is not None:
            slices = await self._limit_events(slices, capacity.events)
        reached = offsets | {piece.segment_id: piece.end for piece in slices}
        self.is_at_tail = all(
            reached[segment] == info.write_offset and not info.is_sealed for segment, info in infos.items()
        )
        self.view.learn(frontier.segments)
        return self._cut(frontier.positions(reached))

    def _end(self, segment: int, offset: int, info: SegmentInfo, limit: int | None) -> int:
        name = self.view.name_of(segment)
        if offset > info.write_offset:
            raise PastEndError(name, offset, info.write_offset)
        end = info.write_offset if limit is None else min(limit, info.write_offset)
        if offset < info.start_offset and offset < end:
            raise TruncatedError(name, offset, info.start_offset)
        return end

    async def _within(self, slices: list[SegmentSlice], capacity: Capacity) -> list[SegmentSlice]:
        """Shorten the slices at event boundaries, to about the capacity in bytes.

        A large event may exceed its segment's share. So that no segment starves, each batch lets one segment, in
        turn, yield its next event whatever its size.
        """
        most = capacity.segment_bytes
        sizes = {s.segment_id: s.size_bytes if most is None else min(s.size_bytes, most) for s in slices}
        assigned = sizes if capacity.size_bytes is None else shares(sizes, capacity.size_bytes)
        shortened = await self.view.cut_short({piece: assigned[piece.segment_id] for piece in slices})
        first = self._turn % len(slices)
        size = _FIRST_PROBE_BYTES
        while not shortened[first].size_bytes:
            (shortened[first],) = await self.view.cut_short({slices[first]: min(size, slices[first].size_bytes)})
            size *= 4
        return [piece for piece in shortened if piece.size_bytes]

    async def _limit_events(self, slices: list[SegmentSlice], events: int) -> list[SegmentSlice]:
        by_id = {piece.segment_id: piece for piece in slices}
        heads: list[SegmentSlice] = []

        async def take(segment: int, share: int) -> int:
            count, head = await self.view.take(by_id[segment], share)
            heads.append(head)
            return count

        sizes = {piece.segment_id: piece.size_bytes for piece in slices}
        self.events = await dealt(sizes, events, self._turn, take)
        return heads

    async def _after_truncation(self, cut: StreamCut, error: TruncatedError) -> StreamCut:
        """Return the first cut at or after this one whose events exist; QueryTruncatedError unless skipping is
        allowed."""
        later = await self._latest_with_head(cut)
        if not self._skips:
            raise QueryTruncatedError(self._name, error, (cut, later)) from error
        self.skipped_bytes += sum(
            offset - max(cut.positions.get(segment, offset), 0) for segment, offset in later.positions.items()
        )
        _logger.warning("events of %s were truncated before a query read them, from %s to %s", self._name, cut, later)
        return later

    async def _latest_with_head(self, cut: StreamCut) -> StreamCut:
        """Return the later of this cut and the head, key by key. Unknown segments are forgotten: they are before the
        head, and have those keys that no other started segment of the cut covers."""
        head = await self.view.head()
        known, head_ranges = await self.view.known_ranges(cut), await self.view.ranges(head)
        ranges = {piece.segment_id: (piece.low, piece.high) for piece in (*known, *head_ranges)}
        positions = {piece.segment_id: cut.positions[piece.segment_id] for piece in known}
        if len(positions) < len(cut.positions):
            started = [piece for piece in known if positions[piece.segment_id] >= 0]
            forgotten = dict(zip(itertools.count(-1, -1), gaps(started), strict=False))  # ids below all known ones
            ranges |= forgotten
            positions |= dict.fromkeys(forgotten, 0)
        return cutorder.latest(self._cut(positions), head, ranges)

    async def _not_truncated(self, slices: list[SegmentSlice]) -> list[SegmentSlice]:
        """Return the parts of the slices that were not truncated after planning."""
        remaining = []
        for piece in slices:
            with suppress(TruncatedError):
                info = (await self.view.ends.infos({piece.segment_id: piece.start}))[piece.segment_id]
                start = max(piece.start, info.start_offset)
                if start < piece.end:
                    remaining.append(SegmentSlice(piece.segment_id, start, piece.end))
        return remaining


def slices_of(start: Offset, end: Offset) -> list[SegmentSlice]:
    """Return the slices between two offsets, the second made by `QueryProgress.next`."""
    begin = (end.skipped_to or start.cut).positions
    return [
        SegmentSlice(segment_id, max(begin.get(segment_id, 0), 0), offset)
        for segment_id, offset in end.cut.positions.items()
        if offset > max(begin.get(segment_id, 0), 0)
    ]
