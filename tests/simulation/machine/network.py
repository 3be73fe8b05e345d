"""A network between processes: the loop's connections, and calls that replace gRPC's.

Hosts have the names of their processes. The connection of two hosts is determined by the ways in both directions
(`ways`), which can be cut, slowed or reset.
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
    """The call may have been executed or not."""


class Door:
    """A port that a process listens on, with the socket methods that `Listener` uses."""

    def __init__(self, network: Network, process: Process, address: tuple[str, int]) -> None:
        self._network, self.process, self.address = network, process, address
        self.backlog: deque[Accepted] = deque()
        self.callback: Callable[[], object] | None = None
        process.resources[self] = None

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

    def connected(self, accepted: Accepted) -> None:
        self.backlog.append(accepted)
        if self.callback is not None:
            self.process.call_soon(self._call)

    def _call(self) -> None:
        if self.backlog and self.callback is not None:
            self.callback()

    def close(self) -> None:
        self.process.resources.pop(self, None)
        self.process_died(with_power=False)

    def process_died(self, *, with_power: bool) -> None:
        if self._network.doors.get(self.address) is self:
            del self._network.doors[self.address]
        for accepted in self.backlog:
            accepted.end.process_died(with_power=with_power)
        self.backlog.clear()


class Accepted:
    """An accepted connection without a transport yet."""

    def __init__(self, end: End, address: tuple[str, int]) -> None:
        self.end, self.address = end, address

    def setblocking(self, flag: bool) -> None:
        assert not flag, "nothing blocks here"

    def close(self) -> None:
        if self.end.reader is None:
            self.end.reset()


class Network:
    """loop: gets its connections from here. chance: returns a random source per name. note: for log and trace; trace:
    for the trace only."""

    def __init__(
        self,
        loop: SimulatedLoop,
        chance: Callable[[str], random.Random],
        note: Callable[..., None],
        trace: Callable[..., None],
    ) -> None:
        self._loop, self._chance, self._note, self._trace = loop, chance, note, trace
        self.doors: dict[tuple[str, int], Door] = {}
        self.lost = 0.0  # share of lost calls, and of lost replies
        self._ways: dict[tuple[str, str], Way] = {}
        self._numbers = itertools.count(1)
        self._calls_chance = chance("calls")
        self._weather = chance("stalls")
        self._living: dict[int, tuple[End, End]] = {}
        loop.sockets = self

    # --- faults -----------------------------------------------------------------------------------------

    def way(self, source: str, target: str) -> Way:
        way = self._ways.get((source, target))
        if way is None:
            way = self._ways[source, target] = Way(self._loop, self._chance(f"way {source} {target}"))
        return way

    def cut(self, one: str, other: str, seconds: float, *, both: bool = True) -> None:
        """Let nothing through from the one to the other for that time, with `both` in either direction."""
        self._note("cut", one, "--" if both else "->", other, f"{seconds:.3f}")
        for way in [self.way(one, other), self.way(other, one)][: 1 + both]:
            way.cut()
            self._loop.at(self._loop.now + seconds, way.mend)

    def slow(self, one: str, other: str, seconds: float, latency_s: float, bytes_s: float) -> None:
        """Slow both directions for that time."""
        self._note("slow", one, other, f"{seconds:.3f} {latency_s:.3f} {bytes_s:.0f}")
        for way in (self.way(one, other), self.way(other, one)):
            way.latency_s, way.bytes_s = latency_s, bytes_s
            self._loop.at(self._loop.now + seconds, way.mend)

    def reset(self, one: str, other: str) -> None:
        """Reset all connections between the two, as if a device in between had forgotten them."""
        self._note("reset", one, other)
        for ends in self._between(one, other):
            for end in ends:
                end.break_off()

    def stall(self, host: str, part: float, seconds: Callable[[], float]) -> None:
        """Stall a share of its connections for a time, each for another; the others are unaffected."""
        self._note("stall", host)
        for ends in self._open():
            if any(end.process.name == host for end in ends) and self._weather.random() < part:
                for end in ends:
                    end.stall(self._loop.now + seconds())

    def is_back(self, host: str) -> None:
        """Run a host again after a power failure."""
        for ends in self._open():
            for end in ends:
                if end.process.name == host and not end.process.is_alive:
                    end.system_is_back()

    def mend(self) -> None:
        """End all faults."""
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
        """Return a port for the process to listen on."""
        return Door(self, process, address)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        process = current.get()
        assert process is not None, "connections must be opened within a process"
        number = next(self._numbers)
        there, back = self.way(process.name, host), self.way(host, process.name)
        await self._carried(there)
        door = self.doors.get((host, port))
        if door is None:
            await self._carried(back)
            raise ConnectionRefusedError(f"{host}:{port} is not listening")
        pair = Pair(number, self._chance(f"connection {number}"), self._trace_piece)
        one, other = pair.between(process, door.process, there, back)
        self._living[number] = one, other
        self._note("connection", number, process.name, host)
        door.connected(Accepted(other, (process.name, number)))
        try:
            await self._carried(back)
        except BaseException:
            one.reset()
            raise
        protocol = factory()
        return SimulatedTransport(one, protocol, (host, port)), protocol

    def accept(self, factory: Callable[[], Any], accepted: Accepted) -> tuple[Any, Any]:
        if accepted.end.is_closed:
            raise ConnectionResetError("the peer closed the connection before it was accepted")
        protocol = factory()
        return SimulatedTransport(accepted.end, protocol, accepted.address), protocol

    def watch(self, listening: Door, callback: Callable[[], object] | None) -> None:
        listening.callback = callback
        if callback is not None and listening.backlog:
            listening.process.call_soon(listening._call)

    def _trace_piece(self, number: int, side: str, piece: bytes | None) -> None:
        self._trace(number, side, "reset" if piece is None else f"{len(piece)} {crc32c(piece):08x}")
        if piece is None:
            self._note("reset at", side, number)

    def _carried(self, way: Way) -> asyncio.Future[None]:
        """Return a future that is done when something sent now arrives."""
        arrived = self._loop.create_future()
        way.arrive(lambda: None if arrived.done() else arrived.set_result(None))
        return arrived

    # --- calls --------------------------------------------------------------------------------------------

    async def call(self, server: Callable[[], Process | None], host: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return or raise what `work` does in the server's process; LostError if that is unknown.

        server: the process when the call arrives. Waits forever while a way is cut or the server is frozen.
        """
        process = current.get()
        assert process is not None, "calls must be made within a process"
        there, back = self.way(process.name, host), self.way(host, process.name)
        await self._carried(there)
        serving = server()
        if serving is None:
            await self._carried(back)
            raise UnavailableError(f"{host} has no running server")
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
                    serving.call_soon(task.cancel)  # as in gRPC when the caller has disconnected
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
