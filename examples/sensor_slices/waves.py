"""Sine waves as measured by sensors, and the runs in which they are high: a fold, and a plain search.

A reading is an event in JSON: the sensor, the reading's number, the value. A run consists of consecutive readings of a
sensor above THRESHOLD; the first other reading ends it. Values are integers, so that sums don't depend on an order.

>>> readings = [(number, value, f"before {number}", f"after {number}") for number, value in enumerate([1, 800, 900, 2])]
>>> state, runs = fold(NEW, readings)
>>> runs
[Run(number=1, first=1, last=2, start='before 1', end='after 2')]
>>> (state.runs, state.open)
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
    """A sensor's measurement."""

    sensor: str
    number: int  # 0, 1, … of each sensor
    value: int

    def event(self) -> bytes:
        return msgspec.json.encode(self)


class Run(msgspec.Struct, frozen=True):
    """Readings `first` to `last`, all high; `start` and `end` are the positions before the first and after the last."""

    number: int  # 1, 2, … of each sensor
    first: int
    last: int
    start: str
    end: str


class State(msgspec.Struct, frozen=True):
    """The fold's state between two readings: the number of finished runs, and the unfinished one."""

    runs: int
    open: Run | None

    def as_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> State:
        return msgspec.json.decode(text, type=cls)


class Slice(msgspec.Struct, frozen=True):
    """An event of `slices`."""

    name: str  # the sensor and the run's number, such as sensor-3.17
    sensor: str
    first: int  # numbers of readings
    last: int
    start_cut: str
    end_cut: str


class Aggregate(msgspec.Struct, frozen=True, order=True):
    """The aggregate of one slice."""

    sensor: str
    first: int
    last: int
    events: int
    total: int
    highest: int


NEW = State(0, None)


def fold(state: State, readings: Iterable[tuple[int, int, str, str]]) -> tuple[State, list[Run]]:
    """Process a sensor's next readings, in order: number, value, the positions before and after. Return finished runs
    too."""
    count, is_open = state.runs, state.open
    finished: list[Run] = []
    for number, value, before, after in readings:
        if value > THRESHOLD:
            if is_open is None:
                is_open = Run(count + 1, number, number, before, after)
            else:
                is_open = Run(is_open.number, is_open.first, number, is_open.start, after)
        elif is_open is not None:
            finished.append(is_open)
            count, is_open = count + 1, None
    return State(count, is_open), finished


def sensors(count: int = SENSORS) -> list[str]:
    return [f"sensor-{number}" for number in range(1, count + 1)]


def value_of(sensor: str, number: int) -> int:
    """Return a sine wave specific to each sensor: 300 readings long for the first, longer for each further one."""
    index = int(sensor.rpartition("-")[2])
    return round(1_000 * math.sin(2 * math.pi * number / (240 + 61 * index) + index))


def truth(names: Iterable[str], readings: int) -> list[Aggregate]:
    """Return the aggregates of all finished runs in the first readings of each sensor."""
    aggregates: list[Aggregate] = []
    for sensor in names:
        numbered = [(number, value_of(sensor, number)) for number in range(readings)]
        runs = [(is_high, list(run)) for is_high, run in groupby(numbered, lambda pair: pair[1] > THRESHOLD)]
        if runs and runs[-1][0]:
            runs.pop()
        for is_high, run in runs:
            if is_high:
                values = [value for _, value in run]
                aggregates.append(Aggregate(sensor, run[0][0], run[-1][0], len(run), sum(values), max(values)))
    return sorted(aggregates)
