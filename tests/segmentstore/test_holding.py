"""The write freeze of a migration, and its end when leaving fails or the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nadi.errors import ConflictError
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.write_freeze import WriteFreeze
from nadi.wire import commands as wire

NAME = "sc/st/0.#epoch.0"


@asynccontextmanager
async def held(folder: Path) -> AsyncIterator[tuple[WriteFreeze, asyncio.Future[wire.Command]]]:
    """An active freeze, and a waiting request."""
    store = SegmentStore(folder, 1)
    await store.start()
    hold = WriteFreeze(store)
    try:
        await hold.begin(60)
        waiting = asyncio.ensure_future(store.exchange(wire.CreateSegment(1, NAME, 0, 0, "", 0)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        yield hold, waiting
    finally:
        if hold.is_kept:
            hold.refuse()
        await hold.end()
        await store.close()


async def fails() -> None:
    raise OSError("no room")


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


async def test_freeze_ends_if_leaving_failed_without_effect(tmp_path: Path) -> None:
    async with held(tmp_path) as (hold, waiting):
        with pytest.raises(OSError, match="no room"):
            await hold.keep(hold.id, fails, no)
        assert isinstance(await asyncio.wait_for(waiting, 60), wire.SegmentCreated)
        with pytest.raises(ConflictError):
            await hold.keep(hold.id, fails, no)


async def test_freeze_stays_if_leaving_may_have_taken_effect(tmp_path: Path) -> None:
    async with held(tmp_path) as (hold, waiting):
        with pytest.raises(OSError, match="no room"):
            await hold.keep(hold.id, fails, yes)
        await hold.end()
        assert hold.is_kept
        assert not (await asyncio.wait({waiting}, timeout=0.1))[0]


async def test_leaving_finishes_after_its_caller_is_cancelled(tmp_path: Path) -> None:
    going, begun = asyncio.Event(), asyncio.Event()

    async def leave() -> None:
        begun.set()
        await going.wait()

    async with held(tmp_path) as (hold, waiting):
        caller = asyncio.ensure_future(hold.keep(hold.id, leave, no))
        await asyncio.wait_for(begun.wait(), 60)
        caller.cancel()
        await asyncio.wait([caller])
        await asyncio.sleep(0.05)
        assert not waiting.done()
        going.set()
        await hold.end()
        assert hold.is_kept
