"""Memory over many comings and goings: ended things leave nothing, and the others stay within their limits."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from pathlib import Path

import pytest
import uvloop

from nadi import limits
from nadi.limits import CONNECTION_READS_WAITING
from nadi.model.framing import frame_events
from nadi.segmentstore.container.cache import BlockCache, location_in_log
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.server.appends import WriterAppend
from nadi.segmentstore.server.connection import Connection
from nadi.segmentstore.server.reads import Reads
from nadi.segmentstore.server.segments import find
from nadi.segmentstore.state.records import Extent, FrameRef
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES
from nadi.wire import commands as wire
from tests.segmentstore.harness import Peer, connect, open_segment, open_store
from tests.support.waiting import until_async

S = "scope/stream/0.#epoch.0"


def writer_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def test_refused_append_does_not_keep_its_frame_alive(tmp_path: Path) -> None:
    """Its session keeps the error for later appends; its traceback kept entire frames alive."""
    others = [one for one in gc.get_objects() if isinstance(one, FrameBuilder | WriterAppend)]  # of earlier tests

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
        kept = [one for one in gc.get_objects() if isinstance(one, FrameBuilder | WriterAppend)]
        assert len(kept) - len(others) <= 2, "of the last frame"


async def begin_and_end(peer: Peer, number: int) -> None:
    """Write to a segment and delete it, as transactions do."""
    segment = f"scope/stream/0.#epoch.0#transaction.{number:032x}"
    await peer.create(segment)
    await peer.setup(segment, writer_id(number))
    await peer.append([b"event"], 1, writer_id(number))
    await peer.ask(wire.DeleteSegment(1, segment, ""))


def sessions_of(connections: Iterable[Connection]) -> int:
    return max(len(connection.writers.sessions) for connection in connections)


async def test_connection_limits_sessions_of_deleted_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "APPEND_SESSIONS_MAX", 10)

    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        for number in range(1, 6):
            await peer.setup(S, writer_id(number))
        for number in range(10, 210):
            await begin_and_end(peer, number)
            await peer.append([b"event"], number, writer_id(1 + number % 2))
        assert sessions_of(store._connections) <= 20
        for number in range(1, 6):  # live ones stay, used or not
            reply = await peer.append([b"event"], 1000, writer_id(number))
            assert isinstance(reply, wire.DataAppended)
        reply = await peer.append([b"late"], 2, writer_id(10))
        assert isinstance(reply, wire.NoSuchSegment)


async def test_a_writer_that_was_idle_for_long_sets_itself_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "APPEND_SESSIONS_MAX", 4)
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
        assert await peer.closed(), "as for any append without a session; every client reconnects"
        peer = await connect(store.address)
        assert await peer.setup(S, writer_id(1)) == 1
        await peer.append([b"two"], 2, writer_id(1))
        assert find(store.containers[0].state, S).event_count == 2
        peer.close()


async def test_reply_memory_is_released_if_its_fetch_never_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read is answered in the turn of the loop in which its connection is closed."""
    async with open_segment(tmp_path, S) as (store, peer):
        await peer.append([bytes(1000)], 1)
        monkeypatch.setattr(store._reader, "_in_memory", lambda *_: None)
        (connection,) = store._connections
        connection.abort()
        connection.receive(wire.ReadSegment(S, 0, 1000, "", 1))
        assert store.budget.sending.buffered_bytes > 0
        await until_async(lambda: not store._connections and store.budget.sending.buffered_bytes == 0)


def test_cache_counts_the_overhead_of_small_blocks() -> None:
    cache = BlockCache(1_000_000)
    for number in range(50_000):
        cache.put((0, number, 0), b"small")
    assert len(cache) < 4_000
    assert cache.get((0, 49_999, 0)) == b"small"
    for number in range(50_000):
        cache.drop(0, [Extent(0, 5, FrameRef(number, None, 0.0), 0)])
    assert cache.size_bytes == 0


# --- the parts of a frame are cached in one call, as if one by one ----------------------------------------


