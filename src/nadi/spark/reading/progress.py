"""How a streaming query advances: from one stream cut to the next, in batches that Spark may run again.

A query's offset is a legal stream cut (see `nadi.model.frontier`), and so is every cut made here. A batch starts with
what needs no reading: segments that earlier batches have read to their ends are replaced by their successors. It then
reads, up to its limits, only segments that the frontier allows, and never moves past one that it reads itself. So it
takes each key from one segment, and a key's events keep their order whichever tasks read them.

What a batch reads follows from its two offsets alone: run again, it reads the same events.
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
    EpochGoneError,
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
from nadi.spark.reading.admission import ROOM_FOR_ALL, PlannedRead, Room, dealt, shares
from nadi.spark.reading.offsets import Offset
from nadi.wire import commands as wire

END = "end"  # the bound that a query's options set
_logger = logging.getLogger(__name__)
_QUESTIONS = 8  # for one slice, where an event is larger than what is wanted of it
_NEAR = 8  # an end is near enough if it lies this part of the wanted size behind it
_FIRST_LOOK_BYTES = 64 * KIB
_TRIES = 5  # while what is planned is truncated


class StreamView:
    def __init__(self, manager: StreamManager, scope: str, stream: str, on_damage: OnDamage = RAISE) -> None:
        self.scope, self.stream = scope, stream
        self._manager, self._stores, self._on_damage = manager, stores_of(manager), on_damage
        self.ends = SegmentEnds(self._stores, scope, stream)
        self._ranges: dict[int, SegmentRange] = {}

    def name_of(self, segment_id: int) -> str:
        return segment_name(self.scope, self.stream, segment_id)

    async def ranges(self, cut: StreamCut) -> list[SegmentRange]:
        """The segments of a cut; InvalidStreamCutError if one isn't of the stream. They never change."""
        if not cut.positions.keys() <= self._ranges.keys():
            self.learn(await segment_ranges(self._stores, self.scope, self.stream, cut))
        return [self._ranges[segment_id] for segment_id in cut.positions]

    def learn(self, pieces: Iterable[SegmentRange]) -> None:
        """The segments of the cut that is asked for next."""
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
        """The head of the slice that has so many events, or all of it; how many it has. A server that can't count sends
        them."""
        taken, end = 0, piece.start
        name = self.name_of(piece.segment_id)
        places = event_places(self._stores, name, piece.start, piece.end, self._on_damage, most=events)
        async with aclosing(places) as blocks:
            async for block in blocks:
                if taken + len(block) > events:
                    end = block.offset + int(block.starts[events - taken])
                    return events, SegmentSlice(piece.segment_id, piece.start, end)
                taken += len(block)
                end = block.offset + block.size_bytes
                if taken == events:
                    return taken, SegmentSlice(piece.segment_id, piece.start, end)
        return taken, piece

    async def cut_short(self, given: Mapping[SegmentSlice, int]) -> list[SegmentSlice]:
        """Of each slice a head that has whole events and about so many bytes; not much more, but maybe none."""
        return await asyncio.gather(*(self._cut_short(piece, size) for piece, size in given.items()))

    async def _cut_short(self, piece: SegmentSlice, size: int) -> SegmentSlice:
        if size >= piece.size_bytes:
            return piece
        end = piece.start
        if size > 0:
            try:
                end = await self._end_near(piece, size)
            except DamagedDataError:  # events go on behind it, where only readers know
                name = self.name_of(piece.segment_id)
                with suppress(InvalidArgumentError):  # it ends within an event: the end before that is wanted
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
        low, high = piece.start, limit  # an end, and a place from which on there is none up to `limit`
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
        asked = wire.LocateOffset(0, self.name_of(piece.segment_id), offset, "")
        return min((await self._stores.ask(asked, wire.OffsetLocated)).offset, piece.end)


