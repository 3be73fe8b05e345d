"""Assigns a stream's segments to its live workers, by rendezvous hashing.

Each worker changes its record every second. One whose record stays the same for five seconds, by the observer's clock,
is gone. A segment belongs to the worker whose name and the segment's number give the highest digest, so few segments
move when a worker comes or goes. Two may have the same for a moment: the record of positions fences one of them off.
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
from nadi.limits import PROCESS_BEAT_S, PROCESS_GONE_S, PROCESS_LEAVE_S, PROCESS_SILENT_S


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker says of itself. state: in a word, where its kind has some; beat: grows; events: that it has done;
    events_per_s: lately; last_error: or ""; said_ms: when, by its clock."""

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
    said_ms: int = 0

    def is_there(self) -> bool:
        """Whether it said something in the last ten seconds, by this machine's clock, and isn't known to be dead."""
        return self.said_ms >= _now_ms() - PROCESS_SILENT_S * 1000 and not self.has_died()

    def has_died(self) -> bool:
        """Whether it ran on this machine, and its process is gone: that is known at once."""
        if self.machine != _machine():
            return False
        try:
            os.kill(self.pid, 0)
        except OSError as error:  # another user's can't be asked
            return isinstance(error, ProcessLookupError)
        return False


class Beats:
    """How long others have shown no sign, by the clock of who looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # the last beat of each, and when it was new

    @property
    def known(self) -> set[str]:
        return set(self._seen)

    def silent_for(self, beats: Mapping[str, int], seconds: float) -> set[str]:
        """Those of which nothing new was seen for so long. beats: of all there are."""
        now = self._clock()
        self._seen = {
            name: seen if (seen := self._seen.get(name, (beat, now)))[0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return {name for name, (_, since) in self._seen.items() if now - since >= seconds}


class Members:
    """This worker, and those with which it shares the segments. prefix: of their keys in the table."""

    def __init__(
        self, stores: SegmentStores, scope: str, table: str, prefix: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stores, self._scope, self._prefix = stores, scope, prefix.encode()
        self._table: Table = Table(stores, scope, table)
        self.name = uuid.uuid4().hex
        self._beats = Beats(clock)
        self._member = WorkerInfo(socket.gethostname(), os.getpid(), _now_ms(), self.name, _machine())
        self._there = [self.name]

    async def say(self, events: int, events_per_s: float, segments: int, last_error: str, state: str = "") -> None:
        """That it is there."""
        self._member = msgspec.structs.replace(
            self._member,
            beat=self._member.beat + 1,
            events=events,
            events_per_s=events_per_s,
            segments=segments,
            last_error=last_error,
            state=state,
            said_ms=_now_ms(),
        )
        await self._table.put(self._prefix + self.name.encode(), msgspec.json.encode(self._member))

    async def look(self) -> None:
        """See who is there; whoever has been gone for long is forgotten."""
        beats: dict[str, int] = {}
        dead = set()
        async for entry in entries_of(self._stores, self._scope, self._table, self._prefix):
            name, member = entry.key.decode(errors="replace"), _member(entry.value)
            beats[name] = -1 if member is None else member.beat
            if member is not None and member.has_died():
                dead.add(name)
        self._there = sorted(beats.keys() - dead - self._beats.silent_for(beats, PROCESS_GONE_S) | {self.name})
        if self.is_first:
            for name in self._beats.silent_for(beats, PROCESS_GONE_S * 12) - {self.name}:
                await self._table.remove(self._prefix + name.encode())

    async def leave(self) -> None:
        """Say so, or leave it to the others to find out."""
        with suppress(NadiError, TimeoutError):
            async with asyncio.timeout(PROCESS_LEAVE_S):
                await self._table.remove(self._prefix + self.name.encode())

    @property
    def there(self) -> Collection[str]:
        """The names of those that were there when this one looked last, with its own."""
        return self._there

    @property
    def known(self) -> Collection[str]:
        """The names of these, and of those that aren't there any more and yet to be forgotten."""
        return self._beats.known | {self.name}

    @property
    def is_first(self) -> bool:
        """Whether this one does what one of them is to do."""
        return self._there[0] == self.name

    def mine(self, segments: Iterable[int]) -> list[int]:
        return [segment for segment in segments if max(self._there, key=lambda one: _weight(one, segment)) == self.name]


async def live_members(stores: SegmentStores, scope: str, table: str, prefix: str) -> list[WorkerInfo]:
    """The workers that said something in the last ten seconds, by this machine's clock."""
    entries = entries_of(stores, scope, Table(stores, scope, table), prefix.encode())
    members = [_member(entry.value) async for entry in entries]
    return [member for member in members if member is not None and member.is_there()]


async def ended(stores: SegmentStores, scope: str, table: str, prefix: str, most_s: float) -> None:
    """Return once all workers have seen that they are to end, and ended, or time is up; the killed are forgotten."""
    known, until = Table(stores, scope, table), time.monotonic() + most_s
    beats, left = Beats(), {""}
    while left:
        entries = [entry async for entry in entries_of(stores, scope, known, prefix.encode())]
        there = {entry.key.decode(errors="replace"): entry.version for entry in entries}
        left = set() if time.monotonic() >= until else there.keys() - beats.silent_for(there, PROCESS_GONE_S)
        if left:
            await asyncio.sleep(PROCESS_BEAT_S / 4)
    for entry in entries:
        await known.remove(prefix.encode() + entry.key)


def _member(value: bytes) -> WorkerInfo | None:
    """None: it isn't what a worker has said."""
    try:
        return msgspec.json.decode(value, type=WorkerInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


@cache
def _machine() -> str:
    """A mark of this machine since it was started, and of the process namespace: what process numbers are of."""
    marks = [socket.gethostname()]
    with suppress(OSError):
        marks.append(os.readlink("/proc/self/ns/pid"))
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    return hashlib.sha256("".join(marks).encode()).hexdigest()[:16]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _weight(name: str, segment: int) -> bytes:
    return hashlib.blake2b(f"{name}/{segment}".encode(), digest_size=8).digest()
