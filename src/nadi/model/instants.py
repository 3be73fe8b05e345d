"""Conversion of numbers in events to instants, and the valid range of instants.

A number in a column `timestamp` counts seconds since 1970, as in Spark; the types timestamp_s, timestamp_ms,
timestamp_us and timestamp_ns name the unit. Instants outside the years 1 to 9999 are rejected: Python, Spark and
Parquet's statistics can't represent them.

>>> instant_of(1790000000, "s"), instant_of(-1, "ns"), instant_of(1.1, "s")
(1790000000000000, -1, 1100000)
>>> instant_of(1790000000123, "s")
Traceback (most recent call last):
ValueError: 1790000000123 s since 1970 is outside the years 1 to 9999: declare the column timestamp_ms if these are \
milliseconds
"""

from __future__ import annotations

from fractions import Fraction

from nadi.naming import PER_SECOND

EARLIEST_S, END_S = -62_135_596_800, 253_402_300_800  # of the years 1 to 9999; the end is the first second after them
PER_SECOND_US = PER_SECOND["us"]
EARLIEST_US, LATEST_US = EARLIEST_S * PER_SECOND_US, END_S * PER_SECOND_US - 1
EARLIEST_DAY, LATEST_DAY = EARLIEST_S // 86_400, END_S // 86_400 - 1
_LIKELY_END_S = 4_102_444_800  # of 2100
_FINER = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def instant_of(number: float, unit: str) -> int:
    """Convert a number of s, ms, us or ns since 1970 to microseconds, rounded down; a float means its shortest text.

    ValueError outside the years 1 to 9999; it suggests a finer unit that would give a present-day time.
    """
    per_s = PER_SECOND[unit]
    if EARLIEST_S * per_s <= number < END_S * per_s:
        exact = number if isinstance(number, int) else Fraction(repr(number))
        return exact * PER_SECOND_US // per_s
    hints = (
        f": declare the column timestamp_{finer} if these are {words}"
        for finer, words in _FINER.items()
        if PER_SECOND[finer] > per_s and 0 <= number < _LIKELY_END_S * PER_SECOND[finer]
    )
    raise ValueError(f"{number} {unit} since 1970 is outside the years 1 to 9999{next(hints, '')}")
