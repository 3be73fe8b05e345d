"""Conditional appends while the store drops connections: before it stored an append, and after."""

from __future__ import annotations

import asyncio
import random

import pytest

from nadi.client.manager.streams import stores_of
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import OpenSession
from nadi.errors import ConditionFailedError, RequestTimeoutError
from nadi.model.framing import frame_events
from nadi.naming import segment_name
from nadi.wire import commands as wire
from tests.support.waiting import until_async

from .fake_server import Chaos, FakeConnection
from .world import world

SEGMENT = segment_name("sc", "st", 0)


async def test_bytes_are_stored_once_and_in_order() -> None:
    chance = random.Random(3)
    async with world(chaos=Chaos(seed=3, before=0.2, after=0.2)) as here:
        pieces = [chance.randbytes(chance.randrange(5000)) for _ in range(100)]
        async with await here.manager.create_byte_writer("sc", "st") as writer:
            for piece in pieces:
                await writer.write(piece)
                if chance.random() < 0.5:
                    await writer.flush(60)
        assert bytes(here.store.segments[SEGMENT].data) == b"".join(pieces)
        reader = await here.manager.create_byte_reader("sc", "st")
        assert await reader.read() == b"".join(pieces)


async def test_large_pieces_of_which_several_are_under_way() -> None:
    chance = random.Random(4)
    async with world(chaos=Chaos(seed=4, before=0.1, after=0.1)) as here:
        pieces = [chance.randbytes(300_000) for _ in range(60)]
        async with await here.manager.create_byte_writer("sc", "st") as writer:
            for piece in pieces:
                await writer.write(piece, 60)
        assert bytes(here.store.segments[SEGMENT].data) == b"".join(pieces)


async def test_sessions_are_replaced_while_appends_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when their tokens end soon: each byte and each event is stored once and in order."""
    chance = random.Random(6)
    monkeypatch.setattr(OpenSession, "is_due", property(lambda _: chance.random() < 0.3))
    async with world() as here:
        pieces = [chance.randbytes(300_000) for _ in range(40)]
        async with await here.manager.create_byte_writer("sc", "st") as writer:
            for piece in pieces:
                await writer.write(piece, 60)
        assert here.store.data(SEGMENT) == b"".join(pieces)
        here.controller.add_stream("sc", "more", 1)
        events = [b"%d" % number for number in range(200)]
        sender = await here.manager.create_writer("sc", "more")
        for event in events:
            await sender.write(event, "key")
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        await sender.close(60)
        assert here.store.data(segment_name("sc", "more", 0)) == frame_events(events)


async def test_behind_a_refused_append_nothing_passes() -> None:
    """Not even where somebody else's bytes, coming between two of them, end just where the next one begins."""

    async with world() as here:
        writer = await here.manager.create_byte_writer("sc", "st")
        await writer.write(b"first")
        await writer.flush(60)
        handle = FakeConnection.handle

        def meanwhile(self: FakeConnection, command: wire.Command) -> None:
            if isinstance(command, wire.ConditionalBlockEnd) and command.data[:1] == b"a":
                here.store.append(SEGMENT, b"other".ljust(len(command.data)))
            handle(self, command)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeConnection, "handle", meanwhile)
            await writer.write(b"a" * 400_000)
            await writer.write(b"b" * 400_000)
            with pytest.raises(ConditionFailedError, match="800,000 bytes were not stored"):
                await writer.flush(60)
            await segment_info(stores_of(here.manager), SEGMENT)
        assert here.store.data(SEGMENT) == b"first" + b"other".ljust(400_000)


async def test_a_server_without_room_is_waited_for() -> None:
    async with world() as here:
        here.store.full = True
        writer = await here.manager.create_byte_writer("sc", "st")
        for piece in (b"a", b"b", b"c"):
            await writer.write(piece * 400_000)
        await until_async(lambda: writer._appender.trouble is not None)
        with pytest.raises(RequestTimeoutError, match=r"1,200,000 bytes .* no room for the log"):
            await writer.flush(0.1)
        here.store.full = False
        await writer.close(60)
        assert bytes(here.store.segments[SEGMENT].data) == b"a" * 400_000 + b"b" * 400_000 + b"c" * 400_000


async def test_a_flush_whose_wait_was_cancelled_does_no_harm() -> None:
    async with world() as here:
        pieces = [bytes([number]) * 400_000 for number in range(20)]
        writer = await here.manager.create_byte_writer("sc", "st")
        for piece in pieces:
            await writer.write(piece)
            flushing = asyncio.create_task(writer.flush())
            await asyncio.sleep(0)
            flushing.cancel()
            await asyncio.wait([flushing])
        await writer.close(60)
        assert bytes(here.store.segments[SEGMENT].data) == b"".join(pieces)


async def test_each_update_is_done_once() -> None:
    async with world(chaos=Chaos(seed=5, before=0.1, after=0.1)) as here:
        counters = [await here.manager.shared_counter("sc", "st") for _ in range(3)]

        async def add(index: int) -> list[int]:
            return [await counters[index].add() for _ in range(30)]

        values = await asyncio.gather(*(add(index) for index in range(3)))
        assert sorted(value for part in values for value in part) == list(range(1, 91))
        assert len(here.stored(0)) == 90


async def test_an_append_whose_wait_was_cancelled_does_no_harm() -> None:
    async with world() as here:
        counter = await here.manager.shared_counter("sc", "st")
        await counter.add()
        for turns in range(12):
            adding = asyncio.create_task(counter.add())
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            adding.cancel()
            await asyncio.wait([adding])
            assert await counter.add() == len(here.stored(0))
        await counter.refresh()
        assert counter.value == len(here.stored(0))
