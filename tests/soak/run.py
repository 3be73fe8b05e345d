"""One soak run: a real server, reader processes, and random faults and changes, in an order determined by a seed.

A writer writes constantly, and a plain reader follows it to learn each event's position. In each turn the stream is
scaled, a reader is added, closed, killed or stopped for longer than the group waits, a checkpoint is made or the stream
is truncated; then the segments must become balanced again. At the end the stream is sealed, the readers read to the
end, and `notes` judges.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nadi
from nadi.client import Checkpoint, ReaderGroup, SliceReader, StreamManager
from nadi.errors import RequestTimeoutError, SegmentTruncatedError
from nadi.model.streamcut import StreamCut
from nadi.naming import parse_segment_name, segment_name
from tests.soak.notes import Ended, Judgement, Notes, judge

SCOPE, STREAM, GROUP = "soak", "events", "readers"
KEYS = 20
MOST_READERS, LEAST_READERS = 6, 2
MOST_SEGMENTS, LEAST_SEGMENTS = 12, 3
PATIENCE_S = 90.0  # for anything that must happen eventually, on a machine that may pause for seconds
LIMITS = "log_file_bytes=16777216,chunk_flush_age_s=1"


@dataclass
class Process:
    """A reader process: `name` is unique, `reader_id` may have been used by an earlier process."""

    name: str
    reader_id: str
    process: subprocess.Popen[bytes]


@dataclass
class Outcome:
    """The actions and results of a run."""

    judgement: Judgement
    seconds: float
    killed: int
    stopped: int
    closed: int
    scales: int
    truncations: int
    balance_s: list[float]

    def __str__(self) -> str:
        judged, waits = self.judgement, sorted(self.balance_s)
        return (
            f"{judged.events:,} events in {self.seconds:.0f} s; readers: {self.killed} killed, {self.stopped} stopped "
            f"until offline, {self.closed} closed; {self.scales} scales, {self.truncations} truncations, "
            f"{judged.checkpoints} checkpoints; {judged.read_twice:,} events read twice, {judged.in_gaps:,} in gaps; "
            f"balanced after {waits[len(waits) // 2]:.1f} s (median), {waits[-1]:.1f} s (longest)"
        )


class Written(threading.Thread):
    """Follows the stream with a plain reader: the position of each event, and how far positions are known."""

    def __init__(self, reader: SliceReader) -> None:
        super().__init__(daemon=True)
        self.places: dict[tuple[int, int], tuple[str, int]] = {}
        self.error: BaseException | None = None
        self._reader = reader
        self.position: StreamCut = reader.position()

    def run(self) -> None:
        try:
            for segment_id, block in self._reader:
                name = segment_name(SCOPE, STREAM, segment_id)
                for offset, event in zip(block.offsets().tolist(), block, strict=True):
                    key, sequence = event.split(b" ")
                    self.places[int(key), int(sequence)] = (name, offset)
                self.position = self._reader.position()
        except BaseException as error:  # checked by the main thread
            self.error = error


class Writer(threading.Thread):
    """Writes `rate` events a second, numbered for each key."""

    def __init__(self, manager: StreamManager, rate: int) -> None:
        super().__init__(daemon=True)
        self.count = 0  # stored events
        self.stopped = threading.Event()
        self.error: BaseException | None = None
        self._manager, self._rate = manager, rate

    def run(self) -> None:
        try:
            with self._manager.create_writer(SCOPE, STREAM) as writer:
                while not self.stopped.wait(0.02):
                    numbers = range(self.count, self.count + max(self._rate // 50, 1))
                    events = [b"%d %d" % (i % KEYS, i // KEYS) for i in numbers]
                    writer.write_batch(events, [f"key {i % KEYS}" for i in numbers])
                    writer.flush(PATIENCE_S)
                    self.count = numbers.stop
        except BaseException as error:  # checked by the main thread
            self.error = error


@dataclass
class Soak:
    """A soak run; call `run` once."""

    folder: Path
    seconds: float
    seed: int
    rate: int = 1000
    dead_after_ms: int = 3000
    alive: list[Process] = field(default_factory=list)
    stopped: deque[tuple[float, Process]] = field(default_factory=deque)  # with the time to resume them
    ended: dict[str, Ended] = field(default_factory=dict)
    leaving: list[Process] = field(default_factory=list)
    checkpoints: dict[str, tuple[int, Checkpoint]] = field(default_factory=dict)
    balance_s: list[float] = field(default_factory=list)
    started: int = 0
    scales: int = 0
    truncations: int = 0
    stops: int = 0

    def run(self) -> Outcome:
        self.random = random.Random(self.seed)
        (self.folder / "notes").mkdir()
        server = nadi.embedded(self.folder / "data", environment={"NADI_LIMITS": LIMITS})
        with server, StreamManager(server.controller_uri) as self.manager:
            self.uri = server.controller_uri
            self.manager.create_scope(SCOPE)
            self.manager.create_stream(SCOPE, STREAM, LEAST_SEGMENTS)
            groups = self.manager.reader_group_manager(SCOPE)
            groups.create_reader_group(
                GROUP, STREAM, refresh_ms=200, dead_after_ms=self.dead_after_ms, checkpoint_interval_ms=5000
            )
            self.group: ReaderGroup = groups.get_reader_group(GROUP)
            self.written = Written(self.manager.create_reader(SCOPE, STREAM))
            self.writer = Writer(self.manager, self.rate)
            try:
                return self._run()
            finally:
                self.writer.stopped.set()
                self.writer.join()
                for one in [*self.alive, *self.leaving, *(held for _, held in self.stopped)]:
                    one.process.kill()
                    one.process.wait()

    def _run(self) -> Outcome:
        self.written.start()
        self.writer.start()
        began = time.monotonic()
        for _ in range(3):
            self._start()
        self._await_balance()
        while time.monotonic() - began < self.seconds:
            self.random.choice(
                [self._scale, self._change_readers, self._change_readers, self._change_readers, self._truncate]
            )()
            if self.random.random() < 0.5:
                self._checkpoint()
            self._resume(time.monotonic())
            self._await_balance()
            self._note_checkpoints()
            for thread in (self.writer, self.written):
                if thread.error is not None:
                    raise thread.error
        self._finish()
        seconds = time.monotonic() - began
        notes = Notes.of(self.folder / "notes")
        assert {one.name for one in self.leaving} <= notes.closed, "a reader did not leave cleanly"
        assert len(self.written.places) == self.writer.count, "not all stored events were read"
        judgement = judge(notes, self.written.places, self.ended, list(self.checkpoints.values()))
        killed = len(self.ended) - self.stops
        return Outcome(
            judgement, seconds, killed, self.stops, len(notes.closed), self.scales, self.truncations, self.balance_s
        )

    # --- readers ------------------------------------------------------------------------------

    def _start(self, reader_id: str | None = None) -> None:
        reader_id = reader_id or f"r{self.started}"
        name = f"{reader_id}.{self.started}"
        self.started += 1
        arguments = [self.uri, SCOPE, GROUP, reader_id, str(self.folder / "notes" / name)]
        process = subprocess.Popen([sys.executable, "-m", "tests.soak.reader", *arguments])
        self.alive.append(Process(name, reader_id, process))

    def _change_readers(self) -> None:
        """Add, close, kill or stop a reader; stopped ones are resumed later."""
        actions: list[Callable[[], None]] = []
        if len(self.alive) > LEAST_READERS:
            actions += [self._kill, self._kill, self._stop, self._leave, self._leave]
        if len(self.alive) < MOST_READERS:
            actions += [self._start] * 3
        self.random.choice(actions)()

    def _pick(self) -> Process | None:
        """Return a random reader that is online."""
        online = self.group.online_readers()
        able = [one for one in self.alive if one.reader_id in online]
        if not able:
            return None
        one = self.random.choice(able)
        self.alive.remove(one)
        return one

    def _kill(self) -> None:
        one = self._pick()
        if one is None:
            return
        now = time.monotonic_ns()
        one.process.kill()
        one.process.wait()
        if self.random.random() < 0.5:  # its death is reported, and another reader replaces it at once
            cuts = self.group.reader_offline(one.reader_id)
            recorded = {
                segment_name(SCOPE, STREAM, segment_id): at
                for cut in cuts.values()
                for segment_id, at in cut.positions.items()
            }
            self.ended[one.name] = Ended(now, recorded)
            self._start(one.reader_id)
        else:
            self.ended[one.name] = Ended(now, self._recorded(one.reader_id))
            self._truncate_unread()
            self._start()

    def _recorded(self, reader_id: str) -> dict[str, int] | None:
        """Return the recorded positions of a reader's segments, if it still has them when they are read."""
        cut = self.group.stream_cuts()[f"{SCOPE}/{STREAM}"]
        owned = self.group.segments_of_readers().get(reader_id)
        if owned is None:
            return None
        ids = {name: parse_segment_name(name)[2] for name in owned}
        return {name: cut.positions[segment_id] for name, segment_id in ids.items() if segment_id in cut.positions}

    def _leave(self) -> None:
        one = self._pick()
        if one is not None:
            one.process.terminate()
            self.leaving.append(one)

    def _stop(self) -> None:
        one = self._pick()
        if one is not None:
            now = time.monotonic_ns()
            one.process.send_signal(signal.SIGSTOP)
            self.ended[one.name] = Ended(now, self._recorded(one.reader_id))
            self.stops += 1
            self.stopped.append((time.monotonic() + 3 * self.dead_after_ms / 1000, one))
            self._truncate_unread()
            self._start()

    def _resume(self, now: float) -> None:
        """Resume readers that were stopped for long enough; they find their segments reassigned, and end."""
        while self.stopped and self.stopped[0][0] <= now:
            _, one = self.stopped.popleft()
            self._until(lambda one=one: one.reader_id not in self.group.online_readers(), "it counts as dead")  # type: ignore[misc]
            one.process.send_signal(signal.SIGCONT)
            assert one.process.wait(PATIENCE_S) == 0, one.name

    # --- the stream ---------------------------------------------------------------------------

    def _scale(self) -> None:
        """Split one segment, or merge two neighbours."""
        current = self.manager.current_segments(SCOPE, STREAM)
        at = self.random.randrange(len(current) - 1)
        if len(current) <= LEAST_SEGMENTS or (len(current) < MOST_SEGMENTS and self.random.random() < 0.5):
            old = current[at]
            middle = (old.low + old.high) / 2
            self.manager.scale_stream(SCOPE, STREAM, [old.segment_id], [(old.low, middle), (middle, old.high)])
        else:
            left, right = current[at], current[at + 1]
            self.manager.scale_stream(SCOPE, STREAM, [left.segment_id, right.segment_id], [(left.low, right.high)])
        self.scales += 1

    def _truncate(self) -> None:
        """Truncate at the newest checkpoint, where all readers have passed."""
        checkpoints = self.group.checkpoints()
        if checkpoints:
            cut = checkpoints[-1].stream_cuts[f"{SCOPE}/{STREAM}"]
            self._until(lambda: self._is_followed(cut), "the plain reader follows")
            self._truncate_at(cut)

    def _is_followed(self, cut: StreamCut) -> bool:
        """Return whether the plain reader has read everything before the cut."""
        try:
            return self.manager.cuts(SCOPE, STREAM).compare(self.written.position, cut).is_at_or_after
        except SegmentTruncatedError:
            return True  # the cut is before the last truncation, which the plain reader had passed

    def _truncate_unread(self) -> None:
        """Occasionally truncate at the tail: the successors of an ended reader find a gap."""
        if self.random.random() < 0.4:
            self._truncate_at(self.written.position)

    def _truncate_at(self, cut: StreamCut) -> None:
        head = self.manager.stream_info(SCOPE, STREAM).head
        try:
            if not self.manager.cuts(SCOPE, STREAM).compare(cut, head).is_at_or_after:
                return  # it is before the last truncation
        except SegmentTruncatedError:
            return  # by complete segments
        self.manager.truncate_stream(cut)
        self.truncations += 1

    # --- the group ----------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        name = f"c{len(self.checkpoints)}-{self.started}"
        try:
            self.group.initiate_checkpoint(name, timeout=PATIENCE_S)
        except RequestTimeoutError as error:
            raise AssertionError(f"seed {self.seed}: {error}") from error

    def _note_checkpoints(self) -> None:
        now = time.monotonic_ns()
        for checkpoint in self.group.checkpoints():
            self.checkpoints.setdefault(checkpoint.name, (now, checkpoint))

    def _await_balance(self) -> None:
        self.balance_s.append(self._until(self._is_balanced, "the segments are balanced"))

    def _is_balanced(self) -> bool:
        held = self.group.segments_of_readers()
        free = held.pop("")
        counts = [len(segments) for segments in held.values()]
        expected = {one.reader_id for one in self.alive}
        return not free and held.keys() == expected and max(counts) - min(counts) <= 1

    def _until(self, condition: Callable[[], bool], what: str) -> float:
        """Wait until the condition holds; return the seconds it took."""
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            assert waited < PATIENCE_S, f"seed {self.seed}: after {waited:.0f} s, not: {what}; {self._status()}"
            time.sleep(0.02)
        return time.monotonic() - began

    def _status(self) -> str:
        return f"{self.group.segments_of_readers()}, alive: {[one.reader_id for one in self.alive]}"

    def _finish(self) -> None:
        self.writer.stopped.set()
        self.writer.join()
        self._resume(float("inf"))
        self.manager.seal_stream(SCOPE, STREAM)
        for one in [*self.alive, *self.leaving]:
            assert one.process.wait(PATIENCE_S) == 0, one.name
        self.written.join(PATIENCE_S)
        if self.written.error is not None:
            raise self.written.error
        self.leaving += self.alive
        self.alive.clear()
        self._note_checkpoints()


def seed_of(environment: str) -> int:
    """Return the seed from the environment, or a new one."""
    return int(os.environ.get(environment, "0")) or random.randrange(1, 10**6)
