"""A chunk is deleted only when it is durably garbage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nadi.errors import UnavailableError
from nadi.segmentstore import storage_writer
from nadi.segmentstore.state.operations import ChunksDropped
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from tests.segmentstore.harness import Peer, open_store


async def test_what_became_garbage_in_a_frame_that_failed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_writer, "CHUNK_GARBAGE_DELAY_S", 0.0)
    await _scenario(tmp_path, monkeypatch)


async def _scenario(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(folder, containers=1) as (store, _):
        container, tier2 = store.containers[0], store.storage_writers[0]
        await tier2.stop()
        chunks = tier2._chunks
        await chunks.put("container-0/live", [b"da", b"ta"])
        appending, release = asyncio.Event(), asyncio.Event()

        async def fail(_: Any) -> Any:
            appending.set()
            await release.wait()
            raise OSError(5, "the disk failed")

        monkeypatch.setattr(container.log, "append", fail)
        dropping = asyncio.create_task(container.call(lambda frame: frame.emit(ChunksDropped(["container-0/live"]))))
        await appending.wait()
        collecting = asyncio.create_task(tier2._collect_garbage())
        await asyncio.sleep(0)
        release.set()
        for task in (dropping, collecting):
            with pytest.raises(UnavailableError):
                await task
        assert bytes(await chunks.read("container-0/live", 0, 4)) == b"data"


async def test_a_chunk_goes_once_the_head_has_passed_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_writer, "CHUNK_GARBAGE_DELAY_S", 0.0)
    name, event = "scope/stream/0.#epoch.0", bytes(1_000)

    def chunks() -> set[str]:
        return {path.name.partition("-")[0] for path in (tmp_path / "tier2" / "container-0").rglob("*-*")}

    async def truncated(peer: Peer, store: SegmentStore, offset: int) -> set[str]:
        assert isinstance(await peer.ask(wire.TruncateSegment(1, name, offset, "")), wire.SegmentTruncated)
        await store.storage_writers[0]._collect_garbage()
        return chunks()

    async with open_store(tmp_path, containers=1) as (store, peer):
        tier2 = store.storage_writers[0]
        await tier2.stop()
        await peer.create(name)
        await peer.setup(name)
        for number in range(1, 5):
            await peer.append([event, event], number)
            assert await tier2.flush_once(everything=True)
        first, second, third, fourth = sorted(chunks())
        assert await truncated(peer, store, 1_008) == {first, second, third, fourth}, "half of it"
        assert await truncated(peer, store, 3 * 2_016) == {fourth}
        assert await truncated(peer, store, 3 * 2_016 + 1_008) == {fourth}
        await peer.append([event, event], 5)
        await peer.ask(wire.TruncateSegment(1, name, 4 * 2_016 + 1_008, ""))
        assert await tier2.flush_once(everything=True), "what was truncated halfway in the log is moved too"
        assert not store.containers[0].state.frames
    async with open_store(tmp_path, containers=1) as (store, peer):
        assert len(await peer.read_all(name, 4 * 2_016 + 1_008)) == 1_008
        await store.storage_writers[0].stop()
        await store.storage_writers[0]._collect_garbage()
        assert len(chunks() - {fourth}) == 1
        await peer.ask(wire.DeleteSegment(1, name, ""))
        await store.storage_writers[0]._collect_garbage()
        assert chunks() == set()
