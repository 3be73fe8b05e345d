"""Rows as they are worked on: a table's columns under numbers for names, and where each row lies in the stream.

Of two rows of a key the later is the one with the greater place (segment id, then offset). For rows of one routing key
that is the order in which they were written: within a segment it is that of offsets, and what follows a segment has a
greater id. Rows without a place of their own in that order, those of one key in segments beside each other, have the
same order each time, and no other sense.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.client.definitions.columns import CHANGE
from nadi.client.streamtables.codes import Flags

SEGMENT, OFFSET = "segment_id", "offset"  # no table's column is named so here
OWN = (SEGMENT, OFFSET)
INSERT, BEFORE, AFTER, DELETE = "insert", "update_before", "update_after", "delete"


@dataclass(frozen=True, slots=True)
class Layout:
    """fields: the table's columns; key: those that tell rows apart; time: that of the event time, or ""."""

    fields: tuple[pa.Field, ...]
    key: tuple[str, ...]
    time: str = ""

    @property
    def keys(self) -> list[str]:
        """The names of the key's columns, here."""
        return [name for name, field in self._numbered() if field.name in self.key]

    @property
    def schema(self) -> pa.Schema:
        """Of the rows, here."""
        return pa.schema(
            [*((name, field.type) for name, field in self._numbered()), *((name, pa.int64()) for name in OWN)]
        )

    @property
    def told(self) -> pa.Schema:
        """Of the rows, as they are given away: under the columns' own names, without what says how they changed."""
        return pa.schema([field for _, field in self._told()])

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """What was read as value, segment_id and offset, without what has no key, or says what was before a change."""
        for batch in batches:
            value, *place = batch.columns
            found = pa.Table.from_arrays([*value.flatten(), *place], schema=self.schema)
            wanted = None
            for name in self.keys:
                if found[name].null_count:
                    wanted = _both(wanted, found[name].is_valid())
            if (change := self._change) is not None:
                wanted = _both(wanted, pc.fill_null(pc.not_equal(found[change], BEFORE), True))
            yield found if wanted is None else found.filter(wanted)

    def deletes(self, rows: pa.Table) -> Flags:
        """Which of the rows delete their key: all columns but key and time are null, or the row says that it does."""
        found: Flags = np.ones(len(rows), bool)
        for name, field in self._numbered():
            if field.name in self.key or field.name in (self.time, CHANGE):
                continue
            if not rows[name].null_count:
                found[:] = False
                break
            found &= rows[name].is_null().to_numpy()
        if (change := self._change) is not None:
            found |= pc.fill_null(pc.equal(rows[change], DELETE), False).to_numpy()
        return found

    def tell(self, rows: pa.Table) -> pa.Table:
        """The rows as they are given away."""
        return pa.Table.from_arrays([rows[name] for name, _ in self._told()], schema=self.told)

    def _told(self) -> list[tuple[str, pa.Field]]:
        mine = [(name, field) for name, field in self._numbered() if field.name != CHANGE]
        names = {field.name for _, field in mine}
        return [*mine, *((name, pa.field(name, pa.int64())) for name in OWN if name not in names)]

    @property
    def _change(self) -> str | None:
        return next((name for name, field in self._numbered() if field.name == CHANGE), None)

    def _numbered(self) -> list[tuple[str, pa.Field]]:
        return [(str(number), field) for number, field in enumerate(self.fields)]


def _both(first: pa.ChunkedArray | None, second: pa.ChunkedArray) -> pa.ChunkedArray:
    return second if first is None else pc.and_(first, second)
