"""One transaction that changes a container's state: checksums on all values, changes noted; and the rows of extents.

What it noted, the last value of each changed key or None for one that is gone, is exactly what changed in the file. So
`Metadata.apply` makes an earlier copy of the file current, without knowing what the records mean.

The table `extents` says where a segment's bytes lie, by segment and offset. An extent in a chunk, or in a file beside
the log, is a row of its own. Those in the log are as many as appends, and most are gone within seconds: so consecutive
ones that are written together share a row, which has the key of its first extent, and a fixed part for each. `singles`
takes rows apart: nobody else knows of shared ones.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import lmdb
from crc32c import crc32c

from nadi.limits import CHECKPOINT_ROWS
from nadi.segmentstore.state.records import Extent
from nadi.segmentstore.state.stored import EXTENT, ID, PAIR, pack_extent, pack_fixed
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES

_CRC = struct.Struct("<I")
CHANGE_OVERHEAD_BYTES = 200  # of a noted change, beside key and value

Changes = dict[str, dict[bytes, bytes | None]]  # by table and key: the value with its checksum, or None
Tables = Mapping[str, lmdb._Database]
Seeds = Mapping[str, int]
ChangedExtents = dict[int, Extent | None]  # by offset; None: no extent begins there any more
Whole = Callable[[str, bytes, bytes], bytes]  # of table, key and value as stored: that without its checksum, verified

TABLE = "extents"
EVERYWHERE = 1 << 64  # an offset behind all others
_SHARED = 1 << 63  # in the length, which is that of all of them; no extent is that long
_HEAD = struct.Struct(">QQ")  # length, number of extents: not 0, so that it can't be taken for one in a chunk
_PART_BYTES = EXTENT.size + CHECKSUM_BYTES  # of each: the fixed part, and the checksum
_MOST = 42  # extents of a row: a larger value would get pages of its own
_ROWS_WORK = 4  # so many extents of a shared row take as long as a row


class StateCommit:
    """The changes of one write transaction, which it notes. rest: called now and then, so that others get the
    interpreter while there is much to write."""

    def __init__(
        self, txn: lmdb.Transaction, tables: Tables, seeds: Seeds, rest: Callable[[], None] = lambda: None
    ) -> None:
        self.changes: Changes = {table: {} for table in tables}
        self.size_bytes = 0
        self._rest, self._rows, self._seeds = rest, 0, seeds
        self._cursors = {table: txn.cursor(db) for table, db in tables.items()}

    def put(self, table: str, key: bytes, value: bytes, rows: int = 1) -> None:
        """On the path of every checkpoint, so everything is done here: 2 us. rows: as many took the work for it."""
        raw = value + _CRC.pack(crc32c(value, crc32c(key, self._seeds[table])))
        self._cursors[table].put(key, raw)
        self.changes[table][key] = raw
        self.size_bytes += len(key) + len(raw) + CHANGE_OVERHEAD_BYTES
        self._rows += rows
        if self._rows >= CHECKPOINT_ROWS:
            self._rows = 0
            self._rest()

    def delete(self, table: str, key: bytes) -> None:
        if self._cursors[table].pop(key) is not None:
            self._gone(table, key)

    def around(self, table: str, key: bytes) -> tuple[bytes, bytes, bytes]:
        """The last key up to this one, with its value as stored, and the first one after it, of any that there are; the
        latter is not told if the former is this very one. Empty: there is none."""
        cursor = self._cursors[table]
        after = b""
        if cursor.set_range(key):
            after = bytes(cursor.key())
            if after == key:
                return key, bytes(cursor.value()), b""
            found = cursor.prev()
        else:
            found = cursor.last()
        return (bytes(cursor.key()), bytes(cursor.value()), after) if found else (b"", b"", after)

    def delete_range(
        self,
        table: str,
        prefix: bytes,
        most: int | None = None,
        ends: Callable[[bytes], bool] = lambda value: False,
        start: bytes = b"",
    ) -> None:
        """Delete the keys from `start` on that start with `prefix`: at most so many, and none from one on whose value
        `ends` it."""
        cursor = self._cursors[table]
        cursor.set_range(max(prefix, start))
        while most is None or most > 0:
            key, raw = bytes(cursor.key()), bytes(cursor.value())
            if not key.startswith(prefix) or ends(raw):  # at the table's end the key is empty
                return
            cursor.delete()  # and moves on to the next
            self._gone(table, key)
            most = None if most is None else most - 1

    def _gone(self, table: str, key: bytes) -> None:
        self.changes[table][key] = None
        self.size_bytes += len(key) + CHANGE_OVERHEAD_BYTES


def merge(changes: Changes, later: Changes) -> None:
    for table, rows in later.items():
        if rows:
            changes.setdefault(table, {}).update(rows)


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


def put_extents(commit: StateCommit, whole: Whole, segment: int, changed: ChangedExtents, stored: int) -> None:
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


def _put_row(commit: StateCommit, segment: int, begin: int, end: int, parts: list[bytes]) -> None:
    value = b"".join((_HEAD.pack(end - begin | _SHARED, len(parts)), *parts))
    commit.put(TABLE, PAIR.pack(segment, begin), value, 1 + len(parts) // _ROWS_WORK)


def _withdraw(
    commit: StateCommit, whole: Whole, prefix: bytes, offsets: Sequence[int], changed: ChangedExtents
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
