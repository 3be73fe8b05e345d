"""Peers that request without reading, send partial frames, flood, or come in large numbers: the memory for them is
limited, and other peers aren't affected. Measured in the server's budget; one test measures the process."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi import limits
from nadi.access.budget import Budget
from nadi.access.permissions import Permission
from nadi.access.tokens import TokenKey
from nadi.limits import (
    COMMANDS_A_TURN,
    COMMANDS_AT_ONCE,
    COMMANDS_UNDER_CONTENTION,
    CONNECTION_APPENDS_WAITING,
    CONNECTION_REPLIES_BYTES,
    CONNECTION_UNSENT_BYTES,
    KIB,
    MAX_FRAME_SENT_BYTES,
    MIB,
    PEERS_BYTES,
    PEERS_LEAST_BYTES,
    READ_REPLY_FIRST_BYTES,
    READ_REPLY_MAX_BYTES,
    READ_WEIGHT_BYTES,
    RECEIVE_BUFFER_LEAST_BYTES,
    UNKNOWN_PEER_FRAME_BYTES,
    WAKES_A_TURN,
)
from nadi.model.framing import frame_events
from nadi.segmentstore import store as stores
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.server import replies as doors_replies
from nadi.segmentstore.server.connection import Connection
from nadi.segmentstore.server.reads import Reads
from nadi.segmentstore.state.records import Extent, SegmentRecord, Waiters
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.fields import NO_VERSION, WireTableEntry, WireTableKey
from tests.segmentstore.harness import WRITER, Peer, connect, open_segment, open_store
from tests.support.turns import MostInATurn
from tests.support.waiting import until_async

S, TABLE = "scope/stream/0.#epoch.0", "scope/t_kvtable/0.#epoch.0"
pytestmark = pytest.mark.uvloop

HELLO = encode(wire.Hello(17, 5))


async def filled(peer: Peer, events: int, size: int = MIB) -> None:
    await peer.create(S)
    await peer.setup(S)
    for number in range(events):
        assert isinstance(await peer.append([bytes(size)], number + 1), wire.DataAppended)


class Rude:
    """A peer that sends, and reads only on request, with a tiny receive buffer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(address)
        self.socket.setblocking(False)
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(self._loop.sock_sendall(self.socket, data), 60)

    def send_some(self, data: bytes) -> int:
        """Send as much as the socket takes."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    async def read(self, count: int) -> bytes:
        return await asyncio.wait_for(self._loop.sock_recv(self.socket, count), 60)

    async def ended(self) -> bool:
        """Return whether the server closes the connection."""
        try:
            while await self.read(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


async def quiet(store: SegmentStore) -> None:
    """Wait until the accounted memory stays constant."""
    same, seen = 0, -1
    async with asyncio.timeout(60):
        while same < 20:
            await asyncio.sleep(0.005)
            same = same + 1 if store.budget.buffered_bytes == seen else 0
            seen = store.budget.buffered_bytes


def uncached(store: SegmentStore) -> None:
    """Drop the segment from the cache."""
    container = store.containers[0]
    record = container.state.find(S)
    assert record is not None
    container.cache.drop(container.number, record.extents)


def others(store: SegmentStore) -> Iterator[Connection]:
    """Yield the connections of the peers that don't read."""
    return (each for each in store._connections if not each.replies.writable.is_set())


# --- peers that don't read --------------------------------------------------------------------------------


