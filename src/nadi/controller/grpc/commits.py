"""The RPCs of nadi's own clients for transactions that are committed together."""

from __future__ import annotations

from collections.abc import Sequence

from nadi.controller.grpc.messages import stream_name
from nadi.controller.grpc.outcomes import Rpcs
from nadi.errors import (
    InvalidArgumentError,
    StreamNotFoundError,
    TransactionFailedError,
    TransactionNotFoundError,
)
from nadi.limits import TXN_TOGETHER_MAX
from nadi.wire.rpc import transactions_pb2 as pb

_LOST = (TransactionFailedError, TransactionNotFoundError)


class CommitService(Rpcs):
    async def commit_together(self, request: pb.CommitTogetherRequest) -> pb.CommitTogetherStatus:
        time = request.timestamp if request.HasField("timestamp") else None
        name, status = stream_name(request), pb.CommitTogetherStatus
        try:
            await self._controller.commit_together(name, _ids(request.transactions), request.writerId, time)
        except StreamNotFoundError:
            return status(status=status.STREAM_NOT_FOUND)
        except _LOST as error:
            return status(status=status.FAILED, reason=str(error))
        return status(status=status.SUCCESS)

    async def find_commit(self, request: pb.FindCommitRequest) -> pb.Commit:
        try:
            found = await self._controller.find_commit(stream_name(request), _ids(request.transactions))
        except StreamNotFoundError:
            return pb.Commit(status=pb.Commit.STREAM_NOT_FOUND)
        except _LOST as error:
            return pb.Commit(status=pb.Commit.FAILED, reason=str(error))
        return pb.Commit(status=pb.Commit.MERGED if found.is_merged else pb.Commit.MERGING, cut=found.cut or {})


def _ids(found: Sequence[bytes]) -> list[int]:
    if len(found) > TXN_TOGETHER_MAX:
        raise InvalidArgumentError(f"{len(found):,} transactions at once: at most {TXN_TOGETHER_MAX:,} are taken")
    if any(len(one) != 16 for one in found):
        raise InvalidArgumentError("a transaction's id has 16 bytes")
    return [int.from_bytes(one) for one in found]
