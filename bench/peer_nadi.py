"""nadi's client doing the peers' work, with `write_event` one by one, or `write_batch`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import nadi
from bench.peer_program import main
from bench.peer_work import CHUNK, KEYS, SCOPE, STREAM, WARM, Acked, Setting


class Nadi:
    def __init__(self, setting: Setting) -> None:
        self._manager = nadi.StreamManager(setting.address)
        self._segments, self._batched = setting.segments, setting.batched

    def prepare(self) -> None:
        self._manager.create_scope(SCOPE)
        self._manager.create_stream(SCOPE, STREAM, self._segments)

    def write(self, size: int, go_on: Callable[[int], bool]) -> None:
        events = [os.urandom(size) for _ in range(CHUNK)]
        keys = [KEYS[number % len(KEYS)] for number in range(CHUNK)]
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
                writer.write_event(event, KEYS[number % len(KEYS)]).result()
                waits.append(time.perf_counter() - began)
        return waits

    def read(self, count: int) -> None:
        end = self._manager.stream_info(SCOPE, STREAM).tail
        assert sum(map(len, self._manager.read_batches(SCOPE, STREAM, end=end))) == count

    def write_steadily(
        self, keys: Sequence[str], waits: Iterable[float], event: Callable[[], bytes], acked: Acked | None
    ) -> None:
        with self._manager.create_writer(SCOPE, STREAM) as writer:
            for key in keys:
                writer.write_event(WARM, key)
            writer.flush()
            for number, wait in enumerate(waits):
                if wait:
                    time.sleep(wait)
                sent = time.perf_counter()
                ack = writer.write_event(event(), keys[number % len(keys)])
                if acked is not None:
                    ack.add_done_callback(partial(_told, acked, sent))

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        tail = self._manager.stream_info(SCOPE, STREAM).tail
        batches = self._manager.create_reader(SCOPE, STREAM, start=tail)
        begin()
        while all(map(take, (batches.next_block(60) or (0, ()))[1])):
            pass


def _told(acked: Acked, sent: float, _: object) -> None:
    acked(sent)


if __name__ == "__main__":
    main(Nadi)
