"""A segment store on a real socket, and a small client that sends single commands."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nadi.access.tokens import TokenKey
from nadi.model.framing import frame_events
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from tests.support.decoder import Decoder
from tests.support.peers import open_connection

WRITER = bytes(range(16))
_ids = itertools.count(1)


class Peer:
    """Sends any bytes; receives commands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = Decoder()
        self._received: list[wire.Command] = []

    def send(self, *commands: wire.Command) -> None:
        self._writer.write(b"".join(map(encode, commands)))

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> Any:
        while not self._received:
            data = await asyncio.wait_for(self._reader.read(1 << 16), 60)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._received += self._decoder.receive(data)
        return self._received.pop(0)

    async def ask(self, command: wire.Command) -> Any:
        self.send(command)
        return await self.receive()

    @property
    def is_closing(self) -> bool:
        """Return whether the connection is closing."""
        return self._writer.is_closing()

    async def closed(self) -> bool:
        return await asyncio.wait_for(self._reader.read(1 << 16), 60) == b""

    async def setup(self, segment: str, writer: bytes = WRITER) -> int:
        reply = await self.ask(wire.SetupAppend(next(_ids), writer, segment, ""))
        assert isinstance(reply, wire.AppendSetup), reply
        return reply.last_event_number

    async def append(self, events: list[bytes], last: int, writer: bytes = WRITER) -> Any:
        data = frame_events(events)
        return await self.ask(wire.AppendBlockEnd(writer, len(data), data, len(events), last, next(_ids)))

    async def create(self, segment: str) -> Any:
        return await self.ask(wire.CreateSegment(next(_ids), segment, 0, 0, ""))

    async def read_all(self, segment: str, start: int = 0) -> bytes:
        info = await self.ask(wire.GetStreamSegmentInfo(next(_ids), segment, ""))
        data = b""
        while start + len(data) < info.write_offset:
            reply = await self.ask(wire.ReadSegment(segment, start + len(data), 1 << 20, "", next(_ids)))
            assert isinstance(reply, wire.SegmentRead), reply
            assert reply.offset == start + len(data)
            data += bytes(reply.data)
        return data

    def close(self) -> None:
        self._writer.close()


class WallClock(Runtime):
    """A wall clock set by a test, followed by nothing else."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms  # type: ignore[method-assign]


@asynccontextmanager
async def open_store(
    folder: Path,
    containers: int = 2,
    tokens: TokenKey | None = None,
    runtime: Runtime = REAL,
    chunks: ChunkStore | None = None,
    **more: Any,
) -> AsyncIterator[tuple[SegmentStore, Peer]]:
    store = SegmentStore(folder, containers, tokens, runtime, chunks, **more)
    await store.start()
    try:
        address = await store.listen("127.0.0.1", 0)
        peer = await connect(address)
        yield store, peer
        peer.close()
    finally:
        await store.close()


@asynccontextmanager
async def open_segment(
    folder: Path, segment: str, containers: int = 1, **more: Any
) -> AsyncIterator[tuple[SegmentStore, Peer]]:
    """Open a store with that segment, and a peer that can append to it."""
    async with open_store(folder, containers, **more) as (store, peer):
        await peer.create(segment)
        await peer.setup(segment)
        yield store, peer


async def connect(address: tuple[str, int]) -> Peer:
    peer = Peer(*await open_connection(*address))
    reply = await peer.ask(wire.Hello(15, 5))
    assert reply == wire.Hello(17, 5)
    return peer
