"""What the store keeps for itself can't be read: nobody is told a thing that may be wrong, and nobody waits for it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from nadi.client.aio import StreamManager
from nadi.client.control.controller import ControllerClient
from nadi.errors import DataFolderError, RequestTimeoutError, UnavailableError
from nadi.naming import segment_name
from nadi.segmentstore.state.metadata import Metadata
from nadi.wire import commands as wire
from nadi.wire.fields import TableKey

from .harness import connect, open_store

pytestmark = pytest.mark.uvloop

SEGMENT, TABLE = segment_name("sc", "st", 0), segment_name("sc", "table_kvtable", 0)


class _Direct(ControllerClient):
    """Knows one store, and nothing else."""

    store: tuple[str, int]

    async def segment_endpoint(self, segment: str) -> tuple[str, int]:
        return self.store


async def test_state_that_cannot_be_read_ends_requests_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DataFolderError("a record of it is damaged")

    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(SEGMENT)
        await peer.ask(wire.CreateTableSegment(1, TABLE, ""))
    async with open_store(tmp_path, 1) as (store, _):
        address = await store.listen("127.0.0.1", 0)
        monkeypatch.setattr(Metadata, "_get", refuse)
        for command in (
            wire.ReadTable(2, TABLE, "", (TableKey(b"k"),)),
            wire.ReadSegment(SEGMENT, 0, 100, "", 3),
            wire.GetStreamSegmentInfo(4, SEGMENT, ""),
        ):
            peer = await connect(address)
            peer.send(command)
            assert await peer.closed(), command
            with pytest.raises(UnavailableError, match="a record of it is damaged"):
                await store.exchange(command)
        controller = _Direct("nowhere:1", timeout_s=0.3)
        controller.store = address
        async with StreamManager(controller=controller) as manager:
            begun = time.monotonic()
            with pytest.raises(RequestTimeoutError):
                await manager.table("sc", "table").get(b"k")
            with pytest.raises(RequestTimeoutError):
                [block async for block in manager.read_segment_range(SEGMENT, 0, 100)]
            assert time.monotonic() - begun < 20
        monkeypatch.undo()
        await asyncio.sleep(0)
