"""Callers that go away before it is their turn leave nothing behind: neither work to do nor a place in the queue."""

from __future__ import annotations

import asyncio

from nadi.controller.state.records import Config
from tests.support.waiting import until_async

from .support import STREAM, settle, with_stream


async def test_who_gives_up_before_it_is_his_turn_changes_nothing() -> None:
    async with with_stream() as (controller, store, _):
        await settle()
        before = len(asyncio.all_tasks())
        async with controller._flow.lock(STREAM):  # as another workflow does, for as long as it takes
            callers = [
                asyncio.create_task(controller.update_stream(STREAM, Config(min_segments=2, tags=(f"t{n}",))))
                for n in range(200)
            ]
            await settle()
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            await settle()
            assert len(asyncio.all_tasks()) == before, "nobody waits for the stream any more"
            store.log.clear()
        await settle()
        assert not store.log
        assert not (await controller.stream(STREAM)).config.tags
        await controller.update_stream(STREAM, Config(min_segments=2, tags=("mine",)))


async def test_what_has_begun_goes_on_when_its_caller_is_gone() -> None:
    async with with_stream() as (controller, store, _):
        caller = asyncio.create_task(controller.update_stream(STREAM, Config(min_segments=2, tags=("mine",))))
        store.log.clear()
        await until_async(lambda: bool(store.log))
        caller.cancel()
        await settle()
        assert (await controller.stream(STREAM)).config.tags == ("mine",)
