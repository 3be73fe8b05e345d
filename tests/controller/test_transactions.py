"""Transactions through the controller, over an in-memory store."""

from __future__ import annotations

import asyncio

import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.records import StreamConfigRecord, TxnState
from nadi.controller.transactions.decisions import ExecutionTimeExceededError, LeaseTooLargeError
from nadi.errors import (
    InvalidArgumentError,
    StreamNotFoundError,
    StreamSealedError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.limits import TXN_BATCH_MAX, TXN_COMMIT_BATCH, TXN_LEASE_MAX_MS
from nadi.model.segments import tiles
from nadi.naming import segment_id, transaction_segment_name
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .fake_store import FakeStore
from .support import STREAM, running, scaled, settle, until, with_stream
from .test_crashes import OTHER

LEASE = 20_000


def write(store: FakeStore, txn_id: int, segment: int, data: bytes) -> None:
    store.append(transaction_segment_name(STREAM.segment(segment), txn_id), data)


async def wait_for(controller: Controller, txn_id: int, state: TxnState) -> None:
    async def reached() -> bool:
        return await controller.transactions.state(STREAM, txn_id) is state

    await until(reached)


async def test_commit_merges_in_the_order_of_commits() -> None:
    async with with_stream(2) as (controller, store, _):
        started = [await controller.transactions.create(STREAM, LEASE) for _ in range(5)]
        assert len({b.txn_id for b in started}) == 5
        assert all(b.txn_id & (1 << 63) == 0 for b in started)
        assert all(tiles(b.ranges) for b in started)
        for number, b in enumerate(started):
            for segment in (0, 1):
                write(store, b.txn_id, segment, b"%d" % number)
        order = [3, 0, 4, 1]
        for number in order:
            await controller.transactions.commit(STREAM, started[number].txn_id)
        await controller.transactions.abort(STREAM, started[2].txn_id)
        for number in order:
            await wait_for(controller, started[number].txn_id, TxnState.COMMITTED)
        await wait_for(controller, started[2].txn_id, TxnState.ABORTED)
        assert store.data(STREAM.segment(0)) == store.data(STREAM.segment(1)) == b"3041"
        assert not any("transaction" in name for name in store.segments)
        await controller.transactions.commit(STREAM, started[3].txn_id)  # repeating it is fine
        await controller.transactions.abort(STREAM, started[2].txn_id)
        with pytest.raises(TransactionFailedError):
            await controller.transactions.commit(STREAM, started[2].txn_id)
        with pytest.raises(TransactionFailedError):
            await controller.transactions.abort(STREAM, started[0].txn_id)
        with pytest.raises(TransactionNotFoundError):
            await controller.transactions.commit(STREAM, 12345)
        assert dict(await controller.transactions.completed(STREAM)) == {
            b.txn_id: TxnState.ABORTED if i == 2 else TxnState.COMMITTED for i, b in enumerate(started)
        }


async def test_transaction_over_a_scale_is_committed_in_additional_epochs() -> None:
    async with with_stream(2) as (controller, store, _):
        old = await controller.transactions.create(STREAM, LEASE)
        write(store, old.txn_id, 0, b"zero")
        write(store, old.txn_id, 1, b"one")
        await scaled(controller, [0, 1], [(0.0, 1 / 3), (1 / 3, 1.0)])
        new = await controller.transactions.create(STREAM, LEASE)
        assert new.txn_id >> 96 == 1
        write(store, new.txn_id, segment_id(2, 1), b"new")
        await controller.transactions.commit(STREAM, new.txn_id)
        await controller.transactions.commit(STREAM, old.txn_id)
        await wait_for(controller, old.txn_id, TxnState.COMMITTED)
        await wait_for(controller, new.txn_id, TxnState.COMMITTED)
        stream = await controller.stream(STREAM)
        assert (stream.epoch, stream.reference) == (3, 1)
        assert store.data(STREAM.segment(segment_id(0, 2))) == b"zero"
        assert store.data(STREAM.segment(segment_id(1, 2))) == b"one"
        assert [s.id for s in stream.segments] == [segment_id(2, 3), segment_id(3, 3)]
        for segment in (segment_id(0, 2), segment_id(1, 2), segment_id(2, 1)):
            assert store.segments[STREAM.segment(segment)].sealed
        found = [(s.id, before) for s, before in await controller.successors(STREAM, segment_id(2, 1))]
        assert found == [(segment_id(0, 2), [segment_id(2, 1), segment_id(3, 1)])]
        # a later one of the same ranges needs no additional epochs
        later = await controller.transactions.create(STREAM, LEASE)
        assert later.txn_id >> 96 == 1
        write(store, later.txn_id, segment_id(2, 1), b"later")
        await controller.transactions.commit(STREAM, later.txn_id)
        await wait_for(controller, later.txn_id, TxnState.COMMITTED)
        assert (await controller.stream(STREAM)).epoch == 3
        assert store.data(STREAM.segment(segment_id(2, 3))) == b"later"


async def test_leases_expire_after_a_grace_period_and_pings_extend_them() -> None:
    async with with_stream(1) as (controller, store, clock):
        begun = await controller.transactions.create(STREAM, LEASE)
        await clock.advance(LEASE)
        assert await controller.transactions.ping(STREAM, begun.txn_id, LEASE) is TxnState.OPEN
        await clock.advance(LEASE + 1_500)
        assert await controller.transactions.state(STREAM, begun.txn_id) is TxnState.OPEN
        await clock.advance(1_000)
        await wait_for(controller, begun.txn_id, TxnState.ABORTED)
        assert await controller.transactions.ping(STREAM, begun.txn_id, LEASE) is TxnState.ABORTED
        with pytest.raises(TransactionFailedError):
            await controller.transactions.commit(STREAM, begun.txn_id)
        assert not any("transaction" in name for name in store.segments)


async def test_transaction_expired_during_its_start_can_be_retried() -> None:
    """Creating its segments took long: formerly the stream was reported as sealed, and the writer stopped."""
    async with with_stream(1) as (controller, store, clock):
        is_slow = True

        async def slow(command: Command) -> None:
            nonlocal is_slow
            if is_slow and isinstance(command, wire.CreateSegment):
                is_slow = False
                await clock.advance(2 * LEASE)
                await until(ended)

        async def ended() -> bool:
            return not controller.transactions.live(STREAM, TxnState.OPEN)

        store.before = slow
        with pytest.raises(UnavailableError):
            await controller.transactions.create(STREAM, LEASE)
        assert (await controller.transactions.create(STREAM, LEASE)).ranges


async def test_limits_of_leases() -> None:
    async with with_stream(1) as (controller, _, clock):
        for lease in (0, -1, 9_999, TXN_LEASE_MAX_MS + 1):
            with pytest.raises(InvalidArgumentError):
                await controller.transactions.create(STREAM, lease)
        begun = await controller.transactions.create(STREAM, TXN_LEASE_MAX_MS)
        with pytest.raises(LeaseTooLargeError):
            await controller.transactions.ping(STREAM, begun.txn_id, TXN_LEASE_MAX_MS + 1)
        for _ in range(4):
            await clock.advance(1_000)
            clock.jump(6 * 24 * 3600 * 1000)
            await controller.transactions.ping(STREAM, begun.txn_id, 5 * 24 * 3600 * 1000)
        with pytest.raises(ExecutionTimeExceededError):
            await controller.transactions.ping(STREAM, begun.txn_id, TXN_LEASE_MAX_MS)


async def test_open_transactions_of_the_rust_client_wait_for_their_turn_to_be_pinged() -> None:
    async with with_stream(1) as (controller, _, clock):
        begun = [await controller.transactions.create(STREAM, 90_000) for _ in range(3)]
        for _ in range(3):
            await clock.advance(89_000)
        for b in begun:
            assert await controller.transactions.state(STREAM, b.txn_id) is TxnState.OPEN
        await clock.advance(200_000)
        for b in begun:
            await wait_for(controller, b.txn_id, TxnState.ABORTED)


async def test_sealing_aborts_open_transactions_and_finishes_committing_ones() -> None:
    async with with_stream(1) as (controller, store, _):
        opened = await controller.transactions.create(STREAM, LEASE)
        committed = await controller.transactions.create(STREAM, LEASE)
        write(store, committed.txn_id, 0, b"in")
        write(store, opened.txn_id, 0, b"out")
        await controller.transactions.commit(STREAM, committed.txn_id)
        await controller.seal_stream(STREAM)
        assert await controller.transactions.state(STREAM, opened.txn_id) is TxnState.ABORTED
        assert await controller.transactions.state(STREAM, committed.txn_id) is TxnState.COMMITTED
        assert store.data(STREAM.segment(0)) == b"in"
        with pytest.raises(StreamSealedError):
            await controller.transactions.create(STREAM, LEASE)
        await settle()
        assert not any("transaction" in name for name in store.segments)


async def test_stream_deleted_during_transaction_start_leaves_no_segments() -> None:
    """A segment's creation was answered late and repeated, after the stream had been sealed and deleted."""
    async with with_stream() as (controller, store, clock):
        is_late = True

        async def late(command: Command) -> None:
            nonlocal is_late
            if is_late and isinstance(command, wire.CreateSegment):
                is_late = False
                raise UnavailableError("it is moving")

        store.before = late
        beginning = asyncio.ensure_future(controller.transactions.create(STREAM, 10_000))
        await settle()
        await controller.seal_stream(STREAM)
        await controller.delete_stream(STREAM)
        await clock.advance(1_000)
        with pytest.raises(StreamNotFoundError):
            await beginning
        await settle()
        assert not store.segments


async def test_transaction_started_during_stream_recreation_is_rejected() -> None:
    """Its segments would belong to the former stream: a commit would find nothing to merge, and lose its events."""
    async with with_stream() as (controller, store, clock):
        is_recording, goes_on = asyncio.Event(), asyncio.Event()

        async def late(command: Command) -> None:
            if isinstance(command, wire.UpdateTableEntries) and command.segment.endswith("/transactions"):
                is_recording.set()
                await goes_on.wait()

        store.before = late
        beginning = asyncio.ensure_future(controller.transactions.create(STREAM, 10_000))
        await is_recording.wait()
        await controller.seal_stream(STREAM)
        await controller.delete_stream(STREAM)
        await clock.advance(1_000)
        await controller.create_stream(STREAM, StreamConfigRecord(min_segments=2))
        goes_on.set()
        with pytest.raises(StreamNotFoundError):
            await beginning
        await settle()
        segments = await controller.current_segments(STREAM)
        assert {STREAM.segment(s.id) for s in segments} == {s for s in store.segments if "_MARK" not in s}


async def test_commit_and_abort_at_once_have_one_winner() -> None:
    async with with_stream(1) as (controller, store, _):
        for _ in range(10):
            begun = await controller.transactions.create(STREAM, LEASE)
            before = store.data(STREAM.segment(0))
            write(store, begun.txn_id, 0, b"x")
            results = await asyncio.gather(
                controller.transactions.commit(STREAM, begun.txn_id),
                controller.transactions.abort(STREAM, begun.txn_id),
                controller.transactions.ping(STREAM, begun.txn_id, LEASE),
                return_exceptions=True,
            )
            won = [r is None for r in results[:2]]
            assert sum(won) == 1, results
            await wait_for(controller, begun.txn_id, TxnState.COMMITTED if won[0] else TxnState.ABORTED)
            assert store.data(STREAM.segment(0)) == before + (b"x" if won[0] else b"")


async def test_leases_of_finished_transactions_are_dropped() -> None:
    """A lease may last a week: a transaction a second would accumulate 600,000 of them."""

    async with with_stream(1) as (controller, _, _):
        held = await controller.transactions.create(STREAM, TXN_LEASE_MAX_MS)
        for _ in range(1_500):
            txn = (await controller.transactions.create(STREAM, TXN_LEASE_MAX_MS)).txn_id
            await controller.transactions.abort(STREAM, txn)
            await controller.transactions.ping(STREAM, held.txn_id, TXN_LEASE_MAX_MS)
        assert len(controller.transactions.leases) < 10


# --- group commits: all or none, at one position of the stream ---------------------------------------


LONG_LEASE = 600_000


async def begun(controller: Controller, store: FakeStore, count: int, segments: int = 2) -> list[int]:
    """Start transactions, each with its number on each segment."""
    ids = []
    for number in range(count):
        txn = await controller.transactions.create(STREAM, LONG_LEASE)
        for piece in txn.ranges[:segments]:
            store.append(transaction_segment_name(STREAM.segment(piece.id), txn.txn_id), b"%d." % number)
        ids.append(txn.txn_id)
    return ids


async def states(controller: Controller, ids: list[int]) -> set[TxnState]:
    return {await controller.transactions.state(STREAM, txn_id) for txn_id in ids}


async def merged(controller: Controller, ids: list[int]) -> None:
    async def are_merged() -> bool:
        return (await controller.transactions.find_commit(STREAM, ids)).is_merged

    await until(are_merged)


async def test_group_commit_is_merged_at_once_before_one_cut() -> None:
    async with with_stream(2) as (controller, store, _):
        ids = await begun(controller, store, 5)
        store.append(STREAM.segment(0), b"before")
        await controller.transactions.commit_together(STREAM, [*ids[:4], ids[0]])
        await merged(controller, ids[:4])
        merges = [command for command in store.log if isinstance(command, wire.MergeSegmentsBatch)]
        assert [len(command.sources) for command in merges] == [4, 4]
        commit = await controller.transactions.find_commit(STREAM, ids[:4])
        assert commit.cut == {0: 6 + 8, 1: 8}
        store.append(STREAM.segment(0), b"after")
        assert await controller.transactions.find_commit(STREAM, ids[:2]) == commit  # the group's cut
        assert store.data(STREAM.segment(0)) == b"before0.1.2.3.after"
        await controller.transactions.commit_together(STREAM, ids[:4])  # repeating it is fine
        assert await states(controller, ids[4:]) == {TxnState.OPEN}
        await controller.transactions.commit(STREAM, ids[4])
        await merged(controller, ids[4:])
        assert (await controller.transactions.find_commit(STREAM, ids[4:])).cut is None, "it was committed alone"


async def test_group_commit_fails_completely_if_one_transaction_fails() -> None:
    async with with_stream(2) as (controller, store, clock):
        ids = await begun(controller, store, 3)
        await controller.transactions.abort(STREAM, ids[1])
        with pytest.raises(TransactionFailedError):
            await controller.transactions.commit_together(STREAM, ids)
        await settle()
        assert await states(controller, [ids[0], ids[2]]) == {TxnState.OPEN}
        with pytest.raises(TransactionFailedError, match="OPEN"):
            await controller.transactions.find_commit(STREAM, ids[:1])
        with pytest.raises(TransactionNotFoundError):
            await controller.transactions.commit_together(STREAM, [ids[0], 12345])
        assert await states(controller, ids[:1]) == {TxnState.OPEN}
        await clock.advance(LONG_LEASE + 60_000)
        with pytest.raises(TransactionFailedError):
            await controller.transactions.commit_together(STREAM, [ids[0], ids[2]])
        assert store.data(STREAM.segment(0)) == b""


async def test_group_commit_accepts_committed_transactions() -> None:
    async with with_stream(2) as (controller, store, _):
        ids = await begun(controller, store, 3)
        await controller.transactions.commit(STREAM, ids[2])
        await merged(controller, ids[2:])
        await controller.transactions.commit_together(STREAM, ids)
        await merged(controller, ids)
        assert store.data(STREAM.segment(1)) == b"2.0.1."


async def test_group_commit_limits() -> None:
    async with with_stream(1) as (controller, _, _):
        for wrong in ([], list(range(TXN_BATCH_MAX + 1))):
            with pytest.raises(InvalidArgumentError):
                await controller.transactions.commit_together(STREAM, wrong)
        with pytest.raises(StreamNotFoundError):
            await controller.transactions.commit_together(OTHER, [1])


async def test_group_larger_than_a_batch_is_merged_at_once() -> None:
    async with with_stream(1) as (controller, store, _):
        ids = await begun(controller, store, TXN_COMMIT_BATCH + 30, 1)
        alone = ids[:20]
        async with asyncio.TaskGroup() as group:
            for txn_id in alone:
                group.create_task(controller.transactions.commit(STREAM, txn_id))
            group.create_task(controller.transactions.commit_together(STREAM, ids[20:]))
        await merged(controller, ids)
        merges = [len(command.sources) for command in store.log if isinstance(command, wire.MergeSegmentsBatch)]
        assert max(merges) >= len(ids) - 20
        assert sum(merges) == len(ids)
        assert store.data(STREAM.segment(0)) == b"".join(b"%d." % number for number in range(len(ids)))


async def test_group_commit_over_a_scale_is_merged_by_epoch() -> None:
    async with with_stream(2) as (controller, store, _):
        old = await begun(controller, store, 2)
        await scaled(controller, [0, 1], [(0.0, 0.3), (0.3, 1.0)])
        new = await begun(controller, store, 2)
        await controller.transactions.commit_together(STREAM, [*new, *old])
        await merged(controller, [*old, *new])
        stream = await controller.stream(STREAM)
        cut = (await controller.transactions.find_commit(STREAM, [*new, *old])).cut
        assert cut == {piece.id: 4 for piece in stream.segments}
        old_cut = (await controller.transactions.find_commit(STREAM, old)).cut
        assert old_cut == {segment_id(0, 2): 4, segment_id(1, 2): 4}


async def test_controller_killed_at_any_command_commits_all_or_none() -> None:
    ends = set()
    for number in range(40):
        store = FakeStore()
        async with running(store) as controller:
            await controller.create_scope(STREAM.scope)
            await controller.create_stream(STREAM, StreamConfigRecord(min_segments=2))
            ids = await begun(controller, store, 3)
            store.die_at(number)  # and so right after the previous command
            dying = asyncio.create_task(controller.transactions.commit_together(STREAM, ids))
            await settle(300)
            dying.cancel()
            await asyncio.gather(dying, return_exceptions=True)
        store.revive()
        async with running(store) as controller:
            await settle(300)
            outcomes = await states(controller, ids)
            assert len(outcomes) == 1, f"died at {number}: {outcomes}"
            ends |= outcomes
            await controller.transactions.commit_together(STREAM, ids)
            await merged(controller, ids)
            assert store.data(STREAM.segment(0)) == b"0.1.2."
    assert ends == {TxnState.OPEN, TxnState.COMMITTED}
