"""A process in which the official package `pravega` does what a test asks, call by call.

Its native calls hold the interpreter lock, and stall for a minute when something unexpected happens:
in a process of its own it can be given a time limit, and killed. `official_python` is the test's end.

Each request is (object, path, arguments, keyword arguments): a method of an object made before, or a
class or function of the package (object 0), or one of `Extras` (object 1). What is made stays here and
is known to the test by its number; plain values are handed over.
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
    """An object of the process."""

    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that raised."""

    kind: str
    message: str


class Extras:
    """What takes many calls, done here in one."""

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
        """(offset, event) of up to `count` further events of a slice."""
        found: list[tuple[int, bytes]] = []
        while len(found) < count and (event := next(segment_slice, None)) is not None:
            found.append((event.offset(), bytes(event.data())))
        return found

    async def read_slice(self, reader: Any) -> list[bytes]:
        """The events of the reader's next slice, which is then released; none if it has no segment."""
        segment_slice = await reader.get_segment_slice_async()
        found = [bytes(event.data()) for event in segment_slice]
        reader.release_segment(segment_slice)
        return found

    async def read(self, reader: Any, count: int) -> list[bytes]:
        """At least `count` events."""
        found: list[bytes] = []
        while len(found) < count:
            found += await self.read_slice(reader)
        return found

    async def share(self, readers: list[Any], count: int) -> list[list[bytes]]:
        """At least `count` events by readers at work at the same time; what each of them got."""
        found: list[list[bytes]] = [[] for _ in readers]
        enough = asyncio.Event()

        async def work(reader: Any, own: list[bytes]) -> None:
            while not enough.is_set():
                own += await self.read_slice(reader)
                if sum(map(len, found)) >= count:
                    enough.set()

        tasks = [asyncio.create_task(work(reader, own)) for reader, own in zip(readers, found, strict=True)]
        await enough.wait()
        for task in tasks:
            task.cancel()  # one may wait at the tail
        return found

    def write_bytes(self, stream: Any, data: bytes) -> None:
        stream.write(data)
        stream.flush()

    def read_bytes(self, stream: Any, count: int) -> bytes:
        """`count` bytes of a byte stream from where it stands."""
        buffer = bytearray(count)
        found = b""
        while len(found) < count:
            size = stream.readinto(buffer)
            assert size, "the byte stream ended"
            found += buffer[:size]
        return found


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
        except BaseException as error:  # the package panics with what is no Exception
            connection.send(Failed(type(error).__name__, str(error)))
            continue
        if not isinstance(result, PLAIN):
            objects.append(result)
            result = Reference(len(objects) - 1)
        connection.send(result)


def main() -> None:
    asyncio.run(_serve(Connection(int(sys.argv[1]))))
