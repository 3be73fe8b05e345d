"""What stays in memory when much comes and goes: nothing of what ended, and of the rest no more than its limit."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path

import pytest

from nadi import limits
from nadi.model.framing import frame_events
from nadi.segmentstore.container.cache import BlockCache
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.server.appends import Append
from nadi.segmentstore.server.connection import Connection
from nadi.segmentstore.server.segments import find
from nadi.segmentstore.state.records import Extent, FrameRef
from nadi.wire import commands as wire
from tests.segmentstore.harness import Peer, connect, open_store
from tests.support.waiting import until_async

S = "scope/stream/0.#epoch.0"


def writer_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def test_a_refused_append_keeps_nothing_of_its_frame(tmp_path: Path) -> None:
    """Its session keeps the error, to answer what comes after; the frames of the stack in it held whole frames."""
    others = [one for one in gc.get_objects() if isinstance(one, FrameBuilder | Append)]  # of earlier tests

    async with open_store(tmp_path, 1) as (store, peer):
        other = await connect(store.address)
        await other.create(S)
        await other.setup(S)
        for number in range(20):
            segment = f"scope/sealed/{number}.#epoch.0"
            await peer.create(segment)
            await peer.setup(segment, writer_id(number))
            await peer.ask(wire.SealSegment(1, segment, ""))
            data = frame_events([bytes(100)])
            peer.send(wire.AppendBlockEnd(writer_id(number), len(data), data, 1, 1, 2))
            await other.append([bytes(1000)], number + 1)
            assert isinstance(await peer.receive(), wire.SegmentIsSealed)
        gc.collect()
        kept = [one for one in gc.get_objects() if isinstance(one, FrameBuilder | Append)]
        assert len(kept) - len(others) <= 2, "of the frame that was written last"


async def begin_and_end(peer: Peer, number: int) -> None:
    """A writer on a segment of its own that is gone afterwards, as those of transactions."""
    segment = f"scope/stream/0.#epoch.0#transaction.{number:032x}"
    await peer.create(segment)
    await peer.setup(segment, writer_id(number))
    await peer.append([b"event"], 1, writer_id(number))
    await peer.ask(wire.DeleteSegment(1, segment, ""))


def sessions_of(connections: Iterable[Connection]) -> int:
    return max(len(connection.writers.sessions) for connection in connections)


async def test_a_connection_keeps_few_sessions_of_writers_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "APPEND_SESSIONS_KEPT", 10)
    monkeypatch.setattr(limits, "APPEND_SESSION_GONE_S", 0.0)

    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        for number in range(1, 6):
            await peer.setup(S, writer_id(number))
        for number in range(10, 210):
            await begin_and_end(peer, number)
            await peer.append([b"event"], number, writer_id(1 + number % 2))
        assert sessions_of(store._connections) <= 20
        for number in range(1, 6):  # those that live are there, used or not
            reply = await peer.append([b"event"], 1000, writer_id(number))
            assert isinstance(reply, wire.DataAppended)


async def test_a_writer_that_was_idle_for_long_sets_itself_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "APPEND_SESSIONS_KEPT", 4)
    monkeypatch.setattr(limits, "APPEND_SESSION_IDLE_S", 0.0)

    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        await peer.setup(S, writer_id(1))
        await peer.append([b"one"], 1, writer_id(1))
        for number in range(2, 20):
            await peer.setup(S, writer_id(number))
        assert sessions_of(store._connections) <= 6
        data = frame_events([b"two"])
        peer.send(wire.AppendBlockEnd(writer_id(1), len(data), data, 1, 2, 3))
        assert await peer.closed(), "as any append without a session; every client connects again"
        peer = await connect(store.address)
        assert await peer.setup(S, writer_id(1)) == 1
        await peer.append([b"two"], 2, writer_id(1))
        assert find(store.containers[0].state, S).event_count == 2
        peer.close()


async def test_what_is_held_for_a_reply_is_given_back_if_its_fetch_never_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read is answered in the turn of the loop in which its connection ends."""
    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        await peer.setup(S)
        await peer.append([bytes(1000)], 1)
        monkeypatch.setattr(store._reader, "_in_memory", lambda *_: None)
        (connection,) = store._connections
        connection.abort()
        connection.receive(wire.ReadSegment(S, 0, 1000, "", 1))
        assert store.budget.sending.held_bytes > 0
        await until_async(lambda: not store._connections and store.budget.sending.held_bytes == 0)


def test_the_cache_counts_what_small_blocks_take_besides() -> None:
    cache = BlockCache(1_000_000)
    for number in range(50_000):
        cache.put((0, number, 0), b"small")
    assert len(cache) < 4_000
    assert cache.get((0, 49_999, 0)) == b"small"
    for number in range(50_000):
        cache.drop(0, [Extent(0, 5, FrameRef(number, None, 0.0), 0)])
    assert cache.size_bytes == 0
