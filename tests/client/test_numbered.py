"""IdempotentWriter: writers end at any moment and restart elsewhere while the stream splits and merges."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from uuid import uuid4

import pytest

import nadi
from nadi.client.aio import StreamManager
from nadi.client.idempotent.writer import IdempotentWriter, NumberedEvent, StreamShape
from nadi.client.manager.streams import stores_of
from nadi.client.segments.conditional_append import SegmentAppender
from nadi.client.segments.connection import AppendSession
from nadi.errors import (
    ConflictError,
    EventTooLargeError,
    NadiError,
    RequestTimeoutError,
    StreamSealedError,
    UnavailableError,
)
from nadi.limits import MAX_EVENT_BYTES
from nadi.model.keyspace import equal_ranges, key_position
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION

from .fake_server import Chaos
from .world import World, world

KEYS = [f"key-{number}" for number in range(20)]
EVENTS = [
    NumberedEvent(number, key_position(key), f"{key}:{number}".encode())
    for number, key in enumerate(random.Random(0).choices(KEYS, k=2000))
]


def _rescale(here: World, chance: random.Random) -> None:
    stream = here.controller.streams["sc", "st"]
    ranges = equal_ranges(chance.choice([1, 2, 3, 4, 5]))
    here.controller.rescale("sc", "st", list(stream.epochs[-1]), ranges)


def _by_key(stored: list[bytes]) -> dict[str, list[int]]:
    numbers = defaultdict(list)
    for event in stored:
        key, _, number = event.decode().partition(":")
        numbers[key].append(int(number))
    return numbers


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 10))])
async def test_each_event_is_stored_once_and_in_order(seed: int) -> None:
    chance, writer_id = random.Random(seed), uuid4().bytes
    checkpoint = 0  # recorded by the application: all events before this number are stored
    async with world(segments=2, chaos=Chaos(seed=seed, before=0.05, after=0.05)) as here:
        for _ in range(chance.randrange(3)):
            _rescale(here, chance)
        since = await StreamShape(stores_of(here.manager), "sc", "st").newest_epoch()
        at, writer = 0, None
        while at < len(EVENTS):
            if writer is None:  # a new process, which starts at the checkpoint
                shape = StreamShape(stores_of(here.manager), "sc", "st")
                writer = IdempotentWriter(shape, writer_id, since_epoch=since)
                at = checkpoint
            until = at + chance.randrange(1, 150)
            work = asyncio.create_task(writer.write(EVENTS[at:until], 60))
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                _rescale(here, chance)
            if chance.random() < 0.2:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                writer.close()
                writer = None
                continue
            await work
            at = until
            if chance.random() < 0.3:
                checkpoint = at
        assert _by_key(here.all_stored()) == _by_key([event.data for event in EVENTS])


async def test_two_concurrent_writers_store_each_event_once() -> None:
    writer_id = uuid4().bytes
    async with world(segments=2, chaos=Chaos(seed=1)) as here:

        async def write(chance: random.Random) -> None:
            shape = StreamShape(stores_of(here.manager), "sc", "st")
            writer, at = IdempotentWriter(shape, writer_id, purpose=str(id(chance))), 0
            while at < len(EVENTS):
                until = at + chance.randrange(1, 100)
                await writer.write(EVENTS[at:until], 60)
                at = until

        await asyncio.gather(write(random.Random(1)), write(random.Random(2)))
        assert _by_key(here.all_stored()) == _by_key([event.data for event in EVENTS])


async def test_writers_on_one_connection_store_each_event_once(server: nadi.standalone.EmbeddedServer) -> None:
    """The server can't distinguish them and may get the same number twice."""
    async with StreamManager(server.controller_uri) as manager:
        await manager.create_scope("two")
        await manager.create_stream("two", "st", 1)
        for number in range(20):
            writer_id = uuid4().bytes
            writers = [IdempotentWriter(StreamShape(stores_of(manager), "two", "st"), writer_id) for _ in range(3)]
            assert [await writer.last_number(0.5) for writer in writers] == [NO_VERSION] * 3
            events = [NumberedEvent(at, 0.5, b"%d %d" % (number, at)) for at in range(3)]
            await asyncio.gather(*(writer.write([event], 60) for event in events[:1] for writer in writers))
            await asyncio.gather(*(writer.write(events, 60) for writer in writers))
            for writer in writers:
                writer.close()
        tail = await manager.cuts("two", "st").tail()
        stored = [event.data async for event in manager.read_events("two", "st", end=tail)]
        assert sorted(stored) == sorted(b"%d %d" % (number, at) for number in range(20) for at in range(3))


async def test_older_of_two_sessions_on_one_connection_is_lost_once() -> None:
    errors: list[NadiError] = []
    session = AppendSession(lambda _: None, errors.append)
    async with world() as here:
        connection = await stores_of(here.manager).connection("sc/st/0.#epoch.0", "appends")
        older, newer = (connection.add_session(session, b"one") for _ in range(2))
        assert [type(error) for error in errors] == [UnavailableError]
        connection.remove_session(older, b"one")
        assert connection.has_session(newer)
        connection.remove_session(newer, b"one")
        connection.add_session(session, b"one")
        assert len(errors) == 1, "the session was removed before"


