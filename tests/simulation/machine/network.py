"""A network between processes: the loop's connections, and calls that stand for gRPC's.

Hosts are told by the names of their processes. What happens between two of them is decided by the ways there and back
(`ways`), and by whoever cuts, slows or resets these.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from crc32c import crc32c

from nadi.errors import UnavailableError

from .loop import SimulatedLoop
from .process import Process, current
from .sockets import End, Pair
from .transport import SimulatedTransport
from .ways import Way

T = TypeVar("T")


class LostError(Exception):
    """Nobody knows whether the call was carried out."""


class Door:
    """A port that a process listens at: what `Listener` does with a socket."""

    def __init__(self, network: Network, process: Process, address: tuple[str, int]) -> None:
        self._network, self.process, self.address = network, process, address
        self.backlog: deque[Accepted] = deque()
        self.callback: Callable[[], object] | None = None
        process.held[self] = None

    def setblocking(self, flag: bool) -> None:
        assert not flag, "nothing blocks here"

    def listen(self, backlog: int) -> None:
        self._network.doors[self.address] = self

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def accept(self) -> tuple[Accepted, tuple[str, int]]:
        if not self.backlog:
            raise BlockingIOError
        accepted = self.backlog.popleft()
        return accepted, accepted.address

    def came(self, accepted: Accepted) -> None:
        self.backlog.append(accepted)
        if self.callback is not None:
            self.process.call_soon(self._call)

    def _call(self) -> None:
        if self.backlog and self.callback is not None:
            self.callback()

    def close(self) -> None:
        self.process.held.pop(self, None)
        self.process_died(with_power=False)

    def process_died(self, *, with_power: bool) -> None:
        if self._network.doors.get(self.address) is self:
            del self._network.doors[self.address]
        for accepted in self.backlog:
            accepted.end.process_died(with_power=with_power)
        self.backlog.clear()


class Accepted:
    """A connection that was accepted, before it has a transport."""

    def __init__(self, end: End, address: tuple[str, int]) -> None:
        self.end, self.address = end, address

    def setblocking(self, flag: bool) -> None:
        assert not flag, "nothing blocks here"

    def close(self) -> None:
        if self.end.reader is None:
            self.end.reset()


class Network:
    """loop: gets its connections from here. chance: a source for each name. note: for the log and the trace; trace: for
    the trace alone."""

    def __init__(
        self,
        loop: SimulatedLoop,
        chance: Callable[[str], random.Random],
        note: Callable[..., None],
        trace: Callable[..., None],
    ) -> None:
        self._loop, self._chance, self._note, self._trace = loop, chance, note, trace
        self.doors: dict[tuple[str, int], Door] = {}
        self.lost = 0.0  # of calls, and of their answers
        self._ways: dict[tuple[str, str], Way] = {}
        self._numbers = itertools.count(1)
        self._calls_chance = chance("calls")
        self._weather = chance("stalls")
        self._living: dict[int, tuple[End, End]] = {}
        loop.sockets = self

    # --- what can go wrong ------------------------------------------------------------------------------

    def way(self, source: str, target: str) -> Way:
        found = self._ways.get((source, target))
        if found is None:
            found = self._ways[source, target] = Way(self._loop, self._chance(f"way {source} {target}"))
        return found

    def cut(self, one: str, other: str, seconds: float, *, both: bool = True) -> None:
        """Nothing of the one reaches the other for so long, and with `both` nothing comes back."""
        self._note("cut", one, "--" if both else "->", other, f"{seconds:.3f}")
        for way in [self.way(one, other), self.way(other, one)][: 1 + both]:
            way.cut()
            self._loop.at(self._loop.now + seconds, way.mend)

    def slow(self, one: str, other: str, seconds: float, latency_s: float, bytes_s: float) -> None:
        """Whatever goes there or back takes its time, for so long."""
        self._note("slow", one, other, f"{seconds:.3f} {latency_s:.3f} {bytes_s:.0f}")
        for way in (self.way(one, other), self.way(other, one)):
            way.latency_s, way.bytes_s = latency_s, bytes_s
            self._loop.at(self._loop.now + seconds, way.mend)

    def reset(self, one: str, other: str) -> None:
        """All connections between the two end: something on the way has forgotten them."""
        self._note("reset", one, other)
        for ends in self._between(one, other):
            for end in ends:
                end.break_off()

    def stall(self, host: str, part: float, seconds: Callable[[], float]) -> None:
        """A part of its connections carry nothing for some time, each for another; others are not concerned."""
        self._note("stall", host)
        for ends in self._open():
            if any(end.process.name == host for end in ends) and self._weather.random() < part:
                for end in ends:
                    end.stall(self._loop.now + seconds())

    def is_back(self, host: str) -> None:
        """A host whose power had failed runs again."""
        for ends in self._open():
            for end in ends:
                if end.process.name == host and not end.process.is_alive:
                    end.system_is_back()

    def mend(self) -> None:
        """Nothing goes wrong any more."""
        self.lost = 0.0
        for way in self._ways.values():
            way.mend()

    def _between(self, one: str, other: str) -> list[tuple[End, End]]:
        return [ends for ends in self._open() if {end.process.name for end in ends} == {one, other}]

    def _open(self) -> list[tuple[End, End]]:
        self._living = {n: ends for n, ends in self._living.items() if not all(end.is_closed for end in ends)}
        return list(self._living.values())

    # --- connections --------------------------------------------------------------------------------------

    def door(self, process: Process, address: tuple[str, int]) -> Door:
        """For the process to listen at."""
        return Door(self, process, address)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        process = current.get()
        assert process is not None, "whoever connects does so from a process"
        number = next(self._numbers)
        there, back = self.way(process.name, host), self.way(host, process.name)
        await self._carried(there)
        door = self.doors.get((host, port))
        if door is None:
            await self._carried(back)
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        pair = Pair(number, self._chance(f"connection {number}"), self._told)
        one, other = pair.between(process, door.process, there, back)
        self._living[number] = one, other
        self._note("connection", number, process.name, host)
        door.came(Accepted(other, (process.name, number)))
        try:
            await self._carried(back)
        except BaseException:
            one.reset()
            raise
        protocol = factory()
        return SimulatedTransport(one, protocol, (host, port)), protocol

    def accept(self, factory: Callable[[], Any], accepted: Accepted) -> tuple[Any, Any]:
        if accepted.end.is_closed:
            raise ConnectionResetError("it left before it was let in")
        protocol = factory()
        return SimulatedTransport(accepted.end, protocol, accepted.address), protocol

    def watch(self, listening: Door, callback: Callable[[], object] | None) -> None:
        listening.callback = callback
        if callback is not None and listening.backlog:
            listening.process.call_soon(listening._call)

    def _told(self, number: int, side: str, piece: bytes | None) -> None:
        self._trace(number, side, "reset" if piece is None else f"{len(piece)} {crc32c(piece):08x}")
        if piece is None:
            self._note("reset at", side, number)

    def _carried(self, way: Way) -> asyncio.Future[None]:
        """Done once something that is sent now arrives."""
        arrived = self._loop.create_future()
        way.arrive(lambda: None if arrived.done() else arrived.set_result(None))
        return arrived

    # --- calls --------------------------------------------------------------------------------------------

    async def call(self, server: Callable[[], Process | None], host: str, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives or raises in the server's process; LostError where that can't be known.

        server: whoever is there when the call arrives. Waits for ever where a way is cut, or the server stands still.
        """
        process = current.get()
        assert process is not None, "whoever calls does so from a process"
        there, back = self.way(process.name, host), self.way(host, process.name)
        await self._carried(there)
        serving = server()
        if serving is None:
            await self._carried(back)
            raise UnavailableError(f"nobody is at {host}")
        if self._is_lost():
            await self._carried(back)
            raise LostError
        answer: asyncio.Future[T] = self._loop.create_future()
        task = serving.start(_served(work(), answer))
        if self._is_lost():
            self._loop.at(self._loop.now + self._calls_chance.random() * 0.01, _lose, answer)
        try:
            either: list[asyncio.Future[Any]] = [answer, serving.gone]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.set_exception(LostError())
        finally:
            if not answer.done():
                answer.cancel()
                if serving.is_alive:
                    serving.call_soon(task.cancel)  # as gRPC does where its caller has gone
        await self._carried(back)
        return answer.result()

    def _is_lost(self) -> bool:
        return self._calls_chance.random() < self.lost


async def _served(work: Awaitable[T], answer: asyncio.Future[T]) -> None:
    try:
        result = await work
    except Exception as error:
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(result)


def _lose(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(LostError())
