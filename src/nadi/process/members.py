"""Assigns a stream's segments to its live workers, by rendezvous hashing.

Each worker updates its record every second. A worker whose record is unchanged for five seconds, by the observer's
clock, counts as dead. A segment belongs to the worker whose name and the segment's number give the highest digest, so
few segments move when a worker joins or leaves. Two workers may briefly own the same segment: the record of positions
fences one of them off.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.catalog import entries_of
from nadi.client.tables.table import Table
from nadi.errors import NadiError
from nadi.limits import PROCESS_BEAT_S, PROCESS_DEAD_S, PROCESS_LEAVE_S, PROCESS_SILENT_S


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker's report. state: a word, for kinds that have states; beat: grows with each report; events: processed so
    far; events_per_s: recent rate; last_error: or ""; reported_ms: the time of the report, by the worker's clock."""

    host: str
    pid: int
    started_ms: int
    name: str = ""
    machine: str = ""
    state: str = ""
    beat: int = 0
    events: int = 0
    events_per_s: float = 0.0
    segments: int = 0
    last_error: str = ""
    reported_ms: int = 0

    def is_live(self) -> bool:
        """Return whether it reported in the last ten seconds, by this machine's clock, and its process may be alive."""
        return self.reported_ms >= _now_ms() - PROCESS_SILENT_S * 1000 and not self.has_died()

    def has_died(self) -> bool:
        """Return whether it ran on this machine and its process has ended."""
        if self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except OSError as error:  # a process of another user may not be signalled
            return isinstance(error, ProcessLookupError)
        return False


class Beats:
    """Measures how long workers have been silent, by the observer's clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # by worker: the last beat and when it changed

    @property
    def known(self) -> set[str]:
        return set(self._seen)

    def silent_for(self, beats: Mapping[str, int], seconds: float) -> set[str]:
        """Return the workers whose beat hasn't changed for that time. beats: of all workers."""
        now = self._clock()
        self._seen = {
            name: seen if (seen := self._seen.get(name, (beat, now)))[0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return {name for name, (_, since) in self._seen.items() if now - since >= seconds}


class Members:
    """This worker and those with which it shares segments. prefix: of the workers' keys in the table."""

    def __init__(
        self, stores: SegmentStores, scope: str, table: str, prefix: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stores, self._scope, self._prefix = stores, scope, prefix.encode()
        self._table: Table = Table(stores, scope, table)
        self.name = uuid.uuid4().hex
        self._beats = Beats(clock)
        self._member = WorkerInfo(socket.gethostname(), os.getpid(), _now_ms(), self.name, _machine())
        self._live = [self.name]

    async def report(self, events: int, events_per_s: float, segments: int, last_error: str, state: str = "") -> None:
        """Store this worker's report."""
        self._member = msgspec.structs.replace(
            self._member,
            beat=self._member.beat + 1,
            events=events,
            events_per_s=events_per_s,
            segments=segments,
            last_error=last_error,
            state=state,
            reported_ms=_now_ms(),
        )
        await self._table.put(self._prefix + self.name.encode(), msgspec.json.encode(self._member))

    async def refresh(self) -> None:
        """Read the workers' records; delete those that have been silent for a minute."""
        beats: dict[str, int] = {}
        dead = set()
        async for entry in entries_of(self._stores, self._scope, self._table, self._prefix):
            name, member = entry.key.decode(errors="replace"), _member(entry.value)
            beats[name] = -1 if member is None else member.beat
            if member is not None and member.has_died():
                dead.add(name)
        self._live = sorted(beats.keys() - dead - self._beats.silent_for(beats, PROCESS_DEAD_S) | {self.name})
        if self.is_first:
            for name in self._beats.silent_for(beats, PROCESS_DEAD_S * 12) - {self.name}:
                await self._table.remove(self._prefix + name.encode())

    async def leave(self) -> None:
        """Delete this worker's record; on an error the others notice by its silence."""
        with suppress(NadiError, TimeoutError):
            async with asyncio.timeout(PROCESS_LEAVE_S):
                await self._table.remove(self._prefix + self.name.encode())

    @property
    def live(self) -> Collection[str]:
        """The names of the live workers at the last `refresh`, including this one."""
        return self._live

    @property
    def known(self) -> Collection[str]:
        """The names of all workers with a record, live or not, including this one."""
        return self._beats.known | {self.name}

    @property
    def is_first(self) -> bool:
        """Whether this worker does the tasks that only one does."""
        return self._live[0] == self.name

    def own_segments(self, segments: Iterable[int]) -> list[int]:
        return [
            segment for segment in segments if max(self._live, key=lambda name: _weight(name, segment)) == self.name
        ]


async def live_members(stores: SegmentStores, scope: str, table: str, prefix: str) -> list[WorkerInfo]:
    """Return the workers that reported in the last ten seconds, by this machine's clock."""
    entries = entries_of(stores, scope, Table(stores, scope, table), prefix.encode())
    members = [_member(entry.value) async for entry in entries]
    return [member for member in members if member is not None and member.is_live()]


async def wait_until_ended(stores: SegmentStores, scope: str, table: str, prefix: str, most_s: float) -> None:
    """Wait until all workers have ended, at most `most_s`; then delete their records."""
    known, until = Table(stores, scope, table), time.monotonic() + most_s
    beats, running = Beats(), {""}
    while running:
        entries = [entry async for entry in entries_of(stores, scope, known, prefix.encode())]
        live = {entry.key.decode(errors="replace"): entry.version for entry in entries}
        running = set() if time.monotonic() >= until else live.keys() - beats.silent_for(live, PROCESS_DEAD_S)
        if running:
            await asyncio.sleep(PROCESS_BEAT_S / 4)
    for entry in entries:
        await known.remove(prefix.encode() + entry.key)


def _member(value: bytes) -> WorkerInfo | None:
    """Return the worker's report, or None if the value can't be decoded."""
    try:
        return msgspec.json.decode(value, type=WorkerInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


@cache
def _machine() -> str:
    """Identify this machine's current boot and process namespace, within which process ids are valid."""
    marks = [socket.gethostname()]
    with suppress(OSError):
        marks.append(os.readlink("/proc/self/ns/pid"))
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    return hashlib.sha256("".join(marks).encode()).hexdigest()[:16]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _weight(name: str, segment: int) -> bytes:
    return hashlib.blake2b(f"{name}/{segment}".encode(), digest_size=8).digest()
