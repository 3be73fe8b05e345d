"""What was decided about a transaction is carried out, whatever becomes of who asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from nadi.controller.state.records import TxnState
from nadi.errors import UnavailableError
from nadi.limits import SEGMENT_CALL_ATTEMPTS
from nadi.wire import commands as wire
from nadi.wire.commands import Command

from .support import STREAM, with_stream
from .test_transactions import LEASE, wait_for, write


@pytest.mark.parametrize("decision", ["commit", "commit together", "abort"])
@pytest.mark.parametrize("answered", [True, False])
async def test_what_is_decided_is_carried_out_though_its_caller_has_gone(decision: str, *, answered: bool) -> None:
    """A caller that was cancelled while the decision was stored used to leave it to whoever came next: what was
    committed after it was merged before it."""
    async with with_stream(1) as (controller, store, clock):
        first, second = [await controller.transactions.create(STREAM, LEASE) for _ in range(2)]
        write(store, first.txn_id, 0, b"1")
        write(store, second.txn_id, 0, b"2")
        stored, goes_on = asyncio.Event(), asyncio.Event()
        left = 1 if answered else SEGMENT_CALL_ATTEMPTS

        async def hold(command: Command) -> None:
            nonlocal left
            is_change = isinstance(command, wire.UpdateTableEntries | wire.UpdateTableToFreeRoom)
            if not is_change or not command.segment.endswith("/transactions"):  # type: ignore[attr-defined]
                return
            left -= 1
            store.before = None
            stored.set()
            await goes_on.wait()
            if not answered:
                await store.exchange(command)
                store.before = hold if left else None
                raise UnavailableError("the answer is lost")

        store.before = hold
        call: Coroutine[object, object, object]
        match decision:
            case "commit":
                call = controller.transactions.commit(STREAM, first.txn_id)
            case "abort":
                call = controller.transactions.abort(STREAM, first.txn_id)
            case _:
                call = controller.transactions.commit_together(STREAM, [first.txn_id], "", None)
        caller = asyncio.ensure_future(call)
        await stored.wait()
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        goes_on.set()
        for _ in range(5):
            await clock.advance(1_000)  # pauses between tries; the lease has not run out
        ends = TxnState.ABORTED if decision == "abort" else TxnState.COMMITTED
        await wait_for(controller, first.txn_id, ends)
        await controller.transactions.commit(STREAM, second.txn_id)
        await wait_for(controller, second.txn_id, TxnState.COMMITTED)
        assert store.data(STREAM.segment(0)) == (b"2" if decision == "abort" else b"12")
