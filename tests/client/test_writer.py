"""The writer against a store that drops connections, seals segments and runs full."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any
from uuid import UUID

import pytest

from nadi.client.aio import Transaction
from nadi.client.manager.streams import stores_of
from nadi.client.writing.transactions import release_transaction
from nadi.errors import (
    EventTooLargeError,
    InvalidArgumentError,
    RequestTimeoutError,
    StorageFullError,
    StreamSealedError,
    UnavailableError,
)
from nadi.naming import segment_id
from nadi.wire import commands as wire
from nadi.wire.fields import WireTableEntry
from tests.support.ports import free_port
from tests.support.waiting import until_async

from .fake_server import Chaos
from .world import World, world


def in_order(events: list[bytes]) -> dict[bytes, list[int]]:
    """Return each key's numbers in storage order, for events `key:number`."""
    numbers: dict[bytes, list[int]] = {}
    for event in events:
        key, _, number = event.partition(b":")
        numbers.setdefault(key, []).append(int(number))
    return numbers


async def test_events_are_stored_in_order_and_share_an_ack() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        first, second = writer.write_event(b"a", "k"), writer.write_event(b"b", "k")
        assert first is second
        await first
        assert first.done()
        await writer.write_batch([b"c", b"d"], "k")
        await writer.write_batch([b"e", b""], ["k", None])
        assert w.stored(0) == [b"a", b"b", b"c", b"d", b"e", b""]


async def test_next_batch_grows_while_appends_are_in_flight() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        for i in range(50_000):
            writer.write_event(b"x" * 100, f"k{i % 10}")
        await writer.flush()
        appends = w.store.appends["sc/st/0.#epoch.0"]
        assert sum(appends) == 50_000 * 108
        assert len(appends) < 10


def rescale_somehow(w: World, choice: random.Random) -> None:
    """Split one segment, or merge two neighbours."""
    current = sorted(w.controller.streams["sc", "st"].epochs[-1].items(), key=lambda item: item[1])
    if len(current) > 1 and choice.random() < 0.5:
        at = choice.randrange(len(current) - 1)
        (a, (low, _)), (b, (_, high)) = current[at], current[at + 1]
        w.controller.rescale("sc", "st", [a, b], [(low, high)])
    else:
        i, (low, high) = choice.choice(current)
        middle = (low + high) / 2
        w.controller.rescale("sc", "st", [i], [(low, middle), (middle, high)])


async def test_split_sends_unacknowledged_events_to_the_successors_first() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_event(b"a:0", "a")
        w.store.silent = True  # the next events wait unacknowledged
        writer.write_event(b"a:1", "a")
        await asyncio.sleep(0.02)
        writer.write_event(b"b:0", "b")
        w.controller.rescale("sc", "st", [0], [(0.0, 0.5), (0.5, 1.0)])
        w.store.silent = False
        w.store.drop_all()
        acks = [writer.write_event(b"a:2", "a"), writer.write_event(b"b:1", "b")]
        for ack in acks:
            await ack
        assert w.stored(0) == [b"a:0"]
        assert in_order(w.all_stored()) == {b"a": [0, 1, 2], b"b": [0, 1]}


async def test_stored_append_without_an_ack_is_not_repeated_after_a_seal() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        w.store.hold = True
        ack = writer.write_event(b"a:0", "a")
        async with asyncio.timeout(60):
            while not w.all_stored():  # noqa: ASYNC110 (the fake store sends no notification)
                await asyncio.sleep(0.01)
        w.controller.rescale("sc", "st", [0], [(0.0, 1.0)])
        w.store.hold = False
        w.store.drop_all()
        await ack
        await writer.write_event(b"a:1", "a")
        assert in_order(w.all_stored()) == {b"a": [0, 1]}
        assert w.stored(segment_id(1, 1)) == [b"a:1"]


async def test_a_sealed_stream_fails_pending_and_later_events() -> None:
    async with world(2) as w:
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_event(b"x", "k")
        w.controller.seal_all("sc", "st")
        ack = writer.write_event(b"y", "k")
        with pytest.raises(StreamSealedError):
            await ack
        with pytest.raises(StreamSealedError):
            writer.write_event(b"z", "k")
        with pytest.raises(StreamSealedError):
            await writer.flush()
        with pytest.raises(StreamSealedError):
            await w.manager.create_writer("sc", "st")


