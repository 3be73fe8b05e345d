"""Readers of the tail in one process, each reading all events, and the slow one that reads all history.

`tail URI READERS COUNT BYTES FILE`: each reads COUNT events of BYTES in total, and the seconds since their writing go
to FILE. `history URI`: reads from the head until it is killed. Both print `reading` once they are at their start.
"""

from __future__ import annotations

import asyncio
import sys
import time

import numpy as np

from bench.measure import SCOPE, STREAM
from nadi.client import aio


async def read_tail(uri: str, readers: int, count: int, size_bytes: int, file: str) -> None:
    async with aio.StreamManager(uri) as manager:
        end = (await manager.stream_info(SCOPE, STREAM)).tail
        opened = [await manager.create_reader(SCOPE, STREAM, start=end) for _ in range(readers)]
        tasks = [asyncio.create_task(_read(reader, count, size_bytes)) for reader in opened]
        await asyncio.sleep(0)
        print("reading", flush=True)
        np.save(file, np.concatenate(await asyncio.gather(*tasks)))


async def _read(reader: aio.SliceReader, count: int, size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    waits: list[float] = []
    read = 0
    while len(waits) < count:
        found = await reader.next_block(60.0)
        assert found is not None, "a stream doesn't end at its tail"
        now = time.monotonic_ns()
        for event in found[1]:
            waits.append((now - int.from_bytes(event[:8])) / 1e9)
            read += len(event)
    assert (len(waits), read) == (count, size_bytes), f"{len(waits):,} events of {read:,} bytes were read"
    return np.array(waits)


async def read_history(uri: str) -> None:
    async with aio.StreamManager(uri) as manager:
        reader = await manager.create_reader(SCOPE, STREAM)
        print("reading", flush=True)
        async for _ in reader:
            pass


if __name__ == "__main__":
    if sys.argv[1] == "tail":
        readers, count, size_bytes = map(int, sys.argv[3:6])
        asyncio.run(read_tail(sys.argv[2], readers, count, size_bytes, sys.argv[6]))
    else:
        asyncio.run(read_history(sys.argv[2]))
