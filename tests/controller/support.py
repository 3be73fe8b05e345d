"""Shared helpers of the controller's tests: a manual clock, and a controller over the fake store."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from nadi.controller.controller import Controller
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamConfigRecord
from nadi.runtime import Runtime

from .fake_store import FakeStore

STREAM = StreamName("home", "meters")


class FakeClock(Runtime):
    """A clock that moves only when advanced; sleepers wake in order. The wall clock can be `set` separately."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now = 1_000_000  # monotonic
        self._wall = now_ms - self._now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = itertools.count()

    def now_ms(self) -> int:
        return self._wall + self._now

    def monotonic(self) -> float:
        return self._now / 1000

    def boottime(self) -> float:
        return self._now / 1000

    def monotonic_ms(self) -> int:
        return self._now

    def set(self, ms: int) -> None:
        """Set the wall clock forward or back; no sleeper wakes."""
        self._wall += ms

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds * 1000, next(self._count), future))
        await future

    def jump(self, ms: int) -> None:
        """Advance the time without waking sleepers before the next `advance`."""
        self._now += ms

    async def advance(self, ms: int) -> None:
        end = self._now + ms
        while self._sleepers and self._sleepers[0][0] <= end:
            wake, _, future = heapq.heappop(self._sleepers)
            self._now = max(self._now, int(wake))
            if not future.done():
                future.set_result(None)
                await settle(20)
        self._now = max(self._now, end)  # woken tasks may have advanced it further
        await settle()


async def settle(rounds: int = 100) -> None:
    """Run everything that doesn't need time to pass."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def new_controller(store: FakeStore, clock: Runtime | None = None) -> Controller:
    return Controller(
        store.exchange,
        clock=clock,
        endpoint_of=lambda segment: ("127.0.0.1", 12345),
        rpc_endpoint=("127.0.0.1", 9090),
    )


@asynccontextmanager
async def running(store: FakeStore, clock: Runtime | None = None) -> AsyncIterator[Controller]:
    controller = new_controller(store, clock)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


@asynccontextmanager
async def with_stream(segments: int = 2, **more: Any) -> AsyncIterator[tuple[Controller, FakeStore, FakeClock]]:
    """Start a controller that has one stream, `STREAM`."""
    store, clock = FakeStore(), FakeClock()
    async with running(store, clock) as controller:
        await controller.create_scope(STREAM.scope)
        await controller.create_stream(STREAM, StreamConfigRecord(min_segments=segments, **more))
        yield controller, store, clock


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], rounds: int = 2_000) -> None:
    """Wait until the condition holds, without advancing the fake clock."""
    for _ in range(rounds):
        if await condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


async def scaled(controller: Controller, sealed: list[int], ranges: list[tuple[float, float]]) -> None:
    work = await controller.scale(STREAM, sealed, ranges)
    epoch = work.change.epoch - 1

    async def done() -> bool:
        return await controller.is_scaled(STREAM, epoch)

    await until(done)
