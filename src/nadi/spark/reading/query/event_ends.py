"""Where a slice can be cut short: at ends of events, which the store finds and counts without sending them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from nadi.client.places.cuts import SegmentSlice
from nadi.client.reading import segment_range
from nadi.client.reading.damage import OnDamage
from nadi.client.reading.event_places import event_places
from nadi.client.segments.stores import SegmentStores
from nadi.errors import DamagedDataError, InvalidArgumentError
from nadi.model.event import EventBlock
from nadi.naming import segment_name
from nadi.wire import commands as wire

_QUESTIONS = 8  # for one slice, where an event is larger than what is wanted of it
_NEAR = 8  # an end is near enough if it lies this part of the wanted size behind it


class EventEnds:
    """The ends of events in the segments of one stream."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str, on_damage: OnDamage) -> None:
        self._stores, self._scope, self._stream, self._on_damage = stores, scope, stream, on_damage

    async def cut_short(self, piece: SegmentSlice, size: int) -> SegmentSlice:
        """A head of the slice that has whole events and about so many bytes; not much more, but maybe none."""
        if size >= piece.size_bytes:
            return piece
        end = piece.start
        if size > 0:
            try:
                end = await self._found(piece, size)
            except DamagedDataError:  # events go on behind it, where only readers know
                end = await self._read(piece, size)
        return SegmentSlice(piece.segment_id, piece.start, end)

    async def take(self, piece: SegmentSlice, events: int) -> tuple[int, SegmentSlice]:
        """The head of the slice that has so many events, or all of it; how many it has. A server that can't count sends
        them."""
        taken, end = 0, piece.start
        name = segment_name(self._scope, self._stream, piece.segment_id)
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

    async def _found(self, piece: SegmentSlice, size: int) -> int:
        limit = piece.start + size
        end = await self._at_or_after(piece, limit)
        if end - limit <= size // _NEAR:
            return end
        low, high = piece.start, limit  # an end, and a place from which on there is none up to `limit`
        probe = low + 1
        for _ in range(_QUESTIONS):
            end = await self._at_or_after(piece, probe)
            if end <= limit:
                low = end
            else:
                high = probe
            if high - low <= 1 or (low - piece.start) * 4 >= size * 3:
                break
            probe = (low + high + 1) // 2
        return low

    async def _at_or_after(self, piece: SegmentSlice, offset: int) -> int:
        name = segment_name(self._scope, self._stream, piece.segment_id)
        found = await self._stores.ask(wire.LocateOffset(0, name, offset, ""), wire.OffsetLocated)
        return min(found.offset, piece.end)

    def _blocks(self, start: int, end: int, segment_id: int) -> AsyncGenerator[EventBlock, None]:
        name = segment_name(self._scope, self._stream, segment_id)
        return segment_range.read_segment_range(self._stores, name, start, end, self._on_damage)

    async def _read(self, piece: SegmentSlice, size: int) -> int:
        end = piece.start
        try:
            blocks = self._blocks(piece.start, piece.start + size, piece.segment_id)
            async for block in blocks:
                end = block.offset + block.size_bytes
        except InvalidArgumentError:
            pass  # it ends within an event: the end before that is what is looked for
        return end
