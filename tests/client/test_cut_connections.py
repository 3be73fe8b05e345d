"""Threads write one by one and in bulk, by blocking writers, while their connections to a real server are cut."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

import nadi
from nadi.client import StreamManager
from nadi.errors import RequestTimeoutError

from .gate import gated

THREADS, ROUNDS = 3, 60
CUTS = 150  # of connections, at most: on a slow machine they would leave no time to make any


@pytest.mark.parametrize("seed", range(2))
def test_writers_connections_cut_store_each_event_once_in_order(
    uri: str, server: nadi.standalone.EmbeddedServer, seed: int
) -> None:
    chance, stream = random.Random(seed), f"cut-{seed}"
    wrote: dict[int, list[bytes]] = defaultdict(list)
    ends = threading.Event()

    with gated(uri, server.store_address) as (manager, gate), ThreadPoolExecutor(THREADS + 1) as pool:
        manager.create_stream("sc", stream, 2)
        writers = [manager.create_writer("sc", stream), manager.create_writer("sc", stream)]

        def work(number: int, chance: random.Random) -> None:
            writer, key = writers[number % 2], f"key {number}"

            def event() -> bytes:
                wrote[number].append(b"%d:%d" % (number, len(wrote[number])))
                return wrote[number][-1]

            for _ in range(ROUNDS):
                kind = chance.random()
                if kind < 0.6:
                    for _ in range(chance.randint(1, 20)):
                        writer.write_event(event(), key).result(60)
                elif kind < 0.7:
                    for _ in range(chance.randint(1, 300)):
                        writer.write_event(event(), key)
                elif kind < 0.8:
                    writer.write_batch([event() for _ in range(chance.randint(1, 5))], key).result(60)
                elif kind < 0.9:
                    try:
                        writer.write_event(event(), key).result(chance.choice([0.0, 0.0003, 0.001]))
                    except RequestTimeoutError:
                        pass
                else:
                    writer.write_event(event(), key)
                    writer.flush(60)
                if chance.random() < 0.3:
                    time.sleep(chance.choice([0.001, 0.03]))

        def cut() -> None:
            for _ in range(CUTS):
                if ends.wait(chance.uniform(0.005, 0.15)):
                    return
                gate.cut()

        cutting = pool.submit(cut)
        working = [pool.submit(work, n, random.Random(seed * 10 + n)) for n in range(THREADS)]
        try:
            for each in working:
                each.result(120)
        finally:
            ends.set()
        cutting.result(60)
        for writer in writers:
            writer.close(60)
    with StreamManager(uri) as direct:
        end = direct.stream_info("sc", stream).tail
        stored = [event for events in direct.read_batches("sc", stream, end=end) for event in events]
    for number in range(THREADS):
        assert [event for event in stored if event.startswith(b"%d:" % number)] == wrote[number]
    assert len(stored) == sum(map(len, wrote.values()))
