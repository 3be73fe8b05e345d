"""From header to header over events, a bounded number at a time.

Where many events of one size follow each other, as rows of numbers do, they are passed together: numpy compares their
headers. Others cost about 0.15 us each, and the loop is shared with appends, so the work is counted.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from nadi.limits import HOPS_A_TURN

HEADER = struct.Struct(">ii")
_ROW = 16  # events of one size, after which to try whether more of them follow
_TRY_HOPS = 30  # what that costs, counted in hops,
_COMPARED_A_HOP = 40  # and how many compared headers count as one hop


class Hopped(NamedTuple):
    """Where it arrived, how many hops that was worth, and whether the bytes there may be an event."""

    at: int
    hops: int
    is_event: bool


def hop(block: memoryview, at: int, stop: int) -> Hopped:
    """Hop from the header at `at` to the first one at or after `stop`, or past the block, or as far as one turn
    allows.

    >>> events = memoryview(HEADER.pack(0, 3) + b"abc" + HEADER.pack(0, 1) + b"d" + HEADER.pack(1, 1))
    >>> hop(events, 0, 5)
    Hopped(at=11, hops=1, is_event=True)
    >>> hop(events, 0, 50)
    Hopped(at=20, hops=2, is_event=False)
    """
    end = min(stop, len(block) - HEADER.size + 1)
    hops = row = previous = 0
    needed = _ROW
    while at < end and hops < HOPS_A_TURN:
        kind, length = HEADER.unpack_from(block, at)
        if kind != 0 or length < 0:
            return Hopped(at, hops, False)
        size = HEADER.size + length
        at += size
        hops += 1
        row = row + 1 if size == previous else 0
        previous = size
        if row >= needed and at < end:
            count = _row(block, at - size, size, min(-(-(end - at) // size), _COMPARED_A_HOP * HOPS_A_TURN))
            at += count * size
            hops += _TRY_HOPS + count // _COMPARED_A_HOP
            row, needed = 0, _ROW if count > _ROW else 4 * needed
    return Hopped(at, hops, True)


def _row(block: memoryview, at: int, size: int, most: int) -> int:
    """How many of the next `most` headers, one every `size` bytes, equal the one at that position."""
    headers = np.ndarray((most + 1,), np.uint64, block, at, (size,))
    differs = headers != headers[0]
    first = int(differs.argmax())
    return first - 1 if differs[first] else most
