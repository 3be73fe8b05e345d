"""Reader processes killed at random while a writer writes and the stream is scaled.

What must hold: every event is read; one is read twice only if a killed reader had read it and not yet
recorded it; each key's events are first read in order; each checkpoint is a boundary for all readers.
NADI_READER_KILLS and NADI_READER_SEED repeat or lengthen a run.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import nadi
from nadi.client import Checkpoint, ReaderGroup, StreamManager
from nadi.errors import RequestTimeoutError
from nadi.naming import parse_segment_name

KILLS = int(os.environ.get("NADI_READER_KILLS", "6"))
KEYS = 20
READERS = 3


@dataclass(frozen=True)
class Note:
    time_ns: int
    reader: str
    number: int  # -1: a checkpoint
    segment: str
    offset: int
    checkpoint: str = ""


class Readers:
    """The processes, and what they noted."""

    def __init__(self, uri: str, group: ReaderGroup, folder: Path) -> None:
        self.uri, self.group, self.folder = uri, group, folder
        self.alive: dict[str, subprocess.Popen[bytes]] = {}
        self.recorded: dict[str, dict[int, int]] = {}  # of dead ones that were taken offline by call
        self.died_ns: dict[str, int] = {}
        self.count = 0

    def start(self) -> None:
        name = f"r{self.count}"
        self.count += 1
        main = Path(__file__).parent / "reader_main.py"
        arguments = [self.uri, "sc", self.group.name, name, str(self.folder / name)]
        self.alive[name] = subprocess.Popen([sys.executable, main, *arguments])

    def kill(self, name: str, *, by_call: bool) -> None:
        process = self.alive.pop(name)
        self.died_ns[name] = time.monotonic_ns()
        process.kill()
        process.wait()
        if by_call:
            cuts = self.group.reader_offline(name)
            self.recorded[name] = {s: at for cut in cuts.values() for s, at in cut.positions.items()}

    def end(self) -> None:
        for process in self.alive.values():
            process.kill()
            process.wait()

    def notes(self) -> list[Note]:
        found = []
        for path in self.folder.iterdir():
            for line in path.read_text().splitlines():
                time_ns, what, *rest = line.split()
                if what == "checkpoint":
                    found.append(Note(int(time_ns), path.name, -1, "", 0, rest[0]))
                else:
                    found.append(Note(int(time_ns), path.name, int(what), rest[0], int(rest[1])))
        return sorted(found, key=lambda note: note.time_ns)


def write(manager: StreamManager, stop: threading.Event, written: list[int]) -> None:
    with manager.create_writer("sc", "st") as writer:
        while not stop.is_set():
            first = written[0]
            writer.write_batch(
                [b"%d" % i for i in range(first, first + 20)], [f"k{i % KEYS}" for i in range(first, first + 20)]
            )
            writer.flush(30)
            written[0] = first + 20
            time.sleep(0.02)


def rescale(manager: StreamManager, choice: random.Random) -> None:
    """Split one segment, or merge two neighbours."""
    current = manager.current_segments("sc", "st")
    at = choice.randrange(len(current) - 1)
    if len(current) < 8 and choice.random() < 0.6:
        old = current[at]
        middle = (old.low + old.high) / 2
        manager.scale_stream("sc", "st", [old.segment_id], [(old.low, middle), (middle, old.high)])
    elif len(current) > 3:
        left, right = current[at], current[at + 1]
        manager.scale_stream("sc", "st", [left.segment_id, right.segment_id], [(left.low, right.high)])


def check(readers: Readers, written: int, checkpoints: list[tuple[int, Checkpoint]]) -> int:
    """How many events were read twice."""
    notes = readers.notes()
    events = [note for note in notes if note.number >= 0]
    first: dict[int, Note] = {}
    last_of_key: dict[int, int] = {}
    repeated = 0
    for note in events:
        known = first.get(note.number)
        if known is None:
            first[note.number] = note
            key = note.number % KEYS
            assert note.number > last_of_key.get(key, -1), f"key {key}: {note.number} after {last_of_key[key]}"
            last_of_key[key] = note.number
            continue
        repeated += 1
        assert known.reader in readers.died_ns, f"{note} was read before by {known}, which lives"
        recorded = readers.recorded.get(known.reader)
        if recorded is not None:
            at = recorded.get(parse_segment_name(note.segment)[2])
            assert at is not None, f"{known} was read again, and its segment had been given away"
            assert known.offset >= at, f"{known} was read again, and was recorded as done: {at}"
    assert first.keys() == set(range(written)), "events were not read"
    for made_ns, checkpoint in checkpoints:
        positions = checkpoint.stream_cuts["sc/st"].positions
        passed: dict[str, int] = {n.reader: n.time_ns for n in notes if n.checkpoint == checkpoint.name}
        for note in events:
            at = positions.get(parse_segment_name(note.segment)[2])
            if at is None or readers.died_ns.get(note.reader, made_ns + 1) <= made_ns or note.reader not in passed:
                continue
            is_before = note.time_ns < passed[note.reader]
            assert is_before == (note.offset < at), f"{note}, checkpoint {checkpoint}"
    return repeated


@pytest.mark.crash
def test_readers_killed_at_random(tmp_path: Path) -> None:
    seed = int(os.environ.get("NADI_READER_SEED", "0")) or random.randrange(1, 10**6)
    print(f"NADI_READER_SEED={seed}")
    choice = random.Random(seed)
    notes = tmp_path / "notes"
    notes.mkdir()
    with nadi.embedded(tmp_path / "data") as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        manager.create_stream("sc", "st", 2)
        groups = manager.reader_group_manager("sc")
        groups.create_reader_group("g", "st", refresh_ms=100, dead_after_ms=3000)
        readers = Readers(server.controller_uri, groups.get_reader_group("g"), notes)
        stop, written = threading.Event(), [0]
        writing = threading.Thread(target=write, args=(manager, stop, written))
        checkpoints: list[tuple[int, Checkpoint]] = []
        writing.start()
        try:
            for _ in range(READERS):
                readers.start()
            for turn in range(KILLS):
                time.sleep(choice.uniform(0.5, 1.5))
                rescale(manager, choice)
                online = [name for name in readers.group.online_readers() if name in readers.alive]
                if online:
                    readers.kill(choice.choice(online), by_call=choice.random() < 0.7)
                    readers.start()
                try:
                    checkpoint = readers.group.initiate_checkpoint(f"c{turn}", timeout=20)
                    checkpoints.append((time.monotonic_ns(), checkpoint))
                except RequestTimeoutError as error:
                    raise AssertionError(f"seed {seed}: {error}") from error
            stop.set()
            writing.join()
            manager.seal_stream("sc", "st")
            for name, process in readers.alive.items():
                assert process.wait(60) == 0, name
        finally:
            stop.set()
            writing.join()
            readers.end()
        repeated = check(readers, written[0], checkpoints)
        assert len(checkpoints) == KILLS
        print(f"{written[0]:,} events, {len(readers.died_ns)} readers killed, {repeated} events read again")
