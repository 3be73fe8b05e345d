"""Cuts and windows by event time over a model of a stream, with watermarks made by the controller's rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from nadi.client.reading import watermarks
from nadi.client.reading.watermarks import TimeWindow, TimeWindows, cut_after, cut_before
from nadi.controller import event_time as making
from nadi.controller.event_time import decide
from nadi.controller.state.history import EpochHistory, first_epoch
from nadi.controller.state.records import Step, WriterMark
from nadi.model.watermark import SegmentPosition, Watermark

ONE = EpochHistory([first_epoch(1, 0)])
PERIOD = 8  # steps between two rounds
WRITERS = 3

steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "note"]),
        st.integers(0, WRITERS - 1),
        st.integers(0, 3),  # how much later the writer's time is
        st.integers(0, PERIOD // 2 - 1),  # how long a note takes, in steps
    ),
    max_size=200,
)

Scene = list[tuple[str, int, int, int]]
QUIET: Scene = [("write", 0, 0, 0)]

# a fast writer advances to 150 after noting 100, and a slow one then notes 10
FAST: Scene = [
    ("write", 1, 100, 0), ("note", 1, 0, 0), ("write", 1, 50, 0), ("write", 0, 10, 0), ("note", 0, 0, 0),
    ("write", 2, 10, 0), ("note", 2, 0, 0), *QUIET,
    ("write", 0, 10, 0), ("note", 0, 0, 0), ("write", 2, 10, 0), ("note", 2, 0, 0), *QUIET * 4,
]  # fmt: skip
# while a note of 5 is in flight, its writer advances to 50, and a round happens in between
SLOW_NOTE: Scene = [
    ("write", 0, 4, 0), ("write", 2, 4, 0), ("write", 1, 5, 0), ("note", 2, 0, 0), ("note", 0, 0, 3),
    ("note", 1, 0, 3), ("write", 1, 45, 0), *QUIET,
    ("write", 0, 2, 0), ("write", 2, 2, 0), ("note", 0, 0, 0), ("note", 2, 0, 0), *QUIET * 4,
]  # fmt: skip


class Model:
    """One segment with events of one byte that are their times; notes reach the controller with a delay."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.times = [0] * WRITERS
        self.marks = {str(w): WriterMark(0, {0: 0}, steps=((0, {0: 0}),)) for w in range(WRITERS)}
        self.in_flight: dict[int, tuple[int, list[Step]]] = {}  # by writer: (arrival time, steps)
        self.waiting: dict[int, tuple[int, list[Step]]] = {}  # by writer: (delay, steps)
        self.watermarks: list[Watermark] = []

    def run(self, scene: Scene) -> None:
        for now, (action, writer, more, delay) in enumerate(scene, start=1):
            self.arrive(now)
            if action == "write":
                self.times[writer] += more
                self.events.append(self.times[writer])
            elif writer in self.in_flight:
                self.waiting[writer] = (delay, [*self.waiting.get(writer, (0, []))[1], self.step(writer)])
            else:
                self.in_flight[writer] = (now + delay, [self.step(writer)])
            if now % PERIOD == 0:
                self.round(now)

    def step(self, writer: int) -> Step:
        return self.times[writer], {0: len(self.events)}

    def arrive(self, now: int) -> None:
        for writer, (at, steps) in list(self.in_flight.items()):
            if at <= now:
                before = self.marks[str(writer)].steps
                self.marks[str(writer)] = WriterMark(steps[-1][0], {0: len(self.events)}, steps=(*before, *steps))
                del self.in_flight[writer]
                if writer in self.waiting:
                    delay, later = self.waiting.pop(writer)
                    self.in_flight[writer] = (now + delay, later)

    def round(self, now: int) -> None:
        previous = self.watermarks[-1] if self.watermarks else None
        with patch.object(making, "_STEP_BYTES", 1):
            verdict = decide(self.marks, previous, ONE, timeout_ms=1 << 60, waited_ms={})
        assert not verdict.dropped
        self.watermarks += verdict.watermarks

    async def read(self, *of: Any) -> AsyncGenerator[tuple[int, Watermark], None]:
        """Replacement of `watermarks`: an entry's offset is its number."""
        first = of[3] if len(of) > 3 else 0
        for number, watermark in enumerate(self.watermarks[first:], start=first + 1):
            yield number, watermark


