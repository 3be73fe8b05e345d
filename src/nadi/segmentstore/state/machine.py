"""Holds the state of a container and applies operations to it: the fold over the log.

`apply` is the only place where an operation changes state, live and in replay; only appends, which are combined in
runs, have a separate live form in `frame`. Clean, idle records are evicted from memory (`RecordCache`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any

from nadi.errors import DamagedStateError
from nadi.limits import CHUNK_FLUSH_BYTES, RECORD_ATTRIBUTES_IN_MEMORY, RECORDS_IN_MEMORY
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state import time_index
from nadi.segmentstore.state.commit import ChangedExtents
from nadi.segmentstore.state.metadata import ContainerMetadata, Overlay
from nadi.segmentstore.state.records import Extent, FrameRef, SegmentKind, SegmentRecord, StoredTimes
from nadi.segmentstore.state.stored import Change, ContainerState, record_changes, state_change
from nadi.segmentstore.tier1.log import LogAddress


@dataclass(slots=True)
class StateCheckpoint:
    """The changes that bring the disk to `sequence`. The writing thread converts those that may be many: extents, table
    entries, and the rows of deleted segments."""

    sequence: int
    deleted: dict[int, str]  # id: name
    changes: list[Change] = field(default_factory=list)
    extents: list[tuple[int, ChangedExtents, int]] = field(default_factory=list)  # with `stored_length`
    attributes: list[tuple[SegmentRecord, set[bytes]]] = field(default_factory=list)  # those in `changes`
    entries: list[tuple[SegmentRecord, Overlay]] = field(default_factory=list)
    times: list[tuple[SegmentRecord, StoredTimes]] = field(default_factory=list)

    def to_commit(self) -> tuple[Any, ...]:
        """Return the arguments of `ContainerMetadata.commit`, except `rest`."""
        entries = [(record.id, overlay) for record, overlay in self.entries]
        times = [(record.id, stored) for record, stored in self.times]
        return self.changes, self.deleted, self.extents, entries, times


class RecordCache:
    """The segment records in memory. A record may be evicted once it is clean (a checkpoint wrote it), has no bytes in
    the log, and has no holders; loading it again gives the same record. `evict_idle` is called only where no record is
    on the stack: across an await, code must `hold` a record, or look it up again. frames: the log's frames, shared by
    loaded records."""

    def __init__(self, metadata: ContainerMetadata, frames: dict[int, FrameRef]) -> None:
        self.dirty: dict[int, SegmentRecord] = {}  # changed since the last checkpoint began
        self.deleted: dict[int, str] = {}  # id: name, of segments still on disk
        self._metadata = metadata
        self._frames = frames
        self._by_name: dict[str, SegmentRecord] = {}
        self._by_id: dict[int, SegmentRecord] = {}
        self._idle: dict[int, SegmentRecord] = {}  # may be evicted
        self._writing: dict[int, SegmentRecord] = {}  # in the current checkpoint: on disk only after it

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[SegmentRecord]:
        return list(self._by_id.values())

    def find(self, name: str) -> SegmentRecord | None:
        record = self._by_name.get(name)
        if record is not None:
            return record
        segment = self._metadata.segment_id(name)
        return None if segment is None else self.by_id(segment)

    def exists(self, name: str) -> bool:
        if name in self._by_name:
            return True
        segment = self._metadata.segment_id(name)
        return segment is not None and segment not in self.deleted

    def by_id(self, segment: int) -> SegmentRecord | None:
        record = self._by_id.get(segment)
        if record is None and segment not in self.deleted:
            record = self._metadata.load(segment, self._frames)
            if record is not None:
                self._by_id[segment] = self._by_name[record.name] = record
                self._make_evictable(record)
        return record

    def known(self, segment: int) -> SegmentRecord | None:
        return self._by_id.get(segment)

    def in_memory(self, name: str) -> SegmentRecord | None:
        return self._by_name.get(name)

    def add(self, record: SegmentRecord) -> None:
        self._by_id[record.id] = self._by_name[record.name] = record
        self.mark(record)

    def remove(self, record: SegmentRecord) -> None:
        record.deleted = True
        record.overlay.clear()
        del self._by_id[record.id]
        if self._by_name.get(record.name) is record:
            del self._by_name[record.name]
        self.dirty.pop(record.id, None)
        self._idle.pop(record.id, None)
        self.deleted[record.id] = record.name

    def mark(self, record: SegmentRecord) -> None:
        """Mark the record as different from the disk."""
        self.dirty[record.id] = record
        self._idle.pop(record.id, None)

    def begin_writing(self) -> None:
        """Start writing all dirty records; later changes make them dirty again."""
        assert not self._writing, "one checkpoint at a time"
        self._writing, self.dirty = self.dirty, {}

    def written(self, deleted: Iterable[int]) -> None:
        """Handle a finished checkpoint, which removed the `deleted` segments from disk."""
        for segment in deleted:
            self.deleted.pop(segment, None)
        records, self._writing = self._writing, {}
        for record in records.values():
            record.is_stored = True
            if len(record.attributes) > RECORD_ATTRIBUTES_IN_MEMORY:
                record.attributes = {key: record.attributes[key] for key in record.changed_attributes}
                record.attributes_loaded = False
            self._make_evictable(record)

    def not_written(self) -> None:
        """Handle a failed checkpoint that wrote nothing: its records are dirty again."""
        records, self._writing = self._writing, {}
        for record in records.values():
            record.is_listed = None
            if self._by_id.get(record.id) is record:
                self.dirty[record.id] = record

    def hold(self, record: SegmentRecord) -> None:
        """Keep the record in memory until `release`, so that its identity doesn't change."""
        record.holders += 1
        self._idle.pop(record.id, None)

    def release(self, record: SegmentRecord) -> None:
        record.holders -= 1
        self._make_evictable(record)

    def _make_evictable(self, record: SegmentRecord) -> None:
        """Make the record evictable, if the disk has all of it and it has no holders."""
        if record.holders or record.log_bytes or self._by_id.get(record.id) is not record:
            return
        if record.id not in self.dirty and record.id not in self._writing:
            self._idle[record.id] = record

    def evict_idle(self) -> None:
        """Evict the longest idle records, down to the limit or until none is evictable."""
        excess = len(self._by_id) - RECORDS_IN_MEMORY
        if excess > 0 and self._idle:
            for record in list(islice(self._idle.values(), excess)):
                assert not record.overlay, "a clean record's entries are all on disk"
                assert record.times.is_stored, "a clean record's time index is all on disk"
                del self._idle[record.id], self._by_id[record.id]
                del self._by_name[record.name]


