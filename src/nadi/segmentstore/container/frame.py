"""Builds one frame of the log: operations, and the data they append.

Appends to one segment are combined in a run: one operation, one extent and one block of data. Any other operation on
that segment ends its run. A large run is written to a separate file (`tier1.blob_files`): then it has two extents, as a
remainder smaller than a block of the file stays in the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from nadi.errors import StorageFullError
from nadi.limits import RUN_LEAST_BYTES
from nadi.segmentstore.counters import Arrival
from nadi.segmentstore.state import time_index
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.operations import AnyOperation, Append, AppendBeside, encode_head, most_bytes
from nadi.segmentstore.state.records import Extent, FrameRef, SegmentKind, SegmentRecord
from nadi.segmentstore.tier1.blob_files import BlobFiles, BlobWrite
from nadi.segmentstore.tier1.log import NOTHING
from nadi.wire.fields import Buffer

_RUN_BYTES = 128  # limit on the size of an append's operation, and of each writer's number in it
_WRITER_BYTES = 32


class _AppendRun(msgspec.Struct, eq=False, gc=False):
    """A run of appends. piece: its part of a separate file; then `block` is the concatenation of `parts`."""

    record: SegmentRecord
    offset: int  # separate from the extent, which a merge may move
    parts: list[Buffer]
    size: int = 0
    events: int = 0
    extent: Extent | None = None
    writers: dict[bytes, int] = {}
    block: bytes | None = None
    piece: BlobWrite | None = None


class FrameBuilder:
    """Collects the contents of one frame; `emit` applies an operation to the state at once. free_bytes: returns the
    largest size of the frame, for a given use of the reserve. Operations beyond that are refused with StorageFullError
    before anything changes, so a full disk never costs a state. sure_bytes: a size that is certain to fit."""

    def __init__(
        self, ref: FrameRef, now_ms: int, state: StateMachine, free_bytes: Callable[[float], int], sure_bytes: int = 0
    ) -> None:
        self.ref = ref
        self.now_ms = now_ms
        self.touched: dict[int, SegmentRecord] = {}
        self.size_bytes = 0
        self._payload_bytes = state.sealing.overhead  # an upper bound
        self._get_free_bytes = free_bytes
        self._sure_bytes = sure_bytes
        self.state = state
        self.log_is_full = False  # above its limit, as tier 2 accepts no data: appends are refused
        self._operations: list[AnyOperation | _AppendRun] = []
        self.appended: list[tuple[str, int, int]] = []  # after `finish`: segment, events and bytes of each run
        self.events = self.appended_bytes = 0  # totals after `finish`
        self.arrivals: list[Arrival] = []  # of the blocks of appends in the frame
        self._open: dict[int, _AppendRun] = {}

    def append(
        self, record: SegmentRecord, parts: list[Buffer], size: int, events: int, writer: bytes | None, last: int
    ) -> int:
        """Add bytes to the segment's run; return the segment's new length. Takes ownership of `parts`. May be called
        for each event."""
        payload_bytes = self._payload_bytes + size + _WRITER_BYTES
        run = self._open.get(record.id)
        if run is None:
            payload_bytes += _RUN_BYTES + self.state.sealing.overhead
        if payload_bytes > self._sure_bytes and not self._fits(payload_bytes):
            raise _storage_full()
        self._payload_bytes = payload_bytes
        if run is None:
            run = self._begin_run(record, parts)
        else:
            run.parts += parts
        length = record.length
        if size:
            extent = run.extent
            if extent is None:
                ref = self.ref
                extent = Extent(length, size, ref, 0, "", b"", length > 0 and record.continues_at(length))
                run.extent = record.changed_extents[length] = extent
                record.extents.append(extent)
                ref.segments.append(record.id)
            else:
                extent.length += size
            run.size += size
            record.length = length = length + size
            record.log_bytes += size
            self.size_bytes += size
        run.events += events
        record.event_count += events
        if writer is not None:
            run.writers[writer] = record.attributes[writer] = last
            record.changed_attributes.add(writer)
        return length

    def _begin_run(self, record: SegmentRecord, parts: list[Buffer]) -> _AppendRun:
        time_index.note(record, self.now_ms)
        record.modified_ms = self.now_ms
        run = _AppendRun(record, record.length, parts)
        self._open[record.id] = run
        self._operations.append(run)
        self.touched[record.id] = record
        self.state.mark(record)
        return run

    def emit(self, operation: AnyOperation, *records: SegmentRecord, of_reserve: float = NOTHING) -> None:
        """Add another operation and apply it; this ends the runs of the affected segments."""
        self.emit_all([operation], *records, of_reserve=of_reserve)

    def emit_all(
        self, operations: Sequence[AnyOperation], *records: SegmentRecord, of_reserve: float = NOTHING
    ) -> None:
        """Add operations and apply them, all or none. of_reserve: fraction of the reserve they may use on a full
        disk."""
        payload_bytes = self._payload_bytes + sum(map(most_bytes, operations))
        if payload_bytes > self._sure_bytes and payload_bytes > self._get_free_bytes(of_reserve):
            raise _storage_full()
        self.size_bytes += payload_bytes - self._payload_bytes
        self._payload_bytes = payload_bytes
        for record in records:
            self._open.pop(record.id, None)
            self.touched[record.id] = record
        for operation in operations:
            self._operations.append(operation)
            self.state.apply(operation, self.ref)

    def _fits(self, payload_bytes: int) -> bool:
        self._sure_bytes = self._get_free_bytes(NOTHING)
        return payload_bytes <= self._sure_bytes

    @property
    def empty(self) -> bool:
        return not self._operations

    def place_blobs(self, runs: BlobFiles) -> list[tuple[Extent, BlobWrite, bytes]]:
        """Place large runs in separate files, once the frame is complete. Return their extents, the parts to be written
        to the files before the frame is `finish`ed, and the runs' bytes."""
        if self.size_bytes < RUN_LEAST_BYTES and not runs.are_open:
            return []
        placed = []
        for run in self._operations:
            if not isinstance(run, _AppendRun) or run.extent is None:
                continue
            record, extent = run.record, run.extent
            is_large = run.size >= RUN_LEAST_BYTES
            if not is_large and not runs.are_open:
                continue
            run.block, run.parts = _joined(run.parts), []
            # the extent can't be split if it was merged into another segment since, or isn't the last any more
            if not is_large or record.extents[-1:] != [extent] or record.kind == SegmentKind.TRANSIENT:
                runs.carry(record.id, run.offset, run.block)
                continue
            run.piece = runs.place(record.id, run.offset, run.block)
            if run.piece is not None:
                self._split(run, extent, run.piece)
                placed.append((extent, run.piece, run.block))
        return placed

    def _split(self, run: _AppendRun, extent: Extent, piece: BlobWrite) -> None:
        """End the run's extent at the file's last block, and add another for the remainder in the frame."""
        record, run.extent = run.record, None
        extent.length, extent.position, extent.run = piece.length, piece.position, piece.file.number
        self.state.runs.hold(extent.run, extent.length)
        remainder = run.size - piece.length
        if remainder:
            run.extent = Extent(extent.end, remainder, self.ref, 0, continues=True)
            record.extents.append(run.extent)
            self.ref.segments.append(record.id)
            record.changed_extents[extent.end] = run.extent

    def finish(self) -> tuple[list[bytes], list[Extent]]:
        """Return the frame's payload (the head and the parts after it, to be sealed), and the extent of each part."""
        data: list[bytes] = []
        operations: list[AnyOperation] = []
        extents: list[Extent] = []
        position, sealing = 0, self.state.sealing
        now_ms, appended = self.now_ms, self.appended
        for item in self._operations:
            if not isinstance(item, _AppendRun):
                operations.append(item)
                continue
            record, size, extent, piece = item.record, item.size, item.extent, item.piece
            append_fields = record.id, item.offset, size, position, item.events, item.writers, now_ms
            appended.append((record.name, item.events, size))
            self.ref.live_bytes += size
            self.events += item.events
            self.appended_bytes += size
            if piece is None:
                operations.append(Append(*append_fields))
            else:
                blob_fields = piece.file.number, piece.position, piece.length, piece.checksum
                operations.append(AppendBeside(*append_fields, *blob_fields))
            if extent is not None:
                block = item.block if item.block is not None else _joined(item.parts)
                item.parts = []
                if piece is not None:
                    block = block[piece.length :]
                data.append(block)
                extent.position = position  # for now, relative to the data area
                extents.append(extent)
                position += len(block) + sealing.overhead
        head = encode_head(operations, sealing, self.ref.sequence)
        for extent in extents:
            extent.position += len(head)
        return [head, *data], extents


def _joined(parts: list[Buffer]) -> bytes:
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


def _storage_full() -> StorageFullError:
    return StorageFullError("no space for the log: free space on its disk; writing then resumes on its own")
