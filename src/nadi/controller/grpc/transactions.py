"""The RPCs of transactions."""

from __future__ import annotations

from typing import cast

from nadi.controller.grpc.messages import range_message, stream_name, txn_id_of, txn_message
from nadi.controller.grpc.outcomes import Fields, Rpcs, outcomes
from nadi.controller.state.records import TxnState
from nadi.controller.transactions.decisions import ExecutionTimeExceededError, LeaseTooLargeError
from nadi.errors import (
    InvalidArgumentError,
    StreamNotFoundError,
    StreamSealedError,
    TransactionFailedError,
    TransactionNotFoundError,
)
from nadi.wire.rpc import controller_pb2 as pb

_NO_TIME = -(1 << 63)

# A decision that comes too late is answered TRANSACTION_NOT_FOUND: FAILURE would be retried.
_decided = outcomes(
    pb.TxnStatus,
    STREAM_NOT_FOUND=StreamNotFoundError,
    TRANSACTION_NOT_FOUND=(TransactionNotFoundError, TransactionFailedError),
)


class TransactionService(Rpcs):
    async def create_transaction(self, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
        name = stream_name(request.streamInfo)
        try:
            begun = await self._controller.create_transaction(name, request.lease)
        except StreamSealedError as error:  # INVALID_ARGUMENT: that is not retried
            raise InvalidArgumentError(str(error)) from error
        return pb.CreateTxnResponse(
            txnId=txn_message(begun.txn_id),
            activeSegments=[range_message(name, segment) for segment in begun.ranges],
        )

    @_decided
    async def commit_transaction(self, request: pb.TxnRequest) -> None:
        time = request.timestamp if request.timestamp != _NO_TIME else None
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        await self._controller.commit_transaction(name, txn_id, request.writerId, time)

    @_decided
    async def abort_transaction(self, request: pb.TxnRequest) -> None:
        await self._controller.abort_transaction(stream_name(request.streamInfo), txn_id_of(request.txnId))

    @outcomes(
        pb.PingTxnStatus,
        LEASE_TOO_LARGE=LeaseTooLargeError,
        MAX_EXECUTION_TIME_EXCEEDED=ExecutionTimeExceededError,
        UNKNOWN=TransactionNotFoundError,
    )
    async def ping_transaction(self, request: pb.PingTxnRequest) -> Fields:
        status = pb.PingTxnStatus
        statuses = {
            TxnState.OPEN: status.OK,
            TxnState.COMMITTING: status.COMMITTED,
            TxnState.COMMITTED: status.COMMITTED,
            TxnState.ABORTING: status.ABORTED,
            TxnState.ABORTED: status.ABORTED,
        }
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        return {"status": statuses[await self._controller.ping_transaction(name, txn_id, request.lease)]}

    async def check_transaction_state(self, request: pb.TxnRequest) -> pb.TxnState:
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        try:
            state = await self._controller.transaction_state(name, txn_id)
        except TransactionNotFoundError:
            return pb.TxnState(state=pb.TxnState.UNKNOWN)
        return pb.TxnState(state=cast("pb.TxnState.State", int(state)))

    async def list_completed_transactions(self, request: pb.ListCompletedTxnRequest) -> pb.ListCompletedTxnResponse:
        found = await self._controller.transactions.completed(stream_name(request.streamInfo))
        kinds = {TxnState.COMMITTED: pb.TxnResponse.COMMITTED, TxnState.ABORTED: pb.TxnResponse.ABORTED}
        return pb.ListCompletedTxnResponse(
            response=[pb.TxnResponse(txnId=txn_message(txn_id), status=kinds[state]) for txn_id, state in found]
        )
