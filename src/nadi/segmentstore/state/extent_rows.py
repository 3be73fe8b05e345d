"""The rows of the table `extents`: where a segment's bytes lie, by segment and offset.

An extent in a chunk, or in a file beside the log, is a row of its own. Those in the log are as many as appends, and
most are gone within seconds: so consecutive ones that are written together share a row, which has the key of its first
extent, and a fixed part for each. `singles` takes rows apart: nobody else knows of shared ones.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from nadi.segmentstore.state.commit import Commit
from nadi.segmentstore.state.records import Extent
from nadi.segmentstore.state.stored import EXTENT, ID, PAIR, pack_extent, pack_fixed
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES

ChangedExtents = dict[int, Extent | None]  # by offset; None: no extent begins there any more
Whole = Callable[[str, bytes, bytes], bytes]  # of table, key and value as stored: that without its checksum, verified

TABLE = "extents"
EVERYWHERE = 1 << 64  # an offset behind all others
_SHARED = 1 << 63  # in the length, which is that of all of them; no extent is that long
_HEAD = struct.Struct(">QQ")  # length, number of extents: not 0, so that it can't be taken for one in a chunk
_PART_BYTES = EXTENT.size + CHECKSUM_BYTES  # of each: the fixed part, and the checksum
_MOST = 42  # extents of a row: a larger value would get pages of its own
_ROWS_WORK = 4  # so many extents of a shared row take as long as a row


def _is_shared(value: bytes) -> bool:
    return bool(value[0] & 0x80)


def row_length(value: bytes) -> int:
    """How many bytes of its segment a row's extents have, by its value."""
    return int(EXTENT.unpack_from(value)[0]) & ~_SHARED


def singles(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) of each extent as a row of its own."""
    for key, value in rows:
        if _is_shared(value):
            segment, offset = PAIR.unpack(key)
            for at in range(_HEAD.size, len(value), _PART_BYTES):
                fixed, checksum = at + EXTENT.size, at + _PART_BYTES
                yield PAIR.pack(segment, offset), b"%b\0%b" % (value[at:fixed], value[fixed:checksum])
                offset += EXTENT.unpack_from(value, at)[0]
        else:
            yield key, value


def put_extents(commit: Commit, whole: Whole, segment: int, changed: ChangedExtents, stored: int) -> None:
    """Bring a segment's rows up to date; on the path of every checkpoint, with an extent for each append. stored:
    offset from which on nothing is stored, so that nothing needs to be looked for; or `EVERYWHERE`."""
    offsets = sorted(changed)
    kept = _withdraw(commit, whole, ID.pack(segment), offsets[: bisect_left(offsets, stored)], changed)
    parts: list[bytes] = []
    begin = end = 0
    for offset in sorted(kept.keys() | changed.keys()) if kept else offsets:
        extent = changed.get(offset)
        if extent is None:
            if offset not in kept:
                continue
            part = kept[offset]
            length = row_length(part)
        else:
            length = extent.length
            if extent.frame is None or extent.run or len(extent.checksums) != CHECKSUM_BYTES:
                commit.put(TABLE, PAIR.pack(segment, offset), pack_extent(extent))
                continue
            part = pack_fixed(extent) + extent.checksums
        if parts and (offset != end or len(parts) == _MOST):
            _put_row(commit, segment, begin, end, parts)
            parts = []
        if not parts:
            begin = offset
        parts.append(part)
        end = offset + length
    if parts:
        _put_row(commit, segment, begin, end, parts)


def _put_row(commit: Commit, segment: int, begin: int, end: int, parts: list[bytes]) -> None:
    value = b"".join((_HEAD.pack(end - begin | _SHARED, len(parts)), *parts))
    commit.put(TABLE, PAIR.pack(segment, begin), value, 1 + len(parts) // _ROWS_WORK)


def _withdraw(
    commit: Commit, whole: Whole, prefix: bytes, offsets: Sequence[int], changed: ChangedExtents
) -> dict[int, bytes]:
    """Delete the rows that have any of the changed extents; by offset, the parts of shared ones that are to be kept."""
    kept: dict[int, bytes] = {}
    at = 0
    while at < len(offsets):
        key, raw, after = commit.around(TABLE, prefix + ID.pack(offsets[at]))
        if key.startswith(prefix):
            value = whole(TABLE, key, raw)
            offset = PAIR.unpack(key)[1]
            end = offset + row_length(value)
            if _is_shared(value) and end > offsets[at]:
                commit.delete(TABLE, key)
                for place in range(_HEAD.size, len(value), _PART_BYTES):
                    if offset not in changed:
                        kept[offset] = value[place : place + _PART_BYTES]
                    offset += EXTENT.unpack_from(value, place)[0]
                at = bisect_left(offsets, end, at)
                continue
            if offset == offsets[at]:
                commit.delete(TABLE, key)
                at += 1
                continue
        if not after.startswith(prefix):
            break  # nothing of the segment is stored from there on
        at = bisect_left(offsets, PAIR.unpack(after)[1], at)
    return kept
