"""Watermarks, which bound event time at a cut of a stream, and their encoding in the mark stream.

Every event that a writer wrote before noting a time of `lower` or less is before the watermark's cut; `upper` is the
latest time that a writer had noted. An entry is one event of the mark stream, in the format that Pravega's clients
read: each part has a header with format 0, version 0 and one revision, numbered 0, with its length; numbers are
big-endian. Readers skip later revisions at the end. nadi's revision, number 100, holds the floor: every event with a
time later than `lower` is after it.

>>> entry = encode_watermark(Watermark(1, 2, (SegmentPosition(3, 0.0, 1.0, 40),)))
>>> entry[:24].hex(" ", 8)
'0000010000000039 0000000000000001 0000000000000002'
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from nadi.errors import ProtocolError
from nadi.limits import STREAM_MAX_SEGMENTS

_HEADER = struct.Struct(">bbbbi")  # format, version, number of revisions, revision, its length
_TIMES = struct.Struct(">qq")
_REVISION = struct.Struct(">bi")  # its number, its length
_OWN = 100
_POSITION = struct.Struct(">qq")  # segment, offset
_RANGE = struct.Struct(">qdd")
_OFFSET = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """An offset in a segment, with the segment's half-open range of the key space."""

    segment_id: int
    low: float
    high: float
    offset: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """A bound of event time at a cut.

    lower, upper: the earliest and latest time noted by writers, in the writers' unit. cut: by segment. floor: by
    segment; empty if unknown.
    """

    lower: int
    upper: int
    cut: tuple[SegmentPosition, ...]
    floor: Mapping[int, int] = field(default_factory=dict)

    def positions(self) -> dict[int, int]:
        """Return the cut as offsets by segment id."""
        return {position.segment_id: position.offset for position in self.cut}

    def ranges(self) -> dict[int, tuple[float, float]]:
        """Return the key ranges of the cut's segments, by id."""
        return {position.segment_id: (position.low, position.high) for position in self.cut}


def encode_watermark(watermark: Watermark) -> bytes:
    """Encode an entry, without its event's header."""
    parts = [_TIMES.pack(watermark.lower, watermark.upper), _compact(len(watermark.cut))]
    for position in watermark.cut:
        parts.append(_framed(_RANGE.pack(position.segment_id, position.low, position.high)))
        parts.append(_OFFSET.pack(position.offset))
    return _framed(b"".join(parts), b"".join(_POSITION.pack(*position) for position in watermark.floor.items()))


def decode_watermark(data: bytes | memoryview) -> Watermark:
    """Decode an entry; ProtocolError."""
    try:
        return _decode(memoryview(data))
    except struct.error as error:
        raise ProtocolError(f"an entry of a mark stream ends too early: {error}") from error


def _decode(data: memoryview) -> Watermark:
    body, own, _ = _unframed(data, 0)
    lower, upper = _TIMES.unpack_from(body)
    count, at = _compact_at(body, _TIMES.size)
    if count > STREAM_MAX_SEGMENTS:
        raise ProtocolError(f"a watermark has {count:,} segments: the limit is {STREAM_MAX_SEGMENTS:,}")
    cut = []
    for _ in range(count):
        key, _, at = _unframed(body, at)
        (offset,) = _OFFSET.unpack_from(body, at)
        at += _OFFSET.size
        segment_id, low, high = _RANGE.unpack_from(key)
        cut.append(SegmentPosition(segment_id, low, high, offset))
    return Watermark(lower, upper, tuple(cut), dict(_POSITION.iter_unpack(own)))


def _framed(body: bytes, own: bytes = b"") -> bytes:
    more = _REVISION.pack(_OWN, len(own)) + own if own else b""
    return _HEADER.pack(0, 0, 2 if own else 1, 0, len(body)) + body + more


def _unframed(data: memoryview, at: int) -> tuple[memoryview, memoryview, int]:
    """Return the first revision of the part at `at`, nadi's revision, and the end of the part."""
    form, version, revisions, revision, length = _HEADER.unpack_from(data, at)
    if form != 0 or version != 0 or revisions < 1 or revision != 0 or length < 0:
        raise ProtocolError(f"an entry of a mark stream has an unknown header: {bytes(data[at : at + 8]).hex()}")
    start = at + _HEADER.size
    at = end = start + length
    own = data[:0]
    for _ in range(revisions - 1):  # from later versions of the format
        revision, length = _REVISION.unpack_from(data, at)
        if length < 0:
            raise ProtocolError("an entry of a mark stream has a revision of negative length")
        at += _REVISION.size + length
        if revision == _OWN:
            own = data[at - length : at]
    if at > len(data):
        raise ProtocolError("an entry of a mark stream ends too early")
    return data[start:end], own, at


def _compact(number: int) -> bytes:
    """Encode a Java CompactInt."""
    if number < 0x80:
        return struct.pack(">B", number)
    if number <= 0x3FFF:
        return struct.pack(">H", 0x8000 | number)
    return struct.pack(">I", 0xC000_0000 | number)


def _compact_at(data: memoryview, at: int) -> tuple[int, int]:
    """Return the CompactInt at `at`, and its end."""
    (first,) = struct.unpack_from(">B", data, at)
    if first < 0x80:
        return first, at + 1
    if first < 0xC0:
        (short,) = struct.unpack_from(">H", data, at)
        return short & 0x3FFF, at + 2
    (long,) = struct.unpack_from(">I", data, at)
    return long & 0x3FFF_FFFF, at + 4