class BlobUsage:
    """The sizes of data stored only in separate files, by file number (`tier1.blob_files`). unused: files without such
    data, with the frame that released them: once no start replays that frame any more, they can be deleted."""

    def __init__(self) -> None:
        self.bytes_of: dict[int, int] = {}
        self.size_bytes = 0
        self.unused: dict[int, int] = {}

    def hold(self, run: int, length: int) -> None:
        self.bytes_of[run] = self.bytes_of.get(run, 0) + length
        self.size_bytes += length
        self.unused.pop(run, None)

    def release(self, run: int, length: int, sequence: int) -> None:
        """Release bytes of a file. sequence: the frame that releases them."""
        self.size_bytes -= length
        self.bytes_of[run] -= length
        if not self.bytes_of[run]:
            del self.bytes_of[run]
            self.unused[run] = sequence

    def take_unused(self, before_sequence: int) -> list[int]:
        """Return, and forget, the files that became unused before that frame."""
        unused = [run for run, sequence in self.unused.items() if sequence < before_sequence]
        for run in unused:
            del self.unused[run]
        return unused


class StateMachine:
    """Records by name and id, frames with bytes not yet in tier 2, chunk plans and garbage."""

    def __init__(self, metadata: ContainerMetadata, now: float) -> None:
        self.metadata, self.sealing = metadata, metadata.sealing
        stored = metadata.state()
        self.sequence = stored.sequence  # the newest frame applied
        self.next_segment = stored.next_segment
        self._now = now  # time of the newest frame, by the monotonic clock
        self.planned: dict[str, None] = dict.fromkeys(stored.planned)
        self.garbage: dict[str, float] = dict.fromkeys(stored.garbage, now)  # with the time it became garbage
        self.transients: dict[int, None] = dict.fromkeys(stored.transients)
        self.frames: dict[int, FrameRef] = {}  # by sequence, in order
        self.runs = BlobUsage()
        self.large: dict[int, None] = {}  # segments with enough bytes in the log for a chunk
        self.record_cache = RecordCache(metadata, self.frames)
        self.find, self.by_id = self.record_cache.find, self.record_cache.by_id
        self.mark, self.evict_idle = self.record_cache.mark, self.record_cache.evict_idle
        self._load_logged()

    def _load_logged(self) -> None:
        """Load the segments with bytes in the log, and sort their frames."""
        frames = self.frames
        for segment in self.metadata.logged():
            record = self.must(segment)
            for extent in record.extents:
                if extent.frame is not None:
                    extent.frame.live_bytes += extent.length
                    extent.frame.segments.append(segment)
                    extent.frame.at = self._now
                    if extent.run:
                        self.runs.hold(extent.run, extent.length)
        for sequence in sorted(frames):  # in order
            frames[sequence] = frames.pop(sequence)

    def must(self, segment: int) -> SegmentRecord:
        record = self.by_id(segment)
        if record is None:
            raise self._strange(f"the log refers to segment {segment}, which isn't in the state")
        return record

    def _strange(self, problem: str) -> DamagedStateError:
        why_not = "state and log belong to different containers or times"
        return DamagedStateError(str(self.metadata.folder), problem, why_not)

    def attribute(self, record: SegmentRecord, attribute: bytes) -> int | None:
        value = record.attributes.get(attribute)
        if value is None and not record.attributes_loaded:
            value = self.metadata.attribute(record.id, attribute)
            if value is not None:
                record.attributes[attribute] = value
        return value

    def durable(self, records: Iterable[SegmentRecord]) -> None:
        """Mark the records' current contents as durable, and so visible to readers."""
        for record in records:
            record.durable_length, record.durable_sealed, record.exists = record.length, record.sealed, True
            if record.log_bytes >= CHUNK_FLUSH_BYTES:
                self.large[record.id] = None

    def logged_in(self, frame: FrameRef) -> SegmentRecord:
        """Return a segment with bytes in this frame, which must have some that are not set aside."""
        while True:
            record = self.record_cache.known(frame.segments[-1])
            if record is not None and any(extent.frame is frame and not extent.aside for extent in record.extents):
                return record
            frame.segments.pop()  # deleted, truncated, merged, moved to a chunk, or set aside

    def to_move(self) -> Iterator[FrameRef]:
        """Return the frames with bytes to move to tier 2, oldest first."""
        return (frame for frame in self.frames.values() if frame.live_bytes > frame.aside_bytes)

    def set_aside(self, extent: Extent) -> None:
        """Set a damaged extent aside: it stays in place, so that it can be restored, and blocks nothing else."""
        if not extent.aside:
            extent.aside = True
            if extent.frame is not None:
                extent.frame.aside_bytes += extent.length

    def log_needed(self) -> tuple[int | None, list[LogAddress]]:
        """Return the oldest frame with bytes for tier 2, and the frames before it, whose bytes are all damaged."""
        aside: list[LogAddress] = []
        for frame in self.frames.values():
            assert frame.address is not None, "frames are listed once they are durable"
            if frame.live_bytes > frame.aside_bytes:
                return frame.sequence, aside
            aside.append(frame.address)
        return None, aside

    def largest(self) -> list[SegmentRecord]:
        """Return the segments with enough bytes in the log for a chunk, in the order in which they reached that
        size."""
        records = []
        for segment in list(self.large):
            record = self.record_cache.known(segment)
            if record is not None and record.log_bytes >= CHUNK_FLUSH_BYTES:
                records.append(record)
            else:
                del self.large[segment]
        return records

    def apply(self, operation: op.AnyOperation, frame: FrameRef, data_at: int = 0, checksum: bytes = b"") -> None:
        """Change the state. data_at: where the data area starts in the frame's payload. checksum: of an append's data
        there."""
        self._now = frame.at
        match operation:
            case op.Append():
                self._replay_append(operation, frame, data_at, checksum)
            case op.Create():
                record = SegmentRecord(operation.segment, operation.name, operation.kind, operation.at_ms)
                record.scale_type, record.target_rate = operation.scale_type, operation.target_rate
                record.rollover_bytes, record.key_length = operation.rollover_bytes, operation.key_length
                self.next_segment = max(self.next_segment, operation.segment + 1)
                self.record_cache.add(record)
                if record.kind == SegmentKind.TRANSIENT:
                    self.transients[record.id] = None
            case op.Seal():
                record = self.must(operation.segment)
                record.sealed, record.modified_ms = True, operation.at_ms
                self.mark(record)
            case op.Truncate():
                record = self.must(operation.segment)
                record.start_offset = operation.offset
                time_index.trim(record)
                self._drop_extents(record, bisect_right(record.extents, operation.offset, key=attrgetter("end")))
                self.mark(record)
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
            case op.SetPolicy():
                record = self.must(operation.segment)
                record.scale_type, record.target_rate = operation.scale_type, operation.target_rate
                self.mark(record)
            case op.AddIndexTimes():
                record = self.must(operation.segment)
                time_index.apply_indexed(record, operation)
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
                    self.garbage[chunk] = self._now
            case op.ChunksDeleted():
                for chunk in operation.chunks:
                    self.garbage.pop(chunk, None)

    def _replay_append(self, operation: op.Append, frame: FrameRef, data_at: int, checksum: bytes) -> None:
        record = self.must(operation.segment)
        if operation.offset != record.length:
            place = f"byte {operation.offset:,} of {record.name}, which has {record.length:,} bytes"
            raise self._strange(f"the log appends at {place}")
        time_index.note(record, operation.at_ms)
        for extent in extents_of(operation, frame, data_at, checksum, in_pieces=record.kind == SegmentKind.TRANSIENT):
            record.extents.append(extent)
            record.changed_extents[extent.offset] = extent
            record.length += extent.length
            record.log_bytes += extent.length
            frame.live_bytes += extent.length
            frame.segments.append(record.id)
            if extent.run:
                self.runs.hold(extent.run, extent.length)
        record.event_count += operation.events
        record.attributes.update(operation.writers)
        record.changed_attributes.update(operation.writers)
        record.modified_ms = operation.at_ms
        self.mark(record)

    def _drop_extents(self, record: SegmentRecord, count: int) -> None:
        """Drop the first `count` extents: log space is released, chunks become garbage."""
        for extent in record.extents[:count]:
            self._release(record, extent)
        del record.extents[:count]

    def _release(self, record: SegmentRecord, extent: Extent) -> None:
        record.changed_extents[extent.offset] = None
        if extent.frame is not None:
            record.log_bytes -= extent.length
            extent.frame.aside_bytes -= extent.length * extent.aside
            extent.frame.live_bytes -= extent.length
            if extent.frame.live_bytes == 0 and extent.frame.address is not None:
                self.frames.pop(extent.frame.sequence, None)
            if extent.run:
                self.runs.release(extent.run, extent.length, self.sequence + 1)
        elif extent.chunk:
            self.garbage[extent.chunk] = self._now

    def _merge(self, target: SegmentRecord, source: SegmentRecord, at_ms: int) -> None:
        assert source is not target
        shift = target.length - source.start_offset
        extents = source.extents
        assert not extents or extents[0].offset >= source.start_offset, "a truncated segment can't be merged"
        time_index.note(target, at_ms)
        for extent in extents:
            extent.offset += shift
            target.changed_extents[extent.offset] = extent
            if extent.frame is not None:
                extent.frame.segments.append(target.id)
        target.extents += extents
        target.length += source.length - source.start_offset
        target.log_bytes += source.log_bytes
        target.event_count += source.event_count
        target.modified_ms = at_ms
        source.extents, source.log_bytes = [], 0
        self._remove(source)
        self.mark(target)

    def _remove(self, record: SegmentRecord) -> None:
        self.transients.pop(record.id, None)
        self.record_cache.remove(record)

    def _update_table(self, operation: op.TableUpdate) -> None:
        record = self.must(operation.segment)
        present = set(self.table_versions(record, [key for key, _, _ in operation.entries]))
        for key, position, value in operation.entries:
            record.entry_count += (value is not None) - (key in present)
            if value is None:
                present.discard(key)
            else:
                present.add(key)
            record.overlay.pop(key, None)  # keeps the overlay ordered by version
            record.overlay[key] = (position, value)
            record.table_length = position + 17 + len(key) + len(value or b"")
        record.modified_ms = operation.at_ms
        self.mark(record)

    def table_entry(self, record: SegmentRecord, key: bytes) -> tuple[int, bytes] | None:
        """Return (version, value) of a table's key after all applied operations."""
        entry = record.overlay.get(key)
        if entry is not None:
            return None if entry[1] is None else (entry[0], entry[1])
        return self.metadata.entry(record.id, key) if record.exists else None

    def table_versions(self, record: SegmentRecord, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Return the versions of the keys that a table has, after all applied operations; reads the disk once."""
        overlay = record.overlay
        versions: dict[bytes, int] = {}
        if record.exists:
            elsewhere = [key for key in keys if key not in overlay] if overlay else keys
            versions = self.metadata.versions(record.id, elsewhere) if elsewhere else versions
        if overlay:
            for key in keys:
                entry = overlay.get(key)
                if entry is not None and entry[1] is not None:
                    versions[key] = entry[0]
        return versions

    def _store_chunk(self, operation: op.ChunkStored) -> None:
        self.planned.pop(operation.chunk, None)
        record = self.by_id(operation.segment)
        span = None if record is None else record.extents_exactly(operation.offset, operation.length)
        if record is None or span is None:
            self.garbage[operation.chunk] = self._now  # truncated, merged or deleted meanwhile
            return
        first, last = span
        replaced = record.extents[first:last]
        for extent in replaced:
            self._release(record, extent)
        self.garbage.pop(operation.chunk, None)  # a rebuilt state may contain it before the log's operation
        chunk = Extent(operation.offset, operation.length, None, 0, operation.chunk, operation.checksums)
        chunk.continues = replaced[0].continues
        record.extents[first:last] = [chunk]
        record.changed_extents[operation.offset] = chunk
        self.mark(record)

    @property
    def dirty_count(self) -> int:
        return len(self.record_cache.dirty) + len(self.record_cache.deleted)

    def checkpoint(self) -> StateCheckpoint:
        """Return the changes that bring the disk up to date; call `checkpointed` or `not_written` afterwards."""
        checkpoint = StateCheckpoint(self.sequence, dict(self.record_cache.deleted))
        for record in self.record_cache.dirty.values():
            checkpoint.changes += record_changes(record)
            record.is_listed = record.log_bytes > 0
            if record.overlay:
                checkpoint.entries.append((record, dict(record.overlay)))
            if not record.times.is_stored or record.start_offset:
                checkpoint.times.append((record, record.times.to_store(record.start_offset)))
            if record.changed_extents:
                checkpoint.extents.append((record.id, record.changed_extents, record.stored_length))
                record.changed_extents, record.stored_length = {}, record.length
            if record.changed_attributes:
                checkpoint.attributes.append((record, record.changed_attributes))
                record.changed_attributes = set()
        self.record_cache.begin_writing()
        state = ContainerState(
            self.sequence, self.next_segment, list(self.planned), list(self.garbage), list(self.transients)
        )
        checkpoint.changes.append(state_change(state))
        return checkpoint

    def checkpointed(self, checkpoint: StateCheckpoint) -> None:
        """Handle a checkpoint on disk: drop from memory the contents it wrote."""
        for record, written in checkpoint.entries:
            for key, value in written.items():
                if record.overlay.get(key) == value:
                    del record.overlay[key]
        for record, times in checkpoint.times:
            record.times.stored(times)
        self.record_cache.written(checkpoint.deleted)

    def not_written(self, checkpoint: StateCheckpoint) -> None:
        """Handle a failed checkpoint: the next one includes its changes, overridden by later ones."""
        for segment, changed, _ in checkpoint.extents:
            record = self.record_cache.known(segment)
            if record is not None:
                record.changed_extents = changed | record.changed_extents
        for record, changed_attributes in checkpoint.attributes:
            record.changed_attributes |= changed_attributes
        for record, _ in checkpoint.times:
            record.times.not_stored()
        self.record_cache.not_written()


def extents_of(
    operation: op.Append, frame: FrameRef, data_at: int, checksum: bytes, *, in_pieces: bool = False
) -> list[Extent]:
    """Return an append's extents, in order: in a separate file, then in the frame. data_at: where the data area starts
    in the frame's payload. checksum: of the append's data there. in_pieces: whether the segment takes a large event in
    pieces, so that an append may start within one.

    >>> frame = FrameRef(9, None, 0.0)
    >>> beside = op.AppendBeside(7, 100, 50, 8, 1, {}, 0, run=3, run_position=4096, beside_bytes=30, checksum=b"beside")
    >>> [(each.offset, each.length, each.position, each.run) for each in extents_of(beside, frame, 64, b"....")]
    [(100, 30, 4096, 3), (130, 20, 72, 0)]
    """
    extents: list[Extent] = []
    offset = operation.offset
    if isinstance(operation, op.AppendBeside):
        size, position, checksums = operation.beside_bytes, operation.run_position, operation.checksum
        extents.append(Extent(offset, size, frame, position, checksums=checksums, run=operation.run))
        offset += size
    if operation.logged_bytes:
        extent = Extent(offset, operation.logged_bytes, frame, data_at + operation.position, checksums=checksum)
        extent.continues = offset > operation.offset or (in_pieces and offset > 0)
        extents.append(extent)
    return extents
