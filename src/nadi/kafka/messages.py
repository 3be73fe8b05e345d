"""Kafka's requests and responses: decoded and encoded by kio, whose classes follow Kafka's message definitions.

A handler gets kio's request and returns a dict with the fields of the newest version of the response. `encoded` picks
the fields of the request's version, so handlers don't depend on versions. Times are whole milliseconds.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

from nadi.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    EventTooLargeError,
    InvalidArgumentError,
    NadiError,
    NotAuthenticatedError,
    NotFoundError,
    ProtocolError,
    QuotaExceededError,
    RequestTimeoutError,
    StorageFullError,
    StreamRecreatedError,
    StreamSealedError,
    UnavailableError,
)
from nadi.kafka.lengths import check_lengths

try:
    from kio.index import load_request_schema, load_response_schema
    from kio.schema.errors import ErrorCode as ErrorCode
    from kio.serial import entity_reader, entity_writer
except ImportError:
    raise InvalidArgumentError("Kafka's protocol needs the package `kio`: pip install 'nadi[kafka]'") from None

Fields = dict[str, Any]
NONE = -1  # a number that is missing
LEADER_EPOCH = 0  # of each partition, because doors don't count them
UNKNOWN_OPERATIONS = -(1 << 31)
PRODUCE, FETCH, API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 0, 1, 18, 17, 36
VERSIONS = {  # by API key: the oldest and the newest version that the door implements
    PRODUCE: (3, 11),
    FETCH: (4, 16),
    2: (1, 10),  # ListOffsets
    3: (4, 12),  # Metadata
    8: (2, 9),  # OffsetCommit
    9: (1, 9),  # OffsetFetch
    10: (0, 6),  # FindCoordinator
    11: (0, 9),  # JoinGroup
    12: (0, 4),  # Heartbeat
    13: (0, 5),  # LeaveGroup
    14: (0, 5),  # SyncGroup
    15: (0, 5),  # DescribeGroups
    16: (0, 5),  # ListGroups
    SASL_HANDSHAKE: (0, 1),
    API_VERSIONS: (0, 4),
    19: (2, 7),  # CreateTopics
    20: (1, 6),  # DeleteTopics
    21: (0, 2),  # DeleteRecords
    22: (0, 5),  # InitProducerId
    23: (2, 4),  # OffsetForLeaderEpoch
    24: (0, 3),  # AddPartitionsToTxn
    25: (0, 4),  # AddOffsetsToTxn
    26: (0, 4),  # EndTxn
    28: (0, 4),  # TxnOffsetCommit
    32: (1, 4),  # DescribeConfigs
    33: (0, 2),  # AlterConfigs
    SASL_AUTHENTICATE: (0, 2),
    37: (0, 3),  # CreatePartitions
    42: (0, 2),  # DeleteGroups
    44: (0, 1),  # IncrementalAlterConfigs
    47: (0, 0),  # OffsetDelete
    60: (0, 1),  # DescribeCluster
    61: (0, 0),  # DescribeProducers
    65: (0, 0),  # DescribeTransactions
    66: (0, 1),  # ListTransactions
}


class KafkaError(NadiError):
    """A request that is answered with one of Kafka's error codes."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


_CODES: tuple[tuple[type[NadiError], ErrorCode], ...] = (  # the first that fits
    (NotAuthenticatedError, ErrorCode.sasl_authentication_failed),
    (AccessDeniedError, ErrorCode.topic_authorization_failed),
    (QuotaExceededError, ErrorCode.policy_violation),
    (NotFoundError, ErrorCode.unknown_topic_or_partition),
    (StreamRecreatedError, ErrorCode.unknown_topic_or_partition),  # until the door knows the new topic
    (AlreadyExistsError, ErrorCode.topic_already_exists),
    (EventTooLargeError, ErrorCode.message_too_large),
    (StreamSealedError, ErrorCode.policy_violation),
    (InvalidArgumentError, ErrorCode.invalid_request),
    (RequestTimeoutError, ErrorCode.request_timed_out),
    (StorageFullError, ErrorCode.kafka_storage_error),
    (UnavailableError, ErrorCode.leader_not_available),
)


def code_of(error: NadiError) -> ErrorCode:
    """Return the error code for a failure."""
    if isinstance(error, KafkaError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.unknown_server_error)


def coordinator_code(error: NadiError) -> ErrorCode:
    """Return the error code of a coordinator's response."""
    code = code_of(error)
    return ErrorCode.coordinator_not_available if code == ErrorCode.leader_not_available else code


async def code_of_call(call: Awaitable[None]) -> ErrorCode:
    """Await a coordinator's call; return its error code."""
    try:
        await call
    except NadiError as error:
        return coordinator_code(error)
    return ErrorCode.none


