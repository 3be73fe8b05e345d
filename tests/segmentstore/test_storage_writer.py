"""What the storage writer moves, and when: what is old, what fills a chunk, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from nadi.model.framing import frame_events
from nadi.segmentstore import state as state_module
from nadi.segmentstore.tier2 import writer as storage_writer
from nadi.wire import commands as wire
from tests.segmentstore.harness import WRITER, open_store

LARGE, SMALL = "scope/large/0.#epoch.0", "scope/small/0.#epoch.0"
TXN = SMALL + "#transaction." + "0" * 31 + "1"


def test_only_what_is_due_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "CHUNK_FLUSH_BYTES", 1_000)
    monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", 3600.0)

    async def run() -> None:
        async with open_store(tmp_path, 1) as (store, peer):
            state, tier2 = store.containers[0].state, store.storage_writers[0]
            await tier2.stop()
            for number, segment in enumerate((SMALL, LARGE)):
                await peer.create(segment)
                await peer.setup(segment, bytes([number]) * 16)
                for last in range(1, 4):
                    await peer.append([bytes(400 * number + 10)], last, bytes([number]) * 16)
            assert await tier2.flush_once()
            assert not await tier2.flush_once()
            large, small = state.find(LARGE), state.find(SMALL)
            assert large is not None
            assert small is not None
            assert (large.log_bytes, small.log_bytes) == (0, 3 * 18)
            monkeypatch.setattr(storage_writer, "CHUNK_FLUSH_AGE_S", -1.0)
            assert await tier2.flush_once()
            assert not await tier2.flush_once()
            assert (small.log_bytes, len(state.frames)) == (0, 0)

    uvloop.run(run())


def test_what_was_merged_is_moved_with_its_new_segment(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_store(tmp_path, 1) as (store, peer):
            state, tier2 = store.containers[0].state, store.storage_writers[0]
            await tier2.stop()
            await peer.create(SMALL)
            await peer.create(TXN)
            await peer.setup(TXN)
            await peer.append([b"older"], 1)
            await peer.setup(SMALL, bytes(16))
            await peer.append([b"newer"], 1, bytes(16))
            await peer.ask(wire.MergeSegments(1, SMALL, TXN, ""))
            await peer.create(TXN + "2")
            await peer.setup(TXN + "2", WRITER)
            await peer.append([b"dropped"], 1)
            await peer.ask(wire.DeleteSegment(2, TXN + "2", ""))
            while await tier2.flush_once(everything=True):
                pass
            assert not state.frames
            assert await peer.read_all(SMALL) == frame_events([b"newer", b"older"])

    uvloop.run(run())
