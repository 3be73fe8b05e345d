"""Requests that make no sense get an error, and the container that they went to goes on as if there were none."""

from __future__ import annotations

import asyncio
import logging
import struct
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nadi.segmentstore.server.segments import _updated
from nadi.throttled_log import SeldomWarning
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.fields import TableEntry, TableKey
from tests.segmentstore.harness import WRITER, Peer, connect, open_store

A, B, TABLE = "a/b/0.#epoch.0", "a/b/1.#epoch.0", "a/t_kvtable/0.#epoch.0"


def over_store(folder: Path, test: Callable[[Peer], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_store(folder, containers=1) as (store, peer):
            for name in (A, B):
                await peer.create(name)
                await peer.setup(name)
                await peer.append([b"12345678", b"12345678"], 1)
            await test(peer)
            assert store.containers[0].failure is None
            assert isinstance(await peer.ask(wire.GetStreamSegmentInfo(9, A, "")), wire.StreamSegmentInfo)

    asyncio.run(main())


def test_an_empty_name(tmp_path: Path) -> None:
    async def test(peer: Peer) -> None:
        for look in (
            wire.GetStreamSegmentInfo(1, "", ""),
            wire.ReadSegment("", 0, 100, "", 1),
            wire.SealSegment(1, "", ""),
            wire.SetupAppend(1, bytes(16), "", ""),
            wire.MergeSegments(1, "", A, "", ()),
            wire.MergeSegments(1, A, "", "", ()),
            wire.ReadTable(1, "", "", ()),
        ):
            assert isinstance(await peer.ask(look), wire.NoSuchSegment), look
        assert isinstance(await peer.create(""), wire.ErrorMessage)
        assert isinstance(await peer.ask(wire.CreateTableSegment(1, "", "")), wire.ErrorMessage)
        batch = await peer.ask(wire.MergeSegmentsBatch(1, A, ("",), ""))
        assert isinstance(batch, wire.SegmentsBatchMerged)

    over_store(tmp_path, test)


def test_merges_that_would_lose_data(tmp_path: Path) -> None:
    async def test(peer: Peer) -> None:
        await peer.ask(wire.CreateTableSegment(1, TABLE, ""))
        assert isinstance(await peer.ask(wire.TruncateSegment(1, B, 5, "")), wire.SegmentTruncated)
        for target, source in ((A, A), (A, B), (A, TABLE), (TABLE, A)):
            for command in (
                wire.MergeSegments(1, target, source, "", ()),
                wire.MergeSegmentsBatch(1, target, (source,), ""),
            ):
                reply = await peer.ask(command)
                assert isinstance(reply, wire.ErrorMessage), (command, reply)
        assert len(await peer.read_all(A)) == 32
        assert isinstance(
            await peer.ask(wire.UpdateTableEntries(1, TABLE, "", (TableEntry(b"k", -1, b"v"),))),
            wire.TableEntriesUpdated,
        )

    over_store(tmp_path, test)


def test_reading_a_key_without_bytes_is_refused(tmp_path: Path) -> None:
    whole = encode(wire.ReadTable(1, TABLE, "", (TableKey(b"k", -1),)))
    key_size = struct.pack(">ii", 12, 0)  # which no encoder writes
    payload = whole[8:].replace(struct.pack(">ii", 13, 1) + b"k", key_size)

    async def test(peer: Peer) -> None:
        await peer.ask(wire.CreateTableSegment(1, TABLE, ""))
        peer.send_raw(struct.pack(">ii", wire.ReadTable.code, len(payload)) + payload)
        assert isinstance(await peer.receive(), wire.ErrorMessage)

    over_store(tmp_path, test)


async def test_a_reply_that_the_protocol_cannot_hold_ends_the_connection(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as (store, peer):
        peer.send(wire.CreateTransientSegment(1, bytes(16), "x" * 65_500, ""))  # its name would be too long
        peer.send(wire.GetStreamSegmentInfo(2, A, ""))
        assert await peer.closed(), "what was sent behind it would wait for ever"
        container = store.containers[0]
        while await container.call(lambda _: bool(container.state.transients)):
            pass


async def test_appends_that_a_session_refuses_leave_nothing_in_memory(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as (store, peer):
        await peer.create(A)
        await peer.setup(A)
        await peer.ask(wire.SealSegment(1, A, ""))
        for number in range(50):
            assert isinstance(await peer.append([b"12345678"], number), wire.SegmentIsSealed)
        (connection,) = store._connections
        error = connection.writers.sessions[WRITER].error
        assert error is not None
        assert len(list(traceback.walk_tb(error.__traceback__))) < 10


def test_one_who_breaks_the_protocol_often_is_logged_seldom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0

    async def main() -> None:
        nonlocal now
        async with open_store(tmp_path, containers=1) as (store, _):
            store._report = SeldomWarning(logging.getLogger("nadi"), "%d ended, the last from %s: %s", lambda: now)
            address = store.address
            for number in range(12):
                now = 1.0 if number == 11 else 0.5 * bool(number)
                bad = await connect(address)
                bad.send_raw(struct.pack(">ii", 9, 1 << 30))
                assert await bad.closed()
                bad.close()

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records if " ended, " in record.getMessage()]
    assert [line.partition(" ended")[0] for line in lines] == ["1", "11"]
    assert "announces" in lines[0]


@pytest.mark.parametrize(("value", "new", "sum_"), [(1, 2, 3), ((1 << 63) - 1, 1, -(1 << 63))])
def test_an_accumulated_attribute_stays_a_64_bit_integer(value: int, new: int, sum_: int) -> None:
    assert _updated(value, 3, new, 0) == sum_
