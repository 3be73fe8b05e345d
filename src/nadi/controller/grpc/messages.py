"""Between the protocol's messages and the controller's values, both ways.

What comes in may hold anything: a number that stands for nothing is an InvalidArgumentError. What goes
out has every field set that a client unwraps without looking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, cast
from uuid import UUID

from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import (
    Config,
    GroupConfig,
    GroupRetention,
    ReaderGroup,
    RetentionType,
    ScaleType,
    SegmentRange,
)
from nadi.errors import InvalidArgumentError
from nadi.limits import RPC_ENTRIES_A_TURN, RPC_MESSAGES_A_TURN
from nadi.wire.rpc import controller_pb2 as pb

_MASK_64 = (1 << 64) - 1


def stream_name(info: Any) -> StreamName:
    return StreamName(info.scope, info.stream)


def stream_info(name: StreamName) -> Any:
    return pb.StreamInfo(scope=name.scope, stream=name.stream)


def segment_id_message(name: StreamName, segment: int) -> Any:
    return pb.SegmentId(streamInfo=stream_info(name), segmentId=segment)


def range_message(name: StreamName, segment: SegmentRange) -> Any:
    return pb.SegmentRange(segmentId=segment_id_message(name, segment.id), minKey=segment.low, maxKey=segment.high)


async def ranges_message(name: StreamName, segments: Iterable[SegmentRange]) -> Any:
    return await with_all(pb.SegmentRanges(), "segmentRanges", (range_message(name, segment) for segment in segments))


async def with_all(message: Any, field: str, parts: Iterable[Any]) -> Any:
    """The message, with all parts in a repeated field: a few in a turn of the loop, for a stream may have thousands."""
    whole = getattr(message, field)
    for number, part in enumerate(parts, 1):
        whole.append(part)
        if number % RPC_MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)
    return message


def txn_id_of(message: Any) -> int:
    high, low = int(message.highBits), int(message.lowBits)
    return (high & _MASK_64) << 64 | (low & _MASK_64)


def txn_message(txn_id: int) -> Any:
    high, low = txn_id >> 64, txn_id & _MASK_64
    assert low < 1 << 63, "the Rust client extends the sign of the low half into the high one"
    return pb.TxnId(highBits=high, lowBits=low)


def config_of(message: Any) -> Config:
    """The stream configuration in a message; InvalidArgumentError where a number stands for nothing."""
    scaling, retention = message.scalingPolicy, message.retentionPolicy
    try:
        scale_type, retention_type = ScaleType(scaling.scaleType), RetentionType(retention.retentionType)
    except ValueError as error:
        raise InvalidArgumentError(f"unknown policy: {error}") from error
    if retention_type is RetentionType.NONE:
        param = most = 0
    else:
        param, most = retention.retentionParam, retention.retentionMax
    return Config(
        scale_type,
        scaling.targetRate,
        scaling.scaleFactor,
        scaling.minNumSegments,
        retention_type,
        param,
        most,
        tuple(sorted(set(message.tags.tag))),
        message.timestampAggregationTimeout,
        message.rolloverSizeBytes,
    )


def config_message(name: StreamName, config: Config) -> Any:
    message = pb.StreamConfig(
        streamInfo=stream_info(name),
        scalingPolicy=pb.ScalingPolicy(
            scaleType=cast("Any", int(config.scale_type)),
            targetRate=config.target_rate,
            scaleFactor=config.scale_factor,
            minNumSegments=config.min_segments,
        ),
        tags=pb.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_size_bytes,
    )
    if config.retention_type is not RetentionType.NONE:
        message.retentionPolicy.CopyFrom(
            pb.RetentionPolicy(
                retentionType=cast("Any", int(config.retention_type)),
                retentionParam=config.retention_param,
                retentionMax=config.retention_max,
            )
        )
    return message


def group_name(message: Any) -> GroupName:
    return GroupName(message.scope, message.readerGroupName)


async def group_config_of(message: Any) -> GroupConfig:
    """The reader group's configuration in a message; InvalidArgumentError where something stands for nothing."""
    try:
        retention_type = GroupRetention(message.retentionType)
    except ValueError as error:
        raise InvalidArgumentError(f"unknown retention type of a reader group: {error}") from error
    return GroupConfig(
        message.groupRefreshTimeMillis,
        message.automaticCheckpointIntervalMillis,
        message.maxOutstandingCheckpointRequest,
        retention_type,
        await _cuts_of(message.startingStreamCuts),
        await _cuts_of(message.endingStreamCuts),
        message.rolloverSizeBytes,
    )


async def _cuts_of(messages: Any) -> dict[str, dict[int, int]]:
    cuts, pace = dict[str, dict[int, int]](), _Pace()
    for message in messages:
        await pace.before(len(message.cut))
        cuts[stream_name(message.streamInfo).key] = dict(message.cut)
    if len(cuts) != len(messages):
        raise InvalidArgumentError("a reader group has two stream cuts for one stream: give one")
    return cuts


class _Pace:
    """Lets others have their turns while many stream cuts are gone through."""

    def __init__(self) -> None:
        self._entries = 0

    async def before(self, entries: int) -> None:
        """So many come next."""
        self._entries += 1 + entries
        if self._entries > RPC_ENTRIES_A_TURN:
            self._entries = entries
            await asyncio.sleep(0)


async def group_message(name: GroupName, group: ReaderGroup) -> Any:
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


async def _cut_messages(cuts: Mapping[str, Mapping[int, int]]) -> list[Any]:
    messages, pace = [], _Pace()
    for key, cut in cuts.items():
        await pace.before(len(cut))
        messages.append(pb.StreamCut(streamInfo=stream_info(StreamName(*key.split("/"))), cut=cut))
    return messages


def uuid_of(text: str) -> UUID:
    """The UUID in a message; an empty text is the one of zeros, which stands for none."""
    try:
        return UUID(text) if text else UUID(int=0)
    except ValueError as error:
        raise InvalidArgumentError(f"{text[:60]!r} is not a UUID") from error
