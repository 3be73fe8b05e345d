"""The state of a container and how operations change it: the fold over the log.

`apply` is the only place where an operation changes state, live and in replay; only appends, which
are gathered in runs, have a live form of their own in `frame`. Records that are clean and idle may
be forgotten and loaded again.
"""

from __future__ import annotations

import time

from nadi.segmentstore import operations as op
from nadi.segmentstore.metadata import Change, ContainerState, Metadata
from nadi.segmentstore.records import Extent, FrameRef, Kind, SegmentRecord

RECORDS_IN_MEMORY = 20_000


class StateMachine:
    """Records by name and id, frames that hold bytes not yet in tier 2, chunk plans and garbage."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        stored = metadata.state()
        self.sequence = stored.sequence  # of the newest frame applied
        self.next_segment = stored.next_segment
        self.planned: dict[str, None] = dict.fromkeys(stored.planned)
        self.garbage: dict[str, None] = dict.fromkeys(stored.garbage)
        self.frames: dict[int, FrameRef] = {}  # by sequence, in order
        self._by_name: dict[str, SegmentRecord] = {}
        self._by_id: dict[int, SegmentRecord] = {}
        self._deleted: dict[int, str] = {}  # id: name, since the last checkpoint
        self._dirty: dict[int, SegmentRecord] = {}
        in_log: dict[int, None] = {}
        for segment, address, length, sequence in sorted(metadata.log_frames(), key=lambda item: item[3]):
            in_log[segment] = None
            frame = self.frames.setdefault(sequence, FrameRef(sequence, address, time.monotonic()))
            frame.live_bytes += length
        # only now: loading a segment looks its frames up, and they must stay in order of their numbers
        for segment in in_log:
            self.by_id(segment)

    # --- records -----------------------------------------------------------------------------------

    def find(self, name: str) -> SegmentRecord | None:
        """The record of that name, from memory or disk."""
        record = self._by_name.get(name)
        if record is not None:
            return record
        segment = self.metadata.segment_id(name)
        if segment is None or segment in self._deleted:
            return None
        return self.by_id(segment)

    def by_id(self, segment: int) -> SegmentRecord | None:
        record = self._by_id.get(segment)
        if record is None and segment not in self._deleted:
            record = self.metadata.load(segment, self.frames)
            if record is not None:
                self._by_id[segment] = self._by_name[record.name] = record
        return record

    def must(self, segment: int) -> SegmentRecord:
        record = self.by_id(segment)
        assert record is not None, f"an operation speaks of segment {segment}, which does not exist"
        return record

    def attribute(self, record: SegmentRecord, attribute: bytes) -> int | None:
        value = record.attributes.get(attribute)
        if value is None and not record.attributes_loaded:
            value = self.metadata.attribute(record.id, attribute)
            if value is not None:
                record.attributes[attribute] = value
        return value

    def records(self) -> list[SegmentRecord]:
        """Those in memory, among them all that have bytes in the log only."""
        return list(self._by_id.values())

    def mark(self, record: SegmentRecord) -> None:
        record.dirty = True
        self._dirty[record.id] = record

    # --- operations --------------------------------------------------------------------------------

    def apply(self, operation: op.AnyOperation, frame: FrameRef, data_at: int = 0) -> None:
        """Change the state; `data_at` is where the data area begins in the frame's payload."""
        match operation:
            case op.Append():
                self._replay_append(operation, frame, data_at)
            case op.Create():
                record = SegmentRecord(operation.segment, operation.name, operation.kind, operation.at_ms)
                record.scale_type, record.target_rate = operation.scale_type, operation.target_rate
                record.rollover_bytes, record.key_length = operation.rollover_bytes, operation.key_length
                self.next_segment = max(self.next_segment, operation.segment + 1)
                self._by_id[record.id] = self._by_name[record.name] = record
                self.mark(record)
            case op.Seal():
                record = self.must(operation.segment)
                record.sealed, record.modified_ms = True, operation.at_ms
                self.mark(record)
            case op.Truncate():
                self._truncate(self.must(operation.segment), operation.offset)
            case op.Delete():
                record = self.must(operation.segment)
                self._drop_extents(record, len(record.extents))
                self._remove(record)
            case op.Merge():
                self._merge(self.must(operation.target), self.must(operation.source), operation.at_ms)
            case op.Attributes():
                record = self.must(operation.segment)
                record.attributes.update(operation.values)
                record.changed_attributes.update(operation.values)
                self.mark(record)
            case op.Policy():
                record = self.must(operation.segment)
                record.scale_type, record.target_rate = operation.scale_type, operation.target_rate
                self.mark(record)
            case op.TableUpdate():
                self._update_table(operation)
            case op.ChunkPlanned():
                self.planned[operation.chunk] = None
            case op.ChunkStored():
                self._store_chunk(operation)
            case op.ChunksDropped():
                for chunk in operation.chunks:
                    self.planned.pop(chunk, None)
                    self.garbage[chunk] = None
            case op.ChunksDeleted():
                for chunk in operation.chunks:
                    self.garbage.pop(chunk, None)

    def _replay_append(self, operation: op.Append, frame: FrameRef, data_at: int) -> None:
        record = self.must(operation.segment)
        assert operation.offset == record.length, "an append of the log does not continue its segment"
        if operation.length:
            record.extents.append(Extent(operation.offset, operation.length, frame, data_at + operation.position))
            record.changed_offsets.add(operation.offset)
            record.length += operation.length
            record.log_bytes += operation.length
            frame.live_bytes += operation.length
        record.event_count += operation.events
        record.attributes.update(operation.writers)
        record.changed_attributes.update(operation.writers)
        record.modified_ms = operation.at_ms
        self.mark(record)

    def _truncate(self, record: SegmentRecord, offset: int) -> None:
        record.start_offset = offset
        gone = 0
        while gone < len(record.extents) and record.extents[gone].end <= offset:
            gone += 1
        self._drop_extents(record, gone)
        self.mark(record)

    def _drop_extents(self, record: SegmentRecord, count: int) -> None:
        """Forget the first `count` extents: log space is released, chunks become garbage."""
        for extent in record.extents[:count]:
            self._release(record, extent)
        del record.extents[:count]

    def _release(self, record: SegmentRecord, extent: Extent) -> None:
        record.changed_offsets.add(extent.offset)
        if extent.frame is not None:
            record.log_bytes -= extent.length
            self.release_log(extent.frame, extent.length)
        elif extent.chunk:
            self.garbage[extent.chunk] = None

    def release_log(self, frame: FrameRef, length: int) -> None:
        frame.live_bytes -= length
        if frame.live_bytes == 0 and frame.address is not None:
            self.frames.pop(frame.sequence, None)

    def _merge(self, target: SegmentRecord, source: SegmentRecord, at_ms: int) -> None:
        shift = target.length - source.start_offset
        extents = source.extents
        if extents and extents[0].offset < source.start_offset:
            raise AssertionError("a truncated segment can't be merged")
        for extent in extents:
            extent.offset += shift
            target.changed_offsets.add(extent.offset)
        target.extents += extents
        target.length += source.length - source.start_offset
        target.log_bytes += source.log_bytes
        target.event_count += source.event_count
        target.modified_ms = at_ms
        source.extents, source.log_bytes = [], 0
        self._remove(source)
        self.mark(target)

    def _remove(self, record: SegmentRecord) -> None:
        record.deleted = True
        record.overlay.clear()
        del self._by_id[record.id]
        if self._by_name.get(record.name) is record:
            del self._by_name[record.name]
        self._dirty.pop(record.id, None)
        self._deleted[record.id] = record.name

    def _update_table(self, operation: op.TableUpdate) -> None:
        record = self.must(operation.segment)
        for key, position, value in operation.entries:
            existed = self.table_entry(record, key) is not None
            record.entry_count += (value is not None) - existed
            record.overlay.pop(key, None)  # so that the overlay is in order of versions
            record.overlay[key] = (position, value)
            record.table_length = position + 17 + len(key) + len(value or b"")
        record.modified_ms = operation.at_ms
        self.mark(record)

    def table_entry(self, record: SegmentRecord, key: bytes) -> tuple[int, bytes] | None:
        """(version, value) of a table's key as of all operations applied."""
        found = record.overlay.get(key)
        if found is not None:
            return None if found[1] is None else (found[0], found[1])
        return self.metadata.entry(record.id, key) if record.exists else None

    def _store_chunk(self, operation: op.ChunkStored) -> None:
        self.planned.pop(operation.chunk, None)
        record = self.by_id(operation.segment)
        span = self.extents_exactly(record, operation.offset, operation.length)
        if record is None or span is None:
            self.garbage[operation.chunk] = None  # truncated, merged or deleted meanwhile
            return
        first, last = span
        for extent in record.extents[first:last]:
            self._release(record, extent)
        chunk = Extent(operation.offset, operation.length, None, 0, operation.chunk)
        record.extents[first:last] = [chunk]
        record.changed_offsets.add(operation.offset)
        self.mark(record)

    @staticmethod
    def extents_exactly(record: SegmentRecord | None, offset: int, length: int) -> tuple[int, int] | None:
        """The extents [first, last) that make up just this range, or None if none do any more."""
        if record is None or record.deleted or not record.extents or offset < record.extents[0].offset:
            return None
        first = record.extent_index(offset)
        if record.extents[first].offset != offset:
            return None
        last = first
        while last < len(record.extents) and record.extents[last].end <= offset + length:
            last += 1
        return (first, last) if last > first and record.extents[last - 1].end == offset + length else None

    # --- checkpoints -------------------------------------------------------------------------------

    @property
    def dirty_count(self) -> int:
        return len(self._dirty) + len(self._deleted)

    def checkpoint(
        self,
    ) -> tuple[list[Change], list[tuple[SegmentRecord, dict[bytes, tuple[int, bytes | None]]]]]:
        """What must be written so that disk reflects the state now, and the table entries among it."""
        changes: list[Change] = []
        for segment, name in self._deleted.items():
            changes += self.metadata.deletion_changes(segment, name)
        entries = []
        for record in self._dirty.values():
            changes += self.metadata.record_changes(record)
            if record.overlay:
                entries.append((record, dict(record.overlay)))
            record.changed_attributes = set()
            record.changed_offsets = set()
            record.dirty = False
        state = ContainerState(self.sequence, self.next_segment, list(self.planned), list(self.garbage))
        changes.append(self.metadata.state_change(state))
        self._dirty = {}
        return changes, entries

    def checkpointed(
        self, entries: list[tuple[SegmentRecord, dict[bytes, tuple[int, bytes | None]]]], deleted: list[int]
    ) -> None:
        """The checkpoint is on disk: what it holds need not stay in memory."""
        for segment in deleted:
            self._deleted.pop(segment, None)
        for record, written in entries:
            for key, value in written.items():
                if record.overlay.get(key) == value:
                    del record.overlay[key]
        if len(self._by_id) > RECORDS_IN_MEMORY:
            self._forget_idle()

    def deleted_ids(self) -> list[int]:
        return list(self._deleted)

    def _forget_idle(self) -> None:
        for record in list(self._by_id.values())[: RECORDS_IN_MEMORY // 2]:
            idle = not (record.dirty or record.log_bytes or record.waiters or record.overlay)
            if idle and record.durable_length == record.length and record.exists:
                del self._by_id[record.id]
                self._by_name.pop(record.name, None)


__all__ = ["Kind", "StateMachine"]
