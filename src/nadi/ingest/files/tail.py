"""One file that is read to its end and beyond, through its renaming and deletion, until it was truncated or is over.

What was read counts only if the file began the same before and after: otherwise it was emptied meanwhile, and begins
anew as another file. Its unread lines are in the copy, if one was made.

Its bytes are cut into events: lines, or several lines that belong together.

Where an event ends depends on the bytes alone, and on the places where it was forced to end because nothing came any
more. So whoever reads a file again from an earlier place cuts it as before, and an event's end is its number.

>>> cutter = Cutter(0)
>>> cutter.feed(b"a\\r\\nbc\\nd"), cutter.feed(b"e\\n"), cutter.done
([(3, b'a'), (6, b'bc')], [(9, b'de')], 9)
"""

from __future__ import annotations

import asyncio
import enum
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from nadi.client.numbered.writer import NumberedEvent, NumberedWriter
from nadi.ingest.files.disk import HEAD_BYTES, Head, OpenFile, State
from nadi.ingest.files.keys import KeyOf
from nadi.ingest.files.places import Place
from nadi.limits import INGEST_LINE_MAX_BYTES, INGEST_QUIET_S, INGEST_READ_BYTES
from nadi.model.keyspace import key_position

Cut = tuple[int, bytes]  # where an event ends in the file, and its bytes


