"""An endless sequence of a household's readings, with each meter's total up to any of them.

The values are from the smart-meter example (see NOTICE), in watt-minutes, which are integers, so that sums are exact: a
house's four meters, and further houses shifted by some days. After the last value the sequence starts over.
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
    """One reading. n: number within its meter, from 0. wm: watt-minutes. at: start of its minute."""

    meter: str
    n: int
    wm: int
    at: datetime


class Total(NamedTuple):
    """Number and sum of a meter's readings."""

    readings: int
    wm: int


@cache
def _household() -> dict[str, npt.NDArray[np.int64]]:
    values_by_meter: dict[str, list[int]] = defaultdict(list)
    for reading in read_readings(EXTRACT):
        values_by_meter[reading.meter].append(round(reading.wh * 60))
    return {meter: np.array(values) for meter, values in values_by_meter.items()}


class Readings:
    """Readings 0, 1, 2, …: one of each meter, in an order given by the seed, and then again.

    >>> readings = Readings(7)
    >>> used = [readings.reading(number) for number in range(100)]
    >>> meter = used[20].meter
    >>> own = [item.wm for item in used if item.meter == meter]
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
        n, index = divmod(number, len(self.meters))
        return self.of(self.meters[index], n)

    def of(self, meter: str, n: int) -> Reading:
        values = self._values[meter]
        return Reading(meter, n, int(values[n % len(values)]), _FIRST + timedelta(minutes=n))

    def counts(self, number: int) -> dict[str, int]:
        """Return how many of the first `number` readings belong to each meter."""
        rounds, extra = divmod(number, len(self.meters))
        return {meter: rounds + (index < extra) for index, meter in enumerate(self.meters)}

    def total(self, meter: str, count: int) -> Total:
        """Return the total of the meter's first `count` readings."""
        sums = self._sums[meter]
        rounds, extra = divmod(count, len(sums) - 1)
        return Total(count, rounds * int(sums[-1]) + int(sums[extra]))

    def between(self, meter: str, first: int, last: int) -> Total:
        """Return the total of the meter's readings `first` ≤ n < `last`."""
        if last <= first:
            return Total(0, 0)
        return Total(last - first, self.total(meter, last).wm - self.total(meter, first).wm)
