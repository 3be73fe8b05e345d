"""Writes a transaction that changes a container's state: values with checksums, a record of changes, rows of extents.

The recorded changes, the last value of each changed key or None if deleted, are exactly the changes of the file. So
`ContainerMetadata.apply` can update an earlier copy of the file without interpreting its records.

The table `extents` locates a segment's bytes, by segment and offset. An extent in a chunk, or in a separate file, has
its own row. Extents in the log are as many as appends, and most last only seconds: so consecutive ones written together
share a row, which has the key of its first extent, and a fixed part for each. Readers see them as separate rows,
through `singles`.
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
CHANGE_OVERHEAD_BYTES = 200  # per recorded change, without key and value

Changes = dict[str, dict[bytes, bytes | None]]  # by table and key: the value with its checksum, or None if deleted
Tables = Mapping[str, lmdb._Database]
Seeds = Mapping[str, int]
ChangedExtents = dict[int, Extent | None]  # by offset; None: no extent starts there any more
Verified = Callable[
    [str, bytes, bytes], bytes
]  # (table, key, stored value) -> the value, verified, without its checksum

TABLE = "extents"
EVERYWHERE = 1 << 64  # an offset above all others
_SHARED = 1 << 63  # flag in the row's total length; no extent is that long
_HEAD = struct.Struct(">QQ")  # length, number of extents: not 0, which marks an extent in a chunk
_PART_BYTES = EXTENT.size + CHECKSUM_BYTES  # per extent: the fixed part and the checksum
_MOST = 42  # extents per row: a larger value would get separate pages
_ROWS_WORK = 4  # extents of a shared row that take as long as one row


class StateCommit:
    """Makes and records the changes of one write transaction. rest: called regularly to yield the interpreter during
    long writes."""

    def __init__(
        self, txn: lmdb.Transaction, tables: Tables, seeds: Seeds, rest: Callable[[], None] = lambda: None
    ) -> None:
        self.changes: Changes = {table: {} for table in tables}
        self.size_bytes = 0
        self._yield_cpu, self._rows, self._seeds = rest, 0, seeds
        self._cursors = {table: txn.cursor(db) for table, db in tables.items()}

    def put(self, table: str, key: bytes, value: bytes, rows: int = 1) -> None:
        """Write a value. On the path of every checkpoint, so inlined: 2 us. rows: the equivalent number of rows, for
        `rest`."""
        raw = value + _CRC.pack(crc32c(value, crc32c(key, self._seeds[table])))
        self._cursors[table].put(key, raw)
        self.changes[table][key] = raw
        self.size_bytes += len(key) + len(raw) + CHANGE_OVERHEAD_BYTES
        self._rows += rows
        if self._rows >= CHECKPOINT_ROWS:
            self._rows = 0
            self._yield_cpu()

    def delete(self, table: str, key: bytes) -> None:
        if self._cursors[table].pop(key) is not None:
            self._note_deleted(table, key)

    def neighbours(self, table: str, key: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the last key at or before `key`, its stored value, and the next key, each b"" if there is none. If the
        key itself exists, the next key is b""."""
        cursor = self._cursors[table]
        after = b""
        if cursor.set_range(key):
            after = bytes(cursor.key())
            if after == key:
                return key, bytes(cursor.value()), b""
            has_previous = cursor.prev()
        else:
            has_previous = cursor.last()
        return (bytes(cursor.key()), bytes(cursor.value()), after) if has_previous else (b"", b"", after)

    def delete_range(
        self,
        table: str,
        prefix: bytes,
        most: int | None = None,
        ends: Callable[[bytes], bool] = lambda value: False,
        start: bytes = b"",
    ) -> None:
        """Delete the keys from `start` on that start with `prefix`: at most `most`, and none from the first one whose
        value `ends` accepts."""
        cursor = self._cursors[table]
        cursor.set_range(max(prefix, start))
        while most is None or most > 0:
            key, raw = bytes(cursor.key()), bytes(cursor.value())
            if not key.startswith(prefix) or ends(raw):  # at the table's end the key is empty
                return
            cursor.delete()  # the cursor moves to the next key
            self._note_deleted(table, key)
            most = None if most is None else most - 1

    def _note_deleted(self, table: str, key: bytes) -> None:
        self.changes[table][key] = None
        self.size_bytes += len(key) + CHANGE_OVERHEAD_BYTES


def merge(changes: Changes, later: Changes) -> None:
    for table, rows in later.items():
        if rows:
            changes.setdefault(table, {}).update(rows)


def _is_shared(value: bytes) -> bool:
    return bool(value[0] & 0x80)


def row_length(value: bytes) -> int:
    """Return the length, in bytes of the segment, of a row's extents."""
    return int(EXTENT.unpack_from(value)[0]) & ~_SHARED


def singles(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) of each extent as a separate row."""
    for key, value in rows:
        if _is_shared(value):
            segment, offset = PAIR.unpack(key)
            for at in range(_HEAD.size, len(value), _PART_BYTES):
                fixed, checksum = at + EXTENT.size, at + _PART_BYTES
                yield PAIR.pack(segment, offset), b"%b\0%b" % (value[at:fixed], value[fixed:checksum])
                offset += EXTENT.unpack_from(value, at)[0]
        else:
            yield key, value


def put_extents(commit: StateCommit, verified: Verified, segment: int, changed: ChangedExtents, stored: int) -> None:
    """Update a segment's rows; on the path of every checkpoint, with an extent for each append. stored: the offset from
    which no rows are stored, which saves look-ups; or `EVERYWHERE`."""
    offsets = sorted(changed)
    kept = _withdraw(commit, verified, ID.pack(segment), offsets[: bisect_left(offsets, stored)], changed)
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
    commit: StateCommit, verified: Verified, prefix: bytes, offsets: Sequence[int], changed: ChangedExtents
) -> dict[int, bytes]:
    """Delete the rows with changed extents; return the unchanged parts of shared rows, by offset."""
    kept: dict[int, bytes] = {}
    at = 0
    while at < len(offsets):
        key, raw, after = commit.neighbours(TABLE, prefix + ID.pack(offsets[at]))
        if key.startswith(prefix):
            value = verified(TABLE, key, raw)
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
            break  # no further rows of the segment are stored
        at = bisect_left(offsets, PAIR.unpack(after)[1], at)
    return kept
