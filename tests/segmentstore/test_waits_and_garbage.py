"""What waits at segments' tails is nothing for the collector of garbage to walk, and is gone with who waits."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest
import uvloop

from nadi.limits import CONNECTION_READS_WAITING
from nadi.segmentstore.server.reads import Reads
from nadi.wire import commands as wire
from tests.segmentstore.harness import connect, open_store

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
CROWD = 5


async def test_waits_are_not_walked_by_the_collector(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (store, peer):
        await peer.create(S)
        crowd = [await connect(store.address) for _ in range(CROWD)]
        record = store.container_of(S).state.find(S)
        assert record is not None
        gc.collect()
        before = len(gc.get_objects())
        for reader in crowd:
            reader.send(*(wire.ReadSegment(S, 0, 1000, "", number) for number in range(CONNECTION_READS_WAITING)))
        async with asyncio.timeout(60):
            while len(record.waiters) < CROWD * CONNECTION_READS_WAITING:  # noqa: ASYNC110 - of another loop's turns
                await asyncio.sleep(0.01)
        assert len(gc.get_objects()) - before < CROWD * CONNECTION_READS_WAITING // 3  # something else may run here
        for reader in crowd:
            reader.close()


def test_waits_that_nobody_ended_are_garbage_with_their_connection_and_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a loop is given up: what is not walked must keep nothing alive."""
    monkeypatch.setattr(Reads, "close", lambda self: None)
    seen = list[weakref.ref[object]]()
    others = weakref.WeakSet(each for each in gc.get_objects() if isinstance(each, Reads))

    async def main() -> None:
        async with open_store(tmp_path) as (store, peer):
            await peer.create(S)
            peer.send(*(wire.ReadSegment(S, 0, 1000, "", number) for number in range(10)))
            container = store.container_of(S)
            record = container.state.find(S)
            assert record is not None
            async with asyncio.timeout(60):
                while len(record.waiters) < 10:  # noqa: ASYNC110 - of another loop's turns
                    await asyncio.sleep(0.01)
            (made,) = [
                each for each in gc.get_objects() if isinstance(each, Reads) and each._waits and each not in others
            ]
            seen.extend(weakref.ref(each) for each in (made, record, container))

    uvloop.run(main())
    gc.collect()
    assert [each() for each in seen] == [None] * 3
