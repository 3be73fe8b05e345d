"""A single command to a segment's store, which the client library wouldn't send."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from nadi.client import aio
from nadi.client.manager.streams import stores_of
from nadi.client.segments.stores import SegmentRequest
from nadi.wire import commands as wire

Answer = TypeVar("Answer", bound=wire.Command)


def ask(uri: str, request: SegmentRequest, answer: type[Answer]) -> Answer:
    """Return the store's reply."""

    async def asked() -> Answer:
        async with aio.StreamManager(uri) as manager:
            return await stores_of(manager).ask(request, answer)

    return asyncio.run(asked())
