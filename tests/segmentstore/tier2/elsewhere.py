"""A segment store whose chunks are in a fake S3, and its events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nadi.model.framing import frame_events
from nadi.segmentstore.data_dir import Tier2
from nadi.segmentstore.store import SegmentStore
from tests.segmentstore.harness import Peer, connect
from tests.support.fake_s3.objects import Object
from tests.support.fake_s3.server import FakeS3

SEGMENT = "scope/stream/0.#epoch.0"
URL = "s3://bucket/chunks"


@asynccontextmanager
async def opened(folder: Path, fake: FakeS3, url: str = URL) -> AsyncIterator[tuple[SegmentStore, Peer]]:
    """Open a store whose storage writer moves data only on request."""
    async with opened_as(folder, Tier2(url, fake.config())) as (store, peer):
        yield store, peer


@asynccontextmanager
async def opened_as(folder: Path, tier2: Tier2 | None) -> AsyncIterator[tuple[SegmentStore, Peer]]:
    store = SegmentStore(folder, 1, tier2=tier2)
    try:
        await store.start()
        for writer in store.storage_writers:
            await writer.stop()
        peer = await connect(await store.listen("127.0.0.1", 0))
        yield store, peer
        peer.close()
    finally:
        await store.close()


async def again(peer: Peer) -> Peer:
    """Reconnect to the server, which closes a connection after a temporary error."""
    peer.close()
    host, port = peer._writer.get_extra_info("peername")[:2]
    return await connect((host, port))


async def append(peer: Peer, first: int, last: int) -> None:
    """Append events with these numbers."""
    if first == 1:
        await peer.create(SEGMENT)
    await peer.setup(SEGMENT)
    for number in range(first, last + 1):
        await peer.append([event(number)], number)


def event(number: int) -> bytes:
    return bytes([number]) * 1_000


def expected(last: int) -> bytes:
    return frame_events([event(number) for number in range(1, last + 1)])


async def move(store: SegmentStore) -> None:
    """Move everything in the log."""
    while await store.storage_writers[0].flush_once(everything=True):
        pass


def chunks(fake: FakeS3) -> dict[str, Object]:
    return {key: found for key, found in fake.objects.now.items() if "/container-0/" in key and "snapshots" not in key}
