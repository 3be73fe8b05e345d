"""A process in which the official package `pravega` executes a test's calls.

Its native calls hold the interpreter lock, and stall for a minute after unexpected answers: in a separate process it
can have a time limit, and be killed. `official_python` is the test's side.

Each request is (object, path, arguments, keyword arguments): a method of an object created before, a class or function
of the package (object 0), or a method of `Extras` (object 1). Created objects stay in this process and are referenced
by number; plain values are returned.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any

PACKAGE, EXTRAS = 0, 1
PLAIN = (bool, int, float, str, bytes, list, tuple, dict, type(None))


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference to an object of the process."""

    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Error raised by a call."""

    kind: str
    message: str


class Extras:
    """Operations of many calls, executed in one."""

    def write(self, writer: Any, events: list[tuple[Any, str | None]]) -> None:
        """Write events, each a str or bytes with its routing key, and flush."""
        for event, key in events:
            (writer.write_event_bytes if isinstance(event, bytes) else writer.write_event)(event, routing_key=key)
        if hasattr(writer, "flush"):
            writer.flush()

    async def write_async(self, writer: Any, events: list[tuple[str, str]]) -> None:
        for event, key in events:
            await writer.write_event_async(event, routing_key=key)

    def take(self, segment_slice: Any, count: int) -> list[tuple[int, bytes]]:
        """Return (offset, event) of up to `count` further events of a slice."""
        events: list[tuple[int, bytes]] = []
        while len(events) < count and (event := next(segment_slice, None)) is not None:
            events.append((event.offset(), bytes(event.data())))
        return events

    async def read_slice(self, reader: Any) -> list[bytes]:
        """Return the events of the reader's next slice, and release it; empty without a segment."""
        segment_slice = await reader.get_segment_slice_async()
        events = [bytes(event.data()) for event in segment_slice]
        reader.release_segment(segment_slice)
        return events

    async def read(self, reader: Any, count: int) -> list[bytes]:
        """Read at least `count` events."""
        events: list[bytes] = []
        while len(events) < count:
            events += await self.read_slice(reader)
        return events

    async def share(self, readers: list[Any], count: int) -> list[list[bytes]]:
        """Read at least `count` events by concurrent readers; return each one's events."""
        events: list[list[bytes]] = [[] for _ in readers]
        enough = asyncio.Event()

        async def work(reader: Any, own: list[bytes]) -> None:
            while not enough.is_set():
                own += await self.read_slice(reader)
                if sum(map(len, events)) >= count:
                    enough.set()

        tasks = [asyncio.create_task(work(reader, own)) for reader, own in zip(readers, events, strict=True)]
        await enough.wait()
        for task in tasks:
            task.cancel()  # it may wait at the tail
        return events

    def write_bytes(self, stream: Any, data: bytes) -> None:
        stream.write(data)
        stream.flush()

    def read_bytes(self, stream: Any, count: int) -> bytes:
        """Read `count` bytes from the byte stream's position."""
        buffer = bytearray(count)
        data = b""
        while len(data) < count:
            size = stream.readinto(buffer)
            assert size, "the byte stream ended"
            data += buffer[:size]
        return data


def _resolved(value: Any, objects: list[Any]) -> Any:
    if isinstance(value, list):
        return [_resolved(each, objects) for each in value]
    return objects[value.number] if isinstance(value, Reference) else value


async def _serve(connection: Connection) -> None:
    import pravega_client

    objects: list[Any] = [pravega_client, Extras()]
    connection.send(None)
    while True:
        try:
            number, path, arguments, keywords = connection.recv()
        except EOFError:
            return
        try:
            result = attrgetter(path)(objects[number])(
                *(_resolved(value, objects) for value in arguments),
                **{key: _resolved(value, objects) for key, value in keywords.items()},
            )
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:  # the package's panics aren't Exceptions
            connection.send(Failed(type(error).__name__, str(error)))
            continue
        if not isinstance(result, PLAIN):
            objects.append(result)
            result = Reference(len(objects) - 1)
        connection.send(result)


def main() -> None:
    asyncio.run(_serve(Connection(int(sys.argv[1]))))