class QueryProgress:
    """The batches of one query. skip_truncated: continue after truncated events, instead of failing."""

    def __init__(self, view: StreamView, *, skip_truncated: bool = False) -> None:
        self.view, self._skips = view, skip_truncated
        self._bounds: dict[str, Bound] = {}
        self._checked: StreamCut | None = None  # made here, or found to be legal
        self._is_new = True  # nothing was planned yet: a batch of the checkpoint may be gone
        self._turn = 0
        self.is_at_tail = False  # after the last batch, as far as was seen
        self.skipped_bytes = 0  # of truncated events, at least
        self.ends_at: StreamCut | None = None  # of the query in this stream; None if it follows it
        self.events = 0  # of the last batch, where there was room for so many only
        self._active: list[PlannedRead] = []  # what the last batch could read
        self._planned: Offset  # where it ends, if all is read that there was room for

    async def limit_to(self, name: str, cut: StreamCut | None) -> None:
        """No batch goes past this cut from now on; another one of the same name takes its place, or none."""
        if cut is None:
            self._bounds.pop(name, None)
            return
        try:
            ranges = await self.view.ranges(cut)
        except EpochGoneError:
            cut = await self._behind_head(cut)
            ranges = await self.view.ranges(cut)
        self._bounds[name] = Bound(cut.positions, ranges)
        self.ends_at = cut if name == END else self.ends_at

    async def next(self, start: Offset, room: Room = ROOM_FOR_ALL) -> Offset:
        """Where a batch that starts at `start` ends now; `start` itself if nothing can be read.

        room: how much it may hold, about; each segment in turn gives at least one event.
        QueryTruncatedError if what comes next was truncated and is not to be skipped.
        """
        cut, skipped_to = start.cut, None
        for _ in range(_TRIES):
            try:
                await self._check(cut)
                end = await self._advance(cut, room)
            except TruncatedError as error:
                cut = skipped_to = await self._behind(cut, error)
                continue
            self._checked, self._is_new = end, False
            self._planned = start if end == start.cut else Offset(end, skipped_to)
            return self._planned
        raise UnavailableError(f"{self._name} is being truncated again and again: try again")

    async def slices(self, start: Offset, end: Offset) -> list[SegmentSlice]:
        """What the batch between two offsets reads, one of which `next` made from the other."""
        try:
            await self._check(end.cut)
        except EpochGoneError as error:
            if not self._skips:
                raise QueryTruncatedError(self._name, error) from error
            return []
        found = slices_of(start, end)
        if self._skips:
            return await self._left(found)
        if self._is_new:  # what was planned before the query was started again may be truncated since
            try:
                infos = await self.view.ends.infos({piece.segment_id: piece.start for piece in found})
                for piece in found:
                    self._end(piece.segment_id, piece.start, infos[piece.segment_id], piece.end)
            except TruncatedError as error:
                await self._behind(start.cut, error)
        return found

    def planned(self, end: Offset) -> list[PlannedRead]:
        """What the last batch reads if it ends there. A segment that is sealed is taken to be followed by others."""
        at = end.cut.positions
        return [replace(plan, end=max(plan.start, at.get(plan.segment_id, 0))) for plan in self._active]

    async def timed(self, end: Offset) -> dict[PlannedRead, EventTime]:
        """The same with what follows, and how its events' times are read; nothing if they have none."""
        event_time = await self.view.event_time()
        if event_time is None:
            return {}
        plans = self.planned(end)
        following = await self.view.ends.successors(plan.segment_id for plan in plans if plan.is_followed)
        return {replace(plan, is_followed=bool(following.get(plan.segment_id))): event_time for plan in plans}

    def lead_back(self, ends: Mapping[int, int]) -> Offset:
        """The end of the last batch, at these offsets of what it could read."""
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
        """A cut out of a checkpoint may be of an earlier nadi, which made some that were not legal."""
        if cut == self._checked:
            return
        try:
            await self.view.check(cut)
        except InvalidStreamCutError as error:
            raise InvalidStreamCutError(
                f"this query can't go on at an offset of its checkpoint: {error}. Give it a new checkpoint, and a "
                "start (a bookmark, a moment, or the last offset before this one that works)"
            ) from error
        self._checked = cut

    async def _advance(self, start: StreamCut, room: Room) -> StreamCut:
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
        self._turn += room.is_limited
        if slices and (room.size_bytes, room.segment_bytes) != (None, None):
            slices = await self._within(slices, room)
        if slices and room.events is not None:
            slices = await self._taken(slices, room.events)
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

    async def _within(self, slices: list[SegmentSlice], room: Room) -> list[SegmentSlice]:
        """The slices cut short at event boundaries, to about as many bytes as there is room for.

        Large events may be more than a segment's share: so that none is left behind forever, one segment of
        each batch, another each time, gives its next event whatever its size.
        """
        most = room.segment_bytes
        sizes = {s.segment_id: s.size_bytes if most is None else min(s.size_bytes, most) for s in slices}
        given = sizes if room.size_bytes is None else shares(sizes, room.size_bytes)
        found = await self.view.cut_short({piece: given[piece.segment_id] for piece in slices})
        first = self._turn % len(slices)
        size = _FIRST_LOOK_BYTES
        while not found[first].size_bytes:
            (found[first],) = await self.view.cut_short({slices[first]: min(size, slices[first].size_bytes)})
            size *= 4
        return [piece for piece in found if piece.size_bytes]

    async def _taken(self, slices: list[SegmentSlice], events: int) -> list[SegmentSlice]:
        by_id = {piece.segment_id: piece for piece in slices}
        found: list[SegmentSlice] = []

        async def take(segment: int, share: int) -> int:
            taken, head = await self.view.take(by_id[segment], share)
            found.append(head)
            return taken

        sizes = {piece.segment_id: piece.size_bytes for piece in slices}
        self.events = await dealt(sizes, events, self._turn, take)
        return found

    async def _behind(self, cut: StreamCut, error: TruncatedError) -> StreamCut:
        """The first place at or after the cut whose events are there; QueryTruncatedError if that is not wanted."""
        behind = await self._behind_head(cut)
        if not self._skips:
            raise QueryTruncatedError(self._name, error, (cut, behind)) from error
        self.skipped_bytes += sum(
            offset - max(cut.positions.get(segment, offset), 0) for segment, offset in behind.positions.items()
        )
        _logger.warning("events of %s were truncated before a query read them, from %s to %s", self._name, cut, behind)
        return behind

    async def _behind_head(self, cut: StreamCut) -> StreamCut:
        """The cut before which lies what lies before this one or the head. Segments that aren't known are forgotten:
        they lie before the head, and have the keys that nothing else of the cut has begun."""
        head = await self.view.head()
        known, head_ranges = await self.view.known_ranges(cut), await self.view.ranges(head)
        ranges = {piece.segment_id: (piece.low, piece.high) for piece in (*known, *head_ranges)}
        positions = {piece.segment_id: cut.positions[piece.segment_id] for piece in known}
        if len(positions) < len(cut.positions):
            begun = [piece for piece in known if positions[piece.segment_id] >= 0]
            forgotten = dict(zip(itertools.count(-1, -1), gaps(begun), strict=False))  # older than any that is known
            ranges |= forgotten
            positions |= dict.fromkeys(forgotten, 0)
        return cutorder.latest(self._cut(positions), head, ranges)

    async def _left(self, slices: list[SegmentSlice]) -> list[SegmentSlice]:
        """What of the slices was not truncated since they were planned."""
        found = []
        for piece in slices:
            with suppress(TruncatedError):
                info = (await self.view.ends.infos({piece.segment_id: piece.start}))[piece.segment_id]
                start = max(piece.start, info.start_offset)
                if start < piece.end:
                    found.append(SegmentSlice(piece.segment_id, start, piece.end))
        return found


def slices_of(start: Offset, end: Offset) -> list[SegmentSlice]:
    """What lies between two offsets, one of which `QueryProgress.next` made from the other."""
    begin = (end.skipped_to or start.cut).positions
    return [
        SegmentSlice(segment_id, max(begin.get(segment_id, 0), 0), offset)
        for segment_id, offset in end.cut.positions.items()
        if offset > max(begin.get(segment_id, 0), 0)
    ]
