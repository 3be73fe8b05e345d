"""Connections of peers that need not close them: they are closed at the end of the test's loop."""

from __future__ import annotations

import asyncio
from typing import Any

_kept: set[asyncio.Task[None]] = set()


async def open_connection(*address: Any, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection like asyncio's function."""
    reader, writer = await asyncio.open_connection(*address, **more)

    async def until_the_end() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            writer.close()

    task = asyncio.create_task(until_the_end())
    _kept.add(task)
    task.add_done_callback(_kept.discard)
    return reader, writer
