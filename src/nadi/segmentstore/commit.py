"""One transaction that changes a container's state: checksums on all values, totals brought along, changes noted.

What it noted, the last value of each changed key or None for one that is gone, is exactly what changed in the
file. So a copy of the file from before becomes one of now by putting just that into it (`apply`), without a
knowledge of what the records mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import lmdb

from nadi.segmentstore.checked import (
    COUNTED,
    CRC_BYTES,
    STATE_KEY,
    TOTALS_KEY,
    Totals,
    checksum_of,
    encode_totals,
    is_whole,
    sealed,
    seed_of,
)
from nadi.wire.fields import Buffer

CHANGE_OVERHEAD_BYTES = 200  # of a noted change, beside key and value

Changes = dict[tuple[str, bytes], bytes | None]  # (table, key): the value with its checksum, or None
Tables = Mapping[str, lmdb._Database]
Seeds = Mapping[str, int]


class Noted(NamedTuple):
    """What a transaction changed."""

    changes: Changes
    size_bytes: int
    totals: Totals


class Commit:
    """The changes of one write transaction. `seeds` None: of a state without checksums."""

    def __init__(self, txn: lmdb.Transaction, tables: Tables, seeds: Seeds | None, totals: Totals) -> None:
        self._txn = txn
        self._tables = tables
        self._seeds = seeds
        self._counts = {table: totals.get(table, (0, 0))[0] for table in COUNTED}
        self._sums = {table: totals.get(table, (0, 0))[1] for table in COUNTED}
        self._counts["state"] = self._sums["state"] = 0  # not counted, but for the sake of one rule
        self._changes: Changes = {}
        self._size_bytes = 0

    def put(self, table: str, key: bytes, value: bytes) -> None:
        if self._seeds is None:
            self._txn.put(key, value, db=self._tables[table])
            return
        raw = sealed(self._seeds[table], key, value)
        old = self._txn.replace(key, raw, db=self._tables[table])
        self._count(table, key, old, raw)

    def delete(self, table: str, key: bytes) -> None:
        """Delete a key if it is there."""
        old = self._txn.pop(key, db=self._tables[table])
        if old is not None and self._seeds is not None:
            self._count(table, key, old, None)

    def delete_range(
        self, table: str, prefix: bytes, most: int | None = None, ends: Callable[[bytes], bool] = lambda value: False
    ) -> None:
        """Delete the keys that start with `prefix`: at most so many, and none from one on whose value `ends` it."""
        cursor = self._txn.cursor(self._tables[table])
        cursor.set_range(prefix)
        while most is None or most > 0:
            key, raw = bytes(cursor.key()), bytes(cursor.value())
            if not key.startswith(prefix) or ends(raw):  # at the table's end the key is empty
                return
            cursor.delete()  # and goes on to the next
            if self._seeds is not None:
                self._count(table, key, raw, None)
            most = None if most is None else most - 1

    def _count(self, table: str, key: bytes, old: Buffer | None, new: bytes | None) -> None:
        if old is not None:
            self._counts[table] -= 1
            self._sums[table] -= checksum_of(old)
        if new is not None:
            self._counts[table] += 1
            self._sums[table] += checksum_of(new)
        self._changes[table, key] = new
        self._size_bytes += len(key) + len(new or b"") + CHANGE_OVERHEAD_BYTES

    def finish(self) -> Noted:
        """Write the totals; to be called last in the transaction."""
        totals = {table: (self._counts[table], self._sums[table]) for table in COUNTED}
        if self._seeds is not None:
            self.put("state", TOTALS_KEY, encode_totals(totals))
        return Noted(self._changes, self._size_bytes, totals)


def apply(env: lmdb.Environment, tables: Tables, changes: Mapping[tuple[str, bytes], bytes | None]) -> None:
    """Bring a copy of a state to where the changes were noted; they carry checksums and totals."""
    with env.begin(write=True) as txn:
        for (table, key), raw in changes.items():
            if raw is None:
                txn.delete(key, db=tables[table])
            else:
                txn.put(key, raw, db=tables[table])


def is_checked(raw_state: bytes, container: int) -> bool:
    """Whether a state's own record, as stored, has a checksum, and so all of that state's values."""
    return is_whole(seed_of(container, "state"), STATE_KEY, raw_state)


def plain(raw: bytes) -> bytes:
    """A stored value without its checksum."""
    return raw[:-CRC_BYTES]
