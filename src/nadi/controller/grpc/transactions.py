"""The RPCs of transactions."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from nadi.controller.controller import Controller
from nadi.controller.grpc.messages import range_message, stream_name, txn_id_of, txn_message
from nadi.controller.state.records import TxnState
from nadi.controller.workflows.transactions import ExecutionTimeExceededError, LeaseTooLargeError
from nadi.errors import (
    InvalidArgumentError,
    StreamNotFoundError,
    StreamSealedError,
    TransactionFailedError,
    TransactionNotFoundError,
)
from nadi.wire.rpc import controller_pb2 as pb

_NO_TIME = -(1 << 63)


class TransactionService:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def create_transaction(self, request: Any) -> Any:
        name = stream_name(request.streamInfo)
        try:
            begun = await self._controller.create_transaction(name, request.lease)
        except StreamSealedError as error:  # INVALID_ARGUMENT: that is not retried
            raise InvalidArgumentError(str(error)) from error
        return pb.CreateTxnResponse(
            txnId=txn_message(begun.txn_id),
            activeSegments=[range_message(name, segment) for segment in begun.ranges],
        )

    async def commit_transaction(self, request: Any) -> Any:
        time = request.timestamp if request.timestamp != _NO_TIME else None
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        return await self._decided(self._controller.commit_transaction(name, txn_id, request.writerId, time))

    async def abort_transaction(self, request: Any) -> Any:
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        return await self._decided(self._controller.abort_transaction(name, txn_id))

    async def _decided(self, call: Awaitable[None]) -> Any:
        """A decision that comes too late is answered TRANSACTION_NOT_FOUND: FAILURE would be retried."""
        status = pb.TxnStatus
        try:
            await call
        except StreamNotFoundError:
            return status(status=status.STREAM_NOT_FOUND)
        except (TransactionNotFoundError, TransactionFailedError):
            return status(status=status.TRANSACTION_NOT_FOUND)
        return status(status=status.SUCCESS)

    async def ping_transaction(self, request: Any) -> Any:
        status = pb.PingTxnStatus
        statuses = {
            TxnState.OPEN: status.OK,
            TxnState.COMMITTING: status.COMMITTED,
            TxnState.COMMITTED: status.COMMITTED,
            TxnState.ABORTING: status.ABORTED,
            TxnState.ABORTED: status.ABORTED,
        }
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        try:
            state = await self._controller.ping_transaction(name, txn_id, request.lease)
        except LeaseTooLargeError:
            return status(status=status.LEASE_TOO_LARGE)
        except ExecutionTimeExceededError:
            return status(status=status.MAX_EXECUTION_TIME_EXCEEDED)
        except TransactionNotFoundError:
            return status(status=status.UNKNOWN)
        return status(status=statuses[state])

    async def check_transaction_state(self, request: Any) -> Any:
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        try:
            state = await self._controller.transaction_state(name, txn_id)
        except TransactionNotFoundError:
            return pb.TxnState(state=pb.TxnState.UNKNOWN)
        return pb.TxnState(state=cast("Any", int(state)))

    async def list_completed_transactions(self, request: Any) -> Any:
        found = await self._controller.transactions.completed(stream_name(request.streamInfo))
        kinds = {TxnState.COMMITTED: pb.TxnResponse.COMMITTED, TxnState.ABORTED: pb.TxnResponse.ABORTED}
        return pb.ListCompletedTxnResponse(
            response=[pb.TxnResponse(txnId=txn_message(txn_id), status=kinds[state]) for txn_id, state in found]
        )
