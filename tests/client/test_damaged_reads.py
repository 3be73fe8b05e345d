"""A server that has lost a file of its data: every kind of reader is told soon, and all else is read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from nadi.cli.app import app
from nadi.client import StreamManager, aio
from nadi.client.serializers.plain import Bytes
from nadi.errors import DamagedDataError

from .damaged_server import ALL, EVENT_BYTES, GAP, LEFT, PART_BYTES, PARTS, SEGMENT, damaged_server


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with damaged_server(tmp_path_factory.mktemp("server") / "data") as uri:
        yield uri


@pytest.fixture
def manager(uri: str) -> Iterator[StreamManager]:
    with StreamManager(uri, timeout=60) as manager:
        yield manager


def test_a_lost_chunk_is_told_with_its_place(manager: StreamManager) -> None:
    end = manager.stream_info("sc", "events").tail
    reads: list[Iterable[object]] = [
        manager.read_events("sc", "events", end=end),
        manager.read_events("sc", "events", end=end, serializer=Bytes()),
        manager.read_batches("sc", "events", end=end),
        manager.read_segment_range(SEGMENT, 0, PARTS * PART_BYTES),
    ]
    for read in reads:
        begun = time.monotonic()
        with pytest.raises(DamagedDataError) as told:
            list(read)
        assert (told.value.segment, told.value.offset, told.value.end_offset) == (SEGMENT, *GAP)
        assert time.monotonic() - begun < 30


def test_skipped_it_is_a_gap_and_all_else_is_read(manager: StreamManager, caplog: pytest.LogCaptureFixture) -> None:
    end = manager.stream_info("sc", "events").tail
    with caplog.at_level(logging.WARNING, "nadi.client"):
        with manager.create_reader("sc", "events", end=end, on_damage="skip") as reader:
            found = [data for _, block in reader for data in block.events()]
            assert [(gap.offset, gap.end_offset) for gap in reader.skipped] == [GAP]
        assert found == LEFT
        batches = manager.read_batches("sc", "events", end=end, on_damage="skip")
        assert [data for batch in batches for data in batch] == LEFT
        values = manager.read_events("sc", "events", end=end, serializer=Bytes(), on_damage="skip")
        assert [value.value for value in values] == LEFT
        blocks = manager.read_segment_range(SEGMENT, 0, PARTS * PART_BYTES, on_damage="skip")
        assert [data for block in blocks for data in block.events()] == LEFT
    assert sum(message.startswith("skipped: ") for message in caplog.messages) == 4


def test_a_slice_can_skip_it_too(uri: str, manager: StreamManager) -> None:
    head, tail = manager.stream_info("sc", "events").head, manager.stream_info("sc", "events").tail
    manager.slices("sc").create("all", head, tail)
    with manager.open_slice("sc", "all") as reader, pytest.raises(DamagedDataError):
        list(reader)
    with manager.open_slice("sc", "all", on_damage="skip") as reader:
        assert [data for _, block in reader for data in block.events()] == LEFT
        assert [(gap.offset, gap.end_offset) for gap in reader.skipped] == [GAP]

    async def by_asyncio() -> list[bytes]:
        async with aio.StreamManager(uri, timeout=60) as other:
            reader = await other.open_slice("sc", "all", on_damage="skip")
            return [data async for _, block in reader for data in block.events()]

    assert asyncio.run(by_asyncio()) == LEFT
    told = CliRunner().invoke(app, ["read", "sc", "all", "--slice", "--controller", uri])
    assert (told.exit_code, "can't be read" in told.output) == (1, True)
    left = CliRunner().invoke(app, ["read", "sc", "all", "--slice", "--on-damage", "skip", "--controller", uri])
    assert (left.exit_code, left.stdout_bytes) == (0, b"".join(data + b"\n" for data in LEFT))
    assert CliRunner().invoke(app, ["read", "sc", "all", "--on-damage", "skipp"]).exit_code == 2


@pytest.mark.parametrize("on_damage", ["raise", "skip"])
def test_a_group_is_told_once_and_goes_on(manager: StreamManager, on_damage: Any) -> None:
    groups = manager.reader_group_manager("sc")
    end = manager.stream_info("sc", "events").tail
    groups.create_reader_group(f"group-{on_damage}", "events", ends=[end])
    group = groups.get_reader_group(f"group-{on_damage}")
    found: list[bytes] = []
    gaps: list[tuple[str, int, int | None]] = []
    with group.create_reader("one", on_damage=on_damage) as reader:
        for _ in range(10 * len(ALL)):
            try:
                read = reader.read_next_event(60)
            except DamagedDataError as error:
                gaps.append(("raise", error.offset, error.end_offset))
                continue
            assert read is not None
            if read.is_read_completed:
                break
            found += read.events
            if read.gap is not None:
                assert read.gap.damage
                gaps.append(("skip", read.gap.from_offset, read.gap.to_offset))
    assert found == LEFT
    assert gaps == [(on_damage, *GAP)]


def test_a_byte_reader_is_told_where_to_go_on(manager: StreamManager) -> None:
    with manager.create_byte_reader("sc", "bytes", timeout=60) as reader:
        assert reader.read(PART_BYTES).startswith(b"bytes part 0")
        with pytest.raises(DamagedDataError) as told:
            reader.read(1)
        assert (told.value.offset, told.value.end_offset) == GAP
        reader.seek(told.value.end_offset)
        assert reader.read(PART_BYTES).startswith(b"bytes part 2")


def test_shared_state_is_not_made_of_a_part_of_its_records(manager: StreamManager) -> None:
    with pytest.raises(DamagedDataError):
        manager.shared_map("sc", "state", value_type=str)


async def test_a_boundary_is_not_guessed_where_its_events_are_lost(uri: str) -> None:
    async with aio.StreamManager(uri, timeout=60) as manager:
        stream = await manager.revisioned_stream("sc", "events")
        assert await stream.boundary(EVENT_BYTES + 1) == 2 * EVENT_BYTES
        with pytest.raises(DamagedDataError):
            await stream.boundary(GAP[0] + 1)