def test_write_to_a_full_store_waits_and_then_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with world() as w:
            writer = await w.manager.create_writer("sc", "st", ack_timeout=3)
            w.store.full = True
            ack = writer.write_event(b"a", "k")
            await until_async(lambda: any("sc/st" in r.message for r in caplog.records))
            w.store.full = False
            await ack
            w.store.full = True
            with pytest.raises(StorageFullError):
                await writer.write_event(b"b", "k")
            w.store.full = False
            await writer.write_event(b"c", "k")
            assert w.stored(0) == [b"a", b"c"]
            with pytest.raises(StorageFullError):  # flush also reports failures that were not awaited
                await writer.flush()
            await writer.flush()

    with caplog.at_level(logging.WARNING, "nadi.client"):
        asyncio.run(run())
    assert len([r for r in caplog.records if "sc/st" in r.message]) == 2


async def test_a_silent_store_fails_the_ack_in_time_and_waits_end() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st", ack_timeout=0.3)
        w.store.silent = True
        ack = writer.write_event(b"a", "k")
        with pytest.raises(RequestTimeoutError):
            await writer.flush(0.05)
        with pytest.raises(RequestTimeoutError):
            await ack


async def test_memory_is_bounded() -> None:
    async with world() as w:
        writer = await w.manager.create_writer("sc", "st", ack_timeout=120)
        w.store.silent = True
        with pytest.raises(UnavailableError):
            writer.write_batch([b"x" * 1_000_000] * 100, "k")
        waiting = asyncio.create_task(writer.ready())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await w.manager.close()
        await waiting


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 4))])
async def test_large_events_are_stored_once_in_order(seed: int) -> None:
    async with world(1, Chaos(seed, before=0.25, after=0.25) if seed else None) as w:
        writer = await w.manager.create_writer("sc", "st")
        events = [b"a", b"b" * (9 << 20), b"c", b"d" * (17 << 20), b"e", b"f"]
        for i, event in enumerate(events):
            if i == 3:
                w.controller.rescale("sc", "st", [0], [(0.0, 1.0)])
            await writer.write(event, "k")
        await writer.flush(60)
        assert [event[:1] for event in w.all_stored()] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert [len(event) for event in w.all_stored()] == [len(event) for event in events]


async def test_event_over_the_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.client.writing.sender.MAX_LARGE_EVENT_BYTES", 10_000)

    async with world() as w:
        writer = await w.manager.create_writer("sc", "st")
        with pytest.raises(EventTooLargeError):
            writer.write_event(b"x" * 10_001)


async def test_write_waits_while_the_store_is_unreachable() -> None:
    async with world() as w:
        await w.store.stop()
        w.store.port = free_port()  # not used by others while the store is stopped
        await w.store.start()
        writer = await w.manager.create_writer("sc", "st")
        await writer.write_event(b"a", "k")
        await w.store.stop()
        ack = writer.write_event(b"b", "k")
        await asyncio.sleep(0.1)
        assert not ack.done()
        await w.store.start()
        await ack
        assert w.stored(0) == [b"a", b"b"]


async def test_transaction_is_visible_only_after_its_commit() -> None:
    async with world(2) as w:
        writer = await w.manager.create_transaction_writer("sc", "st")
        async with await writer.begin_txn() as txn:
            txn.write_event(b"a", "a")
            txn.write_event(b"b", "b")
            await txn.flush()
            assert w.all_stored() == []
            assert await txn.status() == "OPEN"
        assert sorted(w.all_stored()) == [b"a", b"b"]
        begun = await writer.begin_txn()
        begun.write_event(b"c")
        await begun.flush()
        release_transaction(begun)
        resumed = await writer.get_txn(begun.txn_id)
        resumed.write_event(b"d")
        await resumed.commit(wait=True)
        assert sorted(w.all_stored()) == [b"a", b"b", b"c", b"d"]
        txn = await writer.begin_txn()
        with pytest.raises(InvalidArgumentError):
            await fail_within(txn)
        assert await txn.status() == "ABORTED"
        assert len(w.all_stored()) == 4


async def fail_within(txn: Transaction) -> None:
    async with txn:
        await txn.write_event(b"e")
        txn.write_event(5)  # type: ignore[arg-type]


