"""Writers and a store that ends their connections, keeps silent, or has lost what they write to: each wait has its end.

The events of event writers, what transactions write, and large events are written by one class; so are bytes and
shared state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from nadi.client.control.time_limit import TimeLimit
from nadi.client.manager.streams import stores_of
from nadi.client.state_sync.revisioned_stream import open_revisioned_stream
from nadi.errors import (
    InvalidArgumentError,
    NadiError,
    RequestTimeoutError,
    SegmentNotFoundError,
    StorageFullError,
    StreamSealedError,
    UnavailableError,
)
from nadi.limits import MAX_EVENT_BYTES, WRITER_PENDING_BYTES

from .world import World, world

SEGMENT = "sc/st/0.#epoch.0"
TIMEOUT_S = 0.3  # of the client, and of its writers
SOON_S = 60.0  # a test that takes longer hangs

Write = Callable[..., AsyncIterator[None]]  # opens what it writes by, then writes


async def bytes_flushed(w: World, timeout_s: float = TIMEOUT_S) -> AsyncIterator[None]:
    writer = await w.manager.create_byte_writer("sc", "st", ack_timeout=timeout_s)
    yield
    await writer.write(b"bytes")
    await writer.flush()


async def bytes_closed(w: World, timeout_s: float = TIMEOUT_S) -> AsyncIterator[None]:
    writer = await w.manager.create_byte_writer("sc", "st", ack_timeout=timeout_s)
    yield
    await writer.write(b"bytes")
    await writer.close()


async def bytes_that_find_no_room(w: World, timeout_s: float = TIMEOUT_S) -> AsyncIterator[None]:
    writer = await w.manager.create_byte_writer("sc", "st", ack_timeout=timeout_s)
    yield
    await writer.write(bytes(WRITER_PENDING_BYTES + 1))
    await writer.write(b"more")


async def event(w: World) -> AsyncIterator[None]:
    writer = await w.manager.create_writer("sc", "st", ack_timeout=TIMEOUT_S)
    yield
    await writer.write_event(b"event", "k")


async def large_event(w: World) -> AsyncIterator[None]:
    writer = await w.manager.create_writer("sc", "st", ack_timeout=TIMEOUT_S)
    yield
    await writer.write_event(bytes(MAX_EVENT_BYTES + 1), "k")


async def record(w: World) -> AsyncIterator[None]:
    stream = await open_revisioned_stream(stores_of(w.manager), "sc", "st")
    yield
    await stream.append(b"record", 0)


async def shared_state(w: World) -> AsyncIterator[None]:
    counter = await w.manager.shared_counter("sc", "st")
    yield
    await counter.add()


async def written(begun: AsyncIterator[None]) -> None:
    await asyncio.wait_for(anext(begun, None), SOON_S)


BYTES: list[Write] = [bytes_flushed, bytes_closed, bytes_that_find_no_room]
EVERY = [*BYTES, event, large_event, record, shared_state]


@pytest.mark.parametrize("write", EVERY, ids=lambda write: write.__name__)
@pytest.mark.parametrize("trouble", ["refuses_writers", "refuses_appends", "silent"])
async def test_a_store_that_never_stores_is_given_up_in_time(write: Write, trouble: str) -> None:
    async with world(1) as w:
        await anext(begun := write(w))
        w.controller.timeout_s = TIMEOUT_S
        setattr(w.store, trouble, True)
        with pytest.raises(NadiError) as told:
            await written(begun)
        assert isinstance(told.value, RequestTimeoutError), repr(told.value)
        assert f"{TIMEOUT_S} s" in str(told.value)


@pytest.mark.parametrize("write", [*BYTES, event, record, shared_state], ids=lambda write: write.__name__)
async def test_a_store_without_room_is_told_by_type(write: Write) -> None:
    """Streams of events and bytes wait for room as long as `ack_timeout` says; a change of shared state does not."""

    async with world(1) as w:
        await anext(begun := write(w))
        w.store.full = True
        with pytest.raises(StorageFullError, match="no room for the log"):
            await written(begun)


async def test_shared_state_goes_on_once_there_is_room() -> None:
    async with world(1) as w:
        counter = await w.manager.shared_counter("sc", "st")
        for _ in range(2):
            w.store.full = True
            with pytest.raises(StorageFullError):
                await asyncio.wait_for(counter.add(), SOON_S)
            w.store.full = False
            await asyncio.wait_for(counter.add(), SOON_S)
        assert counter.value == 2


@pytest.mark.parametrize("write", BYTES, ids=lambda write: write.__name__)
def test_a_segment_that_is_sealed_or_deleted_meanwhile_is_told(write: Write) -> None:
    async def run(kind: type[NadiError], lose: Callable[[World], object]) -> None:
        async with world(1) as w:
            await anext(begun := write(w, SOON_S))
            lose(w)
            with pytest.raises(kind):
                await written(begun)

    asyncio.run(run(StreamSealedError, lambda w: w.store.seal(SEGMENT)))
    asyncio.run(run(SegmentNotFoundError, lambda w: w.store.delete(SEGMENT)))


async def test_a_writer_of_bytes_that_gave_up_stays_so_and_another_goes_on() -> None:
    async with world(1) as w:
        async with await w.manager.create_byte_writer("sc", "st") as before:
            await before.write(b"one")
        writer = await w.manager.create_byte_writer("sc", "st", ack_timeout=TIMEOUT_S)
        w.store.refuses_appends = True
        await writer.write(b"two")
        with pytest.raises(RequestTimeoutError, match=r"none of 3 bytes.*open a new writer"):
            await asyncio.wait_for(writer.flush(), SOON_S)
        w.store.refuses_appends = False
        with pytest.raises(RequestTimeoutError):
            await writer.write(b"three")
        with pytest.raises(RequestTimeoutError):
            await writer.close()
        other = await w.manager.create_byte_writer("sc", "st")
        assert other.tell() == 3
        await other.write(b"three")
        await other.close()
        assert bytes(w.store.segments[SEGMENT].data) == b"onethree"


async def test_a_store_that_is_slow_but_stores_is_waited_for() -> None:
    """Longer than the writer's time in all, and never so long without anything stored."""

    async with world(1) as w:
        writer = await w.manager.create_byte_writer("sc", "st", ack_timeout=3.0)
        started = asyncio.get_running_loop().time()
        for _ in range(3):
            w.store.silent = True
            await writer.write(b"bytes")
            flushed = asyncio.create_task(writer.flush())
            await asyncio.sleep(1.1)
            assert not flushed.done()
            w.store.silent = False
            w.store.drop_all()
            await asyncio.wait_for(flushed, SOON_S)
        assert asyncio.get_running_loop().time() - started > 3.0
        assert bytes(w.store.segments[SEGMENT].data) == 3 * b"bytes"


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
async def test_a_writer_of_bytes_has_some_time(seconds: float) -> None:
    async with world(1) as w:
        with pytest.raises(InvalidArgumentError, match=r"more than 0 s|ack_timeout is a number of seconds"):
            await w.manager.create_byte_writer("sc", "st", ack_timeout=seconds)


# --- the limit of time that they have ------------------------------------------------------------------


async def wait_in_vain(limit: TimeLimit) -> None:
    async with limit:
        await asyncio.Event().wait()


def test_the_trouble_met_is_named() -> None:
    trouble = UnavailableError("the store is away")
    with pytest.raises(RequestTimeoutError, match=r"^nothing came: the store is away$") as late:
        asyncio.run(wait_in_vain(TimeLimit(0.01, lambda: "nothing came", lambda: trouble)))
    assert late.value.__cause__ is None  # one traceback is enough: the message has both
    with pytest.raises(RequestTimeoutError, match=r"^nothing came$"):
        asyncio.run(wait_in_vain(TimeLimit(0.01, lambda: "nothing came")))


async def test_only_its_own_end_is_its_error() -> None:
    for error in (RequestTimeoutError("one further in"), TimeoutError("of a socket"), asyncio.CancelledError()):
        with pytest.raises(type(error)) as raised:
            async with TimeLimit(30, lambda: "nothing came"):
                raise error
        assert raised.value is error
    async with TimeLimit(None, lambda: "nothing came"):
        await asyncio.sleep(0)
