"""Pravega's official Python package doing the peers' work, with a nadi server.

Written with as many events in flight as the package handles well (by default its writer waits for each event), and
flushed at the end; read by one reader of a reader group, slice by slice. The package doesn't report the acknowledgement
of one of many events: works that need that are omitted.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pravega_client

from bench.peer_program import main
from bench.peer_work import CHUNK, KEYS, SCOPE, STREAM, WARM, Acked, Setting

IN_FLIGHT = 10_000


class Pravega:
    def __init__(self, setting: Setting) -> None:
        self._manager: Any = pravega_client.StreamManager(setting.address)

    def prepare(self) -> None:
        raise NotImplementedError("nadi's client makes the stream")

    def write(self, size: int, go_on: Callable[[int], bool]) -> None:
        events = [os.urandom(size) for _ in range(CHUNK)]
        keys = [KEYS[number % len(KEYS)] for number in range(CHUNK)]
        writer = self._manager.create_writer(SCOPE, STREAM, IN_FLIGHT)
        written = 0
        while go_on(written):
            for event, key in zip(events, keys, strict=True):
                writer.write_event_bytes(event, key)
            written += CHUNK
        writer.flush()

    def round_trips(self, size: int, count: int) -> list[float]:
        writer = self._manager.create_writer(SCOPE, STREAM, 1)
        event = os.urandom(size)
        waits = []
        for number in range(count):
            began = time.perf_counter()
            writer.write_event_bytes(event, KEYS[number % len(KEYS)])
            writer.flush()
            waits.append(time.perf_counter() - began)
        return waits

    def read(self, count: int) -> None:
        group = self._manager.create_reader_group(f"history{uuid.uuid4().hex}", SCOPE, STREAM)
        asyncio.run(self._read(group.create_reader("reader"), count))

    async def _read(self, reader: Any, count: int) -> None:
        found = 0
        while found < count:
            events = await reader.get_segment_slice_async()
            found += len([event.data() for event in events])
            reader.release_segment(events)

    def write_steadily(
        self, keys: Sequence[str], waits: Iterable[float], event: Callable[[], bytes], acked: Acked | None
    ) -> None:
        if acked is not None:
            raise NotImplementedError("the package doesn't report the acknowledgement of one of many events")
        writer = self._manager.create_writer(SCOPE, STREAM, IN_FLIGHT)
        for key in keys:
            writer.write_event_bytes(WARM, key)
        writer.flush()
        for number, wait in enumerate(waits):
            if wait:
                time.sleep(wait)
            writer.write_event_bytes(event(), keys[number % len(keys)])
        writer.flush()

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        group = self._manager.create_reader_group(f"tail{uuid.uuid4().hex}", SCOPE, STREAM, True)
        asyncio.run(self._read_tail(group.create_reader("reader"), begin, take))

    async def _read_tail(self, reader: Any, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        waiting = asyncio.ensure_future(reader.get_segment_slice_async())
        await asyncio.sleep(3)  # the package doesn't report when its reader has started to wait
        begin()
        while True:
            events = await waiting
            if not all(take(bytes(event.data())) for event in events):
                return
            reader.release_segment(events)
            waiting = asyncio.ensure_future(reader.get_segment_slice_async())


if __name__ == "__main__":
    main(Pravega)
    os._exit(0)  # the package's own threads now and then abort a process that Python ends
