"""One frame of the log while it is being put together: operations, and the data they append.

Appends to one segment are gathered in a run: one operation, one extent and one block of data for
all of them. Any other operation on that segment ends its run, so the order of a segment's changes
is the order of its operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nadi.errors import StorageFullError
from nadi.segmentstore.state import time_index
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.operations import AnyOperation, Append, encode_head, most_bytes
from nadi.segmentstore.state.records import Extent, FrameRef, SegmentRecord
from nadi.segmentstore.tier1.log import NOTHING
from nadi.wire.fields import Buffer

_RUN_BYTES = 128  # the most that an append's operation takes, and one writer's number in it
_WRITER_BYTES = 32


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
    """Collects what one frame carries; `emit` brings an operation into the state at once.

    room_bytes: how large the frame may become, given how much of the room kept aside it may take. What would make it
    larger is refused with a StorageFullError before anything is changed, so a full disk never costs a state.
    sure_bytes: up to that size there is no need to ask.
    """

    def __init__(
        self, ref: FrameRef, now_ms: int, state: StateMachine, room_bytes: Callable[[float], int], sure_bytes: int = 0
    ) -> None:
        self.ref = ref
        self.now_ms = now_ms
        self.touched: dict[int, SegmentRecord] = {}
        self.size_bytes = 0
        self._payload_bytes = 0  # at most
        self._room_bytes = room_bytes
        self._room = sure_bytes
        self.state = state
        self._operations: list[AnyOperation | _Run] = []
        self.appended: list[tuple[str, int, int]] = []  # once finished, of each run: the segment, events and bytes
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
        """Add bytes to the segment's run; return the segment's length after them."""
        payload_bytes = self._payload_bytes + size + _WRITER_BYTES
        run = self._open.get(record.id)
        if run is None:
            payload_bytes += _RUN_BYTES
        if payload_bytes > self._room and not self._has_room(payload_bytes):
            raise _no_room()
        self._payload_bytes = payload_bytes
        if run is None:
            run = self._open[record.id] = _Run(record)
            self._operations.append(run)
            self.touched[record.id] = record
            self.state.mark(record)
            time_index.note(record, self.now_ms)
        if size:
            if run.extent is None:
                continues = record.continues_at(record.length)
                run.extent = Extent(record.length, 0, self.ref, 0, continues=continues)
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

    def emit(self, operation: AnyOperation, *records: SegmentRecord, of_kept: float = NOTHING) -> None:
        """Add another operation and apply it; runs of the segments it affects end here."""
        self.emit_all([operation], *records, of_kept=of_kept)

    def emit_all(self, operations: Sequence[AnyOperation], *records: SegmentRecord, of_kept: float = NOTHING) -> None:
        """Add operations and apply them, all or none.

        of_kept: how much of the room kept aside for a full disk they may use.
        """
        payload_bytes = self._payload_bytes + sum(map(most_bytes, operations))
        if payload_bytes > self._room and payload_bytes > self._room_bytes(of_kept):
            raise _no_room()
        self.size_bytes += payload_bytes - self._payload_bytes
        self._payload_bytes = payload_bytes
        for record in records:
            self._open.pop(record.id, None)
            self.touched[record.id] = record
        for operation in operations:
            self._operations.append(operation)
            self.state.apply(operation, self.ref)

    def _has_room(self, payload_bytes: int) -> bool:
        self._room = self._room_bytes(NOTHING)
        return payload_bytes <= self._room

    @property
    def empty(self) -> bool:
        return not self._operations

    def finish(self) -> tuple[list[bytes], list[Extent]]:
        """Return the frame's payload (the head and the parts after it), and the extent that each part makes."""
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
            self.appended.append((item.record.name, item.events, item.size))
            if item.extent is not None:
                block = b"".join(item.parts)
                item.parts = []
                item.extent.position = position  # for now, relative to the data area
                extents.append(item.extent)
                data.append(block)
                position += len(block)
        head = encode_head(operations)
        for extent in extents:
            extent.position += len(head)
        return [head, *data], extents


def _no_room() -> StorageFullError:
    return StorageFullError("no room for the log: free space on its disk; it goes on by itself once there is room")