async def test_each_transaction_has_a_separate_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        leases: list[int] = []
        controller = stores_of(w.manager).controller
        create, ping = controller.create_transaction, controller.ping_transaction

        async def noted_create(scope: str, stream: str, lease_ms: int) -> Any:
            leases.append(lease_ms)
            return await create(scope, stream, lease_ms)

        async def noted_ping(scope: str, stream: str, txn_id: UUID, lease_ms: int) -> None:
            leases.append(lease_ms)
            await ping(scope, stream, txn_id, lease_ms)

        monkeypatch.setattr(stores_of(w.manager).controller, "create_transaction", noted_create)
        monkeypatch.setattr(stores_of(w.manager).controller, "ping_transaction", noted_ping)
        writer = await w.manager.create_transaction_writer("sc", "st", lease_ms=30_000)
        short = await writer.begin_txn(lease_ms=10_000)
        usual = await writer.begin_txn()
        for txn in (short, usual):
            await txn.ping()
            await txn.abort()
        assert leases == [10_000, 30_000, 10_000, 30_000]


async def test_resumed_transaction_gets_a_full_lease_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        extended = asyncio.get_running_loop().create_future()

        async def noted_ping(scope: str, stream: str, txn_id: UUID, lease_ms: int) -> None:
            extended.set_result((txn_id, lease_ms))

        first = await w.manager.create_transaction_writer("sc", "st", lease_ms=10_000)
        txn = await first.begin_txn()
        await first.close()
        monkeypatch.setattr(stores_of(w.manager).controller, "ping_transaction", noted_ping)
        second = await w.manager.create_transaction_writer("sc", "st", lease_ms=60_000)
        await second.get_txn(txn.txn_id)
        assert await asyncio.wait_for(extended, 60) == (txn.txn_id, 60_000)


async def test_commit_and_abort_raise_after_their_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        writer = await w.manager.create_transaction_writer("sc", "st")
        txn = await writer.begin_txn()
        await txn.write_event(b"1")

        async def silent(*_: object) -> None:
            await asyncio.Event().wait()

        with monkeypatch.context() as away:
            away.setattr(stores_of(w.manager).controller, "commit_transaction", silent)
            away.setattr(stores_of(w.manager).controller, "abort_transaction", silent)
            with pytest.raises(RequestTimeoutError, match=str(txn.txn_id)):
                await txn.commit(timeout=0.05)
            with pytest.raises(RequestTimeoutError, match=str(txn.txn_id)):
                await txn.abort(timeout=0.05)
        await txn.commit(wait=True)
        assert w.all_stored() == [b"1"]


async def test_failing_transaction_block_without_a_server_raises_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        writer = await w.manager.create_transaction_writer("sc", "st")
        txn = await writer.begin_txn()

        async def silent(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(stores_of(w.manager).controller, "abort_transaction", silent)
        monkeypatch.setattr("nadi.client.writing.transactions._ABORT_ON_ERROR_TIMEOUT_S", 0.05)
        with pytest.raises(TypeError) as raised:
            await asyncio.wait_for(fail_in_a_block(txn), 60)
        assert str(txn.txn_id) in raised.value.__notes__[0]
        assert not writer._open_transactions  # the lease is not extended any more
        with pytest.raises(InvalidArgumentError):
            await w.manager.create_writer("sc", "st", ack_timeout=0)


async def fail_in_a_block(txn: Transaction) -> None:
    async with txn:
        raise TypeError("raised by the block")


async def test_transaction_aborted_elsewhere_fails() -> None:
    from nadi.errors import TransactionFailedError

    async with world() as w:
        writer = await w.manager.create_transaction_writer("sc", "st")
        txn = await writer.begin_txn()
        await txn.write_event(b"a")
        await w.controller.abort_transaction("sc", "st", txn.txn_id)
        with pytest.raises(TransactionFailedError):
            await txn.write_event(b"b")
        with pytest.raises(TransactionFailedError):
            await txn.commit()


async def test_request_that_cannot_be_encoded_sends_nothing() -> None:
    async with world() as w:
        segment = "sc/st/0.#epoch.0"
        connection = await stores_of(w.manager).connection(segment)
        wrong: Any = "text"
        update = wire.UpdateTableEntries(0, segment, "", (WireTableEntry(b"k", 0, wrong),))
        with pytest.raises(TypeError):
            await connection.ask(update, wire.TableEntriesUpdated, timeout_s=5)
        assert (await w.manager.segment_info(segment)).write_offset == 0  # not read as the end of that frame
        assert connection.is_open
