"""What a container's log tells of a state that is lost, for `salvage`: which segments it creates, which must have
existed before, and how long they were then; and, of a state that has lost its own record, where it ended.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from nadi.segmentstore.repair.remains import Records
from nadi.segmentstore.repair.stopped import StoppedLog
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state.stored import decode_segment


@dataclass(slots=True)
class LogTells:
    """What the frames of a log after a state say about segments, by number.

    created: created there. before: those that must have existed before, and whether they are tables. lengths: their
    lengths, if an append shows them. last_id: the highest number. no_use: chunks that were planned but hold nothing
    that isn't elsewhere. first_sequence: of the very first frame that can be read, 0 if there is none. runs: the files
    beside the log.
    """

    created: dict[int, str] = field(default_factory=dict)
    before: dict[int, bool] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    last_id: int = 0
    no_use: set[str] = field(default_factory=set)
    first_sequence: int = 0
    runs: set[int] = field(default_factory=set)

    def _speak_of(self, segment: int, *, is_table: bool = False) -> None:
        if segment not in self.created:
            self.before[segment] = is_table or self.before.get(segment, False)
        self.last_id = max(self.last_id, segment)

    def _take(self, operations: list[op.AnyOperation], merged: set[int]) -> None:
        for operation in operations:
            match operation:
                case op.Create():
                    if operation.segment not in self.before:
                        self.created[operation.segment] = operation.name
                    self.last_id = max(self.last_id, operation.segment)
                case op.Append():
                    self._speak_of(operation.segment)
                    if operation.segment not in merged:
                        self.lengths.setdefault(operation.segment, operation.offset)
                case op.Merge():
                    self._speak_of(operation.target)
                    self._speak_of(operation.source)
                    merged.add(operation.target)  # how long it was before is no longer known
                case op.TableUpdate():
                    self._speak_of(operation.segment, is_table=True)
                case op.Seal() | op.Truncate() | op.Delete() | op.Attributes() | op.Policy() | op.TimesIndexed():
                    self._speak_of(operation.segment)
                case op.ChunkPlanned():
                    self.no_use.add(operation.chunk)
                case op.ChunkStored():
                    self.no_use.discard(operation.chunk)
                    self.last_id = max(self.last_id, operation.segment)
                case op.ChunksDropped() | op.ChunksDeleted():
                    self.no_use.update(operation.chunks)


def of_log(folder: Path, after_sequence: int) -> LogTells:
    """Return what the container's log says after that frame; blocking."""
    log = StoppedLog(folder / "log")
    tells, merged = LogTells(runs=set(log.runs.numbers())), set[int]()
    for frame in log.readable(0):
        tells.first_sequence = tells.first_sequence or frame.header.sequence
        if frame.header.sequence > after_sequence:
            tells._take(op.decode_frame(frame.head())[0], merged)
    return tells


def end_told_by_log(folder: Path, records: Records) -> int:
    """Return the last frame reflected by a state that has lost its own record, to judge by what its other records
    have of the log, or lack; blocking."""
    segments = {int.from_bytes(key, "big"): decode_segment(raw) for key, raw in records["segments"].items()}
    in_log: dict[int, set[int]] = defaultdict(set)  # by segment: the frames that have bytes of it
    for key, raw in records["extents"].items():
        in_log[int.from_bytes(key[:8], "big")].add(int.from_bytes(raw[8:16], "big"))
    frames = StoppedLog(folder / "log").readable(0)
    last = max([frames[0].header.sequence - 1 if frames else 0, *(max(some) for some in in_log.values())])
    created: dict[int, int] = {}
    appended: dict[int, set[int]] = defaultdict(set)

    def is_gone(segment: int) -> bool | None:
        """None: it may have been created later."""
        if segment in segments:
            return False
        return True if created.get(segment, 0) <= last else None

    def has(operation: op.AnyOperation, sequence: int) -> bool | None:
        """Whether the state reflects it; None if nothing shows that, True also if it can no longer be applied."""
        match operation:
            case op.Create():
                created[operation.segment] = sequence
                return operation.segment in segments or None
            case op.Append() if operation.segment in segments:
                return operation.offset < segments[operation.segment].length if operation.length else None
            case op.Append():
                appended[operation.segment].add(sequence)
            case op.Merge():
                moved = appended[operation.source]
                appended[operation.target] |= moved
                return True if moved & in_log[operation.target] else is_gone(operation.source)
            case op.Delete():
                return is_gone(operation.segment)
            case op.TableUpdate() if operation.entries and operation.segment in segments:
                return operation.entries[0][1] < segments[operation.segment].table_length
            case op.Seal() if operation.segment in segments:
                return segments[operation.segment].sealed
            case op.ChunkStored():
                place = operation.segment.to_bytes(8, "big") + operation.offset.to_bytes(8, "big")
                return operation.chunk.encode() in records["extents"].get(place, b"") or None
        return None

    for frame in frames:
        sequence = frame.header.sequence
        said = [has(operation, sequence) for operation in op.decode_frame(frame.head())[0]]
        if sequence > last and False in said:
            break
        if True in said:
            last = max(last, sequence)
    return last
