"""Encoding of segments' loads, and of the key positions that writers report."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from nadi.errors import ProtocolError
from nadi.limits import LOAD_REPORT_POSITIONS
from nadi.model.load import SegmentLoad
from nadi.wire import commands as wire

_POSITION_BYTES = 8


def report_of_keys(writer_id: bytes, events: int, positions: Sequence[float]) -> wire.ReportKeys:
    """Build the command that reports these key positions as a sample of `events` events."""
    return wire.ReportKeys(writer_id, events, struct.pack(f">{len(positions)}d", *positions))


def positions_of(report: wire.ReportKeys) -> tuple[float, ...]:
    """Decode the positions of a report; ProtocolError if it is invalid.

    >>> positions_of(report_of_keys(bytes(16), 1000, [0.25, 0.5]))
    (0.25, 0.5)
    """
    size = len(report.positions)
    if not 0 < size <= LOAD_REPORT_POSITIONS * _POSITION_BYTES or size % _POSITION_BYTES:
        raise ProtocolError(
            f"a key report has {size} bytes of positions: 1 to {LOAD_REPORT_POSITIONS} doubles expected"
        )
    if report.events <= 0:
        raise ProtocolError(f"a key report is for {report.events} events: at least 1 expected")
    positions: tuple[float, ...] = struct.unpack(f">{size // _POSITION_BYTES}d", report.positions)
    if not (min(positions) >= 0.0 and max(positions) < 1.0 and sum(positions) < len(positions)):  # the sum finds NaN
        raise ProtocolError("a key report has a position outside [0, 1)")
    return positions


def packed_loads(loads: Sequence[SegmentLoad]) -> bytes:
    return msgspec.msgpack.encode(loads)


def unpacked_loads(packed: bytes) -> list[SegmentLoad]:
    """Decode the output of `packed_loads`; ProtocolError."""
    try:
        return msgspec.msgpack.decode(packed, type=list[SegmentLoad])
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"loads of segments can't be read: {error}") from error
