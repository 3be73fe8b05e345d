"""A writer and a reader who must not notice what goes on at other connections."""

from __future__ import annotations

import asyncio
import threading
import time

from nadi.client import StreamManager
from tests.fuzz.report import EACH_S, Finding
from tests.support.waiting import until_async

PAUSE_S = 0.02


class Canary:
    """`async with Canary(uri)`: events are written and read all the time; the end checks that none is missing."""

    def __init__(self, controller_uri: str) -> None:
        self._uri = controller_uri
        self._stop = threading.Event()
        self.events = 0
        self.slowest_s = 0.0

    def _sing(self, stop: threading.Event) -> None:
        with StreamManager(self._uri) as manager:
            manager.create_scope("canary")
            manager.create_stream("canary", "steady")
            head = manager.stream_info("canary", "steady").head
            writer = manager.create_writer("canary", "steady")
            reader = manager.create_reader("canary", "steady", start=head)
            seen: list[bytes] = []
            while not stop.is_set():
                began = time.monotonic()
                writer.write_event(str(self.events).encode(), "k").result(EACH_S)
                self.events += 1
                while len(seen) < self.events:
                    found = reader.next_block(EACH_S)
                    if found is None:
                        raise Finding("the canary's stream ended")
                    seen += list(found[1])
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                time.sleep(PAUSE_S)
            if seen != [str(number).encode() for number in range(self.events)]:
                raise Finding("the canary's events are not those it wrote, in order")

    async def __aenter__(self) -> Canary:
        self._song = asyncio.create_task(asyncio.to_thread(self._sing, self._stop))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await until_async(lambda: self.events or self._song.done())
        self._stop.set()
        await self._song
        if kind is None and self.events == 0:
            raise Finding("the canary never sang")

    def __str__(self) -> str:
        return f"canary: {self.events:,} events written and read, slowest {self.slowest_s * 1000:.0f} ms"
