"""The latest row of each key, of rows that come in the order of their places.

Up to a sixth of `STREAM_TABLE_MEMORY_BYTES` of latest rows are held, and as much of rows that have come since; the rest
is for copies, and numbers of keys, while the former are made of both. If the latest rows alone are more, they and
whatever follows are divided by key over temporary files, which are then treated like that one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from nadi.client.streamtables.codes import codes_of
from nadi.client.streamtables.layout import Layout
from nadi.client.streamtables.spill import Spill
from nadi.limits import MIB, STREAM_TABLE_MEMORY_BYTES, STREAM_TABLE_PARTS

MOST_BYTES = STREAM_TABLE_MEMORY_BYTES // 6
GATHERED_BYTES = min(16 * MIB, MOST_BYTES)  # of rows before they are looked at together
MOST_LEVELS = 4  # of files that are divided again: enough for 32**4 times what is held


class Latest:
    """The latest rows of what was added. keeps_deleted: rows that delete their keys are rows like others."""

    def __init__(self, layout: Layout, *, keeps_deleted: bool = False) -> None:
        self._layout, self._keeps_deleted = layout, keeps_deleted
        self._most = MOST_BYTES // 2 if keeps_deleted else MOST_BYTES  # changes are made beside them
        self._held: pa.Table = layout.schema.empty_table()
        self._new: list[pa.Table] = []
        self._new_bytes = 0

    def add(self, rows: pa.Table) -> None:
        """None of them has an earlier place than a row of its key that was added before."""
        self._new.append(rows)
        self._new_bytes += rows.nbytes
        if self._new_bytes >= max(GATHERED_BYTES, min(self._held.nbytes, self._most)):
            self._compact()

    @property
    def is_too_large(self) -> bool:
        """Whether the latest rows, when they were last made, were more than may be held."""
        is_more: bool = self._held.nbytes > self._most
        return is_more

    def rows(self) -> pa.Table:
        """One for each key that isn't deleted, in the order of their places; or that is."""
        self._compact()
        return self._held

    def _compact(self) -> None:
        if not self._new:
            return
        rows = pa.concat_tables([self._held, *self._new]).combine_chunks()
        self._new, self._new_bytes = [], 0
        codes, count = codes_of(rows, self._layout.keys)
        last = np.full(count, -1, np.int64)
        last[codes] = np.arange(len(rows))  # of equal indices the last assignment counts
        found = rows.take(pa.array(np.sort(last[last >= 0])))
        if not self._keeps_deleted:
            deleted = self._layout.deletes(found)
            if deleted.any():
                found = found.filter(pa.array(~deleted))
        self._held = found


def latest_rows(layout: Layout, rows: Iterator[pa.Table], level: int = 0) -> Iterator[pa.Table]:
    """The latest row of each key that isn't deleted then."""
    latest = Latest(layout)
    for some in rows:
        latest.add(some)
        if latest.is_too_large and level < MOST_LEVELS:
            break
    else:
        yield latest.rows()
        return
    with Spill(layout.schema, layout.keys, level) as spill:
        spill.write(latest.rows())
        del latest
        for window in windows(rows):
            spill.write(window)
        for number in range(STREAM_TABLE_PARTS):
            yield from latest_rows(layout, spill.read(number), level + 1)
            spill.forget(number)


def windows(rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows, gathered to some MiB."""
    held: list[pa.Table] = []
    size = 0
    for some in rows:
        held.append(some)
        size += some.nbytes
        if size >= GATHERED_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)
