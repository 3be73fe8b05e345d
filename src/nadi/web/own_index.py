"""The index of events' own times, brought up to date by the server for retention by them, where nobody cuts by them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nadi.model.event_time import EventTime
from nadi.web.door import Door

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager


class OwnIndex:
    """A client of this server itself, opened once it is needed."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._manager: StreamManager | None = None
        self._loading = asyncio.Lock()

    async def bring_up(self, name: tuple[str, str], event_time: str, segments: Iterable[int]) -> None:
        """Index what these segments have now."""
        async with self._loading:
            opening, streams, index = await asyncio.to_thread(_loaded)  # its imports take half a second
            if self._manager is None:
                self._manager = opening.open_client(self._door, self._door.token)
        await index.index_times(streams.stores_of(self._manager), *name, EventTime.parse(event_time), [*segments])

    async def close(self) -> None:
        if self._manager is not None:
            await self._manager.close()


def _loaded() -> Any:
    modules = "nadi.web.opening", "nadi.client.manager.streams", "nadi.client.places.event_index"
    return [import_module(module) for module in modules]
