"""Functions run in the test's loop, with handlers in separate processes, and streams for their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nadi.client.aio import StreamManager
from nadi.functions import Function, serve
from nadi.functions.progress import FunctionProgressRecord, FunctionRecord

HANDLERS = str(Path(__file__).with_name("handlers.py"))
KEYS = 16


def quick_function(scope: str, handler: str, **options: Any) -> Function:
    quick: dict[str, Any] = {"retry_first_s": 0.01, "retry_longest_s": 0.05, "idle_s": 0.5, "name": handler}
    quick["name"] = handler.replace("_", "-")
    return Function(scope=scope, stream="in", handler=f"{HANDLERS}:{handler}", **{**quick, **options})


def delivered(scope: str, handler: str, delivery: str) -> Function:
    """Return the function that `command.runner` runs."""
    options = {"output": "out", "dead_letters": "dead", "retries": 1, "batch_events": 20, "delivery": delivery}
    return quick_function(scope, handler, **options)


def exactly_once(scope: str, handler: str) -> Function:
    return delivered(scope, handler, "exactly-once")


async def streams(manager: StreamManager, scope: str, segments: int = 2) -> None:
    await manager.create_stream(scope, "in", segments)
    await manager.create_stream(scope, "out", 2)
    await manager.create_stream(scope, "dead", 1)


async def write(manager: StreamManager, scope: str, first: int, last: int, *, poison: tuple[int, ...] = ()) -> None:
    """Write events `key number`, `key number poison`: each key's numbers grow."""
    writer = await manager.create_writer(scope, "in")
    keys = [f"k{number % KEYS}" for number in range(first, last)]
    texts = [f"{key} {number}" for key, number in zip(keys, range(first, last), strict=True)]
    await writer.write_many(
        [f"{text} poison".encode() if i in poison else text.encode() for i, text in enumerate(texts, first)], keys
    )
    await writer.close()


@asynccontextmanager
async def running(function: Function, manager: StreamManager) -> AsyncIterator[asyncio.Task[None]]:
    """Run the function until the end of the block; then stop it as by SIGTERM and raise its error."""
    stop = asyncio.Event()
    task = asyncio.create_task(serve(function, manager, stop=stop))
    progress = FunctionProgressRecord(manager, function.scope, function.name)
    while not task.done():
        if await progress.record.find() is not None and await progress.running():
            break
        await asyncio.sleep(0.02)
    try:
        yield task
    finally:
        stop.set()
        await task


async def read(manager: StreamManager, scope: str, stream: str, count: int, timeout_s: float = 60.0) -> list[bytes]:
    """Return the first `count` events."""
    found: list[bytes] = []
    async with asyncio.timeout(timeout_s):
        async for event in manager.read_events(scope, stream):
            found.append(event.data)
            if len(found) == count:
                return found
    raise AssertionError


async def read_all(manager: StreamManager, scope: str, stream: str) -> list[bytes]:
    """Return all events present."""
    tail = (await manager.stream_info(scope, stream)).tail
    return [event.data async for event in manager.read_events(scope, stream, end=tail)]


async def until_handled(
    manager: StreamManager, function: Function, count: int, timeout_s: float = 60.0
) -> FunctionRecord:
    """Return the stored status once that many events are handled or dead letters."""
    progress = FunctionProgressRecord(manager, function.scope, function.name)
    async with asyncio.timeout(timeout_s):
        while True:
            record = await progress.record.find()
            if record is not None and record.counts.events + record.counts.dead_letters >= count:
                return record
            await asyncio.sleep(0.05)


async def until_workers(
    manager: StreamManager, function: Function, least: int, most: int, timeout_s: float = 60.0
) -> int:
    """Wait until the function's group has that many readers, and return the number."""
    async with asyncio.timeout(timeout_s):
        while True:
            group = await manager.reader_group_manager(function.scope).get_reader_group(function.name)
            count = len(await group.online_readers())
            if least <= count <= most:
                return count
            await asyncio.sleep(0.02)


def in_order(events: list[bytes]) -> bool:
    """Return whether each key's numbers grow."""
    last: dict[str, int] = {}
    for event in events:
        key, number = event.decode().split()[:2]
        if int(number) <= last.get(key, -1):
            return False
        last[key] = int(number)
    return True
