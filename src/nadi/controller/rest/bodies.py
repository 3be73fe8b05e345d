"""JSON bodies of the REST interface, and their conversion from and to stream configurations.

Requests are strict: an unknown field, a wrong type or a number out of range is rejected by name. The same structs
define the schemas of the OpenAPI description.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import RetentionType, StreamConfigRecord
from nadi.errors import InvalidArgumentError
from nadi.limits import MIB, NAME_MAX_CHARS, STREAM_MAX_SEGMENTS, STREAM_MAX_TAGS, TAG_MAX_CHARS
from nadi.model.event_time import EventTime
from nadi.model.load import ScaleType

_I32_MAX = (1 << 31) - 1
_I64_MAX = (1 << 63) - 1
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS

# Only for the schema; `naming.check_name` enforces the rule and has the message.
_NAME_SCHEMA: dict[str, Any] = {"pattern": r"^[A-Za-z0-9.\-]+$", "minLength": 1, "maxLength": NAME_MAX_CHARS}
Name = Annotated[str, Meta(description="Letters, digits, '.' and '-'.", extra_json_schema=_NAME_SCHEMA)]
Rate = Annotated[int, Meta(ge=0, le=_I32_MAX)]
Long = Annotated[int, Meta(ge=0, le=_I64_MAX)]
Segments = Annotated[int, Meta(ge=1, le=STREAM_MAX_SEGMENTS)]
Tag = Annotated[str, Meta(max_length=TAG_MAX_CHARS)]
Tags = Annotated[list[Tag], Meta(max_length=STREAM_MAX_TAGS)]
PolicyValue = Annotated[int, Meta(ge=0, le=_I64_MAX // _DAY_MS, description="Days or MiB, depending on the type.")]
Span = Annotated[int, Meta(ge=0, le=_I32_MAX)]


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request."""


class ResponseBody(msgspec.Struct, frozen=True):
    """The body of a response."""


class Error(ResponseBody, frozen=True):
    error: Annotated[str, Meta(description="What failed, why, and what to do.")]


class CreateScope(RequestBody, frozen=True):
    scopeName: Name


class ScopeProperty(ResponseBody, frozen=True):
    scopeName: str


class ScopesList(ResponseBody, frozen=True):
    scopes: list[ScopeProperty]


ScalingType = Literal["FIXED_NUM_SEGMENTS", "BY_RATE_IN_KBYTES_PER_SEC", "BY_RATE_IN_EVENTS_PER_SEC"]
_SCALING_TYPES: dict[ScaleType, ScalingType] = dict(zip(ScaleType, get_args(ScalingType), strict=True))
_SCALE_TYPES = {scaling: scale for scale, scaling in _SCALING_TYPES.items()}


class ScalingPolicyBody(RequestBody, frozen=True):
    """The scaling policy of a stream; `targetRate` and `scaleFactor` apply only to the rate types."""

    type: ScalingType
    minSegments: Segments
    targetRate: Rate | UnsetType = UNSET
    scaleFactor: Rate | UnsetType = UNSET


class TimeBasedRetention(RequestBody, frozen=True):
    days: Span = 0
    hours: Span = 0
    minutes: Span = 0

    @property
    def ms(self) -> int:
        return self.days * _DAY_MS + self.hours * _HOUR_MS + self.minutes * _MINUTE_MS


class RetentionPolicyBody(RequestBody, frozen=True):
    """The retention policy. `timeBasedRetention` applies if `value` is 0; so does the maximum's if `maxValue` is 0."""

    type: Literal["LIMITED_DAYS", "LIMITED_SIZE_MB"]
    value: PolicyValue = 0
    timeBasedRetention: TimeBasedRetention | UnsetType | None = UNSET
    maxValue: PolicyValue | UnsetType = UNSET
    maxTimeBasedRetention: TimeBasedRetention | UnsetType | None = UNSET
    overBookmarks: bool | UnsetType = UNSET
    byEventTime: bool | UnsetType = UNSET


class EventTimeField(RequestBody, frozen=True, kw_only=True):
    """The event field with the event time: ISO 8601 text, or a number of `unit` since 1970."""

    path: str
    unit: Literal["s", "ms", "us", "ns"] = "s"
    format: Literal["json", "msgpack"] = "json"


class UpdateStream(RequestBody, frozen=True, kw_only=True):
    """A stream's complete configuration; omitted fields are cleared."""

    scalingPolicy: ScalingPolicyBody
    retentionPolicy: RetentionPolicyBody | None = None
    streamTags: Tags = []
    timestampAggregationTimeout: Long = 0
    rolloverSizeBytes: Long = 0
    eventTime: EventTimeField | None = None


class CreateStream(UpdateStream, frozen=True, kw_only=True):
    streamName: Name


class StreamProperty(ResponseBody, frozen=True):
    scopeName: str
    streamName: str
    scalingPolicy: ScalingPolicyBody
    retentionPolicy: RetentionPolicyBody | None
    tags: list[str]
    timestampAggregationTimeout: int
    rolloverSizeBytes: int
    eventTime: EventTimeField | UnsetType = UNSET


class StreamsList(ResponseBody, frozen=True):
    streams: list[StreamProperty]


