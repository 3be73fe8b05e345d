"""The door in the same process: conditional appends and reads, as over a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from nadi.segmentstore.store import InnerDoor, SegmentStore
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION

NAME, WRITER = "sc/st/0.#epoch.0", bytes(range(16))


def over_store(folder: Path, test: Callable[[SegmentStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = SegmentStore(folder, 1)
        await store.start()
        try:
            await store.exchange(wire.CreateSegment(1, NAME, 0, 0, "", 0))
            await test(store)
        finally:
            await store.close()

    asyncio.run(main())


def append(number: int, offset: int, data: bytes) -> wire.ConditionalAppend:
    return wire.ConditionalAppend(WRITER, number, offset, 0, memoryview(data), 7)


SETUP = wire.SetupAppend(5, WRITER, NAME, "")


def test_an_append_is_stored_where_it_is_expected_only(tmp_path: Path) -> None:
    async def test(store: SegmentStore) -> None:
        assert isinstance(await store.exchange(append(1, 0, b"one")), wire.ErrorMessage)  # nobody was set up
        assert await store.exchange(SETUP) == wire.AppendSetup(5, NAME, WRITER, NO_VERSION)
        assert await store.exchange(append(1, 0, b"one")) == wire.DataAppended(WRITER, 1, NO_VERSION, 7, 11)
        assert await store.exchange(append(2, 0, b"two")) == wire.ConditionalCheckFailed(WRITER, 2, 7)
        assert isinstance(await store.exchange(append(1, 11, b"two")), wire.InvalidEventNumber)
        assert await store.exchange(append(2, 11, b"two")) == wire.DataAppended(WRITER, 2, 1, 7, 22)
        assert await store.exchange(SETUP) == wire.AppendSetup(5, NAME, WRITER, 2)
        read = await store.exchange(wire.ReadSegment(NAME, 11, 100, "", 9))
        assert isinstance(read, wire.SegmentRead)
        assert (bytes(read.data), read.offset, read.at_tail) == (b"\0\0\0\0\0\0\0\3two", 11, True)

    over_store(tmp_path, test)


def test_what_can_not_be_is_said(tmp_path: Path) -> None:
    async def test(store: SegmentStore) -> None:
        gone = wire.SetupAppend(5, WRITER, "sc/st/1.#epoch.0", "")
        assert isinstance(await store.exchange(gone), wire.NoSuchSegment)
        assert isinstance(await store.exchange(wire.ReadSegment(gone.segment, 0, 10, "", 9)), wire.NoSuchSegment)
        await store.exchange(SETUP)
        await store.exchange(append(1, 0, b"one"))
        await store.exchange(wire.TruncateSegment(6, NAME, 11, ""))
        assert isinstance(await store.exchange(wire.ReadSegment(NAME, 0, 10, "", 9)), wire.SegmentIsTruncated)
        await store.exchange(wire.SealSegment(6, NAME, ""))
        assert isinstance(await store.exchange(append(2, 11, b"two")), wire.SegmentIsSealed)

    over_store(tmp_path, test)


def test_at_the_end_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    async def test(store: SegmentStore) -> None:
        await store.exchange(SETUP)
        await store.exchange(append(1, 0, b"one"))
        async with asyncio.timeout(60):
            read = await store.exchange(wire.ReadSegment(NAME, 11, 100, "", 9))
            assert isinstance(read, wire.SegmentRead)
            assert (bytes(read.data), read.at_tail, read.end_of_segment) == (b"", True, False)
            assert isinstance(await store.exchange(wire.ReadSegment(NAME, 12, 100, "", 9)), wire.ErrorMessage)

    over_store(tmp_path, test)


def test_an_append_whose_wait_was_cancelled_is_stored_or_not(tmp_path: Path) -> None:
    async def test(store: SegmentStore) -> None:
        await store.exchange(SETUP)
        waiting = asyncio.create_task(store.exchange(append(1, 0, b"one")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await store.exchange(SETUP) == wire.AppendSetup(5, NAME, WRITER, 1)
        assert await store.exchange(append(2, 11, b"two")) == wire.DataAppended(WRITER, 2, 1, 7, 22)

    over_store(tmp_path, test)


def test_another_writer_of_that_id_is_told(tmp_path: Path) -> None:
    """The rules are those of a connection: two that share a writer's id never both store under one number."""

    async def test(store: SegmentStore) -> None:
        other = InnerDoor(store.container_of, store._reader, store._service)
        await store.exchange(SETUP)
        await other.exchange(SETUP)
        assert isinstance(await store.exchange(append(1, 0, b"one")), wire.DataAppended)
        assert isinstance(await other.exchange(append(1, 11, b"two")), wire.InvalidEventNumber)
        assert await other.exchange(SETUP) == wire.AppendSetup(5, NAME, WRITER, 1)
        assert isinstance(await other.exchange(append(2, 11, b"two")), wire.DataAppended)

    over_store(tmp_path, test)
