"""Basics of all clients: a process, seeded randomness, wire commands and controller calls, one at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from nadi.access.commands import acts_of
from nadi.client.segments.connection import Endpoint, SegmentStoreConnection
from nadi.controller.controller import Controller
from nadi.errors import UnavailableError
from nadi.wire import commands as wire

from ..judging.history import GuaranteeError, History
from ..machine.network import LostError
from ..machine.process import Process
from ..world import Serving, World

T = TypeVar("T")
AWAY = (wire.NoSuchSegment, wire.SegmentIsTruncated)
_PATIENCE_S = (2.0, 10.0, 30.0)
_KEEPS_S = (0.0, 0.0, 20.0)


class Client:
    """name: determines its random sequence. process: where it runs; by default a new one."""

    def __init__(self, world: World, history: History, name: str, process: Process | None = None) -> None:
        self.world, self.history, self.name = world, history, name
        self.process = process or world.process(name)
        self.chance = world.chance(name)
        self.patience_s = self.chance.choice(_PATIENCE_S)  # until it gives a server up
        self._keeps_s = self.chance.choice(_KEEPS_S)  # how long it caches a segment's location, like Java's client
        self._ids = itertools.count(1)
        self._connections: dict[tuple[str, int], SegmentStoreConnection] = {}
        self._places: dict[str, tuple[tuple[str, int], float]] = {}  # locations of segments, and when they were found
        self._writers: dict[bytes, str] = {}  # the segment that each writer is set up for

    def id(self) -> int:
        return next(self._ids)

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / mean_s))

    async def once(self, command: wire.Command) -> wire.Command:
        """Return the reply; UnavailableError without one, in which case the command may have been executed or not."""
        return await self.world.noted(self.name, command, lambda: self._sent(command))

    async def _sent(self, command: wire.Command) -> wire.Command:
        segment = self._segment_of(command)
        if segment not in self._places:
            async with self._no_longer():
                self._places[segment] = await self.world.endpoint_of(segment), self.world.loop.now
        place, _ = self._places[segment]
        try:
            connection = self._connections.get(place)
            if connection is None or not connection.is_open:
                endpoint = Endpoint(*place)
                connection = self._connections[place] = await SegmentStoreConnection.open(endpoint, self.patience_s)
            try:
                reply = await connection.ask(command, wire.Command, timeout_s=self.patience_s)
            except UnavailableError:
                connection.close()
                raise
        except UnavailableError:
            self._forget(segment)
            raise
        if isinstance(reply, wire.WrongHost):
            self._moved(segment)
            raise UnavailableError(f"{segment} is elsewhere")
        return reply

    def _moved(self, segment: str) -> None:
        """React to a server's reply that another one has the segment."""
        self._forget(segment)

    def _forget(self, segment: str) -> None:
        _, since = self._places.get(segment, ((), 0.0))
        if self.world.loop.now >= since + self._keeps_s:
            self._places.pop(segment, None)

    @asynccontextmanager
    async def _no_longer(self) -> AsyncIterator[None]:
        """Limit a block by the client's patience."""
        try:
            async with asyncio.timeout(self.patience_s):
                yield
        except (LostError, TimeoutError):
            raise UnavailableError("the segment's location is unknown") from None

    def _segment_of(self, command: wire.Command) -> str:
        if isinstance(command, wire.ConditionalAppend):
            return self._writers[command.writer_id]
        segment = acts_of(command)[0][0]
        if isinstance(command, wire.SetupAppend):
            self._writers[command.writer_id] = segment
        return segment

    async def sure(self, command: wire.Command) -> Any:
        """Return the reply to an idempotent command."""
        while True:
            try:
                reply = await self.once(command)
            except (LostError, UnavailableError):
                await self.pause(0.5)
                continue
            if not isinstance(reply, wire.ErrorMessage):
                return reply
            if reply.error_code == wire.DAMAGED_DATA:
                raise GuaranteeError(f"nothing is damaged, but the reply is {reply}")
            await self.pause(0.5)

    async def control(self, what: str, call: Callable[[Controller], Awaitable[T]], *, tries: int = 1_000_000) -> T:
        """Call the controller, repeating lost calls, which its operations allow."""
        return await self.served(what, lambda life: call(life.controller), tries=tries)

    async def served(self, what: str, work: Callable[[Serving], Awaitable[T]], *, tries: int = 1_000_000) -> T:
        """Run work at the controller, repeating lost calls."""
        for _ in range(tries):
            try:
                async with asyncio.timeout(self.patience_s):
                    return await self.world.ask(self.name, what, work)
            except (LostError, UnavailableError, TimeoutError):
                await self.pause(0.5)
        raise LostError

    async def length(self, segment: str) -> tuple[int, int] | None:
        """Return where the segment starts and ends; None if it is deleted."""
        least = self.history.ends.get(segment, 0)
        info = await self.sure(wire.GetStreamSegmentInfo(self.id(), segment, ""))
        if isinstance(info, AWAY):
            return None
        self.history.check_end(segment, info.write_offset, least)
        return info.start_offset, info.write_offset

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
