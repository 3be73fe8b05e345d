"""Readers and a store that is away, refuses, keeps back or has damaged what they ask for: each wait has its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nadi.client.manager.streams import stores_of
from nadi.client.manager.structures import open_byte_reader
from nadi.client.state_sync.revisioned_stream import open_revisioned_stream
from nadi.errors import DamagedDataError, InvalidArgumentError, ProtocolError, RequestTimeoutError
from nadi.limits import READ_REPLY_MAX_BYTES
from nadi.model.streamcut import StreamCut
from tests.support.waiting import until_async

from .fake_server import Chaos
from .world import World, world

SEGMENT = "sc/st/0.#epoch.0"
EVENT_BYTES = 10  # with its header
EVENTS = [b"%02d" % number for number in range(10)]
TIMEOUT_S = 0.3  # of the client
SOON_S = 60.0  # a test that takes longer hangs


async def filled(w: World, timeout_s: float = SOON_S) -> World:
    writer = await w.manager.create_writer("sc", "st")
    await writer.write_batch(EVENTS, "k")
    w.controller.timeout_s = timeout_s
    return w


async def by_blocks(w: World) -> object:
    return await (await w.manager.create_reader("sc", "st")).next_block()


async def by_range(w: World) -> object:
    return [block async for block in w.manager.read_segment_range(SEGMENT, 0, 100)]


async def by_bytes(w: World) -> object:
    reader = await open_byte_reader(stores_of(w.manager), "sc", "st", start=0, follow=False, timeout=None)
    return await reader.read(100)


async def by_following_bytes(w: World) -> object:
    reader = await open_byte_reader(stores_of(w.manager), "sc", "st", start=0, follow=True, timeout=None)
    return await reader.read(100)


async def by_records(w: World) -> object:
    stream = await open_revisioned_stream(stores_of(w.manager), "sc", "st")
    return [record async for record in stream.read(0, 100)]


EVERY = [by_blocks, by_range, by_bytes, by_following_bytes, by_records]
every_reader = pytest.mark.parametrize("read", EVERY, ids=lambda read: read.__name__)
Read = Callable[[World], Awaitable[object]]


@every_reader
@pytest.mark.parametrize("trouble", ["refuses_reads", "ignores_reads"])
async def test_a_store_that_never_answers_a_read_is_given_up_in_time(read: Read, trouble: str) -> None:
    async with world(1) as w:
        await filled(w, TIMEOUT_S)
        setattr(w.store, trouble, True)
        with pytest.raises(RequestTimeoutError, match=r"0\.3 s"):
            await asyncio.wait_for(read(w), SOON_S)


@every_reader
async def test_damage_is_told_with_its_place(read: Read) -> None:
    async with world(1) as w:
        await filled(w)
        w.store.damage = [(0, 40)]
        with pytest.raises(DamagedDataError, match="it rusted") as told:
            await asyncio.wait_for(read(w), SOON_S)
        assert (told.value.segment, told.value.offset, told.value.end_offset) == (SEGMENT, 0, 40)


async def take_all(reader: Any, given: list[bytes]) -> None:
    while found := await asyncio.wait_for(reader.next_block(), SOON_S):
        given += found[1].events()


async def rest_of(reader: Any) -> list[bytes]:
    found: list[bytes] = []
    while sum(map(len, found)) < 2 * len(EVENTS) and (block := await asyncio.wait_for(reader.next_block(), SOON_S)):
        found += block[1].events()
        if found[-1] == EVENTS[-1]:
            break
    return found


@pytest.mark.parametrize("trouble", ["refuses_reads", "ignores_reads"])
async def test_a_reader_goes_on_where_it_was_given_up(trouble: str) -> None:
    async with world(1, Chaos(largest_read=30)) as w:
        await filled(w)
        reader = await w.manager.create_reader("sc", "st", start=StreamCut("sc", "st", {0: 20}))
        w.controller.timeout_s = TIMEOUT_S
        setattr(w.store, trouble, True)
        w.store.drop_all()
        given: list[bytes] = []
        with pytest.raises(RequestTimeoutError):
            await take_all(reader, given)  # what was read before the trouble
        with pytest.raises(RequestTimeoutError):  # told again, after another wait
            await asyncio.wait_for(reader.next_block(), SOON_S)
        assert reader.position().positions == {0: 20 + EVENT_BYTES * len(given)}
        w.controller.timeout_s = SOON_S
        setattr(w.store, trouble, False)
        w.store.drop_all()
        assert given + await rest_of(reader) == EVENTS[2:]


@pytest.mark.parametrize("reply_bytes", [42_799, 95_325, 2_713, 53_773, 116_508])
async def test_the_few_last_bytes_of_a_short_reply(reply_bytes: int) -> None:
    """A server gives at least eight bytes: more than the rest that was asked for, while the next read is in flight."""
    assert READ_REPLY_MAX_BYTES % reply_bytes in range(1, 9)
    events = [number.to_bytes(2, "big") * 500_000 for number in range(7)]
    async with world(1, Chaos(largest_read=reply_bytes)) as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_batch(events, "k")
        tail = (await w.manager.stream_info("sc", "st")).tail
        async for part in w.manager.read_batches("sc", "st", end=tail):
            assert part == events[: len(part)]
            del events[: len(part)]
    assert not events


async def test_of_many_segments_one_tells_that_the_store_is_away() -> None:
    async with world(8) as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_batch(EVENTS, [str(number) for number in range(10)])
        w.store.refuses_reads = True
        reader = await w.manager.create_reader("sc", "st")
        w.controller.timeout_s = TIMEOUT_S
        await until_async(lambda: all(source.error is not None for source in reader._sources.values()))
        w.store.refuses_reads = False
        w.controller.timeout_s = SOON_S
        with pytest.raises(RequestTimeoutError):
            await reader.next_block()
        found: list[bytes] = []
        while len(found) < len(EVENTS):
            block = await asyncio.wait_for(reader.next_block(), SOON_S)
            assert block is not None
            found += block[1].events()
        assert sorted(found) == EVENTS


async def test_a_store_that_was_away_for_less_is_not_noticed() -> None:
    async with world(1) as w:
        await filled(w)
        w.store.refuses_reads = True
        reading = asyncio.create_task(by_blocks(w))
        await until_async(lambda: w.store.reads > 3)
        assert not reading.done()
        w.store.refuses_reads = False
        assert await asyncio.wait_for(reading, SOON_S) is not None


async def waits_for(w: World, reader: Any, event: bytes) -> None:
    """Longer than the client does for its server."""
    waiting = asyncio.create_task(reader.next_block())
    assert w.controller.timeout_s == TIMEOUT_S
    await asyncio.sleep(4 * TIMEOUT_S)
    assert not waiting.done()
    w.controller.timeout_s = SOON_S
    writer = await w.manager.create_writer("sc", "st")
    await writer.write_event(event, "k")
    found = await asyncio.wait_for(waiting, SOON_S)
    assert found is not None
    assert found[1].events() == [event]


async def test_at_the_tail_nothing_is_owed() -> None:
    async with world(1) as w:
        await filled(w, TIMEOUT_S)
        reader = await w.manager.create_reader("sc", "st")
        assert await rest_of(reader) == EVENTS
        await waits_for(w, reader, b"at last")


async def test_a_read_that_was_taken_at_the_tail_starts_the_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.client.segments.segment_input._TAKEN_S", 0.05)

    async with world(1) as w:
        await filled(w, timeout_s=0.4)
        reader = await w.manager.create_reader("sc", "st")
        assert await rest_of(reader) == EVENTS
        waiting = asyncio.create_task(reader.next_block())
        for _ in range(5):
            await asyncio.sleep(0.1)
            before = w.store.reads
            w.store.drop_all()
            await until_async(lambda: w.store.reads > before)  # noqa: B023
        assert not waiting.done()
        w.store.refuses_reads = True
        w.store.drop_all()
        with pytest.raises(RequestTimeoutError):
            await asyncio.wait_for(waiting, SOON_S)


async def test_an_end_that_the_segment_has_not_reached_is_waited_for() -> None:
    async with world(1) as w:
        await filled(w, TIMEOUT_S)
        cut = StreamCut("sc", "st", {0: 110})
        reader = await w.manager.create_reader("sc", "st", end=cut)
        assert await rest_of(reader) == EVENTS
        await waits_for(w, reader, b"xx")
        assert await asyncio.wait_for(reader.next_block(), SOON_S) is None


async def test_damage_is_told_once_and_reading_goes_on_behind_it() -> None:
    async with world(1) as w:
        await filled(w)
        w.store.damage = [(25, 40), (70, 80)]  # the first begins within an event
        reader = await w.manager.create_reader("sc", "st", end=StreamCut("sc", "st", {0: 100}))
        given: list[bytes] = []
        gaps: list[tuple[int, int]] = []
        for _ in range(20):
            try:
                found = await asyncio.wait_for(reader.next_block(), SOON_S)
            except DamagedDataError as gap:
                gaps.append((gap.offset, gap.end_offset))
                continue
            if found is None:
                break
            given += found[1].events()
        assert gaps == [(20, 40), (70, 80)]
        assert given == [event for number, event in enumerate(EVENTS) if number not in (2, 3, 7)]
        assert reader.position().positions == {0: 100}
        assert reader.skipped == []


def test_damage_is_skipped_on_demand_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with world(1) as w:
            await filled(w)
            w.store.damage = [(0, 10), (45, 60), (90, 130)]
            end = StreamCut("sc", "st", {0: 100})
            left = [event for number, event in enumerate(EVENTS) if number not in (0, 4, 5, 9)]
            reader = await w.manager.create_reader("sc", "st", end=end, on_damage="skip")
            given: list[bytes] = []
            await take_all(reader, given)
            assert given == left
            assert [(gap.offset, gap.end_offset) for gap in reader.skipped] == [(0, 10), (40, 60), (90, 130)]
            assert reader.position().positions == {0: 100}
            events = [event.data async for event in w.manager.read_events("sc", "st", end=end, on_damage="skip")]
            assert events == left
            blocks = [block async for block in w.manager.read_segment_range(SEGMENT, 0, 100, on_damage="skip")]
            assert [event for block in blocks for event in block.events()] == left
            wrong: Any = "ignore"
            with pytest.raises(InvalidArgumentError, match="on_damage"):
                await w.manager.create_reader("sc", "st", on_damage=wrong)

    with caplog.at_level(logging.WARNING, "nadi.client"):
        asyncio.run(run())
    assert sum("it rusted" in line for line in caplog.messages) == 9


async def test_damage_that_ends_before_what_was_asked_for_is_no_way_on() -> None:
    async with world(1) as w:
        await filled(w)
        w.store.damage = [(0, 40)]
        reader = await w.manager.create_reader("sc", "st", start=StreamCut("sc", "st", {0: 40}))
        assert await rest_of(reader) == EVENTS[4:]
        w.store.lies = True
        lied_to = await w.manager.create_reader("sc", "st", on_damage="skip")
        with pytest.raises(ProtocolError):
            await asyncio.wait_for(lied_to.next_block(), SOON_S)


@pytest.mark.parametrize("damage", [(18, 19), (19, 20), (15, 30), (13, 20)])
async def test_damage_that_ends_within_an_event_is_skipped_to_the_events_end(damage: tuple[int, int]) -> None:
    """As in a large event, of several appends: the server goes on at the next of these."""

    async with world(1) as w:
        await filled(w)
        w.store.damage = [damage]
        last = 3 if damage[1] == 30 else 2
        reader = await w.manager.create_reader("sc", "st", on_damage="skip")
        found: list[bytes] = []
        while len(found) < len(EVENTS) + 1 - last:
            block = await asyncio.wait_for(reader.next_block(), SOON_S)
            assert block is not None
            found += list(block[1])
        assert found == [EVENTS[0], *EVENTS[last:]]
        assert [(gap.offset, gap.end_offset) for gap in reader.skipped] == [(10, 10 * last)]
        blocks = w.manager.read_segment_range(SEGMENT, 0, 100, on_damage="skip")
        assert [event async for block in blocks for event in block] == found
