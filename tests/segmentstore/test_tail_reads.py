"""Reads waiting at a segment's tail: each is answered once, whatever happens to the segment or the caller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nadi.limits import CONNECTION_READS_WAITING
from nadi.model.framing import frame_events
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.server.reads import Reads
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from tests.segmentstore.harness import Peer, connect, open_segment, open_store

pytestmark = pytest.mark.uvloop

S = "scope/stream/0.#epoch.0"
HELD = frame_events([b"held"])


def read(offset: int, request: int, length: int = 1000) -> wire.ReadSegment:
    return wire.ReadSegment(S, offset, length, "", request)


async def another(store: SegmentStore) -> Peer:
    return await connect(store.address)


async def until_waiting(store: SegmentStore, count: int) -> Any:
    record = store.container_of(S).state.find(S)
    assert record is not None
    for _ in range(6_000):
        if len(record.waiters) == count:
            return record
        await asyncio.sleep(0.01)
    pytest.fail(f"{len(record.waiters)} reads wait, not {count}")


async def test_append_answers_all_waiting_reads(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S) as (store, peer):
        readers = [await another(store) for _ in range(5)]
        offset = 0
        for last in range(1, 20):
            for reader in readers:
                reader.send(read(offset, last), read(offset, 1000 + last))
            record = await until_waiting(store, 2 * len(readers))
            assert record.holders == 2 * len(readers)
            await peer.append([bytes(last)], last)
            for reader in readers:
                for request in (last, 1000 + last):
                    found = await reader.receive()
                    assert (found.request_id, found.offset, found.at_tail) == (request, offset, True)
                    assert bytes(found.data) == frame_events([bytes(last)])
            offset += 8 + last
        assert (len(record.waiters), record.holders) == (0, 0)


@pytest.mark.parametrize("what", ["seal", "delete", "truncate"])
async def test_waiting_reads_end_with_the_segment(tmp_path: Path, what: str) -> None:
    async with open_segment(tmp_path, S) as (store, peer):
        await peer.append([b"held"], 1)
        reader = await another(store)
        reader.send(read(len(HELD), 1), read(len(HELD), 2))
        record = await until_waiting(store, 2)
        commands = {
            "seal": wire.SealSegment(7, S, ""),
            "delete": wire.DeleteSegment(7, S, ""),
            "truncate": wire.TruncateSegment(7, S, len(HELD), ""),
        }
        await peer.ask(commands[what])
        if what == "truncate":  # up to their offset: they keep waiting
            await until_waiting(store, 2)
            await peer.append([b"next"], 2)
        found = [await reader.receive() for _ in range(2)]
        assert [reply.request_id for reply in found] == [1, 2]
        expected = {"seal": wire.SegmentRead, "delete": wire.NoSuchSegment, "truncate": wire.SegmentRead}
        assert {type(reply) for reply in found} == {expected[what]}
        if what == "seal":
            assert all(reply.end_of_segment and not len(reply.data) for reply in found)
        assert (len(record.waiters), record.holders) == (0, 0)


async def test_closed_connection_ends_its_waiting_reads(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S) as (store, peer):
        stays, leaves = await another(store), await another(store)
        stays.send(read(0, 1))
        leaves.send(*(read(0, number) for number in range(50)))
        await until_waiting(store, 51)
        leaves.close()
        record = await until_waiting(store, 1)
        assert record.holders == 1
        await peer.append([b"held"], 1)
        assert bytes((await stays.receive()).data) == HELD
        assert (len(record.waiters), record.holders) == (0, 0)


async def test_too_many_waiting_reads_close_only_their_connection(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (store, peer):
        await peer.create(S)
        greedy = await another(store)
        greedy.send(*(read(0, number) for number in range(CONNECTION_READS_WAITING + 1)))
        assert await greedy.closed()
        await until_waiting(store, 0)
        await peer.setup(S)
        assert isinstance(await peer.append([b"held"], 1), wire.DataAppended)


async def test_a_container_that_recovers_ends_the_wait(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (store, peer):
        await peer.create(S)
        reader = await another(store)
        reader.send(read(0, 1))
        await until_waiting(store, 1)
        store.container_of(S)._fail(OSError("the disk is gone"))
        assert await reader.closed()


def test_failing_read_closes_only_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with open_segment(tmp_path, S) as (store, peer):
            good, bad = await another(store), await another(store)
            good.send(read(0, 1))
            await until_waiting(store, 1)
            bad.send(read(0, 13))
            await until_waiting(store, 2)
            good.send(read(0, 2))
            await until_waiting(store, 3)
            answer = Reads._answer

            def faulty(reads: Reads, container: Container, command: wire.ReadSegment, room: int) -> int:
                if command.request_id == 13:
                    raise ZeroDivisionError
                return answer(reads, container, command, room)

            monkeypatch.setattr(Reads, "_answer", faulty)
            assert isinstance(await peer.append([b"held"], 1), wire.DataAppended)
            assert [(await good.receive()).request_id for _ in range(2)] == [1, 2]
            assert await bad.closed()

    uvloop.run(run())
    assert "a read of scope/stream/0.#epoch.0 failed" in caplog.text


async def test_a_fetch_that_finds_a_shorter_segment_waits_at_its_tail(tmp_path: Path) -> None:
    """The bytes to fetch were deleted and recreated meanwhile: no empty reply, and no waiting task."""
    fetched = SegmentReader.read

    made_anew = asyncio.Event()
    async with open_store(tmp_path) as (store, peer):

        async def emptied(self: SegmentReader, *what: Any) -> Any:
            await peer.ask(wire.DeleteSegment(90, S, ""))
            await peer.create(S)
            made_anew.set()
            return await fetched(self, *what)

        await peer.create(S)
        await peer.setup(S)
        await peer.append([b"gone"], 1)
        reader = await another(store)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentReader, "_in_memory", lambda *_: None)
            patch.setattr(SegmentReader, "read", emptied)
            reader.send(read(0, 7))
            async with asyncio.timeout(60):
                await made_anew.wait()
            record = await until_waiting(store, 1)
        assert record.holders == 1
        await peer.setup(S)
        await peer.append([b"held"], 1)
        found = await reader.receive()
        assert (bytes(found.data), found.request_id) == (HELD, 7)