class Cutter:
    """From the offset `at` on. starts: what the first line of an event matches, if an event may have several; a line
    that doesn't match belongs to the one before. forced: where an event has been forced to end.
    most_bytes: of an event.

    `done`: all before it was given out.
    """

    def __init__(
        self,
        at: int,
        starts: re.Pattern[bytes] | None = None,
        forced: int = 0,
        most_bytes: int = INGEST_LINE_MAX_BYTES,
    ) -> None:
        self.done = at
        self.split_lines = 0  # longer than what is allowed
        self._starts, self._forced, self._most_bytes = starts, forced, most_bytes
        self._rest = b""  # of a line that has no end yet
        self._joined: list[bytes] = []  # whole lines that others may follow
        self._joined_bytes = 0

    @property
    def at(self) -> int:
        """Where the next bytes come from."""
        return self.done + self._joined_bytes + len(self._rest)

    @property
    def whole_end(self) -> int:
        """Where the last whole line ends."""
        return self.done + self._joined_bytes

    @property
    def has_whole(self) -> bool:
        """Whether whole lines wait for others."""
        return bool(self._joined)

    @property
    def has_rest(self) -> bool:
        """Whether a line without an end waits for it."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Cut]:
        """The events that are whole now."""
        cuts: list[Cut] = []
        until = self._forced - self.at
        if 0 < until <= len(data):
            self._take(data[:until], cuts)
            cuts += self.flush(rest=True)
            data = data[until:]
        self._take(data, cuts)
        return cuts

    def flush(self, *, rest: bool) -> list[Cut]:
        """What waits as an event, though more might come; with the line that has no end, or without it."""
        cuts: list[Cut] = []
        if rest and self._rest:
            line, self._rest = self._rest, b""
            self._take_line(line, cuts)
        self._end(cuts)
        return cuts

    def _take(self, data: bytes, cuts: list[Cut]) -> None:
        *lines, rest = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = b""
        if self._starts is None and not self._joined:
            self._take_all(lines, cuts)
        else:
            for line in lines:
                self._take_line(line + b"\n", cuts)
        while len(rest) > self._most_bytes:
            self._take_line(rest[: self._most_bytes], cuts)
            rest = rest[self._most_bytes :]
            self.split_lines += 1
        self._rest = rest

    def _take_all(self, lines: list[bytes], cuts: list[Cut]) -> None:
        """Each line is an event."""
        at = self.done
        for line in lines:
            if len(line) >= self._most_bytes:
                self.done = at
                self._take_line(line + b"\n", cuts)
                at = self.done
                continue
            at += len(line) + 1
            cuts.append((at, line[:-1] if line.endswith(b"\r") else line))
        self.done = at

    def _take_line(self, line: bytes, cuts: list[Cut]) -> None:
        while len(line) > self._most_bytes:
            self._add(line[: self._most_bytes], cuts)
            line = line[self._most_bytes :]
            self.split_lines += 1
        self._add(line, cuts)

    def _add(self, line: bytes, cuts: list[Cut]) -> None:
        begins = self._starts is None or self._starts.search(line) is not None
        if begins or self._joined_bytes + len(line) > self._most_bytes:
            self._end(cuts)
        self._joined.append(line)
        self._joined_bytes += len(line)
        if self._starts is None:
            self._end(cuts)

    def _end(self, cuts: list[Cut]) -> None:
        if self._joined:
            event = b"".join(self._joined)
            self.done += len(event)
            self._joined, self._joined_bytes = [], 0
            for end in (b"\r\n", b"\n"):
                if event.endswith(end):
                    event = event[: -len(end)]
                    break
            cuts.append((self.done, event))


class End(enum.Enum):
    """Why a file isn't read any more."""

    EMPTIED = "it was truncated, or is another one"
    OVER = "another has its name, and nothing comes any more"
    AT_REST = "nothing comes, and others wait to be read"


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read. key_of: of an event, which has its file's where this gives none. starts: what the first line
    of an event matches. joins_s: how long an event of several lines waits for the next. once: to the end that they
    have, and no further."""

    key_of: KeyOf | None = None
    starts: re.Pattern[bytes] | None = None
    joins_s: float = 2.0
    once: bool = False


@dataclass(slots=True)
class Progress:
    """Of all files since the start. files: how many were begun."""

    files: int = 0
    lines: int = 0
    size: int = 0  # bytes
    split_lines: int = 0
    unread: dict[bytes, int] = field(default_factory=dict)  # bytes behind, by place
    waiting: int = 0  # bytes at ends of files that aren't whole lines


class Tail:
    """`run` it, and ring its bell while it is due. keep: stores the place at once. slots: how many files are worked on
    at a time."""

    def __init__(
        self,
        file: OpenFile,
        place: Place,
        writer: NumberedWriter,
        reading: Reading,
        keep: Callable[[Sequence[Place]], Awaitable[None]],
        slots: asyncio.Semaphore,
        progress: Progress,
        after: Tail | None = None,
    ) -> None:
        self.file, self.place = file, place
        self.is_replaced = False  # another file has its name, or none
        self.gives_way = False  # others wait
        self.seen: State | None = None  # the file's, when it was read last
        self.bell = asyncio.Event()  # there is something to do
        self.drained = asyncio.Event()  # all that it had was written once
        self.is_dirty = False  # the place is further than what is kept
        self._writer, self._reading, self._keep, self._slots = writer, reading, keep, slots
        self._progress, self._after = progress, after
        self._cutter = Cutter(place.offset, reading.starts, place.forced)
        self._position = key_position(place.key)
        self._grown_at = time.monotonic()
        self._head_grew = False
        self._recent = file.read(place.offset - place.last_bytes, place.last_bytes)

    async def run(self) -> End | None:
        """None: all there was at the moment was written, where nothing more is wanted."""
        if self._after is not None:
            await self._after.drained.wait()  # lines of one name keep their order
        while True:
            async with self._slots:
                data = await asyncio.to_thread(self._read)
                if data is None:
                    self.drained.set()
                    return End.EMPTIED
                if data:
                    self._grown_at = time.monotonic()
                    if self._head_grew:
                        # kept first: what is stored of a file is never more than what it is known by, up to a kilobyte
                        await self._keep([self.place])
                        self._head_grew = False
                    self._recent += data
                    await self._write(self._cutter.feed(data))
                    if len(data) == INGEST_READ_BYTES:
                        continue
            end = await self._at_the_end()
            if end is not None or (self._reading.once and self.drained.is_set()):
                return end
            await self.bell.wait()
            self.bell.clear()

    @property
    def was_emptied(self) -> bool:
        """Whether it isn't the file any more that it was."""
        return not self.place.is_in(self.file)

    def is_due(self) -> bool:
        """Whether there may be something to do: its bell is rung then."""
        if self.is_replaced or self.gives_way or self._cutter.has_whole:
            return True
        try:
            return self.file.state != self.seen
        except OSError:
            return True  # which reading says

    def close(self) -> None:
        self._writer.close()
        self._progress.unread.pop(self.place.id, None)
        self.file.close()

    async def _at_the_end(self) -> End | None:
        idle_s = time.monotonic() - self._grown_at
        if self._cutter.has_whole and (idle_s > self._reading.joins_s or self._reading.once):
            await self._force(self._cutter.whole_end, rest=False)
        is_over = self.is_replaced and idle_s > INGEST_QUIET_S
        if is_over and (self._cutter.has_rest or self._cutter.has_whole):
            await self._force(self._cutter.at, rest=True)
        self.drained.set()
        if is_over:
            return End.OVER
        gives_way = self.gives_way and idle_s > INGEST_QUIET_S and not self._cutter.has_whole
        return End.AT_REST if gives_way else None

    async def _force(self, end: int, *, rest: bool) -> None:
        """End an event though more might come: first it is kept where, so that it ends there for good."""
        self.place.forced = end
        await self._keep([self.place])
        await self._write(self._cutter.flush(rest=rest))

    def _read(self) -> bytes | None:
        """What follows; None if it isn't this file any more."""
        file, place, at = self.file, self.place, self._cutter.at
        state = file.state
        size = state.size
        if state == self.seen and size == at:
            return b""
        if size < at or not place.is_in(file):
            return None
        if place.head_bytes < min(size, HEAD_BYTES):
            head = file.head()
            if not place.is_in(file):
                return None
            place.head_bytes, place.head_digest = head.size, head.digest
            self._head_grew = True
        data = file.read(at, min(INGEST_READ_BYTES, size - at))
        if not place.is_in(file):
            return None
        self.seen = state
        self._progress.unread[place.id] = max(0, size - at - len(data))
        return data

    async def _write(self, cuts: Sequence[Cut]) -> None:
        if cuts:
            events = [NumberedEvent(end, self._position_of(event), event) for end, event in cuts]
            await self._writer.write(events)
            self._progress.lines += len(cuts)
            self._progress.size += self._cutter.done - self.place.offset
            self.place.is_at(self._cutter.done, self._last())
            self.is_dirty = True
        self._progress.split_lines += self._cutter.split_lines
        self._cutter.split_lines = 0

    def _last(self) -> Head:
        """What is just before the place, as it was read."""
        waiting = self._cutter.at - self._cutter.done
        self._recent = self._recent[-(HEAD_BYTES + waiting) :]
        return Head.of(self._recent[: len(self._recent) - waiting][-HEAD_BYTES:])

    def _position_of(self, event: bytes) -> float:
        key = self._reading.key_of(event) if self._reading.key_of is not None else None
        return self._position if key is None else key_position(key)
