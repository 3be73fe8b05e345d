"""NATS JetStream with its Python client doing the peers' work: streams in files, on one server.

JetStream lacks partitions: a stream is one order. So there are as many streams as the others have segments, each with
its own subject, and a key always maps to the same one. Published asynchronously with a window of 4,000 (the client's
default), and awaited; read by ordered consumers with a callback, which is five times as fast as its fetches and as
`next_msg`.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import nats
from nats.js.api import (
    DeliverPolicy,
    StorageType,
)

from bench.peer_program import main
from bench.peer_work import CHUNK, KEYS, STREAM, WARM, Acked, Setting

IN_FLIGHT = 4_000
PREPARE_S = 30  # for a stream to be made


class Nats:
    def __init__(self, setting: Setting) -> None:
        self._address = setting.address
        self._subjects = [f"{STREAM}.{number}" for number in range(setting.segments)]

    def _subject(self, key: str) -> str:
        return self._subjects[zlib.crc32(key.encode()) % len(self._subjects)]

    def prepare(self) -> None:
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        connection = await nats.connect(self._address)
        stream = connection.jetstream(timeout=PREPARE_S)
        for number, subject in enumerate(self._subjects):
            await stream.add_stream(name=f"{STREAM}-{number}", subjects=[subject], storage=StorageType.FILE)
        await connection.close()

    def write(self, size: int, go_on: Callable[[int], bool]) -> None:
        asyncio.run(self._write(size, go_on))

    async def _write(self, size: int, go_on: Callable[[int], bool]) -> None:
        connection = await nats.connect(self._address)
        publisher = _Publisher(connection)
        events = [os.urandom(size) for _ in range(CHUNK)]
        subjects = [self._subject(KEYS[number % len(KEYS)]) for number in range(CHUNK)]
        written = 0
        while go_on(written):
            for event, subject in zip(events, subjects, strict=True):
                await publisher.publish(subject, event)
            written += CHUNK
        await publisher.completed()
        await connection.close()

    def round_trips(self, size: int, count: int) -> list[float]:
        return asyncio.run(self._round_trips(size, count))

    async def _round_trips(self, size: int, count: int) -> list[float]:
        connection = await nats.connect(self._address)
        stream = connection.jetstream()
        event = os.urandom(size)
        waits = []
        for number in range(count):
            subject = self._subject(KEYS[number % len(KEYS)])
            began = time.perf_counter()
            await stream.publish(subject, event)
            waits.append(time.perf_counter() - began)
        await connection.close()
        return waits

    def read(self, count: int) -> None:
        asyncio.run(self._read(count))

    async def _read(self, count: int) -> None:
        read: list[bytes] = []

        def take(event: bytes) -> bool:
            read.append(event)
            return len(read) < count

        await self._consume(DeliverPolicy.ALL, lambda: None, take)

    def write_steadily(
        self, keys: Sequence[str], waits: Iterable[float], event: Callable[[], bytes], acked: Acked | None
    ) -> None:
        asyncio.run(self._write_steadily(keys, waits, event, acked))

    async def _write_steadily(
        self, keys: Sequence[str], waits: Iterable[float], event: Callable[[], bytes], acked: Acked | None
    ) -> None:
        connection = await nats.connect(self._address)
        publisher = _Publisher(connection)
        subjects = [self._subject(key) for key in keys]
        for subject in subjects:
            await publisher.publish(subject, WARM)
        await publisher.completed()
        for number, wait in enumerate(waits):
            if wait:
                await asyncio.sleep(wait)
            await publisher.publish(subjects[number % len(subjects)], event(), acked)
        await publisher.completed()
        await connection.close()

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        asyncio.run(self._read_tail(begin, take))

    async def _read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        await self._consume(DeliverPolicy.NEW, begin, take)

    async def _consume(self, policy: Any, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        connection = await nats.connect(self._address)
        stream = connection.jetstream()
        done = asyncio.Event()

        async def callback(message: Any) -> None:
            if not done.is_set() and not take(message.data):
                done.set()

        for subject in self._subjects:
            await stream.subscribe(
                subject,
                ordered_consumer=True,
                deliver_policy=policy,
                cb=callback,
                pending_msgs_limit=1_000_000,
                pending_bytes_limit=1 << 30,
            )
        begin()
        await done.wait()
        await connection.close()


class _Publisher:
    """Publishes with a window. A rejected event makes the end fail."""

    def __init__(self, connection: Any) -> None:
        self._stream = connection.jetstream(publish_async_max_pending=IN_FLIGHT)
        self._failure: BaseException | None = None

    async def publish(self, subject: str, event: bytes, acked: Acked | None = None) -> None:
        """Publish an event; its time of writing is before the window has capacity."""
        sent = time.perf_counter()
        future = await self._stream.publish_async(subject, event)
        future.add_done_callback(partial(self._done, acked, sent))

    def _done(self, acked: Acked | None, sent: float, future: asyncio.Future[Any]) -> None:
        if (failure := future.exception()) is not None:
            self._failure = self._failure or failure
        elif acked is not None:
            acked(sent)

    async def completed(self) -> None:
        await self._stream.publish_async_completed()
        await asyncio.sleep(0)  # callbacks of the last one
        if self._failure is not None:
            raise self._failure


if __name__ == "__main__":
    main(Nats)
