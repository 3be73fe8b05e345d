"""Clients that append one event at a time and retry until its outcome is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment
from nadi.errors import NotFoundError, UnavailableError
from nadi.model.keyspace import key_position
from nadi.wire import commands as wire

from ..judging.history import History, Noted, Written
from ..machine.network import LostError
from ..machine.process import Process
from ..world import World
from .base import AWAY, Client


class Appender(Client):
    """A writer's conditional appends to any segments, retried until their outcomes are known."""

    def __init__(self, world: World, history: History, name: str, process: Process | None = None) -> None:
        super().__init__(world, history, name, process)
        self.writer = self.chance.getrandbits(128).to_bytes(16, "big")
        self._ends: dict[str, int] = {}  # by segment set up for this writer
        self._numbers = itertools.count(1)

    async def append(self, segment: str, payload: bytes, number: int) -> int | None:
        """Append; return the event's end, -1 if it is unknown, None if the segment was sealed without the event."""
        while True:
            try:
                end = self._ends.get(segment)
                if end is None:
                    setup = await self.once(wire.SetupAppend(self.id(), self.writer, segment, ""))
                    if isinstance(setup, wire.AppendSetup) and setup.last_event_number >= number:
                        return -1
                    ends = await self.length(segment)
                    if isinstance(setup, AWAY) or ends is None:
                        raise NotFoundError(segment)
                    end = self._ends[segment] = ends[1]
                command = wire.ConditionalAppend(self.writer, number, end, 0, memoryview(payload), self.id())
                # over this protocol a writer has one segment at a time
                await self._set_up(segment)
                reply = await self.once(command)
            except (LostError, UnavailableError):
                self._ends.pop(segment, None)
                await self.pause(0.5)
                continue
            match reply:
                case wire.DataAppended():
                    self._ends[segment] = reply.current_segment_write_offset
                    self.history.stored(segment, reply.current_segment_write_offset)
                    return reply.current_segment_write_offset
                case wire.InvalidEventNumber():
                    return -1
                case wire.SegmentIsSealed():
                    self._ends.pop(segment, None)
                    setup = await self.sure(wire.SetupAppend(self.id(), self.writer, segment, ""))
                    if isinstance(setup, wire.AppendSetup):
                        return -1 if setup.last_event_number >= number else None
                    raise NotFoundError(segment)
                case wire.NoSuchSegment():
                    raise NotFoundError(segment)
                case _:  # others have written there, or another server has the segment
                    self._ends.pop(segment, None)

    async def _set_up(self, segment: str) -> None:
        reply = await self.once(wire.SetupAppend(self.id(), self.writer, segment, ""))
        if not isinstance(reply, wire.AppendSetup):
            raise UnavailableError(str(reply))


class Writer(Appender):
    """Writes events with its own keys to a stream, following its scaling, and perhaps notes the time."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        stream: StreamName,
        *,
        notes: bool = False,
        process: Process | None = None,
    ) -> None:
        super().__init__(world, history, name, process)
        self.stream, self.notes = stream, notes
        self._keys = {f"{name}-{key}": itertools.count(1) for key in range(3)}
        self._segments: dict[str, EpochSegment] = {}  # by key
        self._position: dict[int, int] = {}
        self._taken: set[int] = set()

    async def run(self, mean_s: float) -> None:
        while True:
            for _ in range(self.chance.randrange(1, 6)):
                await self._write(self.chance.choice(list(self._keys)))
            if self.notes:
                await self._note_time()
            await self.pause(mean_s)

    async def _write(self, key: str) -> None:
        event = self.history.written(Written(self.stream.key, key, next(self._keys[key])))
        number = next(self._numbers)
        while True:
            segment = await self._segment(key)
            name = self.stream.segment(segment.id)
            try:
                end = await self.append(name, event.payload, number)
            except NotFoundError:  # truncated; whether the event was stored is unknown
                self._segments.pop(key)
                return
            if end is not None:
                event.acknowledged, event.segment, event.end = True, name, end
                if end >= 0:
                    self._position[segment.id] = end
                return
            await self._follow(key, segment)

    async def _segment(self, key: str) -> EpochSegment:
        known = self._segments.get(key)
        if known is None:
            current = await self.control("segments", lambda controller: controller.current_segments(self.stream))
            known = self._segments[key] = _of(key, current)
        return known

    async def _follow(self, key: str, segment: EpochSegment) -> None:
        successors = await self.control("successors", lambda controller: controller.successors(self.stream, segment.id))
        self._segments[key] = _of(key, [successor for successor, _ in successors])

    async def _note_time(self) -> None:
        if not self._position:
            return
        time, position = self._time(), dict(self._position)
        await self.control("note", lambda server: server.note_time(self.stream, self.name, time, position))
        self.history.notes.append(Noted(time, self._time(), position))

    def _time(self) -> int:
        return int(self.world.loop.now * 1000)  # the same clock for all writers


def _of(key: str, segments: Iterable[EpochSegment]) -> EpochSegment:
    position = key_position(key)
    return next(segment for segment in segments if segment.low <= position < segment.high)
