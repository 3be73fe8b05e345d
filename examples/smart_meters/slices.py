"""Slices: the stretches in which a meter draws high power, found while readings stream by.

A fold over one meter's readings in the order of its stream: state and readings in, state and finished slices out. The
streaming job keeps the state between its batches; `finish` ends a bounded stream. The slices are the same for any
division into batches. No I/O and no Spark.

A stretch begins with a reading above the rule's threshold and ends with the last such reading before a gap: readings at
or below the threshold, or missing ones, for longer than the rule allows. A shorter gap belongs to the slice. A stretch
shorter than the rule's minimum is not a slice.

Energy is summed in whole micro-watt-hours, each reading rounded once by `micro_wh`. Sums of integers are exact and
don't depend on order or grouping, so a replay of a slice, as a whole, by Spark partitions or from the archive, has
exactly the same number; sums of floats would differ in the last digits.

>>> rule = Rule(threshold_w=1000, min_length_ms=2 * MINUTE_MS, max_gap_ms=MINUTE_MS)
>>> kettle = [(0, 40.0), (1, 5.0), (2, 40.0), (3, 1.0), (4, 1.0)]
>>> readings = [(Reading("kitchen", minute * MINUTE_MS, wh), (0, 55 * minute)) for minute, wh in kettle]
>>> state, slices = fold(rule, None, readings)
>>> [(s.start, s.end, s.energy_wh, s.first_position, s.last_position) for s in slices]
[(0, 180000, 85.0, (0, 0), (0, 110))]
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from examples.smart_meters.readings import MINUTE_MS, Reading

# The location of an event in its stream, as the source returns it: in the demo, the texts of the stream cuts just
# before
# and just after it. Only passed through here.
Position = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """The conditions of a slice: power in watts, lengths in ms."""

    threshold_w: float
    min_length_ms: int
    max_gap_ms: int


# Chosen from the data, so that a week has some dozens of slices: an oven or a hob, a washing or drying cycle, a heating
# phase of the boiler, and the whole house at busy times.
RULES = {
    "main": Rule(threshold_w=2_500, min_length_ms=20 * MINUTE_MS, max_gap_ms=5 * MINUTE_MS),
    "kitchen": Rule(threshold_w=600, min_length_ms=10 * MINUTE_MS, max_gap_ms=15 * MINUTE_MS),
    "laundry": Rule(threshold_w=600, min_length_ms=10 * MINUTE_MS, max_gap_ms=15 * MINUTE_MS),
    "climate": Rule(threshold_w=600, min_length_ms=60 * MINUTE_MS, max_gap_ms=10 * MINUTE_MS),
}


@dataclass(frozen=True, slots=True)
class Slice:
    """A finished stretch of a meter: [start, end) in ms; both positions are those of events in it."""

    meter: str
    start: int
    end: int
    energy_micro_wh: int
    first_position: Position
    last_position: Position

    @property
    def energy_wh(self) -> float:
        return self.energy_micro_wh / 1_000_000


@dataclass(slots=True)
class Stretch:
    """The state of the fold: an unfinished stretch. Only `fold` changes it.

    `gap_micro_wh` was used since `last_at`; it counts only if the power rises again in time.
    """

    meter: str
    first_at: int
    first_position: Position
    last_at: int
    last_position: Position
    micro_wh: int
    gap_micro_wh: int

    def as_text(self) -> str:
        """Return the state as a short JSON text, for a state store."""
        return json.dumps(
            [
                self.meter,
                self.first_at,
                self.first_position,
                self.last_at,
                self.last_position,
                self.micro_wh,
                self.gap_micro_wh,
            ],
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> Stretch:
        meter, first_at, first_position, last_at, last_position, micro_wh, gap_micro_wh = json.loads(text)
        return cls(meter, first_at, tuple(first_position), last_at, tuple(last_position), micro_wh, gap_micro_wh)


def micro_wh(wh: float) -> int:
    """Return a reading's energy as an integer, at most half a micro-watt-hour off."""
    return round(wh * 1_000_000)


def replayed_micro_wh(readings: Iterable[Reading]) -> int:
    """Return the energy of a slice from its readings, in any order: equal to the slice's own to the last digit."""
    return sum(micro_wh(reading.wh) for reading in readings)


def fold(
    rule: Rule, state: Stretch | None, readings: Iterable[tuple[Reading, Position]]
) -> tuple[Stretch | None, list[Slice]]:
    """Process one meter's next readings, in stream order; return the new state, and the slices they finished.

    `state` is None before the first reading and between stretches; the given one is not changed.
    """
    state = None if state is None else replace(state)
    finished: list[Slice] = []
    threshold_wh = rule.threshold_w / 60
    max_gap = rule.max_gap_ms
    for reading, position in readings:
        at, wh = reading.at, reading.wh
        high = wh > threshold_wh
        if state is not None:
            # A low reading lengthens the gap by its own minute; a high one ends the gap where it begins.
            gap = at - state.last_at - (MINUTE_MS if high else 0)
            if gap > max_gap or gap < -max_gap:
                finished += finish(rule, state)
                state = None
        if high:
            if state is None:
                state = Stretch(reading.meter, at, position, at, position, 0, 0)
            state.last_at = max(at, state.last_at)
            state.last_position = position
            state.micro_wh += state.gap_micro_wh + micro_wh(wh)
            state.gap_micro_wh = 0
        elif state is not None:
            state.gap_micro_wh += micro_wh(wh)
    return state, finished


def finish(rule: Rule, state: Stretch | None) -> list[Slice]:
    """Return the slice in `state`, if it is long enough: at the end of a bounded stream."""
    if state is None or state.last_at + MINUTE_MS - state.first_at < rule.min_length_ms:
        return []
    end = state.last_at + MINUTE_MS
    return [Slice(state.meter, state.first_at, end, state.micro_wh, state.first_position, state.last_position)]
