"""An append for whose end nobody waits any more, for the container ends meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from nadi.segmentstore.chain.log import ChainLog, ChainStart
from nadi.segmentstore.tier1.log import Appended
from tests.support.memory_engine import MemoryEngine
from tests.support.replayed import replayed


class Slow(ChainLog):
    """Whose store answers once the append is abandoned."""

    def __init__(self, engine: MemoryEngine) -> None:
        super().__init__(engine, 0, 1, ChainStart(), _claimed)
        self.release = asyncio.Event()

    async def _append(self, parts: Sequence[bytes]) -> Appended:
        await self.release.wait()
        return await super()._append(parts)


class Broken(Slow):
    async def _append(self, parts: Sequence[bytes]) -> Appended:
        await self.release.wait()
        raise AssertionError("a mistake of ours")


async def _claimed() -> None:
    pass


async def abandoned(log: Slow) -> list[dict[str, Any]]:
    """What the loop is told of an append whose caller is cancelled."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    task = asyncio.create_task(log.append([b"nobody waits"]))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    log.release.set()
    await log.close()
    return told


async def test_that_it_was_fenced_is_no_failure() -> None:
    """A server that was overtaken while it stopped told it with a traceback."""
    engine = MemoryEngine()
    log, later = Slow(engine), ChainLog(engine, 0, 2, ChainStart(), _claimed)
    await replayed(log)
    await replayed(later)
    await later.close()
    told = await abandoned(log)
    assert log.fenced is not None
    del log
    gc.collect()
    assert told == []


async def test_what_nobody_foresaw_is_told(caplog: pytest.LogCaptureFixture) -> None:
    log = Broken(MemoryEngine())
    await replayed(log)
    assert await abandoned(log) == []
    told = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert told == ["an append for which nobody waits has failed"]
