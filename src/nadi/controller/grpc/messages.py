"""Conversions between the protocol's messages and the controller's values, both ways.

Incoming messages are untrusted: a number without a meaning raises InvalidArgumentError. Outgoing messages have every
field set that clients read without checking.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, cast
from uuid import UUID

from google.protobuf.message import Message

from nadi.controller.state import records
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.errors import InvalidArgumentError
from nadi.limits import RPC_ENTRIES_A_TURN, RPC_MESSAGES_A_TURN
from nadi.model.load import ScaleType
from nadi.wire.rpc import controller_pb2 as pb

T = TypeVar("T")
_MASK_64 = (1 << 64) - 1
_Message = TypeVar("_Message", bound=Message)


def stream_name(info: pb.StreamInfo) -> StreamName:
    return StreamName(info.scope, info.stream)


def stream_info(name: StreamName) -> pb.StreamInfo:
    return pb.StreamInfo(scope=name.scope, stream=name.stream)


def segment_id_message(name: StreamName, segment: int) -> pb.SegmentId:
    return pb.SegmentId(streamInfo=stream_info(name), segmentId=segment)


def range_message(name: StreamName, segment: records.EpochSegment) -> pb.SegmentRange:
    return pb.SegmentRange(segmentId=segment_id_message(name, segment.id), minKey=segment.low, maxKey=segment.high)


async def ranges_message(name: StreamName, segments: Iterable[records.EpochSegment]) -> pb.SegmentRanges:
    return await with_all(pb.SegmentRanges(), "segmentRanges", (range_message(name, segment) for segment in segments))


async def with_all(message: _Message, field: str, parts: Iterable[Message]) -> _Message:
    """Append all parts to a repeated field and return the message; yields to the loop, as there may be thousands."""
    repeated = getattr(message, field)
    for number, part in enumerate(parts, 1):
        repeated.append(part)
        if number % RPC_MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)
    return message


def txn_id_of(message: pb.TxnId) -> int:
    high, low = int(message.highBits), int(message.lowBits)
    return (high & _MASK_64) << 64 | (low & _MASK_64)


def txn_message(txn_id: int) -> pb.TxnId:
    high, low = txn_id >> 64, txn_id & _MASK_64
    assert low < 1 << 63, "the Rust client extends the sign of the low half into the high one"
    return pb.TxnId(highBits=high, lowBits=low)


def config_of(message: pb.StreamConfig) -> records.StreamConfigRecord:
    """Return the stream configuration of a message; InvalidArgumentError if a number has no meaning."""
    scaling, retention = message.scalingPolicy, message.retentionPolicy
    try:
        scale_type = ScaleType(scaling.scaleType)
        retention_type = records.RetentionType(retention.retentionType)
    except ValueError as error:
        raise InvalidArgumentError(f"unknown policy: {error}") from error
    is_limited = retention_type is not records.RetentionType.NONE
    return records.StreamConfigRecord(
        scale_type,
        scaling.targetRate,
        scaling.scaleFactor,
        scaling.minNumSegments,
        retention_type,
        retention.retentionParam if is_limited else 0,
        retention.retentionMax if is_limited else 0,
        tuple(sorted(set(message.tags.tag))),
        message.timestampAggregationTimeout,
        message.rolloverSizeBytes,
        is_limited and retention.overBookmarks,
        message.eventTime,
        is_limited and retention.byEventTime,
    )


def config_message(name: StreamName, config: records.StreamConfigRecord) -> pb.StreamConfig:
    message = pb.StreamConfig(
        streamInfo=stream_info(name),
        scalingPolicy=pb.ScalingPolicy(
            scaleType=cast("pb.ScalingPolicy.ScalingPolicyType", int(config.scale_type)),
            targetRate=config.target_rate,
            scaleFactor=config.scale_factor,
            minNumSegments=config.min_segments,
        ),
        tags=pb.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_size_bytes,
        eventTime=config.event_time,
    )
    if config.retention_type is not records.RetentionType.NONE:
        policy = message.retentionPolicy
        policy.retentionType = cast("pb.RetentionPolicy.RetentionPolicyType", int(config.retention_type))
        policy.retentionParam, policy.retentionMax = config.retention_param, config.retention_max
        policy.overBookmarks, policy.byEventTime = config.retention_over_bookmarks, config.retention_by_event_time
    return message


def group_name(message: pb.ReaderGroupInfo | pb.ReaderGroupConfiguration) -> GroupName:
    return GroupName(message.scope, message.readerGroupName)


async def group_config_of(message: pb.ReaderGroupConfiguration) -> records.GroupConfig:
    """Return the reader group configuration of a message; InvalidArgumentError if a value has no meaning."""
    try:
        retention_type = records.GroupRetention(message.retentionType)
    except ValueError as error:
        raise InvalidArgumentError(f"unknown retention type of a reader group: {error}") from error
    return records.GroupConfig(
        message.groupRefreshTimeMillis,
        message.automaticCheckpointIntervalMillis,
        message.maxOutstandingCheckpointRequest,
        retention_type,
        await _cuts_of(message.startingStreamCuts),
        await _cuts_of(message.endingStreamCuts),
        message.rolloverSizeBytes,
    )


async def _cuts_of(messages: Sequence[pb.StreamCut]) -> dict[str, dict[int, int]]:
    cuts: dict[str, dict[int, int]] = {}
    async for message in _paced(messages, lambda message: len(message.cut)):
        cuts[stream_name(message.streamInfo).key] = dict(message.cut)
    if len(cuts) != len(messages):
        raise InvalidArgumentError("the reader group has two stream cuts for the same stream: give one")
    return cuts


async def _paced(cuts: Iterable[T], entries: Callable[[T], int]) -> AsyncIterator[T]:
    """Yield the cuts, and yield to the loop between many of them. entries: returns the number of a cut's entries."""
    count = 0
    for cut in cuts:
        count += 1 + entries(cut)
        if count > RPC_ENTRIES_A_TURN:
            count = entries(cut)
            await asyncio.sleep(0)
        yield cut


async def group_message(name: GroupName, group: records.ReaderGroupRecord) -> pb.ReaderGroupConfiguration:
    config = group.config
    return pb.ReaderGroupConfiguration(
        scope=name.scope,
        readerGroupName=name.group,
        groupRefreshTimeMillis=config.refresh_ms,
        automaticCheckpointIntervalMillis=config.checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=config.max_outstanding_checkpoints,
        retentionType=int(config.retention_type),
        generation=group.generation,
        readerGroupId=group.group_id,
        startingStreamCuts=await _cut_messages(config.starts),
        endingStreamCuts=await _cut_messages(config.ends),
        rolloverSizeBytes=config.rollover_size_bytes,
    )


async def _cut_messages(cuts: Mapping[str, Mapping[int, int]]) -> list[pb.StreamCut]:
    return [
        pb.StreamCut(streamInfo=stream_info(StreamName.of(key)), cut=cut)
        async for key, cut in _paced(cuts.items(), lambda item: len(item[1]))
    ]


def uuid_of(text: str) -> UUID:
    """Return the UUID of a message; an empty text is the all-zero UUID, which means none."""
    try:
        return UUID(text) if text else UUID(int=0)
    except ValueError as error:
        raise InvalidArgumentError(f"{text[:60]!r} is not a UUID") from error