class StreamStateBody(RequestBody, frozen=True):
    streamState: Literal["SEALED"]


class ScaledSegment(ResponseBody, frozen=True):
    number: int
    epoch: int
    start: int
    keyStart: float
    keyEnd: float


class ListedSegment(ResponseBody, frozen=True):
    number: int
    startTime: int
    keyStart: float
    keyEnd: float


class ScaleMetadata(ResponseBody, frozen=True):
    """An epoch; `segments` and `segmentList` list the same segments in the two forms that clients know."""

    timestamp: int
    segments: list[ScaledSegment]
    segmentList: list[ListedSegment]
    splits: int
    merges: int


class ReaderGroupName(ResponseBody, frozen=True):
    readerGroupName: str


class ReaderGroupsList(ResponseBody, frozen=True):
    readerGroups: list[ReaderGroupName]


class ReaderGroupProperty(ResponseBody, frozen=True):
    scopeName: str
    readerGroupName: str
    streamList: list[str]
    onlineReaderIds: list[str]


def config_of(body: UpdateStream) -> StreamConfigRecord:
    scaling, retention = body.scalingPolicy, body.retentionPolicy
    fixed = scaling.type == "FIXED_NUM_SEGMENTS"
    rate, factor = scaling.targetRate or 0, scaling.scaleFactor or 0
    if not fixed and (rate < 1 or factor < 1):
        raise InvalidArgumentError(
            f"scalingPolicy of type {scaling.type} needs targetRate and scaleFactor: set both above 0"
        )
    retention_type, param, most = (RetentionType.NONE, 0, 0) if retention is None else _retention(retention)
    event_time = body.eventTime
    return StreamConfigRecord(
        _SCALE_TYPES[scaling.type],
        0 if fixed else rate,
        0 if fixed else factor,
        scaling.minSegments,
        retention_type,
        param,
        most,
        tuple(sorted(set(body.streamTags))),
        body.timestampAggregationTimeout,
        body.rolloverSizeBytes,
        retention is not None and retention.overBookmarks is True,
        "" if event_time is None else str(EventTime(event_time.path, event_time.unit, event_time.format)),
        retention is not None and retention.byEventTime is True,
    )


def _retention(policy: RetentionPolicyBody) -> tuple[RetentionType, int, int]:
    timed = policy.type == "LIMITED_DAYS"
    unit = _DAY_MS if timed else MIB

    def amount(value: int, span: TimeBasedRetention | UnsetType | None) -> int:
        if value or not timed or not span:
            return value * unit
        return span.ms

    param = amount(policy.value, policy.timeBasedRetention)
    most = amount(policy.maxValue or 0, policy.maxTimeBasedRetention)
    if param == 0:
        raise InvalidArgumentError(
            "retentionPolicy retains nothing: set value above 0"
            + (", or set timeBasedRetention" if timed else "")
            + ", or omit retentionPolicy to retain everything"
        )
    if most and most < param:
        raise InvalidArgumentError("retentionPolicy has a maximum below its minimum: raise maxValue")
    return RetentionType.TIME if timed else RetentionType.SIZE, param, most or _I64_MAX


def stream_property(name: StreamName, config: StreamConfigRecord) -> StreamProperty:
    fixed = config.scale_type is ScaleType.FIXED
    event_time = EventTime.parse(config.event_time) if config.event_time else None
    return StreamProperty(
        name.scope,
        name.stream,
        ScalingPolicyBody(
            _SCALING_TYPES[config.scale_type],
            config.min_segments,
            UNSET if fixed else config.target_rate,
            UNSET if fixed else config.scale_factor,
        ),
        _retention_policy(config),
        list(config.tags),
        config.timestamp_aggregation_timeout_ms,
        config.rollover_size_bytes,
        UNSET if event_time is None else msgspec.convert(event_time, EventTimeField, from_attributes=True),
    )


def _retention_policy(config: StreamConfigRecord) -> RetentionPolicyBody | None:
    if config.retention_type is RetentionType.NONE:
        return None
    has_most = 0 < config.retention_max < _I64_MAX
    over_bookmarks = True if config.retention_over_bookmarks else UNSET
    if config.retention_type is RetentionType.SIZE:
        most = config.retention_max // MIB if has_most else UNSET
        least = config.retention_param // MIB
        return RetentionPolicyBody("LIMITED_SIZE_MB", least, maxValue=most, overBookmarks=over_bookmarks)
    days, span = _span(config.retention_param)
    return RetentionPolicyBody(
        "LIMITED_DAYS",
        days,
        span,
        maxTimeBasedRetention=_span(config.retention_max)[1] if has_most else UNSET,
        overBookmarks=over_bookmarks,
        byEventTime=True if config.retention_by_event_time else UNSET,
    )


def _span(ms: int) -> tuple[int, TimeBasedRetention]:
    """Return whole days, 0 if the span isn't a multiple of days, and the exact span."""
    days, remainder = divmod(ms, _DAY_MS)
    return 0 if remainder else days, TimeBasedRetention(days, remainder // _HOUR_MS, remainder % _HOUR_MS // _MINUTE_MS)
