"""Transactions that are committed together: all or none, in one place of the stream."""

from __future__ import annotations

import asyncio

import pytest

from nadi.controller.controller import Controller
from nadi.controller.state.records import Config, TxnState
from nadi.errors import InvalidArgumentError, NadiError, StreamNotFoundError, TransactionFailedError
from nadi.limits import TXN_COMMIT_BATCH, TXN_TOGETHER_MAX
from nadi.naming import segment_id, transaction_segment_name
from nadi.wire import commands as wire

from .fake_store import FakeStore
from .support import STREAM, running, scaled, settle, until, with_stream
from .test_crashes import OTHER

LEASE = 600_000


async def begun(controller: Controller, store: FakeStore, count: int, segments: int = 2) -> list[int]:
    """Transactions, each with its number on each segment."""
    ids = []
    for number in range(count):
        txn = await controller.transactions.create(STREAM, LEASE)
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


async def test_all_are_merged_at_once_behind_one_cut() -> None:
    async with with_stream(2) as (controller, store, _):
        ids = await begun(controller, store, 5)
        store.append(STREAM.segment(0), b"before")
        await controller.transactions.commit_together(STREAM, [*ids[:4], ids[0]])
        await merged(controller, ids[:4])
        merges = [command for command in store.log if isinstance(command, wire.MergeSegmentsBatch)]
        assert [len(command.sources) for command in merges] == [4, 4]
        found = await controller.transactions.find_commit(STREAM, ids[:4])
        assert found.cut == {0: 6 + 8, 1: 8}
        store.append(STREAM.segment(0), b"after")
        assert await controller.transactions.find_commit(STREAM, ids[:2]) == found  # the cut is that of all
        assert store.data(STREAM.segment(0)) == b"before0.1.2.3.after"
        await controller.transactions.commit_together(STREAM, ids[:4])  # again is fine
        assert await states(controller, ids[4:]) == {TxnState.OPEN}
        await controller.transactions.commit(STREAM, ids[4])
        await merged(controller, ids[4:])
        assert (await controller.transactions.find_commit(STREAM, ids[4:])).cut is None, "it was committed alone"


async def test_none_is_committed_if_one_cannot_be() -> None:
    async with with_stream(2) as (controller, store, clock):
        ids = await begun(controller, store, 3)
        await controller.transactions.abort(STREAM, ids[1])
        with pytest.raises(TransactionFailedError, match="was aborted or has timed out"):
            await controller.transactions.commit_together(STREAM, ids)
        await settle()
        assert await states(controller, [ids[0], ids[2]]) == {TxnState.OPEN}
        with pytest.raises(TransactionFailedError, match="is OPEN, and not committed"):
            await controller.transactions.find_commit(STREAM, ids[:1])
        with pytest.raises(NadiError):
            await controller.transactions.commit_together(STREAM, [ids[0], 12345])
        assert await states(controller, ids[:1]) == {TxnState.OPEN}
        await clock.advance(LEASE + 60_000)
        with pytest.raises(TransactionFailedError):
            await controller.transactions.commit_together(STREAM, [ids[0], ids[2]])
        assert store.data(STREAM.segment(0)) == b""


async def test_those_committed_already_stay_so_and_the_others_follow() -> None:
    async with with_stream(2) as (controller, store, _):
        ids = await begun(controller, store, 3)
        await controller.transactions.commit(STREAM, ids[2])
        await merged(controller, ids[2:])
        await controller.transactions.commit_together(STREAM, ids)
        await merged(controller, ids)
        assert store.data(STREAM.segment(1)) == b"2.0.1."


async def test_how_many_and_of_what() -> None:
    async with with_stream(1) as (controller, _, _):
        for wrong in ([], list(range(TXN_TOGETHER_MAX + 1))):
            with pytest.raises(InvalidArgumentError, match="only 1 to 1,000"):
                await controller.transactions.commit_together(STREAM, wrong)
        with pytest.raises(StreamNotFoundError):
            await controller.transactions.commit_together(OTHER, [1])


async def test_more_than_a_batch_are_still_merged_at_once() -> None:
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


async def test_over_a_scale_they_are_merged_epoch_by_epoch() -> None:
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


async def test_a_controller_that_dies_at_any_command_has_committed_all_or_none() -> None:
    ends = set()
    for lose_reply in (False, True):
        for number in range(40):
            store = FakeStore()
            async with running(store) as controller:
                await controller.create_scope(STREAM.scope)
                await controller.create_stream(STREAM, Config(min_segments=2))
                ids = await begun(controller, store, 3)
                store.die_at(number, lose_reply=lose_reply)
                dying = asyncio.create_task(controller.transactions.commit_together(STREAM, ids))
                await settle(300)
                dying.cancel()
                await asyncio.gather(dying, return_exceptions=True)
            store.revive()
            async with running(store) as controller:
                await settle(300)
                found = await states(controller, ids)
                assert len(found) == 1, f"died at {number}: {found}"
                ends |= found
                await controller.transactions.commit_together(STREAM, ids)
                await merged(controller, ids)
                assert store.data(STREAM.segment(0)) == b"0.1.2."
    assert ends == {TxnState.OPEN, TxnState.COMMITTED}
