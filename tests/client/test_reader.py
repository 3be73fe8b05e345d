"""The reader: slices, the tail, order across splits and merges, resuming at positions."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.client.aio import SliceReader
from nadi.client.manager.streams import stores_of
from nadi.client.reading import read_ahead
from nadi.client.segments.assemble import EventAssembler
from nadi.errors import (
    InvalidArgumentError,
    InvalidStreamCutError,
    PastEndError,
    RequestTimeoutError,
    StreamNotFoundError,
    TruncatedError,
)
from nadi.model.event import whole_events
from nadi.model.framing import frame_events
from nadi.model.readergroup import NamedRange
from nadi.model.streamcut import StreamCut
from tests.support.waiting import until_async

from .fake_server import Chaos
from .test_writer import in_order, rescale_somehow
from .world import world


@given(st.lists(st.binary(max_size=40), max_size=30), st.lists(st.integers(1, 50), min_size=1))
def test_events_are_assembled_from_any_pieces(events: list[bytes], sizes: list[int]) -> None:
    data = memoryview(frame_events(events))
    assembler = EventAssembler(1000)
    assembled: list[bytes] = []
    offsets: list[int] = []
    position, turn = 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        for block in assembler.feed(data[position : position + size]):
            assembled += list(block)
            offsets += block.offsets().tolist()
        position, turn = position + size, turn + 1
    assert assembled == events
    assert offsets == [1000 + sum(8 + len(e) for e in events[:i]) for i in range(len(events))]
    assert assembler.offset == 1000 + len(data)
    assert not assembler.is_within_event


async def drain(reader: SliceReader, timeout: float = 60) -> list[bytes]:
    events: list[bytes] = []
    while (block := await reader.next_block(timeout)) is not None:
        events += list(block[1])
    return events


@pytest.mark.parametrize("seed", [*range(1, 4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 7))])
async def test_events_are_in_order_over_scaling_and_resume_at_any_position(seed: int) -> None:
    async with world(2, Chaos(seed, largest_read=200)) as w:
        choice = random.Random(seed)
        writer = await w.manager.create_writer("sc", "st")
        counts = dict.fromkeys((f"key{i}" for i in range(10)), 0)

        async def write(count: int) -> None:
            for _ in range(count):
                key = choice.choice(list(counts))
                writer.write_event(f"{key}:{counts[key]}".encode(), key)
                counts[key] += 1
            await writer.flush(60)

        cuts = [(await w.manager.stream_info("sc", "st")).head]
        written = [0]
        for _ in range(6):
            await write(choice.randint(0, 60))
            rescale_somehow(w, choice)
            await write(choice.randint(0, 60))
            cuts.append((await w.manager.stream_info("sc", "st")).tail)
            written.append(sum(counts.values()))
        expected = {key.encode(): list(range(n)) for key, n in counts.items() if n}

        all_events = await w.manager.create_reader("sc", "st", start=cuts[0], end=cuts[-1])
        events = await drain(all_events)
        assert in_order(events) == expected
        assert all_events.position() == cuts[-1]

        pieces: list[bytes] = []
        for (low, high), (first, last) in zip(pairwise(cuts), pairwise(written), strict=True):
            part = await drain(await w.manager.create_reader("sc", "st", start=low, end=high))
            assert len(part) == last - first
            pieces += part
        assert in_order(pieces) == expected

        # a reader that stops anywhere, with dropped connections, and resumes at its position
        resumed: list[bytes] = []
        position = cuts[0]
        while position != cuts[-1]:
            reader = await w.manager.create_reader("sc", "st", start=position, end=cuts[-1])
            for _ in range(choice.randint(1, 5)):
                block = await reader.next_block(60)
                if block is not None:
                    resumed += list(block[1])
                if choice.random() < 0.2:
                    w.store.drop_all()
            position = reader.position()
            assert StreamCut.from_text(position.as_text()) == position
            reader.close()
        assert in_order(resumed) == expected


@pytest.mark.parametrize("most_bytes", [0, 300, 1 << 16])
async def test_small_waiting_blocks_are_joined(most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "READ_JOINED_BYTES", most_bytes)
    written = [f"k:{number}".encode() for number in range(50)]

    async with world(1, Chaos(1, largest_read=60)) as w:
        writer = await w.manager.create_writer("sc", "st")
        for event in written:
            await writer.write_event(event, "k")
        end = (await w.manager.stream_info("sc", "st")).tail
        reader = await w.manager.create_reader("sc", "st", end=end)
        (source,) = reader._sources.values()
        await until_async(lambda: source._reached == end.positions[0])
        assert len(source._blocks) > 10
        sizes: list[int] = []
        events: list[bytes] = []
        positions: list[int] = []
        while (next_block := await reader.next_block(60)) is not None:
            _, block = next_block
            assert block.offset == (positions[-1] if positions else 0)
            positions.append(reader.position().positions[0])
            assert positions[-1] == block.offset + block.size_bytes
            sizes.append(block.size_bytes)
            events += list(block)
        assert events == written
        assert source._waiting_bytes == 0
        if most_bytes == 0:
            assert max(sizes) <= 60
        elif most_bytes == 300:
            assert 200 < max(sizes) <= 300
        else:
            assert len(sizes) == 1


async def test_blocks_on_both_sides_of_a_gap_are_not_joined() -> None:
    async with world(1) as w:
        keys = NamedRange("sc/st/0.#epoch.0", 0.0, 1.0)
        source = read_ahead.SegmentSource(
            stores_of(w.manager), keys, 0, None, purpose="test", read_ahead_bytes=1, news=lambda: None
        )
        data = memoryview(frame_events([b"a", b"b"]))
        blocks = [whole_events(data, offset)[0] for offset in (0, 18, 100, 118)]  # 36 to 100 was truncated away
        source._blocks.extend(blocks)
        assert [(block.offset, block.size_bytes) for block in (source.take(), source.take())] == [(0, 36), (100, 36)]
        assert source.peek() is None
        source.close()


async def test_reader_follows_the_tail_until_the_stream_is_sealed() -> None:
    async with world(1) as w:
        writer = await w.manager.create_writer("sc", "st")
        reader = await w.manager.create_reader("sc", "st")
        with pytest.raises(RequestTimeoutError):
            await reader.next_block(0.02)
        events: list[bytes] = []

        async def read() -> None:
            async for _, block in reader:
                events.extend(block)

        reading = asyncio.create_task(read())
        for i in range(20):
            await writer.write_event(f"k:{i}".encode(), "k")
            if i == 5:
                w.store.drop_all()
            if i == 10:
                w.controller.rescale("sc", "st", [0], [(0.0, 0.5), (0.5, 1.0)])
        w.controller.seal_all("sc", "st")
        await asyncio.wait_for(reading, 60)
        assert in_order(events) == {b"k": list(range(20))}
        info = await w.manager.stream_info("sc", "st")
        assert info.is_sealed
        assert reader.position() == info.tail


async def test_events_have_their_segment_and_offset() -> None:
    async with world(1) as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_batch([b"a", b"bb"], "k")
        tail = (await w.manager.stream_info("sc", "st")).tail
        events = [e async for e in w.manager.read_events("sc", "st", end=tail)]
        assert [(e.data, e.segment_id, e.offset) for e in events] == [(b"a", 0, 0), (b"bb", 0, 9)]
        assert [e async for e in w.manager.read_batches("sc", "st", end=tail)] == [[b"a", b"bb"]]


@pytest.mark.parametrize("largest_read", [100, 5000, 1 << 21])
async def test_segment_range_returns_its_events(largest_read: int) -> None:
    async with world(1, Chaos(largest_read=largest_read)) as w:
        writer = await w.manager.create_writer("sc", "st")
        events = [b"%05d" % i * (i % 7) for i in range(2000)]
        await writer.write_batch(events, "k")
        end = (await w.manager.stream_info("sc", "st")).tail.positions[0]
        middle = len(frame_events(events[:1000]))
        for low, high, part in ((0, end, events), (middle, end, events[1000:]), (0, middle, events[:1000])):
            blocks = w.manager.read_segment_range("sc/st/0.#epoch.0", low, high)
            assert [event async for block in blocks for event in block] == part


async def test_truncated_data_and_foreign_cuts_raise() -> None:
    async with world(1) as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_batch([b"a", b"b"], "k")
        w.store.truncate("sc/st/0.#epoch.0", 9)
        reader = await w.manager.create_reader("sc", "st", start=StreamCut("sc", "st", {0: 0}))
        with pytest.raises(TruncatedError) as caught:
            await reader.next_block(60)
        assert (caught.value.offset, caught.value.start_offset) == (0, 9)
        block = await reader.next_block(60)  # raised only once
        assert block is not None
        assert list(block[1]) == [b"b"]
        ended = await w.manager.create_reader(
            "sc", "st", start=StreamCut("sc", "st", {0: 0}), end=StreamCut("sc", "st", {0: 9})
        )
        with pytest.raises(TruncatedError):
            await ended.next_block(60)
        assert await ended.next_block(60) is None
        wrong: Any
        for wrong in ("k", [5]):
            with pytest.raises(InvalidArgumentError):
                await w.manager.create_reader("sc", "st", routing_keys=wrong)
        wrong = "head"
        with pytest.raises(InvalidStreamCutError):
            await w.manager.create_reader("sc", "st", start=wrong)
        for cut in (StreamCut("sc", "other", {0: 0}), StreamCut("sc", "st", {77: 0})):
            with pytest.raises(InvalidStreamCutError):
                await w.manager.create_reader("sc", "st", start=cut)
        early, late = StreamCut("sc", "st", {0: 9}), StreamCut("sc", "st", {0: 18})
        with pytest.raises(InvalidStreamCutError):
            await w.manager.create_reader("sc", "st", start=late, end=early)


async def test_start_past_the_end_raises_past_end_error() -> None:
    async with world(2) as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_batch([b"%d" % i for i in range(10)], [str(i) for i in range(10)])
        end = len(w.store.segments["sc/st/1.#epoch.0"].data)
        before = await w.manager.create_reader("sc", "st", start=StreamCut("sc", "st", {0: 0, 1: end}))
        assert await before.next_block(60)
        past = await w.manager.create_reader("sc", "st", start=StreamCut("sc", "st", {0: 0, 1: end + 1}))
        segments: list[int] = []
        errors: list[tuple[str, int, int]] = []
        while not segments or len(errors) < 2:  # raised by every call, alternating with the other segment's events
            try:
                block = await past.next_block(60)
                assert block is not None
                segments.append(block[0])
            except PastEndError as error:
                errors.append((error.segment, error.offset, error.length))
                await asyncio.sleep(0)
        assert set(segments) == {0}
        assert set(errors) == {("sc/st/1.#epoch.0", end + 1, end)}


async def test_deleted_stream_raises_stream_not_found_error() -> None:
    async with world(1) as w:
        reader = await w.manager.create_reader("sc", "st")
        w.store.delete("sc/st/0.#epoch.0")
        del w.controller.streams["sc", "st"]
        for _ in range(2):
            with pytest.raises(StreamNotFoundError):
                await reader.next_block(60)


async def test_closed_reader_closes_its_connection() -> None:
    async with world(1) as w:
        reader = await w.manager.create_reader("sc", "st")
        with pytest.raises(RequestTimeoutError):
            await reader.next_block(0.05)
        await until_async(lambda: w.store.reads)
        before = len(w.store.connections)
        reader.close()
        await until_async(lambda: len(w.store.connections) < before)
        assert len(w.store.connections) == before - 1
