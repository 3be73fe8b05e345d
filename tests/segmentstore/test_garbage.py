"""A chunk is deleted only when it is durably garbage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nadi.errors import UnavailableError
from nadi.segmentstore import storage_writer
from nadi.segmentstore.state.operations import ChunksDropped
from tests.segmentstore.harness import open_store


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