async def test_reads_of_a_peer_that_does_not_read_wait_as_requests(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        await filled(peer, 8)
        asked = 100
        reads = b"".join(encode(wire.ReadSegment(S, n % 4 * MIB, 2 * MIB, "", n)) for n in range(asked))
        greedy = [Rude(store.address) for _ in range(5)]
        for rude in greedy:
            await rude.send(HELLO + reads)
        await until_async(lambda: len(list(others(store))) == 5)
        await quiet(store)
        await until_async(lambda: sum(len(each._reads._ready) > asked // 2 for each in others(store)) == 5)
        for connection in others(store):
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() < READ_REPLY_MAX_BYTES + CONNECTION_UNSENT_BYTES
            assert not connection._reads._tasks
        assert store.budget.peak_bytes < 5 * 2 * (READ_REPLY_MAX_BYTES + MIB)
        assert isinstance(await peer.append([b"good"], 100), wire.DataAppended)
        # a peer that reads at last gets everything
        decoder_peer = Peer(*await asyncio.open_connection(sock=greedy[0].socket))
        assert isinstance(await decoder_peer.receive(), wire.Hello)
        got = [await decoder_peer.receive() for _ in range(asked)]
        assert {reply.request_id for reply in got} == set(range(asked))
        assert all(isinstance(reply, wire.SegmentRead) and len(reply.data) for reply in got)
        for rude in greedy[1:]:
            rude.close()
        decoder_peer.close()
        await until_async(lambda: len(store._connections) == 1)
        await until_async(lambda: store.budget.buffered_bytes <= 2 * 256 * KIB)


async def test_nothing_is_fetched_for_a_reply_that_can_not_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    load = SegmentReader._load

    async def counted(
        reader: SegmentReader, container: Any, record: Any, offset: int, length: int, owner: object
    ) -> Any:
        fetched.append(length)
        return await load(reader, container, record, offset, length, owner)

    monkeypatch.setattr(SegmentReader, "_load", counted)

    async with open_store(tmp_path, 1) as (store, peer):
        await filled(peer, 8)
        uncached(store)
        rude = Rude(store.address)
        reads = (encode(wire.ReadSegment(S, n % 7 * (MIB + 8), MIB, "", n)) for n in range(200))
        await rude.send(HELLO + b"".join(reads))
        await until_async(lambda: list(others(store)))
        await quiet(store)
        await until_async(lambda: any(len(each._reads._ready) >= 200 - len(fetched) - 8 for each in others(store)))
        assert sum(fetched) <= CONNECTION_REPLIES_BYTES + 8 * MIB  # some went into the network
        (connection,) = others(store)
        assert connection.replies.held.buffered_bytes <= CONNECTION_REPLIES_BYTES + 2 * READ_REPLY_MAX_BYTES
        rude.close()


async def test_sparse_reads_of_history_by_one_peer_do_not_delay_other_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of one byte fetches its entire block, and a connection may send a thousand reads at once."""
    monkeypatch.setattr("nadi.segmentstore.reading.reads.FETCHES_AT_ONCE", 1)
    fetched: list[int] = []
    of_log, go_on = SegmentReader._of_log, asyncio.Event()

    async def slow(reader: SegmentReader, container: Container, record: SegmentRecord, extent: Extent) -> Any:
        fetched.append(extent.offset)
        await go_on.wait()
        return await of_log(reader, container, record, extent)

    monkeypatch.setattr(SegmentReader, "_of_log", slow)

    async with open_store(tmp_path, 1) as (store, peer):
        await filled(peer, 8)
        uncached(store)
        rude = Rude(store.address)
        await rude.send(HELLO + b"".join(encode(wire.ReadSegment(S, n * (MIB + 8), 1, "", n)) for n in range(7)))
        await until_async(lambda: len(store._reader._fetches) == 7)
        peer.send(wire.ReadSegment(S, 7 * (MIB + 8), 1, "", 1))
        await until_async(lambda: len(store._reader._fetches) == 8)
        go_on.set()
        assert isinstance(await peer.receive(), wire.SegmentRead)
        assert fetched.index(7 * (MIB + 8)) <= 2
        await until_async(lambda: len(fetched) == 8)
        rude.close()


async def test_many_peers_that_do_not_read_stay_within_the_budget(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        total, crowd = 16 * MIB, 40
        store.budget = Budget(total)
        await filled(peer, 8)
        reads = b"".join(encode(wire.ReadSegment(S, n % 4 * MIB, 2 * MIB, "", n)) for n in range(20))
        rude = [Rude(store.address) for _ in range(crowd)]
        for each in rude:
            await each.send(HELLO + reads)
        await quiet(store)
        assert store.budget.peak_bytes <= total + crowd * PEERS_LEAST_BYTES
        late = await connect(store.address)
        reply = await late.ask(wire.ReadSegment(S, 0, 2 * MIB, "", 1))
        assert len(reply.data) >= PEERS_LEAST_BYTES // 2, "a share is left for a late reader"
        for each in rude:
            each.close()
        late.close()


async def test_peer_that_does_not_read_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors_replies, "SEND_TIMEOUT_S", 0.5)
    monkeypatch.setattr(stores, "PATROL_S", 0.05)
    poll, now_s = Connection.poll, 100.0

    def polled(connection: Connection, _: float) -> bool:
        return poll(connection, now_s)  # while this process is stopped, no peer reads

    monkeypatch.setattr(Connection, "poll", polled)

    async with open_store(tmp_path, 1) as (store, peer):
        await filled(peer, 8)
        reads = b"".join(encode(wire.ReadSegment(S, n % 4 * MIB, 2 * MIB, "", n)) for n in range(20))
        stuck, slow = Rude(store.address), Rude(store.address)
        await stuck.send(HELLO + reads)
        await slow.send(HELLO + reads)
        while len(store._connections) == 3:
            await slow.read(1 << 20)
            await asyncio.sleep(0.005)
            now_s += 0.005
        assert store.too_slow == 1
        for _ in range(20):
            assert await slow.read(1 << 20), "a slow reader stays connected"
        assert await stuck.ended()
        slow.close()


async def test_unread_acknowledgements_stop_the_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 256 * KIB
    monkeypatch.setattr(doors_replies, "CONNECTION_UNSENT_BYTES", most)

    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        rude = Rude(store.address)
        await rude.send(HELLO + encode(wire.SetupAppend(1, WRITER, S, "")))
        data = frame_events([b"tiny"])
        await until_async(lambda: any(WRITER in each.writers.sessions for each in store._connections))
        bad = next(each for each in store._connections if WRITER in each.writers.sessions)
        left, number = b"", 1

        def send_on() -> bool:
            nonlocal left, number
            if not left:
                frames = range(number, number + 1000)
                left = b"".join(encode(wire.AppendBlockEnd(WRITER, len(data), data, 1, n, 9)) for n in frames)
                number += 1000
            left = left[rude.send_some(left) :]
            return bad.replies._unsent_bytes > most

        await until_async(send_on)
        for _ in range(100):
            send_on()
            await asyncio.sleep(0.002)
        await quiet(store)
        assert bad.writers.waiting <= CONNECTION_APPENDS_WAITING
        assert most < bad.replies._unsent_bytes <= most + (CONNECTION_APPENDS_WAITING + COMMANDS_A_TURN) * 100
        rude.close()


# --- peers that send partial frames ---------------------------------------------------------------------------------


def half_frame(size: int, sent: int) -> bytes:
    return struct.pack(">ii", wire.AppendBlockEnd.code, size) + bytes(sent)


async def test_partial_frames_stay_within_the_budget(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (store, peer):
        total, crowd = 16 * MIB, 60
        store.budget = Budget(total)
        await peer.create(S)
        rude = [Rude(store.address) for _ in range(crowd)]
        for each in rude:
            await each.send(HELLO)
            each.send_some(half_frame(MIB, 900 * KIB))
        await quiet(store)
        assert store.budget.peak_bytes <= total + crowd * PEERS_LEAST_BYTES
        good = await connect(store.address)
        await good.setup(S)
        for number in range(20):
            assert isinstance(await good.append([bytes(100 * KIB)], number + 1), wire.DataAppended)
        for each in rude:
            each.close()
        good.close()
        await until_async(lambda: store.budget.buffered_bytes < MIB)


async def test_partial_frame_has_a_deadline_and_idle_peers_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "FRAME_TIMEOUT_S", 0.2)
    monkeypatch.setattr(limits, "FRAME_LEAST_BYTES_S", 1000 * MIB)
    monkeypatch.setattr(stores, "PATROL_S", 0.05)

    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        half = Rude(store.address)
        await half.send(HELLO + half_frame(MIB, 10 * KIB))
        trickle = Rude(store.address)
        await trickle.send(HELLO + half_frame(MIB, 10 * KIB))
        ended = asyncio.create_task(half.ended())
        for _ in range(1000):  # occasional bytes aren't progress
            try:
                await trickle.send(b"x")
            except ConnectionError:
                break
            await asyncio.sleep(0.01)
        assert await ended
        assert await trickle.ended()
        assert store.too_slow == 2
        assert isinstance(await peer.ask(wire.GetStreamSegmentInfo(1, S, "")), wire.StreamSegmentInfo)
    assert "127.0.0.1" in caplog.text, "the closed peers are logged"


async def test_quiet_connections_hold_no_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PATROL_S", 0.02)

    async with open_store(tmp_path, 1) as (store, peer):
        await filled(peer, 4)
        more = [await connect(store.address) for _ in range(20)]
        await until_async(lambda: store.budget.buffered_bytes == 0)
        for each in more:
            assert isinstance(await each.ask(wire.GetStreamSegmentInfo(1, S, "")), wire.StreamSegmentInfo)
        assert store.budget.buffered_bytes <= 21 * RECEIVE_BUFFER_LEAST_BYTES
        for each in more:
            each.close()


# --- unknown peers --------------------------------------------------------------------------------


async def test_peer_without_a_token_may_send_only_small_frames(tmp_path: Path) -> None:
    key = TokenKey(b"k" * 64, 600)

    async with open_store(tmp_path, 1, key) as (store, _peer):
        strangers = [Rude(store.address) for _ in range(20)]
        for stranger in strangers:
            await stranger.send(HELLO)
            stranger.send_some(half_frame(17 * MIB - 100, 256 * KIB))
        for stranger in strangers:
            assert await stranger.ended()
        assert store.budget.peak_bytes < len(strangers) * 4 * UNKNOWN_PEER_FRAME_BYTES


async def test_large_first_command_is_authorized_by_its_head(tmp_path: Path) -> None:
    key = TokenKey(b"k" * 64, 600)
    entries = tuple(WireTableEntry(b"key %d" % n, NO_VERSION, bytes(500 * KIB)) for n in range(8))

    async with open_store(tmp_path, 1, key) as (store, peer):
        assert isinstance(await peer.ask(wire.CreateTableSegment(1, TABLE, key.master())), wire.SegmentCreated)
        right = key.issue("scope", "t_kvtable", Permission.READ_UPDATE)
        fresh = await connect(store.address)
        assert isinstance(await fresh.ask(wire.UpdateTableEntries(1, TABLE, right, entries)), wire.TableEntriesUpdated)
        wrong = key.issue("other", "t", Permission.READ_UPDATE)
        for token in (wrong, "", "nonsense"):
            stranger = await connect(store.address)
            stranger.send(wire.UpdateTableEntries(7, TABLE, token, entries))
            assert await stranger.receive() == wire.AuthTokenCheckFailed(7, "", 0)
            with pytest.raises(ConnectionError):
                await stranger.receive()
        endless = await connect(store.address)  # an endless head
        endless.send_raw(struct.pack(">iiq", wire.ReadTable.code, MIB, 1) + b"\xff" * (2 * UNKNOWN_PEER_FRAME_BYTES))
        with pytest.raises(ConnectionError):
            await endless.receive()
        fresh.close()


async def test_a_peer_must_become_known_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PATROL_S", 0.05)
    key = TokenKey(b"k" * 64, 600)

    async with open_store(tmp_path, 1, key) as (store, peer):
        assert isinstance(await peer.ask(wire.CreateSegment(1, S, 0, 0, key.master(), 0)), wire.SegmentCreated)
        monkeypatch.setattr(limits, "UNKNOWN_PEER_S", 0.3)
        stranger = Rude(store.address)
        await stranger.send(HELLO + encode(wire.KeepAlive()))
        assert await stranger.ended()
        info = await peer.ask(wire.GetStreamSegmentInfo(2, S, key.master()))
        assert isinstance(info, wire.StreamSegmentInfo), "a known peer stays connected"


async def test_idle_connections_do_not_displace_active_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "CONNECTIONS_OF_ADDRESS", 10)

    async with open_store(tmp_path, 1) as (store, peer):
        await peer.create(S)
        silent = [Rude(store.address) for _ in range(30)]
        assert store.listener is not None
        await until_async(lambda: store.listener is not None and store.listener.ended >= 20)
        late = await connect(store.address)
        assert isinstance(await late.ask(wire.GetStreamSegmentInfo(1, S, "")), wire.StreamSegmentInfo)
        assert isinstance(await peer.ask(wire.GetStreamSegmentInfo(1, S, "")), wire.StreamSegmentInfo)
        assert len(store.listener.connections) <= 10
        for each in silent:
            each.close()
        late.close()


# --- turns --------------------------------------------------------------------------------------------------


async def test_one_turn_takes_a_bounded_number_of_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = MostInATurn()
    receive = Connection.receive

    def counted(connection: Connection, command: wire.Command) -> None:
        turn.count()
        receive(connection, command)

    monkeypatch.setattr(Connection, "receive", counted)

    async with open_store(tmp_path, 1) as (store, _peer):
        crowd = [await connect(store.address) for _ in range(50)]
        async with turn:
            for each in crowd:
                each.send_raw(encode(wire.KeepAlive()) * 100)
            for each in crowd:
                for _ in range(100):
                    assert isinstance(await each.receive(), wire.KeepAlive)
                each.close()
        assert turn.all >= 100 * len(crowd)
        most = 2 * (COMMANDS_A_TURN + COMMANDS_AT_ONCE) + len(crowd) * COMMANDS_UNDER_CONTENTION
        assert turn.most <= most < len(crowd) * COMMANDS_AT_ONCE


async def test_one_turn_answers_a_bounded_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regardless of how many connections read in the same turn, each for the first time."""
    turn = MostInATurn()
    answer = Reads._answer

    def counted(reads: Reads, container: Container, command: wire.ReadSegment, length: int) -> int:
        size = answer(reads, container, command, length)
        turn.count(size)
        return size

    monkeypatch.setattr(Reads, "_answer", counted)

    async with open_segment(tmp_path, S) as (store, peer):
        await peer.append([bytes(READ_REPLY_FIRST_BYTES)], 1)
        crowd = [await connect(store.address) for _ in range(60)]
        async with turn:
            for each in crowd:
                each.send(wire.ReadSegment(S, 0, READ_REPLY_FIRST_BYTES, "", 1))
            for each in crowd:
                assert len((await each.receive()).data) == READ_REPLY_FIRST_BYTES
                each.close()
        assert turn.all == len(crowd) * READ_REPLY_FIRST_BYTES
        assert turn.most <= 2 * (COMMANDS_A_TURN * READ_WEIGHT_BYTES + READ_REPLY_FIRST_BYTES)


async def test_many_waiters_are_called_over_several_turns() -> None:
    waiters, called = Waiters(), []
    count = 5 * WAKES_A_TURN
    made = [lambda number=number: called.append(number) for number in range(count)]
    for waiter in made:
        waiters.add(waiter)
    waiters.wake()
    assert len(called) == WAKES_A_TURN
    waiters.discard(made[-1])  # a waiter discarded while due is not called
    waiters.add(made[0])
    waiters.wake()  # waiters added since the first wake are called too
    await until_async(lambda: not len(waiters))
    assert called == [*range(count - 1), 0]


async def test_waking_a_waiter_takes_constant_time_in_a_large_crowd() -> None:
    """Compares user time for 25 times as many waiters, each size at its best of three."""

    async def each_s(count: int) -> float:
        waiters, called = Waiters(), 0

        def call() -> None:
            nonlocal called
            called += 1

        for _ in range(count):
            waiters.add(partial(call))
        begun = time.thread_time()
        waiters.wake()
        await until_async(lambda: not len(waiters))
        assert called == count
        return (time.thread_time() - begun) / count

    few, many = [min([await each_s(count) for _ in range(3)]) for count in (4_000, 100_000)]
    assert many < 10 * few, f"{many * 1e6:.1f} us each, of few {few * 1e6:.1f}"


async def test_many_waiting_reads_are_answered_and_closed_quickly(tmp_path: Path) -> None:
    async with open_segment(tmp_path, S) as (store, peer):
        crowd = [await connect(store.address) for _ in range(10)]
        for each in crowd:
            each.send(*(wire.ReadSegment(S, 0, 100, "", n) for n in range(500)))
        record = store.containers[0].state.find(S)
        assert record is not None
        await until_async(lambda: len(record.waiters) == 5_000)
        await peer.append([b"news"], 1)
        for each in crowd[:5]:
            assert {(await each.receive()).request_id for _ in range(500)} == set(range(500))
        for each in crowd:
            each.send(*(wire.ReadSegment(S, 12, 100, "", n) for n in range(500)))
        await until_async(lambda: len(record.waiters) == 5_000)
        for each in crowd:
            each.close()
        await until_async(lambda: not len(record.waiters) and record.holders == 0)


# --- replies and requests with hidden size ----------------------------------------------------


async def test_a_reply_of_many_large_values_is_refused_before_it_is_built(tmp_path: Path) -> None:
    async with open_store(tmp_path, 1) as (_store, peer):
        await peer.ask(wire.CreateTableSegment(1, TABLE, ""))
        value = bytes(1000 * KIB)
        assert isinstance(
            await peer.ask(wire.UpdateTableEntries(1, TABLE, "", (WireTableEntry(b"k", NO_VERSION, value),))),
            wire.TableEntriesUpdated,
        )
        one, many = (WireTableKey(b"k", NO_VERSION),), (WireTableKey(b"k", NO_VERSION),) * 1000
        assert isinstance(await peer.ask(wire.ReadTable(2, TABLE, "", one)), wire.TableRead)
        reply = await peer.ask(wire.ReadTable(3, TABLE, "", many))
        assert isinstance(reply, wire.ErrorMessage)
        assert "fewer keys" in reply.message
        assert isinstance(
            await peer.ask(wire.ReadTable(4, TABLE, "", one * (MAX_FRAME_SENT_BYTES // 1001 // KIB))), wire.TableRead
        )


# --- the process --------------------------------------------------------------------------------------------


def test_process_memory_under_hostile_peers(tmp_path: Path) -> None:
    """Peers that don't read, and partial large frames: 1.3 GB before the budget existed."""
    with nadi.embedded(tmp_path) as server:
        from nadi.client import StreamManager

        with StreamManager(server.controller_uri) as manager:
            manager.create_scope("scope")
            manager.create_stream("scope", "stream", 1)
            writer = manager.create_writer("scope", "stream")
            for _ in range(40):
                writer.write_event(bytes(MIB - 100), "k")
            writer.flush(60)
            before = server.memory_bytes()
            rude = []
            reads = b"".join(encode(wire.ReadSegment(S, n * MIB, 2 * MIB, "", n)) for n in range(38))
            for number in range(60):
                each = socket.create_connection(server.store_address, 5)
                rude.append(each)
                if number % 2:
                    each.sendall(HELLO + reads)
                else:
                    each.setblocking(False)
                    data = memoryview(HELLO + half_frame(16 * MIB, 15 * MIB))
                    while data:  # as far as the server takes it at once
                        try:
                            data = data[each.send(data[: 1 << 20]) :]
                        except BlockingIOError:
                            break
            writer.write_event(b"good", "k").result(60)
            assert server.peak_memory_bytes() - before < PEERS_BYTES + 64 * MIB
            for each in rude:
                each.close()
