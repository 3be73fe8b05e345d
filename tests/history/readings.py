"""A household's readings, endlessly: which has which number, and so what each meter has used up to any of them.

The values are those of the smart-meter example (see NOTICE), in watt-minutes, which are whole numbers, so that sums are
exact: a house's four meters, and those of further houses that live some days later. After the last comes the first.
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from examples.smart_meters.extract import EXTRACT
from examples.smart_meters.readings import METERS, read_readings

COLUMNS = "meter string, n long, wm long, at timestamp"
FIELDS = "meter:keyword,n:long,wm:long,at:date"
HOUSES = 3
_FIRST = datetime(2010, 11, 8, tzinfo=UTC)
_DAY = 1440  # readings


class Reading(msgspec.Struct, frozen=True):
    """n: the how manieth of its meter, from 0 on. wm: watt-minutes. at: when its minute began."""

    meter: str
    n: int
    wm: int
    at: datetime


class Total(NamedTuple):
    """Of a meter: how many, and what they come to."""

    readings: int
    wm: int


@cache
def _household() -> dict[str, npt.NDArray[np.int64]]:
    found: dict[str, list[int]] = defaultdict(list)
    for reading in read_readings(EXTRACT):
        found[reading.meter].append(round(reading.wh * 60))
    return {meter: np.array(values) for meter, values in found.items()}


class Readings:
    """Reading number 0, 1, 2, …: one of each meter, in the order that the seed gives, and then again.

    >>> readings = Readings(7)
    >>> used = [readings.reading(number) for number in range(100)]
    >>> meter = used[20].meter
    >>> own = [one.wm for one in used if one.meter == meter]
    >>> readings.total(meter, len(own)) == Total(len(own), sum(own)), readings.counts(100)[meter] == len(own)
    (True, True)
    """

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.meters = [f"{meter}{house}" for meter in METERS for house in range(HOUSES)]
        chance.shuffle(self.meters)
        self._values = {name: np.roll(_household()[name[:-1]], int(name[-1]) * _DAY) for name in self.meters}
        self._sums = {name: np.concatenate([[0], np.cumsum(values)]) for name, values in self._values.items()}

    def reading(self, number: int) -> Reading:
        n, place = divmod(number, len(self.meters))
        return self.of(self.meters[place], n)

    def of(self, meter: str, n: int) -> Reading:
        values = self._values[meter]
        return Reading(meter, n, int(values[n % len(values)]), _FIRST + timedelta(minutes=n))

    def counts(self, number: int) -> dict[str, int]:
        """How many of the first readings, so many in all, are each meter's."""
        whole, some = divmod(number, len(self.meters))
        return {meter: whole + (place < some) for place, meter in enumerate(self.meters)}

    def total(self, meter: str, count: int) -> Total:
        """Of its first readings."""
        sums = self._sums[meter]
        rounds, some = divmod(count, len(sums) - 1)
        return Total(count, rounds * int(sums[-1]) + int(sums[some]))

    def between(self, meter: str, first: int, last: int) -> Total:
        """Of its readings `first` ≤ n < `last`; of none if there are no such."""
        if last <= first:
            return Total(0, 0)
        return Total(last - first, self.total(meter, last).wm - self.total(meter, first).wm)
