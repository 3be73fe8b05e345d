"""1,000 transactions per second, each of ten events, from their start until they are known to be committed.

Each begins when it is due, unless a client's usual number is in flight: then the server limits the rate.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import nadi
from bench.events import percentile
from bench.measure import KEYS, SCOPE, STREAM, Figure, open_stream
from bench.process import cpu_seconds
from nadi.client import aio

RATE, SECONDS, WARM_S = 1_000, 15.0, 3.0
EVENTS, SIZE = 10, 100  # of a transaction; bytes of each
AT_ONCE = 200  # transactions under way


def transactions(folder: Path, rate: int = RATE, seconds: float = SECONDS, warm_s: float = WARM_S) -> list[Figure]:
    with nadi.embedded(folder) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            open_stream(manager)
        asyncio.run(_run(server.controller_uri, rate, warm_s))
        client_s, server_s, began = time.process_time(), cpu_seconds(server.pid), time.perf_counter()
        waits = sorted(asyncio.run(_run(server.controller_uri, rate, seconds)))
        took = time.perf_counter() - began
        client_s, server_s = time.process_time() - client_s, cpu_seconds(server.pid) - server_s
        with nadi.StreamManager(server.controller_uri) as manager:
            end = manager.stream_info(SCOPE, STREAM).tail
            found = sum(map(len, manager.read_batches(SCOPE, STREAM, end=end)))
    count = len(waits)
    assert found == EVENTS * (count + int(rate * warm_s)), "each committed event is there once"
    return [
        Figure(f"transactions of {EVENTS} events, committed", count / took, "a second", rate),
        Figure("from begin to committed, p50", percentile(waits, 50), "ms"),
        Figure("from begin to committed, p99", percentile(waits, 99), "ms"),
        Figure("a transaction's CPU, server", server_s / count * 1e3, "ms"),
        Figure("a transaction's CPU, client", client_s / count * 1e3, "ms"),
    ]


async def _run(uri: str, rate: int, seconds: float) -> list[float]:
    """Return the seconds of each transaction."""
    events = [os.urandom(SIZE) for _ in range(EVENTS)]
    room = asyncio.Semaphore(AT_ONCE)
    async with aio.StreamManager(uri) as manager:
        writer = await manager.create_transaction_writer(SCOPE, STREAM)

        async def one(number: int) -> float:
            try:
                began = time.perf_counter()
                txn = await writer.begin_txn()
                for at, event in enumerate(events):
                    txn.write_event(event, KEYS[(number * EVENTS + at) % len(KEYS)])
                await txn.commit(wait=True)
                return time.perf_counter() - began
            finally:
                room.release()

        began = time.perf_counter()
        tasks = []
        async with asyncio.TaskGroup() as group:
            for number in range(int(rate * seconds)):
                await room.acquire()
                await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
                tasks.append(group.create_task(one(number)))
        await writer.close()
    return [task.result() for task in tasks]
