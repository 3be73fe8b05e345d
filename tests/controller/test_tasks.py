"""The controller's background tasks end when it is stopped, even if one takes that for the end of a call."""

from __future__ import annotations

import asyncio

import pytest

from nadi.controller.engine.workflows import Tasks


async def test_a_task_that_overhears_its_end_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.controller.engine.workflows._AGAIN_S", 0.05)
    tasks, heard = Tasks(), 0

    async def insist() -> None:
        nonlocal heard
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                heard += 1
                if heard == 2:
                    raise

    task = tasks.spawn(insist())
    await asyncio.sleep(0)
    async with asyncio.timeout(60.0):
        await tasks.close()
    assert task.cancelled()
