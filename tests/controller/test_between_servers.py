"""Workflows while a container is between two servers of a cluster."""

from __future__ import annotations

import asyncio

from nadi.controller.state.records import StreamState
from nadi.errors import NotOwnerError
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .support import STREAM, settle, with_stream

_AWAY_MS, _STEP_MS = 22_000, 250
_SOON_MS = 2_000


def test_they_go_on_soon_after_it_has_arrived() -> None:
    """However long that took: whoever waits for a commit, or a seal, would wait on for ten seconds."""

    async def main() -> None:
        async with with_stream() as (controller, store, clock):
            is_away = True

            async def before(command: Command) -> None:
                if is_away and isinstance(command, wire.SealSegment):
                    raise NotOwnerError(command.segment)

            store.before = before
            sealing = asyncio.create_task(controller.seal_stream(STREAM))
            for _ in range(_AWAY_MS // _STEP_MS):
                await clock.advance(_STEP_MS)
            assert not sealing.done()
            is_away = False
            for _ in range(_SOON_MS // _STEP_MS):
                await clock.advance(_STEP_MS)
            await settle()
            assert sealing.done(), "it waits though the container is there again"
            await sealing
            assert (await controller.stream(STREAM)).state is StreamState.SEALED

    asyncio.run(main())
