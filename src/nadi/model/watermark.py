"""Watermarks: how far event time has come at one place of a stream, and how the stream's mark stream encodes that.

A watermark says of its cut: every event that a writer wrote before it noted a time of `lower` or less lies before
the cut, and `upper` is the latest time that a writer had noted. An entry is one event of the mark stream, in the
form that Pravega's clients read: each part has a header of format 0, version 0 and one revision, numbered 0, with
its length; numbers are big-endian. Readers skip what later revisions add at the end. nadi's own, number 100, has the
floor: every event of a later time than `lower` lies behind it.

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
_PLACE = struct.Struct(">qq")  # segment, offset
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
    """lower, upper: the earliest and latest time that writers had noted, in their own units. cut: by segment. floor: by
    segment; empty if unknown."""

    lower: int
    upper: int
    cut: tuple[SegmentPosition, ...]
    floor: Mapping[int, int] = field(default_factory=dict)

    def positions(self) -> dict[int, int]:
        """Return the cut as offsets by segment id."""
        return {place.segment_id: place.offset for place in self.cut}

    def ranges(self) -> dict[int, tuple[float, float]]:
        """Return the key ranges of the cut's segments, by id."""
        return {place.segment_id: (place.low, place.high) for place in self.cut}


def encode_watermark(watermark: Watermark) -> bytes:
    """Return the entry's bytes, without the header of the event that holds it."""
    parts = [_TIMES.pack(watermark.lower, watermark.upper), _compact(len(watermark.cut))]
    for place in watermark.cut:
        parts.append(_framed(_RANGE.pack(place.segment_id, place.low, place.high)))
        parts.append(_OFFSET.pack(place.offset))
    return _framed(b"".join(parts), b"".join(_PLACE.pack(*place) for place in watermark.floor.items()))


def decode_watermark(data: bytes | memoryview) -> Watermark:
    """Return the watermark of an entry; ProtocolError if it isn't one."""
    try:
        return _decode(memoryview(data))
    except struct.error as error:
        raise ProtocolError(f"an entry of a mark stream ends too early: {error}") from error


def _decode(data: memoryview) -> Watermark:
    body, own, _ = _unframed(data, 0)
    lower, upper = _TIMES.unpack_from(body)
    count, at = _compact_at(body, _TIMES.size)
    if count > STREAM_MAX_SEGMENTS:
        raise ProtocolError(f"a watermark with {count:,} segments is none")
    cut = []
    for _ in range(count):
        key, _, at = _unframed(body, at)
        (offset,) = _OFFSET.unpack_from(body, at)
        at += _OFFSET.size
        segment_id, low, high = _RANGE.unpack_from(key)
        cut.append(SegmentPosition(segment_id, low, high, offset))
    return Watermark(lower, upper, tuple(cut), dict(_PLACE.iter_unpack(own)))


def _framed(body: bytes, own: bytes = b"") -> bytes:
    more = _REVISION.pack(_OWN, len(own)) + own if own else b""
    return _HEADER.pack(0, 0, 2 if own else 1, 0, len(body)) + body + more


def _unframed(data: memoryview, at: int) -> tuple[memoryview, memoryview, int]:
    """The first revision of the part at `at`, nadi's own, and where the part ends."""
    form, version, revisions, revision, length = _HEADER.unpack_from(data, at)
    if form != 0 or version != 0 or revisions < 1 or revision != 0 or length < 0:
        raise ProtocolError(f"an entry of a mark stream has a header of another form: {bytes(data[at : at + 8]).hex()}")
    start = at + _HEADER.size
    at = end = start + length
    own = data[:0]
    for _ in range(revisions - 1):  # of a later version of the format
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
    """Java's CompactInt."""
    if number < 0x80:
        return struct.pack(">B", number)
    if number <= 0x3FFF:
        return struct.pack(">H", 0x8000 | number)
    return struct.pack(">I", 0xC000_0000 | number)


def _compact_at(data: memoryview, at: int) -> tuple[int, int]:
    """The CompactInt at `at`, and where it ends."""
    (first,) = struct.unpack_from(">B", data, at)
    if first < 0x80:
        return first, at + 1
    if first < 0xC0:
        (short,) = struct.unpack_from(">H", data, at)
        return short & 0x3FFF, at + 2
    (long,) = struct.unpack_from(">I", data, at)
    return long & 0x3FFF_FFFF, at + 4
