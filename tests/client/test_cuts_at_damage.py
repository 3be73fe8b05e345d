"""Where data is damaged, one wants to truncate up to it, or to cut around it: its two ends are positions of a cut."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

import nadi
from nadi.client import StreamManager
from nadi.errors import DamagedDataError, InvalidStreamCutError
from nadi.limits import MIB
from nadi.model.streamcut import StreamCut
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from tests.segmentstore.harness import open_store
from tests.segmentstore.test_stored_bytes import move

EVENTS, EVENT_BYTES = 100, 8 + 100_000
DAMAGED_BLOCKS = 1, 4


def event(number: int) -> bytes:
    return f"event {number:04}".encode().ljust(EVENT_BYTES - 8, b".")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a chunk of which two blocks are damaged."""
    folder = tmp_path_factory.mktemp("damaged") / "data"

    async def move_all() -> None:
        async with open_store(folder, 1) as (store, _):
            await move(store)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(StorageWriter, "start", lambda _: None)  # one chunk, moved at one moment: below
        later = {"NADI_LIMITS": "storage_writer_tick_s=600"}
        with (
            nadi.embedded(folder, containers=1, environment=later) as server,
            StreamManager(server.controller_uri) as manager,
        ):
            manager.create_scope("s")
            manager.create_stream("s", "t", 1)
            with manager.create_writer("s", "t") as writer:
                writer.write_batch([event(number) for number in range(EVENTS)], "key")
        uvloop.run(move_all())
    chunks = [path for path in folder.glob("tier2/container-0/*/*") if path.is_file()]
    (chunk,) = [path for path in chunks if path.stat().st_size > 8 * MIB]
    data = bytearray(chunk.read_bytes())
    for block in DAMAGED_BLOCKS:
        data[block * BLOCK_BYTES + 5] ^= 1
    chunk.write_bytes(data)
    return folder


@pytest.fixture
def manager(base: Path, tmp_path: Path) -> Iterator[StreamManager]:
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    with nadi.embedded(tmp_path) as server, StreamManager(server.controller_uri) as manager:
        yield manager


def cut(offset: int) -> StreamCut:
    return StreamCut("s", "t", {0: offset})


def stretches(manager: StreamManager) -> list[DamagedDataError]:
    """What a reader is told."""
    with manager.create_reader("s", "t", end=manager.stream_info("s", "t").tail, on_damage="skip") as reader:
        for _ in reader:
            pass
        return reader.skipped


def read(manager: StreamManager, start: int, end: int) -> list[bytes]:
    return [found.data for found in manager.read_events("s", "t", start=cut(start), end=cut(end))]


def test_both_ends_of_damage_are_positions(manager: StreamManager) -> None:
    cuts = manager.cuts("s", "t")
    first, second = stretches(manager)
    assert first.end_offset < second.offset
    for damage, block in zip((first, second), DAMAGED_BLOCKS, strict=True):
        assert damage.offset < block * BLOCK_BYTES < damage.end_offset
        for offset in (damage.offset, damage.end_offset):
            cuts.check(cut(offset))
        # a damaged block begins within an event: put back from a copy, it would be read from the midst of that
        for offset in (damage.offset + 1, block * BLOCK_BYTES, block * BLOCK_BYTES + 1, damage.end_offset + 1):
            with pytest.raises((InvalidStreamCutError, DamagedDataError)):
                cuts.check(cut(offset))
    cuts.check(cut((EVENTS - 1) * EVENT_BYTES))
    pieces = [(0, first.offset), (first.end_offset, second.offset), (second.end_offset, EVENTS * EVENT_BYTES)]
    for begin, end in pieces:
        assert read(manager, begin, end) == [
            event(number) for number in range(begin // EVENT_BYTES, end // EVENT_BYTES)
        ]


@pytest.mark.parametrize("place", ["begin", "end"])
def test_a_stream_is_truncated_at_damage(manager: StreamManager, place: str) -> None:
    first, second = stretches(manager)
    offset = first.offset if place == "begin" else first.end_offset
    manager.truncate_stream(cut(offset))
    assert manager.stream_info("s", "t").head == cut(offset)
    told = [(offset, first.end_offset)] if place != "end" else []
    assert [(damage.offset, damage.end_offset) for damage in stretches(manager)] == [
        *told,
        (second.offset, second.end_offset),
    ]
    manager.truncate_stream(cut(second.end_offset))
    assert stretches(manager) == []
    left = read(manager, second.end_offset, EVENTS * EVENT_BYTES)
    assert left == [event(number) for number in range(second.end_offset // EVENT_BYTES, EVENTS)]


def test_event_times_are_looked_up_before_damage_that_reaches_the_end(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    (chunk,) = [path for path in tmp_path.glob("tier2/container-0/*/*") if path.stat().st_size > 8 * MIB]
    data = bytearray(chunk.read_bytes())
    data[-5] ^= 1
    chunk.write_bytes(data)
    with nadi.embedded(tmp_path) as server, StreamManager(server.controller_uri) as manager:
        manager.update_stream("s", "t", event_time="at")
        cuts = manager.cuts("s", "t")
        assert cuts.after_event_time(0) == cuts.tail(), "nobody knows what is there"
        assert stretches(manager)[-1].end_offset == EVENTS * EVENT_BYTES
