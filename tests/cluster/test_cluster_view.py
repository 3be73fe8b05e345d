"""Who lives, as those see it who look into the store."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import nadi
from nadi.cluster.admin.cluster_view import living, opened
from tests.support.clocks import StandsStill


def test_servers_that_stood_still_with_the_machine_live(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    with nadi.embedded(tmp_path / "one", store=store, containers=1) as server:

        def goes_on(sleeps: int) -> None:
            if sleeps == 3:
                os.kill(server.pid, signal.SIGCONT)

        async def look() -> list[str]:
            async with opened(store, {}, StandsStill(goes_on)) as shared:
                return await living(shared)

        os.kill(server.pid, signal.SIGSTOP)
        assert len(asyncio.run(look())) == 1


def test_one_that_was_killed_does_not_live(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    nadi.embedded(tmp_path / "one", store=store, containers=1).kill()

    async def look() -> list[str]:
        async with opened(store, {}) as shared:
            return await living(shared)

    assert asyncio.run(look()) == []
