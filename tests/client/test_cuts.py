"""The algebra of stream cuts, against a model that knows of each segment how much of it was read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from nadi.client.stream_cuts.cuts import StreamCuts
from nadi.controller.state.history import EpochHistory, first_epoch
from nadi.errors import NotFoundError
from nadi.model.cutorder import CutOrder
from nadi.model.segments import SegmentRange, Successor
from nadi.model.streamcut import StreamCut
from nadi.naming import parse_segment_name
from nadi.wire import commands as wire

CELLS = 8  # all key ranges are made of these eighths, so that a key is one of 8


def cells(piece: Any) -> range:
    return range(round(piece.low * CELLS), round(piece.high * CELLS))


@dataclass
class FakeStream:
    """A stream sc/st with a history of scalings, as StreamCuts asks controller and stores for it."""

    history: EpochHistory
    lengths: dict[int, int]
    chains: list[list[int]] = field(default_factory=list)  # the segments over each cell, in order

    def __post_init__(self) -> None:
        for cell in range(CELLS):
            self.chains.append(sorted(i for i, piece in self.history.segments.items() if cell in cells(piece)))

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> list[SegmentRange]:
        if epoch > self.history.newest:
            raise NotFoundError("no such epoch")
        return [SegmentRange(s.id, s.low, s.high) for s in self.history.epoch(epoch)]

    async def stream_exists(self, scope: str, stream: str) -> bool:
        return True

    async def successors(self, scope: str, stream: str, segment: int) -> list[Successor]:
        return [
            Successor(SegmentRange(s.id, s.low, s.high), tuple(before))
            for s, before in self.history.successors(segment)
        ]

    async def is_stream_cut_valid(self, cut: StreamCut) -> bool:
        return self.history.is_valid_cut(cut.positions)

    async def segments_between(self, scope: str, stream: str, start: StreamCut, end: StreamCut) -> list[int]:
        return self.history.between(start.positions, end.positions)

    @property
    def controller(self) -> FakeStream:
        return self

    async def ask(self, request: wire.GetStreamSegmentInfo, answer: object, timeout_s: object) -> object:
        segment, number = request.segment, parse_segment_name(request.segment)[2]
        sealed = number in self.history.sealed_in
        return wire.StreamSegmentInfo(0, segment, True, sealed, False, 0, self.lengths[number], 0)

    def cuts(self) -> StreamCuts:
        return StreamCuts(cast("Any", self), "sc", "st")

    def read(self, cut: StreamCut) -> dict[int, int]:
        """How much of each segment lies before the cut."""
        found: dict[int, set[int]] = {segment: set() for segment in self.lengths}
        for chain in self.chains:
            at = next(segment for segment in chain if segment in cut.positions)
            for segment in chain:
                length = self.lengths[segment] if segment < at else max(cut.positions[at], 0) if segment == at else 0
                found[segment].add(length)
        assert all(len(lengths) == 1 for lengths in found.values()), "a segment is read for all its keys at once"
        return {segment: min(lengths) for segment, lengths in found.items()}


@st.composite
def streams(draw: st.DrawFn) -> FakeStream:
    """Up to five scalings, each a split or a merge."""
    history = EpochHistory([first_epoch(draw(st.sampled_from([1, 2, 4])), 0)])
    for epoch in range(draw(st.integers(0, 5))):
        active = history.epoch(epoch)
        at = draw(st.integers(0, len(active) - 1))
        if len(cells(active[at])) > 1 and (draw(st.booleans()) or len(active) == 1):
            middle = draw(st.integers(cells(active[at])[1], cells(active[at])[-1])) / CELLS
            sealed, ranges = [active[at].id], [(active[at].low, middle), (middle, active[at].high)]
        elif at + 1 < len(active):
            sealed, ranges = [active[at].id, active[at + 1].id], [(active[at].low, active[at + 1].high)]
        else:
            sealed, ranges = [active[at].id], [(active[at].low, active[at].high)]
        history.add(history.plan_scale(epoch, sealed, ranges, min_segments=1, time_ms=epoch))
    return FakeStream(history, {segment: draw(st.sampled_from([0, 1, 9, 30])) for segment in history.segments})


@st.composite
def cuts_of(draw: st.DrawFn, stream: FakeStream) -> StreamCut:
    """Where a reader may stand: segments read to their ends stay in the cut until it looks for what follows."""
    active = {segment.id: 0 for segment in stream.history.epoch(0)}
    waiting: dict[int, set[int]] = {}  # segments to begin, with the cells that are ready for them
    for _ in range(draw(st.integers(0, 14))):
        segment = draw(st.sampled_from(sorted(active)))
        piece, length = stream.history.segments[segment], stream.lengths[segment]
        if active[segment] < length and draw(st.booleans()):
            active[segment] = draw(st.integers(active[segment], length))
            continue
        active[segment] = length
        if segment not in stream.history.sealed_in or draw(st.booleans()):
            continue
        del active[segment]
        for cell in cells(piece):
            chain = stream.chains[cell]
            waiting.setdefault(chain[chain.index(segment) + 1], set()).add(cell)
        for following in [s for s, ready in waiting.items() if ready == set(cells(stream.history.segments[s]))]:
            del waiting[following]
            active[following] = 0
    return StreamCut("sc", "st", active | dict.fromkeys(waiting, -1))


@given(st.data())
def test_cuts_are_ordered_and_measured_as_what_lies_before_them(data: st.DataObject) -> None:
    stream = data.draw(streams())
    a, b = data.draw(cuts_of(stream)), data.draw(cuts_of(stream))
    read_a, read_b = stream.read(a), stream.read(b)
    cuts = stream.cuts()

    async def look() -> tuple[CutOrder, StreamCut, StreamCut, StreamCut]:
        return await cuts.compare(a, b), await cuts.earliest(a, b), await cuts.latest(a, b), await cuts.settled(a)

    order, earliest, latest, settled = asyncio.run(look())
    assert order.is_at_or_before == all(read_a[s] <= read_b[s] for s in read_a)
    assert order.is_at_or_after == all(read_a[s] >= read_b[s] for s in read_a)
    assert stream.read(settled) == read_a
    assert stream.read(earliest) == {s: min(read_a[s], read_b[s]) for s in read_a}
    assert stream.read(latest) == {s: max(read_a[s], read_b[s]) for s in read_a}
    for cut in (earliest, latest, settled):
        assert stream.history.is_valid_cut(cut.positions)
        for segment in (s for s, offset in cut.positions.items() if offset < 0):
            chains = [chain for chain in stream.chains if segment in chain]
            before = [min(i for i in chain if i in cut.positions) for chain in chains]
            assert set(before) != {segment}, "what has nothing left to wait for has begun"
    assert asyncio.run(cuts.bytes_between(earliest, latest)) == sum(abs(read_a[s] - read_b[s]) for s in read_a)


@given(st.data())
def test_equal_boundaries_settle_alike(data: st.DataObject) -> None:
    stream = data.draw(streams())
    a, b = data.draw(cuts_of(stream)), data.draw(cuts_of(stream))
    cuts = stream.cuts()
    same = asyncio.run(cuts.settled(a)) == asyncio.run(cuts.settled(b))
    assert same == (stream.read(a) == stream.read(b))
    assert same == (asyncio.run(cuts.compare(a, b)) is CutOrder.EQUAL)
