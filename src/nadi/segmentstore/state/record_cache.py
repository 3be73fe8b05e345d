"""Which segment records are in memory, which of them changed, and which may leave.

A record is looked up by name or id and loaded from disk where it is not here. It may leave once it is
clean (a checkpoint wrote it), has no bytes in the log, and nobody holds it; then nothing is lost, for
loading it again gives the same. Records that may leave stand in a queue, those that came to rest first at its
head; `make_room` takes from there. It is called only where no record is held on the stack, so code
between two awaits may keep what it looked up; across an await it must `hold` it, or look again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from nadi.limits import RECORD_ATTRIBUTES_IN_MEMORY, RECORDS_IN_MEMORY
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.records import FrameRef, SegmentRecord


class RecordCache:
    """The records in memory. `frames` are the log's, which loaded records share."""

    def __init__(self, metadata: Metadata, frames: dict[int, FrameRef]) -> None:
        self.dirty: dict[int, SegmentRecord] = {}  # changed since the last checkpoint began
        self.deleted: dict[int, str] = {}  # id: name, of those that disk still knows
        self._metadata = metadata
        self._frames = frames
        self._by_name: dict[str, SegmentRecord] = {}
        self._by_id: dict[int, SegmentRecord] = {}
        self._idle: dict[int, SegmentRecord] = {}  # those that may leave
        self._writing: dict[int, SegmentRecord] = {}  # in the current checkpoint: disk has them only after it

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[SegmentRecord]:
        return list(self._by_id.values())

    # --- looking up ----------------------------------------------------------------------------------

    def find(self, name: str) -> SegmentRecord | None:
        """The record of that name, from memory or disk."""
        record = self._by_name.get(name)
        if record is not None:
            return record
        segment = self._metadata.segment_id(name)
        return None if segment is None else self.by_id(segment)

    def exists(self, name: str) -> bool:
        """Whether there is a segment of that name; its record stays where it is."""
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
                self._rest(record)
        return record

    def known(self, segment: int) -> SegmentRecord | None:
        """The record if it is in memory."""
        return self._by_id.get(segment)

    # --- changes ---------------------------------------------------------------------------------------

    def add(self, record: SegmentRecord) -> None:
        """A new segment."""
        self._by_id[record.id] = self._by_name[record.name] = record
        self.mark(record)

    def remove(self, record: SegmentRecord) -> None:
        """A segment that ceased to exist."""
        record.deleted = True
        record.overlay.clear()
        del self._by_id[record.id]
        if self._by_name.get(record.name) is record:
            del self._by_name[record.name]
        self.dirty.pop(record.id, None)
        self._idle.pop(record.id, None)
        self.deleted[record.id] = record.name

    def mark(self, record: SegmentRecord) -> None:
        """The record differs from what disk has."""
        self.dirty[record.id] = record
        self._idle.pop(record.id, None)

    # --- checkpoints -----------------------------------------------------------------------------------

    def begin_writing(self) -> None:
        """What is dirty now is being written; changes from here on make dirty again."""
        assert not self._writing, "one checkpoint at a time"
        self._writing, self.dirty = self.dirty, {}

    def written(self, deleted: Iterable[int]) -> None:
        """The checkpoint is on disk, and these deleted segments are gone from it."""
        for segment in deleted:
            self.deleted.pop(segment, None)
        records, self._writing = self._writing, {}
        for record in records.values():
            if len(record.attributes) > RECORD_ATTRIBUTES_IN_MEMORY:
                record.attributes = {key: record.attributes[key] for key in record.changed_attributes}
                record.attributes_loaded = False
            self._rest(record)

    def not_written(self) -> None:
        """The checkpoint failed and wrote nothing: its records are dirty again."""
        records, self._writing = self._writing, {}
        for record in records.values():
            if self._by_id.get(record.id) is record:
                self.dirty[record.id] = record

    # --- leaving ---------------------------------------------------------------------------------------

    def hold(self, record: SegmentRecord) -> None:
        """Keep the record here until `release`: the same object answers for the segment all the time."""
        record.holders += 1
        self._idle.pop(record.id, None)

    def release(self, record: SegmentRecord) -> None:
        record.holders -= 1
        self._rest(record)

    def _rest(self, record: SegmentRecord) -> None:
        """Let the record leave when there is need, if disk has all of it and nobody holds it."""
        if record.holders or record.log_bytes or self._by_id.get(record.id) is not record:
            return
        if record.id not in self.dirty and record.id not in self._writing:
            self._idle[record.id] = record

    def make_room(self) -> None:
        """Let the records leave that have been idle longest, until few enough are here or none may leave."""
        excess = len(self._by_id) - RECORDS_IN_MEMORY
        if excess > 0 and self._idle:
            for record in list(islice(self._idle.values(), excess)):
                assert not record.overlay, "a clean record's entries are all on disk"
                assert record.times.is_stored, "and so is its time index"
                del self._idle[record.id], self._by_id[record.id]
                del self._by_name[record.name]
