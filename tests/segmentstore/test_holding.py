"""Writers that are held for a migration, and what becomes of them when leaving fails or its caller goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nadi.errors import ConflictError
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.write_freeze import Hold
from nadi.wire import commands as wire

NAME = "sc/st/0.#epoch.0"


@asynccontextmanager
async def held(folder: Path) -> AsyncIterator[tuple[Hold, asyncio.Future[wire.Command]]]:
    """A hold that has begun, and a request that waits."""
    store = SegmentStore(folder, 1)
    await store.start()
    hold = Hold(store)
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


async def test_writers_go_on_if_nothing_was_left(tmp_path: Path) -> None:
    async with held(tmp_path) as (hold, waiting):
        with pytest.raises(OSError, match="no room"):
            await hold.keep(hold.id, fails, no)
        assert isinstance(await asyncio.wait_for(waiting, 60), wire.SegmentCreated)
        with pytest.raises(ConflictError, match="aren't held any more"):
            await hold.keep(hold.id, fails, no)


async def test_writers_stay_held_if_it_may_have_been_left(tmp_path: Path) -> None:
    async with held(tmp_path) as (hold, waiting):
        with pytest.raises(OSError, match="no room"):
            await hold.keep(hold.id, fails, yes)
        await hold.end()
        assert hold.is_kept
        assert not (await asyncio.wait({waiting}, timeout=0.1))[0]


async def test_leaving_is_carried_out_though_its_caller_goes(tmp_path: Path) -> None:
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
