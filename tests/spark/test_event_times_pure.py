"""The column `event_time` compared with readers' time windows, on random streams without a server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi.client.reading import watermarks
from nadi.client.reading.watermarks import TimeWindows
from nadi.client.scan import rows as event_times
from nadi.client.scan.pieces import ScanRange
from nadi.client.scan.rows import EventTimes, holds_from
from nadi.model.cutorder import compare_shared
from nadi.model.segments import SegmentRange, share_keys
from nadi.model.watermark import SegmentPosition, Watermark
from nadi.naming import segment_id


class Life:
    """A random stream's segments and their lengths, and watermarks along one reader's path."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.segments = {number: SegmentRange(number, number / 2, (number + 1) / 2) for number in range(2)}
        self.lengths = {number: chance.randrange(6) for number in self.segments}
        self.following: dict[int, list[int]] = {}
        active = list(self.segments.values())
        for epoch in range(1, chance.randrange(2, 7)):
            active = self._scaled(active, epoch)
        self.watermarks = list(self._marked())

    def _scaled(self, active: list[SegmentRange], epoch: int) -> list[SegmentRange]:
        first = self.chance.randrange(len(active))
        some = active[first : first + self.chance.randrange(1, 4)]
        low, high = some[0].low, some[-1].high
        places = [low, *sorted(self.chance.uniform(low, high) for _ in range(self.chance.randrange(3))), high]
        made = [
            SegmentRange(segment_id(100 * epoch + number, epoch), *places[number : number + 2])
            for number in range(len(places) - 1)
        ]
        for one in made:
            self.segments[one.segment_id], self.lengths[one.segment_id] = one, self.chance.randrange(6)
        for one in some:
            self.following[one.segment_id] = [other.segment_id for other in made if share_keys(one, other)]
        return sorted([one for one in active if one not in some] + made, key=lambda one: one.low)

    def _marked(self) -> Iterator[Watermark]:
        """Return cuts that a reader can be at, each at or after the previous one."""
        cut = {0: 0, 1: 0}
        lower = self.chance.randrange(-5, 5)
        while True:
            for _ in range(self.chance.randrange(4)):
                segment = self.chance.choice(list(cut))
                if 0 <= cut[segment] < self.lengths[segment]:
                    cut[segment] += self.chance.randrange(1, self.lengths[segment] - cut[segment] + 1)
                elif segment in self.following and cut[segment] == self.lengths[segment]:
                    cut = self._passed(cut, segment)
            lower += self.chance.randrange(3)
            places = [self._place(segment, offset) for segment, offset in cut.items()]
            yield Watermark(lower, lower + self.chance.randrange(3), tuple(places))
            if self.chance.random() < 0.02 or all(cut[one] == self.lengths[one] for one in cut if one >= 0):
                return

    def _passed(self, cut: dict[int, int], segment: int) -> dict[int, int]:
        """Return the cut after a segment: its successors start, or wait for their other predecessors."""
        cut = {one: offset for one, offset in cut.items() if one != segment}
        for other in self.following[segment]:
            before = [one for one in cut if one < other and share_keys(self.segments[one], self.segments[other])]
            cut[other] = -1 if before else 0
        return cut

    def _place(self, segment: int, offset: int) -> SegmentPosition:
        piece = self.segments[segment]
        return SegmentPosition(segment, piece.low, piece.high, offset)

    async def read(self, *of: Any) -> AsyncGenerator[tuple[int, Watermark], None]:
        """A fake of `watermarks`: an entry's position is its number."""
        first = of[3] if len(of) > 3 else 0
        for number, watermark in enumerate(self.watermarks[first:], start=first + 1):
            yield number, watermark

    async def find(self, *of: Any) -> int:
        """A fake of `find_last`: returns the last accepted entry, or one shortly before it."""
        accepted: list[bool] = [of[3](watermark) for watermark in self.watermarks]
        assert accepted == sorted(accepted, reverse=True), "none is accepted after one that isn't"
        return max(0, sum(accepted) - 1 - self.chance.randrange(3))

    async def ranges(self, _stores: Any, cut: Any) -> list[SegmentRange]:
        return [self.segments[segment] for segment in cut.positions]

    @property
    def controller(self) -> Life:
        return self

    async def epoch_segments(self, _scope: str, _stream: str, epoch: int) -> list[SegmentRange]:
        return [one for one in self.segments.values() if one.segment_id >> 32 == epoch]


class OwnLoop:
    """A fake client that runs work in this loop."""

    manager = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.run = loop.run_until_complete


@given(st.integers(0, 1 << 32), st.integers(1, 5))
@settings(max_examples=150)
def test_row_has_lower_bound_of_a_reader_at_its_position(seed: int, at_once: int) -> None:
    life = Life(chance := random.Random(seed))
    with (
        asyncio.Runner() as runner,
        patch.object(watermarks, "watermarks", life.read),
        patch.object(watermarks, "find_start", life.find),
        patch.object(watermarks, "segment_ranges", lambda _a, _b, _c, cut: life.ranges(_a, cut)),
        patch.object(event_times, "watermarks", life.read),
        patch.object(event_times, "find_last", life.find),
        patch.object(event_times, "known_ranges", life.ranges),
        patch.object(event_times, "stores_of", lambda _: life),
        patch.object(event_times, "WATERMARKS_AT_ONCE", at_once),
    ):
        for segment, length in life.lengths.items():
            rows = [offset for offset in range(length) if chance.random() < 0.8]
            windows = [runner.run(TimeWindows(life, "sc", "st").at({segment: row})) for row in rows]  # type: ignore[arg-type]
            end = length if chance.random() < 0.5 else max(rows, default=0) + 1
            times = EventTimes(OwnLoop(runner.get_loop()), "sc", ScanRange("st", segment, 0, end), "none")  # type: ignore[arg-type]
            found, low = list[int | None](), 0
            while low < len(rows):
                high = low + chance.randrange(1, 4)
                found += times.of(np.array(rows[low:high], np.int64)).to_pylist()
                low = high
            assert found == [window.lower for window in windows]


@given(st.integers(0, 1 << 32))
def test_watermark_applies_from_first_offset_at_or_after_it(seed: int) -> None:
    life = Life(random.Random(seed))
    ranges = {one: (piece.low, piece.high) for one, piece in life.segments.items()}
    for watermark in life.watermarks:
        for segment, piece in life.segments.items():
            orders = [
                compare_shared(watermark.positions(), {segment: offset}, ranges).is_at_or_before for offset in range(9)
            ]
            first = orders.index(True) if True in orders else None
            at = holds_from(watermark, piece)
            assert (at if at is None else max(at, 0)) == first
            assert first is None or all(orders[first:])