def test_put_frame_equals_single_puts() -> None:
    ref, parts = FrameRef(7, None, 0.0), [bytes([number]) * 100 for number in range(20)]
    extents = [Extent(0, 100, ref, 50 + 100 * number) for number in range(20)]
    together, single = BlockCache(4_000), BlockCache(4_000)
    together.put_frame(3, 7, extents, parts, bytes(range(20 * CHECKSUM_BYTES)))
    assert extents[1].checksums == bytes(range(CHECKSUM_BYTES, 2 * CHECKSUM_BYTES))
    for extent, part in zip(extents, parts, strict=True):
        single.put(location_in_log(3, extent), part)
    assert 0 < together.size_bytes == single.size_bytes <= 4_000
    found = [together.get(location_in_log(3, extent)) for extent in extents]
    assert found == [single.get(location_in_log(3, extent)) for extent in extents]
    assert found[0] is None, "the oldest was evicted"
    assert found[-1] == parts[-1]
    together.drop(3, extents[-1:])
    single.drop(3, extents[-1:])
    assert together.size_bytes == single.size_bytes
    together.drop(3, extents)
    assert (len(together), together.size_bytes) == (0, 0)


def test_historical_reads_evict_no_log_blocks_within_their_share() -> None:
    cache = BlockCache(100_000)
    extents = [Extent(0, 680, FrameRef(number, None, 0.0), 0) for number in range(200)]
    for number, extent in enumerate(extents[:60]):
        cache.put_frame(0, number, [extent], [bytes(680)], bytes(CHECKSUM_BYTES))
    for number in range(1_000):
        cache.put(("chunk", number, 0), bytes(680))
        assert cache.size_bytes <= 100_000
    assert all(cache.peek(location_in_log(0, extent)) for extent in extents[:60])
    assert sum(cache.peek(("chunk", number, 0)) is not None for number in range(1_000)) == 40
    for number, extent in enumerate(extents[60:], 60):
        cache.put_frame(0, number, [extent], [bytes(680)], bytes(CHECKSUM_BYTES))
        cache.put(("chunk", number, 0), bytes(680))
    assert sum(cache.peek(location_in_log(0, extent)) is not None for extent in extents) == 75
    assert cache.peek(location_in_log(0, extents[-1])) is not None, "the newest stays"
    assert len(cache) == 100
    assert cache.evictions == 200 + 1_000 + 140 - 100


# --- waiting reads aren't tracked by the garbage collector, and end with their connection ----------------


pytestmark = pytest.mark.uvloop

CROWD = 5


async def test_waits_are_not_tracked_by_the_garbage_collector(tmp_path: Path) -> None:
    async with open_store(tmp_path) as (store, peer):
        await peer.create(S)
        crowd = [await connect(store.address) for _ in range(CROWD)]
        record = store.container_of(S).state.find(S)
        assert record is not None
        gc.collect()
        before = len(gc.get_objects())
        for reader in crowd:
            reader.send(*(wire.ReadSegment(S, 0, 1000, "", number) for number in range(CONNECTION_READS_WAITING)))
        await until_async(lambda: len(record.waiters) >= CROWD * CONNECTION_READS_WAITING)
        assert len(gc.get_objects()) - before < CROWD * CONNECTION_READS_WAITING // 3  # other code may run here
        for reader in crowd:
            reader.close()


def test_pending_waits_are_freed_with_their_connection_and_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a loop is abandoned: untracked objects must keep nothing alive."""
    monkeypatch.setattr(Reads, "close", lambda self: None)
    seen = list[weakref.ref[object]]()
    others = weakref.WeakSet(each for each in gc.get_objects() if isinstance(each, Reads))

    async def main() -> None:
        async with open_store(tmp_path) as (store, peer):
            await peer.create(S)
            peer.send(*(wire.ReadSegment(S, 0, 1000, "", number) for number in range(10)))
            container = store.container_of(S)
            record = container.state.find(S)
            assert record is not None
            await until_async(lambda: len(record.waiters) >= 10)
            (made,) = [
                each for each in gc.get_objects() if isinstance(each, Reads) and each._waits and each not in others
            ]
            seen.extend(weakref.ref(each) for each in (made, record, container))

    uvloop.run(main())
    gc.collect()
    assert [each() for each in seen] == [None] * 3
