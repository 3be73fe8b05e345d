"""NATS JetStream with its Python client at the peers' work: one stream in files, on one server.

Published asynchronously with a window of 4,000 (the client's own default), and awaited; read by a pull consumer
without acknowledgements, in fetches of thousands, and at the tail by an ordered push consumer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import nats  # type: ignore[import-not-found]
from nats.js.api import (  # type: ignore[import-not-found]
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    StorageType,
)

from bench.peer_work import CHUNK, STREAM, main

SUBJECT = "bench.events"
FETCH = 5_000


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
        connection, stream = await self._connect()
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
        reader = await stream.pull_subscribe(SUBJECT, stream=STREAM, config=config)
        found = 0
        while found < count:
            found += len([message.data for message in await reader.fetch(min(FETCH, count - found), timeout=10)])
        await connection.close()

    def write_tail(self, write_each: Callable[[Callable[[bytes], object]], None]) -> None:
        asyncio.run(self._write_tail(write_each))

    async def _write_tail(self, write_each: Callable[[Callable[[bytes], object]], None]) -> None:
        connection, stream = await self._connect()
        loop = asyncio.get_running_loop()

        def write(event: bytes) -> None:
            asyncio.run_coroutine_threadsafe(stream.publish_async(SUBJECT, event), loop)

        await asyncio.to_thread(write_each, write)
        await stream.publish_async_completed()
        await connection.close()

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        asyncio.run(self._read_tail(begin, take))

    async def _read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        connection, stream = await self._connect()
        reader = await stream.subscribe(SUBJECT, ordered_consumer=True, deliver_policy=DeliverPolicy.NEW)
        begin()
        while take((await reader.next_msg(60)).data):
            pass
        await connection.close()

    async def _connect(self) -> tuple[Any, Any]:
        connection = await nats.connect(self._address)
        stream = connection.jetstream(publish_async_max_pending=4_000)
        await stream.add_stream(name=STREAM, subjects=[SUBJECT], storage=StorageType.FILE)
        return connection, stream


if __name__ == "__main__":
    main(Nats)
