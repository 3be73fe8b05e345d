"""The wall clock is set forward or back, while a controller runs and between two runs: no duration is shortened or
prolonged, and no record is lost or hidden."""

from __future__ import annotations

import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.records import TxnState
from nadi.controller.transactions.decisions import ExecutionTimeExceededError
from nadi.errors import TransactionNotFoundError
from nadi.limits import TXN_COMPLETED_TABLES, TXN_GRACE_MS, TXN_LEASE_MAX_MS, TXN_MAX_EXECUTION_MS, WATERMARK_PERIOD_S

from .fake_store import FakeStore
from .support import STREAM, FakeClock, new_controller, running, until, with_stream

LEASE_MS = 20_000
DAY_MS = 24 * 3600 * 1000
PERIOD_MS = int(WATERMARK_PERIOD_S * 1000)
STEPS = pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS, 60 * DAY_MS, -60 * DAY_MS, 3_000, -3_000])
MARK = "home/_MARKmeters/0.#epoch.0"


async def state(controller: Controller, txn_id: int, expected: TxnState) -> None:
    async def reached() -> bool:
        return await controller.transactions.state(STREAM, txn_id) is expected

    await until(reached)


async def finished(controller: Controller) -> int:
    transaction = await controller.transactions.create(STREAM, LEASE_MS)
    await controller.transactions.commit(STREAM, transaction.txn_id)
    await state(controller, transaction.txn_id, TxnState.COMMITTED)
    return transaction.txn_id


# --- leases ----------------------------------------------------------------------------------------


