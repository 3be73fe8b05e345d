"""Writers to a store that drops connections, is silent or full, or lost the segment: every wait ends in time.

Event writers and transactions share one sender, byte streams and shared state another.
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
TIMEOUT_S = 0.3  # the timeout of the client and of its writers
SOON_S = 60.0  # a test that takes longer hangs

Write = Callable[..., AsyncIterator[None]]  # opens a writer, then writes


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


async def bytes_over_the_limit(w: World, timeout_s: float = TIMEOUT_S) -> AsyncIterator[None]:
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


BYTES: list[Write] = [bytes_flushed, bytes_closed, bytes_over_the_limit]
EVERY = [*BYTES, event, large_event, record, shared_state]


@pytest.mark.parametrize("write", EVERY, ids=lambda write: write.__name__)
@pytest.mark.parametrize("trouble", ["refuses_writers", "refuses_appends", "silent"])
async def test_write_that_is_never_stored_raises_in_time(write: Write, trouble: str) -> None:
    async with world(1) as w:
        await anext(begun := write(w))
        w.controller.timeout_s = TIMEOUT_S
        setattr(w.store, trouble, True)
        with pytest.raises(NadiError) as raised:
            await written(begun)
        assert isinstance(raised.value, RequestTimeoutError), repr(raised.value)
        assert f"{TIMEOUT_S} s" in str(raised.value)


@pytest.mark.parametrize("write", [*BYTES, event, record, shared_state], ids=lambda write: write.__name__)
async def test_write_to_a_full_store_raises_storage_full_error(write: Write) -> None:
    """Event and byte streams wait until `ack_timeout`; changes of shared state fail immediately."""
    async with world(1) as w:
        await anext(begun := write(w))
        w.store.full = True
        with pytest.raises(StorageFullError):
            await written(begun)


async def test_shared_state_works_again_once_the_store_has_space() -> None:
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
def test_write_to_a_sealed_or_deleted_segment_raises(write: Write) -> None:
    async def run(kind: type[NadiError], lose: Callable[[World], object]) -> None:
        async with world(1) as w:
            await anext(begun := write(w, SOON_S))
            lose(w)
            with pytest.raises(kind):
                await written(begun)

    asyncio.run(run(StreamSealedError, lambda w: w.store.seal(SEGMENT)))
    asyncio.run(run(SegmentNotFoundError, lambda w: w.store.delete(SEGMENT)))


async def test_byte_writer_stays_failed_and_a_new_one_continues() -> None:
    async with world(1) as w:
        async with await w.manager.create_byte_writer("sc", "st") as before:
            await before.write(b"one")
        writer = await w.manager.create_byte_writer("sc", "st", ack_timeout=TIMEOUT_S)
        w.store.refuses_appends = True
        await writer.write(b"two")
        with pytest.raises(RequestTimeoutError, match=r"3 bytes"):
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


async def test_slow_store_with_progress_does_not_time_out() -> None:
    """The total time exceeds `ack_timeout`, but never the time between two acknowledgements."""
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
async def test_byte_writer_rejects_an_ack_timeout_not_above_zero(seconds: float) -> None:
    async with world(1) as w:
        with pytest.raises(InvalidArgumentError, match="ack_timeout"):
            await w.manager.create_byte_writer("sc", "st", ack_timeout=seconds)


# --- TimeLimit ------------------------------------------------------------------------------------------


async def wait_forever(limit: TimeLimit) -> None:
    async with limit:
        await asyncio.Event().wait()


def test_time_limit_names_the_trouble() -> None:
    trouble = UnavailableError("the store is away")
    with pytest.raises(RequestTimeoutError, match=r"^nothing came: the store is away$") as late:
        asyncio.run(wait_forever(TimeLimit(0.01, lambda: "nothing came", lambda: trouble)))
    assert late.value.__cause__ is None  # the message contains both, so one traceback is enough
    with pytest.raises(RequestTimeoutError, match=r"^nothing came$"):
        asyncio.run(wait_forever(TimeLimit(0.01, lambda: "nothing came")))


async def test_time_limit_passes_errors_of_its_body_unchanged() -> None:
    for error in (RequestTimeoutError("of an inner limit"), TimeoutError("of a socket"), asyncio.CancelledError()):
        with pytest.raises(type(error)) as raised:
            async with TimeLimit(30, lambda: "nothing came"):
                raise error
        assert raised.value is error
    async with TimeLimit(None, lambda: "nothing came"):
        await asyncio.sleep(0)


async def test_client_timeout_limits_its_writers_too() -> None:
    async with world() as w:
        w.controller.timeout_s = TIMEOUT_S
        writers = await w.manager.create_writer("sc", "st"), await w.manager.create_writer("sc", "st", ack_timeout=9)
        assert [writer._sender._ack_timeout_s for writer in writers] == [TIMEOUT_S, 9]