class Request(NamedTuple):
    """A decoded request. body: kio's object of this version."""

    key: int
    version: int
    correlation: int
    client: str
    body: Any


def decoded(frame: bytes) -> Request:
    """Decode a request; KafkaError unsupported_version with the request's numbers, ProtocolError."""
    if len(frame) < 8:
        raise ProtocolError(f"a Kafka request has {len(frame)} bytes, fewer than its header")
    key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
    oldest, newest = VERSIONS.get(key, (0, -1))
    if not oldest <= version <= newest:
        raise UnsupportedVersionError(key, version, int.from_bytes(frame[4:8], "big", signed=True))
    kind, read_header, read_body = _readers(key, version)
    check_lengths(kind, frame, check_lengths(kind.__header_schema__, frame, 0))
    try:
        header, size = read_header(frame, 0)
        body, _ = read_body(frame, size)  # librdkafka sends some bytes too many, which Kafka ignores as well
    except Exception as error:  # kio documents no common base of the errors of its readers
        raise ProtocolError(f"a Kafka request of API {key}, version {version}, can't be decoded: {error!r}") from error
    return Request(key, version, header.correlation_id, header.client_id or "", body)


class UnsupportedVersionError(ProtocolError):
    """A request of an API or version that the door doesn't implement."""

    def __init__(self, key: int, version: int, correlation: int) -> None:
        super().__init__(f"Kafka's API {key} in version {version} is not supported")
        self.key, self.correlation = key, correlation


def encoded(key: int, version: int, correlation: int, values: Mapping[str, Any]) -> bytes:
    """Encode a response with its length in front."""
    kind, write_header, write = _writers(key, version)
    with io.BytesIO() as buffer:
        buffer.write(b"\0\0\0\0")
        write_header(buffer, correlation)
        write(buffer, _built(kind, values))
        buffer.seek(0)
        buffer.write((buffer.getbuffer().nbytes - 4).to_bytes(4, "big"))
        return buffer.getvalue()


@cache
def _readers(key: int, version: int) -> tuple[Any, Any, Any]:
    kind: Any = load_request_schema(key, version)
    return kind, entity_reader(kind.__header_schema__), entity_reader(kind)


@cache
def _writers(key: int, version: int) -> tuple[type, Callable[[io.BytesIO, int], None], Any]:
    kind = load_response_schema(key, version)
    header_kind: Any = kind.__header_schema__
    header = entity_writer(header_kind)
    return kind, lambda buffer, number: header(buffer, header_kind(correlation_id=number)), entity_writer(kind)


def _built(kind: type, values: Mapping[str, Any]) -> Any:
    """Return kio's object with the values that this version has."""
    arguments = {}
    for name, convert, default in _plan(kind):
        value = values.get(name, MISSING)
        if value is not MISSING:
            arguments[name] = value if convert is None or value is None else convert(value)
        elif default is not MISSING:
            arguments[name] = default
    return kind(**arguments)


@cache
def _plan(kind: type) -> list[tuple[str, Callable[[Any], Any] | None, Any]]:
    """Return name, conversion and implicit default of each field."""
    plan = []
    for field in fields(kind):
        declared: Any = field.type
        kinds = get_args(declared) if isinstance(declared, UnionType) else (declared,)
        is_optional = type(None) in kinds
        inner = next(given for given in kinds if given is not type(None))
        convert: Callable[[Any], Any] | None = None
        default: Any = None if is_optional else 0
        if get_origin(inner) is tuple:
            item: Any = get_args(inner)[0]
            default = None if is_optional else ()
            convert = _all_built(item) if is_dataclass(item) else tuple
        elif is_dataclass(inner):
            convert = lambda value, inner=inner: _built(inner, value)  # noqa: E731
        elif str(field.metadata.get("kafka_type", "")).startswith("timedelta"):
            convert, default = _milliseconds, timedelta()
        elif str(field.metadata.get("kafka_type", "")).startswith("datetime"):
            convert, default = _time, _time(0)
        elif inner is ErrorCode:
            default = ErrorCode.none
        elif isinstance(inner, type) and issubclass(inner, str | bytes) and not is_optional:
            default = "" if issubclass(inner, str) else b""
        elif inner is bool:
            default = False
        if field.default is not MISSING:
            default = MISSING  # the class has it
        plan.append((field.name, convert, default))
    return plan


def _all_built(item: Any) -> Callable[[Any], Any]:
    return lambda values: tuple(_built(item, value) for value in values)


def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def ms_of(wait: timedelta) -> int:
    return round(wait.total_seconds() * 1000)
