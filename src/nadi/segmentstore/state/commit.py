"""One transaction that changes a container's state: checksums on all values, changes noted.

What it noted, the last value of each changed key or None for one that is gone, is exactly what changed in the file. So
`Metadata.apply` makes an earlier copy of the file current, without knowing what the records mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import lmdb
from crc32c import crc32c

from nadi.limits import CHECKPOINT_ROWS

_CRC = struct.Struct("<I")
CHANGE_OVERHEAD_BYTES = 200  # of a noted change, beside key and value

Changes = dict[str, dict[bytes, bytes | None]]  # by table and key: the value with its checksum, or None
Tables = Mapping[str, lmdb._Database]
Seeds = Mapping[str, int]


class Commit:
    """The changes of one write transaction, which it notes. rest: called now and then, so that others get the
    interpreter while there is much to write."""

    def __init__(
        self,
        txn: lmdb.Transaction,
        tables: Tables,
        seeds: Seeds,
        rest: Callable[[], None] = lambda: None,
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
