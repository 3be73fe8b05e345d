"""NATS JetStream with its Python client at the peers' work: one stream in files, on one server.

Published asynchronously with a window of 4,000 (the client's own default), and awaited; read by an ordered consumer
with a callback, which is five times as fast as its fetches and as `next_msg`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import nats  # type: ignore[import-not-found]
from nats.js.api import (  # type: ignore[import-not-found]
    DeliverPolicy,
    StorageType,
)

from bench.peer_work import CHUNK, STREAM, main

SUBJECT = "bench.events"


class Nats:
    def __init__(self, address: str) -> None:
        self._address = address

    def write(self, size: int, go_on: Callable[[int], bool]) -> None:
        asyncio.run(self._write(size, go_on))

    async def _write(self, size: int, go_on: Callable[[int], bool]) -> None:
        connection, stream = await self._connect()
        events = [os.urandom(size) for _ in range(CHUNK)]
        written = 0
        while go_on(written):
            for event in events:
                await stream.publish_async(SUBJECT, event)
            written += CHUNK
        await stream.publish_async_completed()
        await connection.close()

    def round_trips(self, size: int, count: int) -> list[float]:
        return asyncio.run(self._round_trips(size, count))

    async def _round_trips(self, size: int, count: int) -> list[float]:
        connection, stream = await self._connect()
        event = os.urandom(size)
        waits = []
        for _ in range(count):
            began = time.perf_counter()
            await stream.publish(SUBJECT, event)
            waits.append(time.perf_counter() - began)
        await connection.close()
        return waits

    def fill(self, size: int, count: int) -> None:
        self.write(size, lambda written: written < count)

    def read(self, count: int) -> None:
        asyncio.run(self._read(count))

    async def _read(self, count: int) -> None:
        read: list[bytes] = []

        def take(event: bytes) -> bool:
            read.append(event)
            return len(read) < count

        await self._consume(DeliverPolicy.ALL, lambda: None, take)

    def write_tail(self, waits: Iterator[float], event: Callable[[], bytes]) -> None:
        asyncio.run(self._write_tail(waits, event))

    async def _write_tail(self, waits: Iterator[float], event: Callable[[], bytes]) -> None:
        connection, stream = await self._connect()
        for wait in waits:
            await asyncio.sleep(wait)
            await stream.publish_async(SUBJECT, event())
        await stream.publish_async_completed()
        await connection.close()

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        asyncio.run(self._read_tail(begin, take))

    async def _read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        await self._consume(DeliverPolicy.NEW, begin, take)

    async def _consume(self, policy: Any, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        connection, stream = await self._connect()
        done = asyncio.Event()

        async def callback(message: Any) -> None:
            if not done.is_set() and not take(message.data):
                done.set()

        await stream.subscribe(
            SUBJECT,
            ordered_consumer=True,
            deliver_policy=policy,
            cb=callback,
            pending_msgs_limit=1_000_000,
            pending_bytes_limit=1 << 30,
        )
        begin()
        await done.wait()
        await connection.close()

    async def _connect(self) -> tuple[Any, Any]:
        connection = await nats.connect(self._address)
        stream = connection.jetstream(publish_async_max_pending=4_000)
        await stream.add_stream(name=STREAM, subjects=[SUBJECT], storage=StorageType.FILE)
        return connection, stream


if __name__ == "__main__":
    main(Nats)
