"""The latest rows of a table, and its changes: read anew from the stream each time, as Arrow's C stream."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from nadi.client.scan.scan import Scan
from nadi.client.scan.selection import Readable
from nadi.client.streamtables.changes import changes_of, changes_schema
from nadi.client.streamtables.latest import latest_rows
from nadi.client.streamtables.layout import Layout
from nadi.model.streamcut import StreamCut

_BATCH_ROWS = 50_000


class LatestRows(Readable):
    """The latest row of each key at a cut, `end`."""

    def __init__(self, layout: Layout, scan: Scan) -> None:
        self.end: StreamCut = scan.end
        self._layout, self._scan = layout, scan

    @property
    def schema(self) -> pa.Schema:
        return self._layout.told

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, in no particular order."""
        for rows in latest_rows(self._layout, self._layout.rows(self._scan.batches())):
            yield from self._layout.tell(rows).to_batches(_BATCH_ROWS)


class Changes(Readable):
    """What changed in a table between two cuts, `start` and `end`."""

    def __init__(self, layout: Layout, before: Scan, scan: Scan) -> None:
        self.start: StreamCut = scan.start
        self.end: StreamCut = scan.end
        self._layout, self._before, self._scan = layout, before, scan

    @property
    def schema(self) -> pa.Schema:
        return changes_schema(self._layout)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the changes: those of each key in order."""
        before, rows = (self._layout.rows(scan.batches()) for scan in (self._before, self._scan))
        for found in changes_of(self._layout, before, rows):
            yield from found.to_batches(_BATCH_ROWS)
