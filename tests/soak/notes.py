"""The notes that readers took during a run, and whether they satisfy the guarantees of a reader group.

Each event is `key sequence`. When all is read:

- Every event was read or is in a gap that a reader was notified of.
- An event is read twice only by readers that were killed or stopped, and not if it precedes their recorded position.
- Each key's events are first read in order, and every reader reads them in order; but a stopped reader delivers the
  events it had already received when it resumes.
- Each checkpoint is a boundary: the events that a reader got before passing it precede it, all others follow it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from nadi.client import Checkpoint
from nadi.naming import segment_name


@dataclass(frozen=True, slots=True)
class Note:
    """One event as given to one reader; `reader` is a process, each with its own file."""

    time_ns: int
    reader: str
    segment: str
    offset: int
    key: int
    sequence: int


@dataclass
class Notes:
    """All notes of a run, with events in the order of their times."""

    events: list[Note] = field(default_factory=list)
    gaps: list[tuple[str, int, int]] = field(default_factory=list)  # segment, from, to (-1: its end)
    passed: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))  # checkpoint, reader: time
    closed: set[str] = field(default_factory=set)
    offline: set[str] = field(default_factory=set)
    _series: dict[str, dict[str, tuple[list[int], list[int]]]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Notes:
        notes = cls()
        for path in folder.iterdir():
            for line in path.read_text().splitlines():
                kind, *fields = line.split(" ")
                if kind == "event":
                    time_ns, segment, offset, key, sequence = fields
                    notes.events.append(Note(int(time_ns), path.name, segment, int(offset), int(key), int(sequence)))
                elif kind == "gap":
                    notes.gaps.append((fields[1], int(fields[2]), int(fields[3])))
                elif kind == "checkpoint":
                    notes.passed[fields[1]][path.name] = int(fields[0])
                else:
                    (notes.closed if kind == "closed" else notes.offline).add(path.name)
        notes.events.sort(key=lambda note: note.time_ns)
        return notes

    def series(self, reader: str) -> dict[str, tuple[list[int], list[int]]]:
        """Return the times and offsets at which a reader read each segment."""
        if not self._series:
            for note in self.events:
                times, offsets = self._series.setdefault(note.reader, {}).setdefault(note.segment, ([], []))
                times.append(note.time_ns)
                offsets.append(note.offset)
        return self._series.get(reader, {})

    def is_in_a_gap(self, segment: str, offset: int) -> bool:
        return any(name == segment and start <= offset and (end < 0 or offset < end) for name, start, end in self.gaps)


@dataclass(frozen=True)
class Ended:
    """A reader that was killed or stopped: when, and the recorded positions of its segments, if known."""

    time_ns: int
    recorded: dict[str, int] | None


@dataclass(frozen=True)
class Judgement:
    """The figures of a run without violations."""

    events: int
    read_twice: int
    in_gaps: int
    checkpoints: int


def judge(
    notes: Notes,
    written: dict[tuple[int, int], tuple[str, int]],
    ended: dict[str, Ended],
    checkpoints: list[tuple[int, Checkpoint]],
) -> Judgement:
    """Check all guarantees. written: segment and offset of each event by (key, sequence). AssertionError: a
    violation."""
    readings: dict[tuple[int, int], list[Note]] = defaultdict(list)
    for note in notes.events:
        readings[note.key, note.sequence].append(note)
    assert readings.keys() <= written.keys(), "an event was read that was never written"
    in_gaps = 0
    for event, place in written.items():
        if event not in readings:
            assert notes.is_in_a_gap(*place), f"event {event} at {place} was never read"
            in_gaps += 1
    for event, notes_of_event in readings.items():
        assert all((note.segment, note.offset) == written[event] for note in notes_of_event), (event, notes_of_event)
        surely = [note for note in notes_of_event if not _may_be_repeated(note, ended)]
        assert len(surely) <= 1 or len(notes_of_event) == 1, (
            f"event {event} was read again, though it was done: {notes_of_event}"
        )
        most = Counter(note.reader for note in notes_of_event).most_common(1)[0]
        assert most[1] == 1, f"{most[0]} read event {event} twice"
    _check_order(notes, ended)
    for made_ns, checkpoint in checkpoints:
        _check_boundary(notes, checkpoint, {name for name, end in ended.items() if end.time_ns <= made_ns})
    twice = sum(len(notes_of_event) - 1 for notes_of_event in readings.values())
    return Judgement(len(written), twice, in_gaps, len(checkpoints))


def _may_be_repeated(note: Note, ended: dict[str, Ended]) -> bool:
    """Return whether the note's reader ended before the group had recorded that it was done with the event."""
    end = ended.get(note.reader)
    if end is None:
        return False
    at = None if end.recorded is None else end.recorded.get(note.segment)
    return at is None or note.offset >= at


def _check_order(notes: Notes, ended: dict[str, Ended]) -> None:
    of_key: dict[int, int] = {}
    of_reader: dict[tuple[str, int], int] = {}
    seen: set[tuple[int, int]] = set()
    for note in notes.events:
        before = of_reader.get((note.reader, note.key), -1)
        assert note.sequence > before, f"{note} came to its reader after {before}"
        of_reader[note.reader, note.key] = note.sequence
        end = ended.get(note.reader)
        if end is not None and note.time_ns > end.time_ns:
            continue  # it was stopped with a block in hand, and delivers the remainder when it resumes
        if (note.key, note.sequence) not in seen:
            seen.add((note.key, note.sequence))
            assert note.sequence > of_key.get(note.key, -1), f"{note} was first read after {of_key[note.key]}"
            of_key[note.key] = note.sequence


def _check_boundary(notes: Notes, checkpoint: Checkpoint, ended: set[str]) -> None:
    positions = {
        segment_name(cut.scope, cut.stream, segment_id): offset
        for cut in checkpoint.stream_cuts.values()
        for segment_id, offset in cut.positions.items()
    }
    for reader, passed_ns in notes.passed[checkpoint.name].items():
        for segment, (times, offsets) in notes.series(reader).items() if reader not in ended else ():
            at, index = positions.get(segment), bisect_left(times, passed_ns)
            if at is None:
                continue
            assert index == 0 or offsets[index - 1] < at, f"{reader} read past {checkpoint} in {segment} before it"
            assert index == len(offsets) or offsets[index] >= at, f"{reader} read {segment} again after {checkpoint}"
