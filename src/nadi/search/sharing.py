"""Who of many follows which segments: all reckon alike from who is there, and nobody asks anybody.

Each says every second that it is there, by a record that changes. One whose record stays the same for five seconds, by
the clock of who looks, is gone. A segment is with the one whose name and its number together give the highest digest,
so few segments move when one comes or goes. Two may have the same for a moment: the manifest takes it from one of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from nadi.errors import NadiError
from nadi.limits import SEARCH_GONE_S, SEARCH_LEAVE_S, SEARCH_SILENT_S
from nadi.search.definition import Definitions


class Told(msgspec.Struct, frozen=True):
    """What one says of itself. beat: grows; events: that it has done; events_per_s: lately; last_error: or
    ""; said_ms: when, by its clock."""

    host: str
    pid: int
    started_ms: int
    beat: int = 0
    events: int = 0
    events_per_s: float = 0.0
    segments: int = 0
    last_error: str = ""
    said_ms: int = 0


class Sharing:
    """This one, and the others that share its work. prefix: of their keys in the scope's table."""

    def __init__(self, definitions: Definitions, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._table, self._entries = definitions.table, definitions.entries
        self._prefix = prefix.encode()
        self.name = uuid.uuid4().hex
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # the last beat of each, and when it was new
        self._told = Told(socket.gethostname(), os.getpid(), _now_ms())
        self._there = [self.name]

    async def say(self, events: int, events_per_s: float, segments: int, last_error: str) -> None:
        """That it is there."""
        self._told = msgspec.structs.replace(
            self._told,
            beat=self._told.beat + 1,
            events=events,
            events_per_s=events_per_s,
            segments=segments,
            last_error=last_error,
            said_ms=_now_ms(),
        )
        await self._table.put(self._prefix + self.name.encode(), msgspec.json.encode(self._told))

    async def look(self) -> None:
        """See who is there; whoever has been gone for long is forgotten."""
        now = self._clock()
        found: dict[str, tuple[int, float]] = {}
        async for key, value in self._entries(self._prefix):
            name, told = key.decode(errors="replace"), _told(value)
            beat = -1 if told is None else told.beat
            last, since = self._seen.get(name, (-1, now))
            found[name] = (beat, now) if beat != last else (last, since)
        self._seen = found
        there = {name for name, (_, since) in found.items() if now - since < SEARCH_GONE_S}
        self._there = sorted(there | {self.name})
        if self.is_first:
            for name, (_, since) in found.items():
                if now - since > SEARCH_GONE_S * 12 and name != self.name:
                    await self._table.remove(self._prefix + name.encode())

    async def leave(self) -> None:
        """Say so, or leave it to the others to find out."""
        with suppress(NadiError, TimeoutError):
            async with asyncio.timeout(SEARCH_LEAVE_S):
                await self._table.remove(self._prefix + self.name.encode())

    @property
    def is_first(self) -> bool:
        """Whether this one does what one of them is to do."""
        return self._there[0] == self.name

    def mine(self, segments: Iterable[int]) -> list[int]:
        return [segment for segment in segments if max(self._there, key=lambda one: _weight(one, segment)) == self.name]


async def all_told(definitions: Definitions, prefix: str) -> list[Told]:
    """What each says who said something lately, by this clock: the killed don't."""
    found = [_told(value) async for _, value in definitions.entries(prefix.encode())]
    since_ms = _now_ms() - SEARCH_SILENT_S * 1000
    return [one for one in found if one is not None and one.said_ms >= since_ms]


def _told(value: bytes) -> Told | None:
    """None: it isn't what one of these has said."""
    try:
        return msgspec.json.decode(value, type=Told)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _weight(name: str, segment: int) -> bytes:
    return hashlib.blake2b(f"{name}/{segment}".encode(), digest_size=8).digest()