@STEPS
async def test_a_lease_lasts_as_long_as_it_says(step_ms: int) -> None:
    async with with_stream(1) as (controller, _, clock):
        left, kept = [(await controller.transactions.create(STREAM, LEASE_MS)).txn_id for _ in range(2)]
        await clock.advance(LEASE_MS // 2)
        clock.set(step_ms)
        await controller.transactions.ping(STREAM, kept, LEASE_MS)
        await clock.advance(LEASE_MS // 2 - 1_000)
        assert await controller.transactions.state(STREAM, left) is TxnState.OPEN
        await clock.advance(1_000 + TXN_GRACE_MS + 1_000)
        await state(controller, left, TxnState.ABORTED)
        await controller.transactions.commit(STREAM, kept)
        await state(controller, kept, TxnState.COMMITTED)


@STEPS
async def test_restart_renews_the_full_lease_only(step_ms: int) -> None:
    async with with_stream(1) as (controller, store, clock):
        left, kept = [(await controller.transactions.create(STREAM, LEASE_MS)).txn_id for _ in range(2)]
        await clock.advance(LEASE_MS - 1_000)
        await controller.stop()
        clock = FakeClock(clock.now_ms() + step_ms)
        async with running(store, clock) as again:
            await clock.advance(LEASE_MS - 1_000)
            assert await again.transactions.state(STREAM, left) is TxnState.OPEN
            assert await again.transactions.ping(STREAM, kept, LEASE_MS) is TxnState.OPEN
            await clock.advance(1_000 + TXN_GRACE_MS + 1_000)
            await state(again, left, TxnState.ABORTED)
            assert await again.transactions.state(STREAM, kept) is TxnState.OPEN


@STEPS
async def test_the_longest_time_counts_while_servers_run(step_ms: int) -> None:
    """A transaction pinged for twelve days before a restart may continue for the remaining eighteen."""

    async with with_stream(1) as (controller, store, clock):
        transaction = await controller.transactions.create(STREAM, TXN_LEASE_MAX_MS)
        for _ in range(2):
            clock.jump(6 * DAY_MS)
            await controller.transactions.ping(STREAM, transaction.txn_id, TXN_LEASE_MAX_MS)
            clock.set(step_ms)
        await controller.stop()
        clock = FakeClock(clock.now_ms() + step_ms)
        async with running(store, clock) as again:
            assert TXN_MAX_EXECUTION_MS == 30 * DAY_MS
            for _ in range(2):
                clock.jump(6 * DAY_MS)
                await again.transactions.ping(STREAM, transaction.txn_id, 6 * DAY_MS)
            with pytest.raises(ExecutionTimeExceededError):
                await again.transactions.ping(STREAM, transaction.txn_id, 6 * DAY_MS + 1)


# --- outcomes of finished transactions ---------------------------------------------------------------


@STEPS
async def test_outcomes_are_known_after_a_clock_step(step_ms: int) -> None:
    async with with_stream(1) as (controller, store, clock):
        first = await finished(controller)
        clock.set(step_ms)
        second = await finished(controller)
        for again in range(2):
            for txn_id in (first, second):
                assert await controller.transactions.state(STREAM, txn_id) is TxnState.COMMITTED
                await controller.transactions.commit(STREAM, txn_id)  # as after a lost reply
            completed = await controller.transactions.completed(STREAM)
            assert [txn_id for txn_id, _ in completed] == [second, first], "newest first"
            if not again:
                await controller.stop()
                controller = await restarted(store, clock.now_ms() + step_ms)
        third = await finished(controller)
        completed = await controller.transactions.completed(STREAM)
        assert [txn_id for txn_id, _ in completed] == [third, second, first]
        await controller.stop()


async def restarted(store: FakeStore, now_ms: int) -> Controller:
    controller = new_controller(store, FakeClock(now_ms))
    await controller.start()
    return controller


async def test_start_with_a_wrong_clock_keeps_the_last_day() -> None:
    async with with_stream(1) as (controller, store, clock):
        await finished(controller)
        clock.jump(DAY_MS - 1_000)
        last = await finished(controller)
        clock.jump(2_000)
        await finished(controller)  # in the table of the next day
        await controller.stop()
        controller = await restarted(store, clock.now_ms() + 60 * DAY_MS)
        await finished(controller)
        assert await controller.transactions.state(STREAM, last) is TxnState.COMMITTED
        await controller.stop()


@pytest.mark.parametrize("restarts", [False, True])
async def test_outcomes_are_forgotten_after_days_with_their_tables(restarts: bool) -> None:
    def tables(store: FakeStore) -> int:
        return sum("/completed/" in name for name in store.tables)

    async with with_stream(1) as (controller, store, clock):
        begun = await finished(controller)
        for day in range(1, 8):
            if restarts:
                await controller.stop()
                clock = FakeClock(clock.now_ms() + DAY_MS)
                controller = await restarted(store, clock.now_ms())
            else:
                clock.jump(DAY_MS)
            await finished(controller)
            assert tables(store) == min(day + 1, TXN_COMPLETED_TABLES)
            if day < TXN_COMPLETED_TABLES:
                assert await controller.transactions.state(STREAM, begun) is TxnState.COMMITTED
            else:
                with pytest.raises(TransactionNotFoundError):
                    await controller.transactions.state(STREAM, begun)
        await controller.stop()


async def test_a_new_stream_lists_none_of_its_predecessors() -> None:
    async with with_stream(1) as (controller, _, clock):
        await finished(controller)
        config = (await controller.stream(STREAM)).config
        await controller.seal_stream(STREAM)
        await controller.delete_stream(STREAM)
        clock.set(-DAY_MS)
        await controller.create_stream(STREAM, config)
        assert await controller.transactions.completed(STREAM) == []
        mine = await finished(controller)
        assert [txn_id for txn_id, _ in await controller.transactions.completed(STREAM)] == [mine]


# --- watermarks ------------------------------------------------------------------------------------


@STEPS
async def test_stalled_writer_is_waited_for_as_configured(step_ms: int) -> None:
    async with with_stream(1, timestamp_aggregation_timeout_ms=60_000) as (controller, store, clock):

        async def rounds() -> bytes:
            await controller.watermarks.round()
            return store.data(MARK)

        await controller.note_time(STREAM, "late", 10, {0: 1})
        await controller.note_time(STREAM, "b", 50, {0: 2})
        first = await rounds()
        assert await rounds() == first  # the late writer is now known to be stalled
        clock.set(step_ms)
        assert await rounds() == first
        clock.jump(59_000)
        assert await rounds() == first
        clock.jump(1_000)
        assert len(await rounds()) > len(first)