async def test_events_written_meanwhile_by_another_process_are_skipped() -> None:
    """Such as the appends in flight of a killed process, which arrive after its successor has started."""
    writer_id = uuid4().bytes
    events = [NumberedEvent(number, 0.5, b"%d" % number) for number in range(100)]
    async with world() as here:
        one, other = (
            IdempotentWriter(StreamShape(stores_of(here.manager), "sc", "st"), writer_id, purpose=purpose)
            for purpose in ("one", "other")
        )
        await one.write(events[:10], 60)
        await other.write(events[:50], 60)
        await one.write(events[10:80], 60)
        await other.write(events[50:60], 60)
        assert here.all_stored() == [event.data for event in events[:80]]


async def test_write_cancelled_as_its_reply_arrives_is_not_stored_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [NumberedEvent(number, 0.5, b"%d" % number) for number in range(20)]
    async with world() as here:
        on_reply = SegmentAppender._on_reply

        def cancelling(appender: SegmentAppender, reply: wire.Command) -> None:
            on_reply(appender, reply)
            if isinstance(reply, wire.DataAppended) and reply.event_number == 14:
                work.cancel()

        monkeypatch.setattr(SegmentAppender, "_on_reply", cancelling)
        writer = IdempotentWriter(StreamShape(stores_of(here.manager), "sc", "st"), uuid4().bytes)
        await writer.write(events[:10], 60)
        work = asyncio.create_task(writer.write(events[10:15], 60))
        with pytest.raises(asyncio.CancelledError):
            await work
        await writer.write(events, 60)
        assert here.all_stored() == [event.data for event in events]


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
async def test_cancelled_writers_on_one_connection_store_each_event_once(seed: int) -> None:
    chance, writer_id = random.Random(seed), uuid4().bytes
    events = EVENTS[:600]
    async with world(segments=2, chaos=Chaos(seed=seed, before=0.01, after=0.01)) as here:

        async def write() -> None:
            writer, at = IdempotentWriter(StreamShape(stores_of(here.manager), "sc", "st"), writer_id), 0
            while at < len(events):
                until = at + chance.randrange(1, 150)
                work = asyncio.create_task(writer.write(events[at:until], 60))
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
                if chance.random() < 0.3:
                    work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                if not work.cancelled():
                    work.result()
                    at = until

        await asyncio.gather(*(write() for _ in range(3)))
        assert _by_key(here.all_stored()) == _by_key([event.data for event in events])


async def test_writer_with_only_number_stores_once_and_rejects_other_numbers() -> None:
    writer_id = uuid4().bytes
    events = [NumberedEvent(77, event.position, event.data) for event in EVENTS[:100]]
    async with world(segments=3) as here:

        def again(number: int = 77) -> IdempotentWriter:
            shape = StreamShape(stores_of(here.manager), "sc", "st")
            return IdempotentWriter(shape, writer_id, only_number=number)

        await again().write(events[:50], 60)  # of all segments
        await again().write(events[:50], 60)
        _rescale(here, random.Random(5))
        await again().write(events[:50], 60)
        assert _by_key(here.all_stored()) == _by_key([event.data for event in events[:50]])
        for number in (76, 78):
            other = [NumberedEvent(number, event.position, event.data) for event in events]
            with pytest.raises(ConflictError):
                await again(number).write(other, 60)
        assert len(here.all_stored()) == 50


async def test_number_of_a_predecessor_is_read_once_it_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before that another writer with the id may append to it, and its events would be written twice."""
    writer_id = uuid4().bytes
    async with world() as here:

        def opened() -> IdempotentWriter:
            return IdempotentWriter(StreamShape(stores_of(here.manager), "sc", "st"), writer_id)

        older = opened()
        await older.write([NumberedEvent(1, 0.5, b"first")], 60)
        seal = here.store.seal
        monkeypatch.setattr(here.store, "seal", lambda name: None)
        here.controller.rescale("sc", "st", [0], [(0.0, 1.0)])
        number = asyncio.create_task(opened().last_number(0.5))
        await asyncio.sleep(0.1)
        await older.write([NumberedEvent(2, 0.5, b"second")], 60)
        seal("sc/st/0.#epoch.0")
        assert await number == 2


async def test_write_that_fails_raises_and_can_be_repeated() -> None:
    async with world() as here:
        shape = StreamShape(stores_of(here.manager), "sc", "st")
        writer = IdempotentWriter(shape, uuid4().bytes)
        with pytest.raises(EventTooLargeError):
            await writer.write([NumberedEvent(1, 0.5, b"x" * (MAX_EVENT_BYTES + 1))], 60)
        here.store.silent = True
        with pytest.raises(RequestTimeoutError):
            await writer.write(EVENTS[:3], 0.2)
        here.store.silent = False
        await writer.write(EVENTS[:3], 60)
        assert here.all_stored() == [event.data for event in EVENTS[:3]]
        here.controller.seal_all("sc", "st")
        with pytest.raises(StreamSealedError):
            await writer.write(EVENTS[3:4], 60)