def offset_of(watermark: Watermark) -> int:
    return watermark.cut[0].offset


@example(FAST)
@example(SLOW_NOTE)
@given(steps)
@settings(max_examples=200)
def test_cuts_by_time_separate_earlier_and_later_events(scene: Scene) -> None:
    model = Model()
    model.run(scene)

    async def main() -> None:
        for time in range(max(model.times) + 2):
            start = await cut_before(None, "sc", "st", time)  # type: ignore[arg-type]
            assert start is None or all(event < time for event in model.events[: start.positions[0]])
            end = await cut_after(None, "sc", "st", time)  # type: ignore[arg-type]
            assert end is None or all(event >= time for event in model.events[end.positions[0] :])
            assert start is None or end is None or start.positions[0] <= end.positions[0]

    with patch.object(watermarks, "watermarks", model.read), patch.object(watermarks, "find_start", _at_first):
        asyncio.run(main())


async def _at_first(*_: Any) -> int:
    return 0


@given(steps, st.data())
@settings(max_examples=200)
def test_windows_of_an_advancing_reader(scene: list[tuple[str, int, int, int]], data: st.DataObject) -> None:
    model = Model()
    model.run(scene)
    positions = data.draw(st.lists(st.integers(0, len(model.events)), max_size=10))

    async def main() -> None:
        windows = TimeWindows(_Stores(), "sc", "st")  # type: ignore[arg-type]
        for position in positions:  # mostly forward, but a reset goes back
            behind = [w.lower for w in model.watermarks if offset_of(w) <= position]
            ahead = [w.upper for w in model.watermarks if offset_of(w) > position]
            expected = TimeWindow(behind[-1] if behind else None, ahead[0] if ahead else None)
            assert await windows.at({0: position}) == expected
            if expected.lower is not None:
                assert all(event >= expected.lower for event in model.events[position:])

    with patch.object(watermarks, "watermarks", model.read), patch.object(watermarks, "find_start", _at_first):
        asyncio.run(main())


class _Stores:
    """Stores with one segment for all keys, and with its two successors."""

    @property
    def controller(self) -> _Stores:
        return self

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> list[SegmentPosition]:
        if epoch == 0:
            return [SegmentPosition(0, 0.0, 1.0, 0)]
        return [SegmentPosition((1 << 32) | 1, 0.0, 0.5, 0), SegmentPosition((1 << 32) | 2, 0.5, 1.0, 0)]


async def test_window_over_replaced_segments() -> None:
    low, high = (1 << 32) | 1, (1 << 32) | 2
    model = Model()
    model.watermarks = [
        Watermark(1, 2, (SegmentPosition(0, 0.0, 1.0, 50),)),
        Watermark(3, 4, (SegmentPosition(low, 0.0, 0.5, 7), SegmentPosition(high, 0.5, 1.0, 9))),
        Watermark(5, 6, (SegmentPosition(low, 0.0, 0.5, 8), SegmentPosition(high, 0.5, 1.0, 20))),
    ]
    expected = {
        ((0, 49),): TimeWindow(None, 2),
        ((0, 50),): TimeWindow(1, 4),
        ((0, 60),): TimeWindow(1, 4),
        ((low, 0), (high, 0)): TimeWindow(1, 4),
        ((low, 8), (high, 8)): TimeWindow(1, 6),  # not at the second everywhere, nor before it
        ((low, 9), (high, 10)): TimeWindow(3, None),
        ((high, 9),): TimeWindow(3, 6),  # a reader of some keys
        (): TimeWindow(None, None),
    }

    with patch.object(watermarks, "watermarks", model.read), patch.object(watermarks, "find_start", _at_first):
        for position, window in expected.items():
            windows = TimeWindows(_Stores(), "sc", "st")  # type: ignore[arg-type]
            assert await windows.at(dict(position)) == window
