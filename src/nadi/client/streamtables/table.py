"""A stream table opened for reading: `nadi.stream_table(manager, "home", "meters")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa

from nadi.client.blocking.face import inside
from nadi.client.blocking.manager import StreamManager
from nadi.client.control.arguments import check_strings, checked, checking
from nadi.client.definitions.columns import fields_of
from nadi.client.definitions.stream_tables import TableDefinition, planned
from nadi.client.scan.rows import Readable
from nadi.client.scan.scan import Scan, scan
from nadi.client.stream_cuts.slices import NamedSlice
from nadi.client.streamtables.changes import changes_of, changes_schema
from nadi.client.streamtables.latest_rows import latest_rows
from nadi.client.streamtables.layout import OWN, Layout
from nadi.client.values.options import ReadTarget
from nadi.errors import InvalidArgumentError
from nadi.model.streamcut import StreamCut
from nadi.naming import VALUE

_BATCH_ROWS = 50_000


class LatestRows(Readable):
    """The latest row of each key at a cut, `end`."""

    def __init__(self, layout: Layout, scan: Scan) -> None:
        self.end: StreamCut = scan.end
        self._layout, self._scan = layout, scan

    @property
    def schema(self) -> pa.Schema:
        return self._layout.output_schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, in no particular order."""
        for rows in latest_rows(self._layout, self._layout.rows(self._scan.batches())):
            yield from self._layout.output(rows).to_batches(_BATCH_ROWS)


class Changes(Readable):
    """The changes of a table between two cuts, `start` and `end`."""

    def __init__(self, layout: Layout, before: Scan, scan: Scan) -> None:
        self.start: StreamCut = scan.start
        self.end: StreamCut = scan.end
        self._layout, self._before, self._scan = layout, before, scan

    @property
    def schema(self) -> pa.Schema:
        return changes_schema(self._layout)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the changes; those of each key are in order."""
        before, rows = (self._layout.rows(scan.batches()) for scan in (self._before, self._scan))
        for changes in changes_of(self._layout, before, rows):
            yield from changes.to_batches(_BATCH_ROWS)


Place = StreamCut | datetime | str


@checked()
class StreamTable:
    """A stream read as a table, by the definition at the time of opening; without a schema in it, by the stream's
    newest schema at each read."""

    def __init__(self, manager: StreamManager, definition: TableDefinition) -> None:
        self.definition = definition
        self._manager = manager

    @property
    def target(self) -> ReadTarget:
        """The current type of its events, for reading and writing."""
        thread, core = inside(self._manager)
        return thread.run(planned(core, self.definition))

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return pa.schema(fields_of(self.target.kind, self._name))

    def rows(
        self,
        *,
        start: Place | None = None,
        end: Place | None = None,
        slice: str | NamedSlice | None = None,
        also: Sequence[str] = OWN,
    ) -> Scan:
        """Return the rows written between two positions in the stream, or in a slice of it, as Arrow: one row per
        event, with the table's columns, and `segment_id` and `offset`, the event's location.

        start, end, slice: as for `nadi.scan`. also: additional columns of a scan; one whose name is also a column of
        the table is omitted.
        """
        target = self.target
        names = {field.name.lower() for field in fields_of(target.kind, self._name)}
        own = (name for name in check_strings(also, "the columns in `also`") if name.lower() not in names)
        return self._scan(target, start, end, slice, (VALUE, *own), unnest=True)

    def latest(self, at: Place | None = None) -> LatestRows:
        """Return the latest row of each key at a position in the stream, by default its current end, as Arrow. A row
        whose columns are null except for the key and the event time deletes its key.

        In a table of changes, with a column `_change_type`, `delete` deletes too, and `update_before` is ignored. A row
        with a null in its key is ignored. InvalidArgumentError if the table lacks a key.
        """
        layout, target = self._layout_of("its latest rows are undefined")
        return LatestRows(layout, self._placed(target, None, at))

    def changes(self, *, start: Place | None = None, end: Place | None = None) -> Changes:
        """Return the changes of `latest` between two positions in the stream as Arrow, every single change.

        The column `_change_type` is insert, update_before, update_after or delete. start, end: as for `nadi.scan`; by
        default all changes since the stream's head.
        """
        layout, target = self._layout_of("its changes are undefined")
        rows = self._placed(target, start, end)
        return Changes(layout, self._placed(target, None, rows.start), rows)

    # --- for other modules ------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The layout of its rows now; InvalidArgumentError without a key."""
        return self._layout_of("its changes are undefined")[0]

    def placed_rows(self, layout: Layout, start: StreamCut | None, end: StreamCut) -> Iterator[pa.Table]:
        """Return the rows between two cuts, in the order of their positions."""
        return layout.rows(self._placed(self.target, start, end).batches())

    # --- inside -----------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"table {self.definition.scope}/{self.definition.name}"

    def _layout_of(self, why: str) -> tuple[Layout, ReadTarget]:
        target = self.target
        if not self.definition.key:
            raise InvalidArgumentError(f"{self._name} lacks a key, so {why}: define it with key=[…]")
        fields = tuple(fields_of(target.kind, self._name))
        return Layout(fields, self.definition.key, self.definition.event_time or ""), target

    def _placed(self, target: ReadTarget, start: Place | None, end: Place | None) -> Scan:
        return self._scan(target, start, end, None, (VALUE, *OWN), unnest=False)

    def _scan(
        self,
        target: ReadTarget,
        start: Place | None,
        end: Place | None,
        slice: str | NamedSlice | None,
        columns: tuple[str, ...],
        *,
        unnest: bool,
    ) -> Scan:
        table, value = self.definition, target.options
        if isinstance(slice, str):
            slice = self._manager.slices(table.scope).get(slice)
        if slice is not None and (slice.scope, slice.stream) != (table.scope, table.stream):
            raise InvalidArgumentError(
                f"slice {slice.name} belongs to stream {slice.scope}/{slice.stream}, but {self._name} is a table of "
                f"stream {table.stream}: choose a slice of that stream"
            )
        return scan(
            self._manager,
            table.scope,
            table.stream if slice is None else None,
            start=start,
            end=end,
            slice=slice,
            columns=columns,
            value_format=value.format,
            value_schema=value.ddl,
            value_mode=value.mode,
            unnest=unnest,
        )


@checking
def stream_table(manager: StreamManager, scope: str, name: str) -> StreamTable:
    """Open a stream table by the definition that `manager.stream_tables(scope).define` stored.

    StreamTableNotFoundError if it doesn't exist; InvalidArgumentError if the stream's current schema doesn't fit the
    definition.
    """
    table = StreamTable(manager, manager.stream_tables(scope).get(name))
    _ = table.target
    return table
