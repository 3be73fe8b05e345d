"""One client, one fake store, one fake controller, for the length of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nadi.client.aio import StreamManager
from nadi.model.event import whole_events
from nadi.naming import segment_name

from .fake_server import Chaos, FakeController, FakeStore


@dataclass
class World:
    manager: StreamManager
    store: FakeStore
    controller: FakeController

    def stored(self, segment_id: int, stream: str = "st") -> list[bytes]:
        """The events in a segment of the stream sc/st."""
        data = memoryview(bytes(self.store.segments[segment_name("sc", stream, segment_id)].data))
        block, size = whole_events(data)
        assert size == len(data)
        return list(block)

    def all_stored(self) -> list[bytes]:
        """The events of the stream, older epochs first."""
        ids = dict.fromkeys(i for epoch in self.controller.streams["sc", "st"].epochs for i in epoch)
        return [event for i in ids for event in self.stored(i)]


@asynccontextmanager
async def world(segments: int = 1, chaos: Chaos | None = None) -> AsyncIterator[World]:
    store = FakeStore(chaos)
    await store.start()
    controller = FakeController(store)
    controller.add_stream("sc", "st", segments)
    manager = StreamManager(controller=controller)
    try:
        yield World(manager, store, controller)
    finally:
        await manager.close()
        await store.stop()
