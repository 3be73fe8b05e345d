"""How much of each segment a group has not read yet, and waiting until there is something: at the tails of all of its
segments, where the server answers once there is data, so that nobody asks again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress

from nadi.client.manager.streams import StreamManager, stores_of
from nadi.client.readergroup.state import GroupState
from nadi.client.segments.info import segment_info
from nadi.client.segments.segment_input import read_bytes
from nadi.errors import NadiError, SegmentNotFoundError, TruncatedError, UnavailableError
from nadi.functions.plan import Ends
from nadi.limits import FUNCTION_PROBES

_AGAIN_S = 1.0  # after an error at a tail


async def ends_of(manager: StreamManager, state: GroupState) -> Mapping[str, Ends]:
    """Return the group's position in each of its segments and the tail; a segment that is sealed, or was truncated
    away, and only has to be left, has one byte after its position."""
    stores, limit = stores_of(manager), asyncio.Semaphore(FUNCTION_PROBES)

    async def ends(segment: str, offset: int) -> Ends:
        async with limit:
            try:
                info = await segment_info(stores, segment)
            except SegmentNotFoundError:
                return Ends(offset, offset + 1)
        handled = max(offset, info.start_offset)
        return Ends(handled, max(info.write_offset, handled + info.is_sealed))

    active = {name: held.offset for name, held in state.segments.items() if held.is_active}
    found = await asyncio.gather(*(ends(name, offset) for name, offset in active.items()))
    return dict(zip(active, found, strict=True))


async def wait_for_data(manager: StreamManager, state: GroupState, purpose: str) -> None:
    """Return once there is something to do after the group's position in any of its segments.

    purpose: names the connections used, which are given back.
    """
    stores = stores_of(manager)

    async def wait(segment: str, offset: int) -> None:
        while True:
            try:
                async with aclosing(
                    read_bytes(stores, segment, offset, None, purpose=purpose, read_ahead_bytes=1)
                ) as pieces:
                    async for _ in pieces:
                        return
                return  # sealed
            except (TruncatedError, SegmentNotFoundError):
                return
            except UnavailableError:
                await asyncio.sleep(_AGAIN_S)

    waits = [asyncio.create_task(wait(name, held.offset)) for name, held in state.segments.items() if held.is_active]
    try:
        if waits:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
    finally:
        for one in waits:
            one.cancel()
        for one in waits:
            with suppress(asyncio.CancelledError, NadiError):
                await one
        stores.release(purpose)
