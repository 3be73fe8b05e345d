"""nadi's client at the peers' work. `write_event` one by one; with BATCHED as the last argument, `write_batch`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator

import nadi
from bench.peer_work import CHUNK, KEYS, SCOPE, STREAM, main


class Nadi:
    def __init__(self, uri: str) -> None:
        self._manager = nadi.StreamManager(uri)
        self._batched = sys.argv[-1] == "BATCHED"

    def write(self, size: int, go_on: Callable[[int], bool]) -> None:
        events = [os.urandom(size) for _ in range(CHUNK)]
        keys = [KEYS[number % 1000] for number in range(CHUNK)]
        written = 0
        with self._manager.create_writer(SCOPE, STREAM) as writer:
            write = writer.write_event
            while go_on(written):
                if self._batched:
                    writer.write_batch(events, keys)
                else:
                    for event, key in zip(events, keys, strict=True):
                        write(event, key)
                written += CHUNK

    def round_trips(self, size: int, count: int) -> list[float]:
        event = os.urandom(size)
        waits = []
        with self._manager.create_writer(SCOPE, STREAM) as writer:
            for number in range(count):
                began = time.perf_counter()
                writer.write_event(event, KEYS[number % 1000]).result()
                waits.append(time.perf_counter() - began)
        return waits

    def fill(self, size: int, count: int) -> None:
        events = [os.urandom(size) for _ in range(CHUNK)]
        keys = [KEYS[number % 1000] for number in range(CHUNK)]
        with self._manager.create_writer(SCOPE, STREAM) as writer:
            for _ in range(count // CHUNK):
                writer.write_batch(events, keys)

    def read(self, count: int) -> None:
        end = self._manager.stream_info(SCOPE, STREAM).tail
        assert sum(map(len, self._manager.read_batches(SCOPE, STREAM, end=end))) == count

    def write_tail(self, waits: Iterator[float], event: Callable[[], bytes]) -> None:
        with self._manager.create_writer(SCOPE, STREAM) as writer:
            for wait in waits:
                time.sleep(wait)
                writer.write_event(event())

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        tail = self._manager.stream_info(SCOPE, STREAM).tail
        batches = self._manager.create_reader(SCOPE, STREAM, start=tail)
        begin()
        while all(map(take, (batches.next_block(60) or (0, ()))[1])):
            pass


if __name__ == "__main__":
    main(Nadi)
