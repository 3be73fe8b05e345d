"""Calls of a transaction writer: combined at nadi's servers, one by one at Pravega's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from nadi.client.aio import StreamManager
from nadi.client.control.calls import UnsupportedCallError
from nadi.client.control.controller import ControllerClient
from nadi.client.writing.transactions import Transaction, TransactionalEventWriter
from nadi.errors import (
    NadiError,
    PermissionDeniedError,
    RequestTimeoutError,
    StreamNotFoundError,
    TransactionFailedError,
)
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc import transactions_pb2 as together
from tests.support.waiting import until_async

from .fake_server import FakeController, FakeStore
from .world import World, world


class NadiController(FakeController):
    """A controller with nadi's RPCs for several transactions.

    sizes: for each of those RPCs, how many transactions each request had. begins_at_most: in one request. merges:
    whether committed transactions are reported as merged. held: requests of this RPC wait for `release`. failure: the
    error of all requests.
    """

    def __init__(self, store: FakeStore) -> None:
        super().__init__(store)
        self.sizes: dict[str, list[int]] = {}
        self.begins_at_most = 1_000
        self.merges = True
        self.held = ""
        self.release = asyncio.Event()
        self.cancelled: list[str] = []
        self.failure: NadiError | None = None

    async def _send(self, rpc: str, request: Any, timeout_s: float) -> Any:
        for field in ("leasesMs", "transactions"):
            if hasattr(request, field):
                self.sizes.setdefault(rpc, []).append(len(getattr(request, field)))
        if rpc == self.held:
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled.append(rpc)
                raise
        if self.failure is not None:
            raise self.failure
        return await super()._send(rpc, request, timeout_s)

    def _beginTransactions(self, request: together.BeginTransactionsRequest) -> together.BegunTransactions:
        info = pb.StreamInfo(scope=request.scope, stream=request.stream)
        reply = together.BegunTransactions()
        for _ in request.leasesMs[: self.begins_at_most]:
            begun = self._createTransaction(pb.CreateTxnRequest(streamInfo=info))
            reply.transactions.append((begun.txnId.highBits << 64 | begun.txnId.lowBits).to_bytes(16))
            del reply.segments[:]
            for piece in begun.activeSegments:
                reply.segments.add(segment=piece.segmentId.segmentId, low=piece.minKey, high=piece.maxKey)
        return reply

    def _commitTransactions(self, request: together.CommitTransactionsRequest) -> together.CommitTransactionsStatus:
        if (request.scope, request.stream) not in self.streams:
            return together.CommitTransactionsStatus(status=together.CommitTransactionsStatus.STREAM_NOT_FOUND)
        info, lost = pb.StreamInfo(scope=request.scope, stream=request.stream), []
        for transaction in request.transactions:
            number = int.from_bytes(transaction.id)
            txn_id = pb.TxnId(highBits=number >> 64, lowBits=number & (1 << 64) - 1)
            reply = self._commitTransaction(pb.TxnRequest(streamInfo=info, txnId=txn_id))
            known = self._stream(info).transactions
            if reply.status != pb.TxnStatus.SUCCESS and known.get(number) != "COMMITTED":
                lost.append(transaction.id)
        return together.CommitTransactionsStatus(lost=lost)

    def _awaitTransactions(self, request: together.AwaitTransactionsRequest) -> together.TransactionStates:
        known = self.streams[request.scope, request.stream].transactions
        states = [known.get(int.from_bytes(txn_id), "UNKNOWN") for txn_id in request.transactions]
        is_merged = [state == "ABORTED" or (state == "COMMITTED" and self.merges) for state in states]
        return together.TransactionStates(
            states=[state if over else "UNFINISHED" for state, over in zip(states, is_merged, strict=True)]
        )


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[NadiController, TransactionalEventWriter]]:
    store = FakeStore()
    await store.start()
    controller = NadiController(store)
    controller.add_stream("sc", "st", 2)
    manager = StreamManager(controller=controller)
    try:
        yield controller, await manager.create_transaction_writer("sc", "st")
    finally:
        await manager.close()
        await store.stop()


def own_calls(controller: FakeController) -> list[str]:
    return [rpc for rpc in controller.asked if rpc.endswith("Transactions")]


async def test_calls_made_during_a_request_share_the_next_one() -> None:
    async with opened() as (controller, writer):
        controller.held = "beginTransactions"
        first = asyncio.create_task(writer.begin_txn())
        await until_async(lambda: "beginTransactions" in controller.sizes)
        others = [asyncio.create_task(writer.begin_txn()) for _ in range(19)]
        await asyncio.sleep(0.01)
        assert controller.sizes["beginTransactions"] == [1], "a lone call is sent at once"
        controller.release.set()
        begun = await asyncio.gather(first, *others)
        assert controller.sizes["beginTransactions"] == [1, 19]
        assert len({txn.txn_id for txn in begun}) == 20
        for number, txn in enumerate(begun):
            txn.write_event(b"%d" % number, "key")
        await asyncio.gather(*(txn.flush() for txn in begun))
        await asyncio.gather(*(txn.commit(wait=True) for txn in begun))
        assert controller.sizes["commitTransactions"] == [20]
        assert sum(controller.sizes["awaitTransactions"]) <= 40
        assert not {"createTransaction", "commitTransaction", "checkTransactionState"} & set(controller.asked)


async def test_lost_transaction_fails_without_affecting_the_others_of_its_request() -> None:
    async with opened() as (controller, writer):
        begun = [await writer.begin_txn() for _ in range(3)]
        controller.streams["sc", "st"].transactions[begun[1].txn_id.int] = "ABORTED"
        results = await asyncio.gather(*(txn.commit() for txn in begun), return_exceptions=True)
        assert controller.sizes["commitTransactions"] == [3]
        assert results[::2] == [None, None]
        assert isinstance(results[1], TransactionFailedError)
        assert list(controller.streams["sc", "st"].transactions.values()) == ["COMMITTED", "ABORTED", "COMMITTED"]


async def test_missing_stream_fails_all_commits_of_a_request() -> None:
    async with opened() as (controller, writer):
        begun = [await writer.begin_txn() for _ in range(2)]
        del controller.streams["sc", "st"]
        results = await asyncio.gather(*(txn.commit() for txn in begun), return_exceptions=True)
        assert [type(result) for result in results] == [StreamNotFoundError] * 2


async def test_transactions_that_the_server_did_not_begin_are_requested_again() -> None:
    async with opened() as (controller, writer):
        controller.begins_at_most = 2
        async with asyncio.timeout(20):
            begun = await asyncio.gather(*(writer.begin_txn() for _ in range(5)))
        assert controller.sizes["beginTransactions"] == [5, 3, 1]
        assert len({txn.txn_id for txn in begun}) == 5


async def test_request_without_waiting_callers_is_cancelled() -> None:
    async with opened() as (controller, writer):
        controller.held = "beginTransactions"
        tasks = [asyncio.create_task(writer.begin_txn()) for _ in range(2)]
        await until_async(lambda: "beginTransactions" in controller.sizes)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        assert not controller.cancelled, "the other caller waits"
        tasks[1].cancel()
        await until_async(lambda: controller.cancelled == ["beginTransactions"])
        controller.held = ""
        await writer.begin_txn()


async def test_transaction_of_a_cancelled_caller_is_aborted() -> None:
    async with opened() as (controller, writer):
        controller.held = "beginTransactions"
        tasks = [asyncio.create_task(writer.begin_txn()) for _ in range(2)]
        await until_async(lambda: "beginTransactions" in controller.sizes)
        tasks[0].cancel()
        await asyncio.sleep(0)
        controller.release.set()
        kept = await tasks[1]
        known = controller.streams["sc", "st"].transactions
        await until_async(lambda: "ABORTED" in known.values())
        assert known[kept.txn_id.int] == "OPEN"


async def test_wait_ends_with_its_timeout_and_pauses_between_answers_that_come_at_once() -> None:
    async with opened() as (controller, writer):
        controller.merges = False
        txn = await writer.begin_txn()
        with pytest.raises(RequestTimeoutError, match=str(txn.txn_id)):
            await txn.commit(wait=True, timeout=0.5)
        asked = len(controller.sizes["awaitTransactions"])
        assert 1 < asked < 12
        await asyncio.sleep(0.6)
        assert len(controller.sizes["awaitTransactions"]) == asked, "no call is waiting after the timeout"
        controller.merges = True
        resumed = await writer.get_txn(txn.txn_id)
        await resumed.commit(wait=True)


async def test_pravegas_server_gets_its_own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def commit_slowly(w: World, txn: Transaction) -> None:
        known, commit = w.controller.streams["sc", "st"].transactions, w.controller._commitTransaction

        def begin_commit(request: pb.TxnRequest) -> pb.TxnStatus:
            reply = commit(request)
            known[txn.txn_id.int] = "COMMITTING"
            return reply

        monkeypatch.setattr(w.controller, "_commitTransaction", begin_commit)
        task = asyncio.create_task(txn.commit(wait=True))
        await asyncio.sleep(0.6)
        known[txn.txn_id.int] = "COMMITTED"
        await task

    async with world(2) as w:
        writer = await w.manager.create_transaction_writer("sc", "st")
        begun = await asyncio.gather(*(writer.begin_txn() for _ in range(3)))
        await asyncio.gather(*(txn.commit(wait=True) for txn in begun))
        assert w.controller.asked.count("createTransaction") == 3
        assert w.controller.asked.count("commitTransaction") == 3
        calls = own_calls(w.controller)
        assert sorted(calls) == ["awaitTransactions", "beginTransactions", "commitTransactions"]
        w.controller.asked.clear()
        await commit_slowly(w, await writer.begin_txn())
        assert not own_calls(w.controller), "the writer knows that the server lacks them"
        assert 2 < w.controller.asked.count("checkTransactionState") < 10  # after 0.02, 0.04, 0.08 s, and so on


async def test_concurrent_transactions_locate_each_segment_once() -> None:
    async with opened() as (controller, writer):
        begun = await asyncio.gather(*(writer.begin_txn() for _ in range(20)))
        for txn in begun:
            txn.write_event(b"a", "a")
            txn.write_event(b"b", "b")
            txn.write_event(b"c", "c")
        await asyncio.gather(*(txn.flush() for txn in begun))
        assert controller.asked.count("getURI") <= 2


async def test_callers_that_wait_for_the_same_location_share_its_error() -> None:
    async with opened() as (controller, writer):
        stores, segment = writer._stores, "sc/st/0.#epoch.0"
        controller.held = "getURI"
        tasks = [asyncio.create_task(stores.connection(segment)) for _ in range(3)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        assert not controller.cancelled, "the others need it"
        controller.held, controller.failure = "", PermissionDeniedError("not yours")
        controller.release.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, *[PermissionDeniedError] * 2]
        controller.failure = None
        await stores.connection(segment)
        assert controller.asked.count("getURI") == 1


async def test_server_without_the_calls_is_recognised() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ControllerClient(f"127.0.0.1:{port}")
    try:
        with pytest.raises(UnsupportedCallError):
            await client.begin_transactions("sc", "st", [90_000])
    finally:
        await client.close()
        await server.stop(None)
