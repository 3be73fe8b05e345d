"""One frame of the log while it is being put together: operations, and the data they append.

Appends to one segment are gathered in a run: one operation, one extent and one block of data for
all of them. Any other operation on that segment ends its run, so the order of a segment's changes
is the order of its operations.
"""

from __future__ import annotations

from nadi.segmentstore import moments
from nadi.segmentstore.operations import AnyOperation, Append, encode_head
from nadi.segmentstore.records import Extent, FrameRef, SegmentRecord
from nadi.segmentstore.state import StateMachine
from nadi.wire.fields import Buffer


class _Run:
    __slots__ = ("events", "extent", "offset", "parts", "record", "size", "writers")

    def __init__(self, record: SegmentRecord) -> None:
        self.record = record
        self.offset = record.length  # kept apart from the extent, which a merge may move
        self.size = 0
        self.extent: Extent | None = None
        self.parts: list[Buffer] = []
        self.events = 0
        self.writers: dict[bytes, int] = {}


class FrameBuilder:
    """Collects what one frame carries; `apply` brings an operation into the state at once."""

    def __init__(self, ref: FrameRef, now_ms: int, state: StateMachine) -> None:
        self.ref = ref
        self.now_ms = now_ms
        self.touched: dict[int, SegmentRecord] = {}
        self.size_bytes = 0
        self._state = state
        self._operations: list[AnyOperation | _Run] = []
        self._open: dict[int, _Run] = {}

    def append(
        self,
        record: SegmentRecord,
        parts: list[Buffer],
        size: int,
        events: int,
        writer: bytes | None,
        last: int,
    ) -> int:
        """Add bytes to the segment's run; gives the segment's length after them."""
        run = self._open.get(record.id)
        if run is None:
            run = self._open[record.id] = _Run(record)
            self._operations.append(run)
            self.touched[record.id] = record
            self._state.mark(record)
            moments.note(record, self.now_ms)
        if size:
            if run.extent is None:
                run.extent = Extent(record.length, 0, self.ref, 0)
                record.extents.append(run.extent)
                self.ref.segments.append(record.id)
                record.changed_extents[record.length] = run.extent
            run.extent.length += size
            run.size += size
        run.parts += parts
        run.events += events
        if writer is not None:
            run.writers[writer] = last
            record.attributes[writer] = last
            record.changed_attributes.add(writer)
        record.length += size
        record.log_bytes += size
        record.event_count += events
        record.modified_ms = self.now_ms
        self.ref.live_bytes += size
        self.size_bytes += size
        return record.length

    def emit(self, operation: AnyOperation, *records: SegmentRecord) -> None:
        """Add another operation and apply it; runs of the segments it speaks of end here."""
        for record in records:
            self._open.pop(record.id, None)
            self.touched[record.id] = record
        self._operations.append(operation)
        self._state.apply(operation, self.ref)

    @property
    def empty(self) -> bool:
        return not self._operations

    def finish(self) -> tuple[list[bytes], list[Extent]]:
        """The frame's payload, the head and the parts behind it, and the extent that each of these parts makes."""
        data: list[bytes] = []
        operations: list[AnyOperation] = []
        extents: list[Extent] = []
        position = 0
        for item in self._operations:
            if not isinstance(item, _Run):
                operations.append(item)
                continue
            operations.append(
                Append(item.record.id, item.offset, item.size, position, item.events, item.writers, self.now_ms)
            )
            if item.extent is not None:
                block = b"".join(item.parts)
                item.parts = []
                item.extent.position = position  # in the data area, as yet
                extents.append(item.extent)
                data.append(block)
                position += len(block)
        head = encode_head(operations)
        for extent in extents:
            extent.position += len(head)
        return [head, *data], extents
