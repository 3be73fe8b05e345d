"""Epochs well before a stream's head are forgotten, whatever is killed and read concurrently; epochs that are still
needed are retained."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.history import Cut
from nadi.controller.state.records import EpochBase, EpochChange, SealedSizes, TxnState
from nadi.controller.state.segments import ANY_VERSION
from nadi.errors import EpochExpiredError, InvalidStreamCutError, NotFoundError
from nadi.naming import TRANSACTION_DELIMITER, transaction_segment_name
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .fake_store import FakeStore
from .support import STREAM, FakeClock, running, scaled, settle
from .test_crashes import check, crash, two_segments
from .test_workflows import over

KEPT, AT_ONCE = 3, 2


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.controller.workflows.truncate.EPOCHS_RETAINED", KEPT)
    for module in ("workflows.truncate", "state.metadata"):
        monkeypatch.setattr(f"nadi.controller.{module}.EPOCHS_FORGOTTEN_AT_ONCE", AT_ONCE)


async def scale_often(controller: Controller, times: int = 12) -> None:
    """Split the first segment and merge its pieces, repeatedly; the last segment stays unchanged."""
    for _ in range(times):
        segments = await controller.current_segments(STREAM)
        if len(segments) == 2:
            await scaled(controller, [segments[0].id], [(0.0, 0.25), (0.25, 0.5)])
        else:
            await scaled(controller, [segments[0].id, segments[1].id], [(0.0, 0.5)])


async def scaled_often(controller: Controller, store: FakeStore) -> None:
    await two_segments(controller, store)
    await scale_often(controller)


async def tail(controller: Controller) -> Cut:
    return {piece.id: 0 for piece in await controller.current_segments(STREAM)}


async def truncate_all(controller: Controller, store: FakeStore) -> None:
    await controller.truncate_stream(STREAM, await tail(controller))
    await check_records(controller, 12 - KEPT)


async def check_records(controller: Controller, first: int) -> None:
    """Check that the table has no records from before that epoch, and matches the history in memory."""
    newest = (await controller.stream(STREAM)).epoch
    records = {key: record.value async for key, record in controller.metadata.epochs(STREAM).scan()}
    base = records.pop("base")
    assert isinstance(base, EpochBase)
    assert (base.epoch, base.cleared) == (first, first)
    changes = [record.epoch for record in records.values() if isinstance(record, EpochChange)]
    assert sorted(changes) == list(range(first + 1, newest + 1))
    sizes = [key for key, record in records.items() if isinstance(record, SealedSizes)]
    assert sorted(sizes) == sorted(f"sizes/{epoch}" for epoch in range(first + 1, newest + 1))
    history = await controller.history(STREAM)
    controller.metadata.forget_history(STREAM)
    read = await controller.history(STREAM)
    assert history is not read
    for known in (history, read):
        assert (known.first, known.newest) == (first, newest)
    assert history.changes == read.changes
    assert history.sizes == read.sizes
    assert {i: history.began_ms(i) for i in history.segments if i >= 0 and i not in history.sealed_in} == {
        i: read.began_ms(i) for i in read.segments if i not in read.sealed_in
    }


def test_killed_at_every_command() -> None:
    at = 0
    while asyncio.run(crash(scaled_often, truncate_all, at, lose_reply=False)):
        at += 1
    assert at >= 10, "forgetting takes several steps"
    assert asyncio.run(crash(scaled_often, truncate_all, at - 1, lose_reply=True))


async def test_old_positions_raise_truncation_errors() -> None:
    store = FakeStore()
    async with running(store) as controller:
        await two_segments(controller, store)
        old = await tail(controller)
        began_ms = (await controller.stream(STREAM)).epoch_created_ms
        await scale_often(controller)
        await truncate_all(controller, store)
        head = await controller.head(STREAM)
        for ask in (
            controller.is_cut_valid(STREAM, old),
            controller.segments_between(STREAM, old, head),
            controller.successors(STREAM, 0),
        ):
            with pytest.raises(EpochExpiredError):
                await ask
        with pytest.raises(InvalidStreamCutError):
            await controller.truncate_stream(STREAM, old)
        with pytest.raises(NotFoundError):
            await controller.successors(STREAM, 77 << 32)
        # a segment that outlived its epoch is still known, with its creation time
        assert [piece.id for piece in await controller.epoch_segments(STREAM, 0)] == [1]
        assert (await controller.history(STREAM)).began_ms(1) == began_ms
        assert await controller.is_cut_valid(STREAM, head)
        assert await controller.segments_between(STREAM, head, {}) == sorted(head)
        assert await controller.cut_at(STREAM, began_ms) == head
        await check(controller, store)


@pytest.mark.parametrize("commits", [True, False])
async def test_an_unfinished_transaction_keeps_its_epoch(commits: bool) -> None:
    store, clock = FakeStore(), FakeClock()
    async with running(store, clock) as controller:
        await two_segments(controller, store)
        await scale_often(controller, 2)
        transaction = await controller.transactions.create(STREAM, 600_000)
        for piece in transaction.ranges:
            store.append(transaction_segment_name(STREAM.segment(piece.id), transaction.txn_id), b"t")
        await scale_often(controller, 10)
        await controller.truncate_stream(STREAM, await tail(controller))
        assert (await controller.history(STREAM)).first == 2
    async with running(store, clock) as controller:  # another controller, which reads it from the table
        await controller.truncate_stream(STREAM, await tail(controller))
        assert (await controller.history(STREAM)).first == 2
        if commits:
            await controller.transactions.commit(STREAM, transaction.txn_id)
        else:
            await controller.transactions.abort(STREAM, transaction.txn_id)
        await settle(600)
        state = await controller.transactions.state(STREAM, transaction.txn_id)
        assert state is (TxnState.COMMITTED if commits else TxnState.ABORTED)
        assert not any(TRANSACTION_DELIMITER in name for name in store.segments)
        written = b"".join(bytes(segment.data) for segment in store.segments.values() if b"t" in segment.data)
        assert written.count(b"t") == (len(transaction.ranges) if commits else 0)
        await controller.truncate_stream(STREAM, await tail(controller))
        await check_records(controller, (await controller.stream(STREAM)).reference - KEPT)
        await check(controller, store)


async def test_reader_of_epochs_being_forgotten_reads_again() -> None:
    store = FakeStore()
    pages = reads = 0

    async def in_small_pages(command: Command) -> Command:
        nonlocal pages, reads
        if isinstance(command, wire.ReadTableEntries) and "/stream/" in command.segment:
            pages += 1
            reads += command.range[0] == b""
            if pages == 3:
                await truncate_all(writer, store)
            command = msgspec.structs.replace(command, suggested_count=3)
        return await store.exchange(command)

    reader = over(in_small_pages)
    async with running(store) as writer:
        await scaled_often(writer, store)
        await reader.start()
        try:
            history = await reader.history(STREAM)
            assert (history.first, history.newest) == (12 - KEPT, 12)
            assert reads == 2
        finally:
            await reader.stop()


async def test_records_left_by_a_crash_are_ignored_and_removed_later() -> None:
    store = FakeStore()
    async with running(store) as controller:
        await scaled_often(controller, store)
        table = controller.metadata.epochs(STREAM)
        old = [(key, record.value, ANY_VERSION) async for key, record in table.scan()]
        await controller.truncate_stream(STREAM, await tail(controller))
        base = await table.get("base")
        assert base is not None
        assert isinstance(base.value, EpochBase)
        began = {i: (await controller.history(STREAM)).began_ms(i) for i in await tail(controller)}
        await table.put_all(old)
        await table.put("base", _uncleared(base.value), ANY_VERSION)
        controller.metadata.forget_history(STREAM)
        history = await controller.history(STREAM)
        assert history.first == 12 - KEPT
        assert {i: history.began_ms(i) for i in began} == began
        await controller.truncate_stream(STREAM, await tail(controller))
        await check_records(controller, 12 - KEPT)


def _uncleared(base: EpochBase) -> EpochBase:
    return EpochBase(base.epoch, base.reference, base.created_ms, base.segments, base.began_ms, 0)
