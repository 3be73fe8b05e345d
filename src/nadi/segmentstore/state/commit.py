"""One transaction that changes a container's state: checksums on all values, totals updated, changes noted.

What it noted, the last value of each changed key or None for one that is gone, is exactly what changed in the file. So
`apply` makes an earlier copy of the file current, without knowing what the records mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

import lmdb
from crc32c import crc32c

from nadi.limits import CHECKPOINT_ROWS
from nadi.segmentstore.state.checked import COUNTED, CRC_BYTES, TOTALS_KEY, Totals, checksum_of, encode_totals
from nadi.wire.fields import Buffer

_CRC = struct.Struct("<I")
CHANGE_OVERHEAD_BYTES = 200  # of a noted change, beside key and value

Changes = dict[str, dict[bytes, bytes | None]]  # by table and key: the value with its checksum, or None
Tables = Mapping[str, lmdb._Database]
Seeds = Mapping[str, int]


class Noted(NamedTuple):
    changes: Changes
    size_bytes: int
    totals: Totals


class Commit:
    """The changes of one write transaction. rest: called now and then, so that others get the interpreter while there
    is much to write."""

    def __init__(
        self,
        txn: lmdb.Transaction,
        tables: Tables,
        seeds: Seeds,
        totals: Totals,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._rest, self._rows = rest, 0
        self._tables = tables
        self._seeds = seeds
        self._totals = {table: list(totals.get(table, (0, 0))) for table in COUNTED}
        self._totals["state"] = [0, 0]  # not kept, but counted so that one rule fits all
        self._cursors = {table: txn.cursor(db) for table, db in tables.items()}
        self._changes: Changes = {table: {} for table in tables}
        self._size_bytes = 0

    def put(self, table: str, key: bytes, value: bytes, rows: int = 1) -> None:
        """On the path of every checkpoint, so everything is done here: 2 us. rows: as many took the work for it."""
        crc = crc32c(value, crc32c(key, self._seeds[table]))
        raw = value + _CRC.pack(crc)
        old = self._cursors[table].replace(key, raw)
        total = self._totals[table]
        if old is None:
            total[0] += 1
            total[1] += crc
        else:
            total[1] += crc - _CRC.unpack(old[-CRC_BYTES:])[0]
        self._changes[table][key] = raw
        self._size_bytes += len(key) + len(raw) + CHANGE_OVERHEAD_BYTES
        self._rows += rows
        if self._rows >= CHECKPOINT_ROWS:
            self._rows = 0
            self._rest()

    def delete(self, table: str, key: bytes) -> None:
        old = self._cursors[table].pop(key)
        if old is not None:
            self._gone(table, key, old)

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
            self._gone(table, key, raw)
            most = None if most is None else most - 1

    def _gone(self, table: str, key: bytes, old: Buffer) -> None:
        total = self._totals[table]
        total[0] -= 1
        total[1] -= checksum_of(old)
        self._changes[table][key] = None
        self._size_bytes += len(key) + CHANGE_OVERHEAD_BYTES

    def finish(self) -> Noted:
        """Write the totals; to be called last in the transaction."""
        totals: Totals = {table: (self._totals[table][0], self._totals[table][1]) for table in COUNTED}
        self.put("state", TOTALS_KEY, encode_totals(totals))
        return Noted(self._changes, self._size_bytes, totals)


def merge(changes: Changes, later: Changes) -> None:
    for table, rows in later.items():
        if rows:
            changes.setdefault(table, {}).update(rows)


def apply(env: lmdb.Environment, tables: Tables, changes: Changes) -> None:
    """Bring a copy of a state up to date with the changes; they carry checksums and totals."""
    with env.begin(write=True) as txn:
        for table, rows in changes.items():
            for key, raw in rows.items():
                if raw is None:
                    txn.delete(key, db=tables[table])
                else:
                    txn.put(key, raw, db=tables[table])
