"""What the readers of a run noted, and whether it is what a group of readers promises.

Each event is `key sequence`. What must hold when all is read:

- Every event is read, or lies in a gap that a reader was told of; none of a segment is lost.
- An event is read twice only by readers that were killed or stopped, and not before what they had recorded.
- Each key's events are first read in order, and every reader reads them in order; but what a stopped reader had in hand
  it gives, late, when it goes on.
- Each checkpoint is one boundary: what a reader was given before it passed lies before, all else behind.
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
    """One event as one reader was given it; `reader` is a process, of which each has its own file."""

    time_ns: int
    reader: str
    segment: str
    offset: int
    key: int
    sequence: int


@dataclass
class Notes:
    """All notes of a run, the events in the order of their times."""

    events: list[Note] = field(default_factory=list)
    gaps: list[tuple[str, int, int]] = field(default_factory=list)  # segment, from, to (-1: its end)
    passed: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))  # checkpoint, reader: when
    closed: set[str] = field(default_factory=set)
    offline: set[str] = field(default_factory=set)
    _series: dict[str, dict[str, tuple[list[int], list[int]]]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Notes:
        notes = cls()
        for path in folder.iterdir():
            for line in path.read_text().splitlines():
                what, *rest = line.split(" ")
                if what == "event":
                    time_ns, segment, offset, key, sequence = rest
                    notes.events.append(Note(int(time_ns), path.name, segment, int(offset), int(key), int(sequence)))
                elif what == "gap":
                    notes.gaps.append((rest[1], int(rest[2]), int(rest[3])))
                elif what == "checkpoint":
                    notes.passed[rest[1]][path.name] = int(rest[0])
                else:
                    (notes.closed if what == "closed" else notes.offline).add(path.name)
        notes.events.sort(key=lambda note: note.time_ns)
        return notes

    def series(self, reader: str) -> dict[str, tuple[list[int], list[int]]]:
        """The times and offsets of what a reader read of each segment."""
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
    """A reader that was killed or stopped: when, and what the group had recorded of its segments (if it is known)."""

    time_ns: int
    recorded: dict[str, int] | None


@dataclass(frozen=True)
class Judgement:
    """The figures of a run in which everything held."""

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
    """written: each event's (key, sequence), and its segment and offset; AssertionError for what doesn't hold."""
    readings: dict[tuple[int, int], list[Note]] = defaultdict(list)
    for note in notes.events:
        readings[note.key, note.sequence].append(note)
    assert readings.keys() <= written.keys(), "an event was read that nobody wrote"
    in_gaps = 0
    for event, place in written.items():
        if event not in readings:
            assert notes.is_in_a_gap(*place), f"event {event} at {place} was never read"
            in_gaps += 1
    for event, found in readings.items():
        assert all((note.segment, note.offset) == written[event] for note in found), (event, found)
        surely = [note for note in found if not _may_be_repeated(note, ended)]
        assert len(surely) <= 1 or len(found) == 1, f"event {event} was read again, though it was done: {found}"
        most = Counter(note.reader for note in found).most_common(1)[0]
        assert most[1] == 1, f"{most[0]} read event {event} twice"
    _check_order(notes, ended)
    for made_ns, checkpoint in checkpoints:
        _check_boundary(notes, checkpoint, {name for name, end in ended.items() if end.time_ns <= made_ns})
    twice = sum(len(found) - 1 for found in readings.values())
    return Judgement(len(written), twice, in_gaps, len(checkpoints))


def _may_be_repeated(note: Note, ended: dict[str, Ended]) -> bool:
    """Whether its reader came to an end before the group had recorded that it was done with the event."""
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
            continue  # it was stopped with a block in hand, and gives the rest of it when it goes on
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
