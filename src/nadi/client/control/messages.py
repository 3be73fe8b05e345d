"""The messages of the controller's RPCs, built from nadi's values, and the statuses of its replies as nadi's errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NoReturn
from uuid import UUID

from nadi.client.control.policy import StreamConfiguration
from nadi.errors import (
    NadiError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSealedError,
    TransactionFailedError,
    TransactionNotFoundError,
)
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.wire.rpc import controller_pb2 as pb

_MASK_64 = (1 << 64) - 1


def either(status: int, yes: int, no: int, what: str) -> bool:
    if status not in (yes, no):
        refused(what)
    return status == yes


def refused(what: str) -> NoReturn:
    raise NadiError(f"{what} failed at the controller: see its log")


async def all_pages(
    page: Callable[[pb.ContinuationToken], Awaitable[tuple[list[str], pb.ContinuationToken]]],
) -> list[str]:
    """All names of a list. page: asks for those at a token, and gives them with the token of the next."""
    names: list[str] = []
    at = pb.ContinuationToken()
    while True:
        found, following = await page(at)
        names += found
        if not found or following.token in ("", at.token):
            return names
        at = following


def check_update(reply: pb.UpdateStreamStatus, scope: str, stream: str) -> None:
    if reply.status == reply.SUCCESS:
        return
    if reply.status == reply.STREAM_NOT_FOUND:
        raise StreamNotFoundError(scope, stream)
    if reply.status == reply.SCOPE_NOT_FOUND:
        raise ScopeNotFoundError(scope)
    if reply.status == reply.STREAM_SEALED:
        raise StreamSealedError(f"stream {scope}/{stream}")
    refused(f"changing {scope}/{stream}")


def check_txn(reply: pb.TxnStatus, scope: str, stream: str, txn_id: UUID) -> None:
    if reply.status == reply.STREAM_NOT_FOUND:
        raise StreamNotFoundError(scope, stream)
    if reply.status == reply.TRANSACTION_NOT_FOUND:
        raise TransactionNotFoundError(str(txn_id))
    if reply.status != reply.SUCCESS:
        raise TransactionFailedError(f"transaction {txn_id} was ended otherwise: look at its status")


def stream_message(scope: str, stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def looking(scope: str, stream: str) -> pb.StreamInfo:
    """A stream to look at only: the reply needs no delegation token."""
    return pb.StreamInfo(scope=scope, stream=stream, accessOperation=pb.StreamInfo.AccessOperation.NONE)


def cut_message(cut: StreamCut) -> pb.StreamCut:
    return pb.StreamCut(streamInfo=stream_message(cut.scope, cut.stream), cut=dict(cut.positions))


def config_message(scope: str, stream: str, config: StreamConfiguration) -> pb.StreamConfig:
    scaling, kept = config.scaling, config.retention
    fields: Mapping[str, int] = {
        "scaleType": scaling.kind,
        "targetRate": scaling.target_rate,
        "scaleFactor": scaling.scale_factor,
        "minNumSegments": scaling.min_segments,
    }
    message = pb.StreamConfig(
        streamInfo=stream_message(scope, stream),
        scalingPolicy=pb.ScalingPolicy(**fields),  # type: ignore[arg-type]
        tags=pb.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_size_bytes,
        eventTime=str(config.event_time) if config.event_time is not None else "",
    )
    if kept is not None:
        message.retentionPolicy.retentionType = kept.kind  # type: ignore[assignment]
        message.retentionPolicy.retentionParam = kept.minimum
        message.retentionPolicy.retentionMax = kept.maximum
        message.retentionPolicy.overBookmarks = kept.over_bookmarks
        message.retentionPolicy.byEventTime = kept.by_event_time
    return message


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def txn_id_message(txn_id: UUID) -> pb.TxnId:
    return pb.TxnId(highBits=_signed(txn_id.int >> 64), lowBits=_signed(txn_id.int & _MASK_64))


def txn_id_of(message: pb.TxnId) -> UUID:
    return UUID(int=(message.highBits & _MASK_64) << 64 | message.lowBits & _MASK_64)


def txn_message(scope: str, stream: str, txn_id: UUID) -> pb.TxnRequest:
    return pb.TxnRequest(streamInfo=stream_message(scope, stream), txnId=txn_id_message(txn_id))


def range_of(message: pb.SegmentRange) -> SegmentRange:
    return SegmentRange(message.segmentId.segmentId, message.minKey, message.maxKey)


def ranges_of(messages: Iterable[pb.SegmentRange]) -> list[SegmentRange]:
    return sorted((range_of(message) for message in messages), key=lambda r: r.low)
