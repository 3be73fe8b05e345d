"""Meter readings from the household file, which the demo writes into its stream.

A row of the file (one minute; the extract and the whole file have the same format) becomes one reading for each of four
meters: `main`, the whole house, and `kitchen`, `laundry` and `climate`, its three sub-meters. A missing row becomes no
reading, as from a meter that was offline. Times are the start of the minute, in milliseconds since 1970; the file's
clock never jumps, so it is read as UTC. Energy is a float, in watt-hours used within that minute.

>>> reading = Reading("main", 1257120000000, 4.2)
>>> encode(reading)
b'{"meter":"main","at":1257120000000,"wh":4.2}'
>>> decode(encode(reading)) == reading
True
"""

from __future__ import annotations

import csv
import lzma
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec

METERS = ("main", "kitchen", "laundry", "climate")
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One meter's measurement of one minute. A msgspec struct, as millions are created, sent and read."""

    meter: str
    at: int  # ms since 1970, UTC, the start of the minute
    wh: float


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Reading)


def encode(reading: Reading) -> bytes:
    """Encode the reading as an event: compact JSON, the float in the shortest form that round-trips."""
    return _encoder.encode(reading)


def decode(event: bytes) -> Reading:
    """Decode a reading written by `encode`; msgspec's DecodeError for other bytes."""
    return _decoder.decode(event)


def week(year: int, number: int) -> tuple[int, int]:
    """Return [start, end) of an ISO week, in ms since 1970, UTC.

    >>> week(2010, 45)
    (1289174400000, 1289779200000)
    """
    monday = date.fromisocalendar(year, number, 1)
    return _day_ms(monday), _day_ms(monday + timedelta(days=7))


def read_readings(path: Path, start: int | None = None, end: int | None = None) -> Iterator[Reading]:
    """Yield the readings of the days that start in [start, end) ms, by time and then in the order of METERS."""
    with lzma.open(path, "rt", encoding="ascii", newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        power = header.index("Global_active_power")
        sub_1, sub_2, sub_3 = (header.index(f"Sub_metering_{number}") for number in (1, 2, 3))
        day_text, day = "", 0
        for row in rows:
            if row[0] != day_text:
                day_text = row[0]
                day = _day_ms(datetime.strptime(day_text, "%d/%m/%Y").date())
            if row[power] == "?" or (start is not None and day < start):
                continue
            if end is not None and day >= end:
                return
            clock = row[1]
            at = day + (int(clock[:2]) * 60 + int(clock[3:5])) * MINUTE_MS
            yield Reading("main", at, float(row[power]) * 1000 / 60)  # kW over one minute
            yield Reading("kitchen", at, float(row[sub_1]))
            yield Reading("laundry", at, float(row[sub_2]))
            yield Reading("climate", at, float(row[sub_3]))


def _day_ms(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000
