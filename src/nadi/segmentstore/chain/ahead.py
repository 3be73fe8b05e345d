"""Runs a walk in a task of its own, so many bytes ahead of who takes its links: the state is fetched meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from nadi.limits import CHAIN_AHEAD_BYTES
from nadi.segmentstore.chain.walk import Link


class Ahead:
    """`links` gives what the walk gives, and raises what it raises; `close` ends it before that."""

    def __init__(self, links: AsyncIterator[Link]) -> None:
        self._found: deque[Link] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(links))
        self._task.add_done_callback(lambda _: self._changed.set())

    async def _run(self, links: AsyncIterator[Link]) -> None:
        async for link in links:
            self._found.append(link)
            self._bytes += len(link.data)
            self._changed.set()
            while self._bytes > CHAIN_AHEAD_BYTES:
                self._changed.clear()
                await self._changed.wait()

    async def links(self) -> AsyncIterator[Link]:
        while True:
            while self._found:
                link = self._found.popleft()
                self._bytes -= len(link.data)
                self._changed.set()
                yield link
            if self._task.done():
                self._task.result()
                return
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
