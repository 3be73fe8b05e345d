"""Sine waves as sensors measure them, and the stretches in which they are high: a fold, and a plain search.

A reading is an event in JSON: the sensor, the reading's number, the value. A stretch is a run of readings of one sensor
above THRESHOLD; it is over with the first that isn't. Values are whole numbers, so that sums don't depend on an order.

>>> readings = [(number, value, f"before {number}", f"after {number}") for number, value in enumerate([1, 800, 900, 2])]
>>> state, found = fold(NEW, readings)
>>> found
[Stretch(number=1, first=1, last=2, start='before 1', end='after 2')]
>>> (state.stretches, state.open)
(1, None)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby

import msgspec

THRESHOLD = 700  # of 1,000, the height of each wave
SENSORS = 8


class Reading(msgspec.Struct, frozen=True):
    """What a sensor measured."""

    sensor: str
    number: int  # 0, 1, … of each sensor
    value: int

    def event(self) -> bytes:
        return msgspec.json.encode(self)


class Stretch(msgspec.Struct, frozen=True):
    """Readings `first` to `last`, all high; `start` and `end` are the positions before the first and after the last."""

    number: int  # 1, 2, … of each sensor
    first: int
    last: int
    start: str
    end: str


class State(msgspec.Struct, frozen=True):
    """What the fold knows between two readings: how many stretches there were, and the one that may still grow."""

    stretches: int
    open: Stretch | None

    def as_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> State:
        return msgspec.json.decode(text, type=cls)


class Slice(msgspec.Struct, frozen=True):
    """An event of `slices`."""

    name: str  # the sensor and the stretch's number, such as sensor-3.17
    sensor: str
    first: int  # numbers of readings
    last: int
    start_cut: str
    end_cut: str


class Aggregate(msgspec.Struct, frozen=True, order=True):
    """What is in one slice."""

    sensor: str
    first: int
    last: int
    events: int
    total: int
    highest: int


NEW = State(0, None)


def fold(state: State, readings: Iterable[tuple[int, int, str, str]]) -> tuple[State, list[Stretch]]:
    """A sensor's next readings, in order: number, value, the positions before and after. Gives what is over, too."""
    count, is_open = state.stretches, state.open
    found: list[Stretch] = []
    for number, value, before, after in readings:
        if value > THRESHOLD:
            if is_open is None:
                is_open = Stretch(count + 1, number, number, before, after)
            else:
                is_open = Stretch(is_open.number, is_open.first, number, is_open.start, after)
        elif is_open is not None:
            found.append(is_open)
            count, is_open = count + 1, None
    return State(count, is_open), found


def sensors(count: int = SENSORS) -> list[str]:
    return [f"sensor-{number}" for number in range(1, count + 1)]


def value_of(sensor: str, number: int) -> int:
    """A sine wave of its own for each sensor: 300 readings long for the first, and longer from one to the next."""
    which = int(sensor.rpartition("-")[2])
    return round(1_000 * math.sin(2 * math.pi * number / (240 + 61 * which) + which))


def truth(names: Iterable[str], readings: int) -> list[Aggregate]:
    """What there is in the first readings of each sensor: of all stretches that are over."""
    found: list[Aggregate] = []
    for sensor in names:
        numbered = [(number, value_of(sensor, number)) for number in range(readings)]
        runs = [(is_high, list(run)) for is_high, run in groupby(numbered, lambda one: one[1] > THRESHOLD)]
        if runs and runs[-1][0]:
            runs.pop()
        for is_high, run in runs:
            if is_high:
                values = [value for _, value in run]
                found.append(Aggregate(sensor, run[0][0], run[-1][0], len(run), sum(values), max(values)))
    return sorted(found)
