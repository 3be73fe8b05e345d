"""Log records of an OTLP request as events: each a JSON object of its own, with what its resource and scope say.

The routing key is the resource's `service.name`, so that the records of a service keep their order. Both forms that
OTLP has become the same: protobuf is read by field, JSON by its names. Values lose their OTLP wrapping: {"stringValue":
"a"} is "a", bytes are base64, and the ids of traces and spans are hex.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from google.protobuf.message import DecodeError, Message
from starlette.exceptions import HTTPException

from nadi.controller.rest.intake import Sent
from nadi.controller.rest.own.ingest import PROTOBUF
from nadi.controller.rest.replies import JSON
from nadi.errors import InvalidArgumentError
from nadi.ingest.http.batch import Batch
from nadi.limits import INGEST_EVENTS_MAX, OTLP_DEPTH_MAX, OTLP_EVENTS_MAX_BYTES

_SERVICE = "service.name"
_PLAIN = ("stringValue", "boolValue", "doubleValue", "intValue", "bytesValue")


def records_of(sent: Sent) -> Batch:
    """InvalidArgumentError says what is wrong with the request."""
    if sent.media == PROTOBUF:
        request = _parsed(sent.body)
    elif sent.media == JSON:
        request = _decoded(sent.body)
    else:
        raise HTTPException(415, f"send OTLP as Content-Type: {PROTOBUF} or {JSON}")
    events: list[bytes] = []
    keys: list[str | None] = []
    size = 0
    for key, record in _records(request):
        events.append(msgspec.json.encode(record))
        keys.append(key)
        size += len(events[-1])
        if len(events) > INGEST_EVENTS_MAX:
            raise InvalidArgumentError(f"more than {INGEST_EVENTS_MAX:,} records in one request: send fewer at a time")
        if size > OTLP_EVENTS_MAX_BYTES:
            raise InvalidArgumentError(
                f"the records have more than {OTLP_EVENTS_MAX_BYTES:,} bytes, each with its resource and scope: send "
                "fewer at a time"
            )
    return Batch(events, keys)


def _parsed(body: bytes) -> dict[str, Any]:
    from nadi.wire.rpc import logs_pb2

    message = logs_pb2.Request()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise InvalidArgumentError(f"the body is no ExportLogsServiceRequest: {error}") from None
    return _as_json(message)


def _as_json(message: Message) -> dict[str, Any]:
    """A message as OTLP's JSON has it; what isn't set is absent."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, Message):
            found[field.json_name] = _as_json(value)
        elif field.message_type is not None:
            found[field.json_name] = [_as_json(one) for one in value]
        elif field.json_name in ("traceId", "spanId"):
            found[field.json_name] = value.hex()
        elif isinstance(value, bytes):
            found[field.json_name] = base64.b64encode(value).decode()
        else:
            found[field.json_name] = value
    return found


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the body is not OTLP in JSON: {error}") from None


def _records(request: dict[str, Any]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    for of_resource in _list(request, "resourceLogs"):
        resource = _attributes(_list(_object(of_resource, "resource"), "attributes"))
        service = resource.get(_SERVICE)
        key = service if isinstance(service, str) and service else None
        for of_scope in _list(of_resource, "scopeLogs"):
            scope = _object(of_scope, "scope")
            told = {name: scope[name] for name in ("name", "version") if scope.get(name)}
            told |= {"attributes": attributes} if (attributes := _attributes(_list(scope, "attributes"))) else {}
            for record in _list(of_scope, "logRecords"):
                yield key, _record(record, resource, told)


def _record(record: dict[str, Any], resource: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    event: dict[str, Any] = {}
    for name in ("timeUnixNano", "observedTimeUnixNano"):
        if time := _number(record, name):
            event[name] = str(time)  # more digits than a JSON number keeps everywhere
    if number := _number(record, "severityNumber"):
        event["severityNumber"] = number
    for name in ("severityText", "eventName", "traceId", "spanId"):
        if text := record.get(name):
            event[name] = text
    if flags := _number(record, "flags"):
        event["flags"] = flags
    if "body" in record:
        event["body"] = _value(record["body"])
    for name, values in (
        ("attributes", _attributes(_list(record, "attributes"))),
        ("resource", resource),
        ("scope", scope),
    ):
        if values:
            event[name] = values
    return event


def _attributes(pairs: Iterable[dict[str, Any]], depth: int = 0) -> dict[str, Any]:
    return {str(pair.get("key", "")): _value(pair.get("value"), depth) for pair in pairs}


def _value(value: Any, depth: int = 0) -> Any:
    """What an AnyValue holds."""
    if value is None or value == {}:
        return None
    if depth > OTLP_DEPTH_MAX:
        raise InvalidArgumentError(f"a value is nested deeper than {OTLP_DEPTH_MAX} times")
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"the value {str(value)[:40]!r} is no AnyValue, such as {{'stringValue': 'a'}}")
    for name in _PLAIN:
        if name in value:
            return _number(value, name) if name == "intValue" else value[name]
    if "arrayValue" in value:
        return [_value(one, depth + 1) for one in _list(_object(value, "arrayValue"), "values")]
    if "kvlistValue" in value:
        return _attributes(_list(_object(value, "kvlistValue"), "values"), depth + 1)
    raise InvalidArgumentError(f"there is no AnyValue of the kind {next(iter(value))[:40]!r}")


def _number(found: dict[str, Any], name: str) -> int:
    """OTLP's JSON has large numbers as texts."""
    value = found.get(name, 0)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{name} is {str(value)[:40]!r}: it is to be a number") from None


def _list(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = found.get(name) or []
    if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
        raise InvalidArgumentError(f"{name} is to be a list of objects")
    return values


def _object(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name) or {}
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{name} is to be an object")
    return value
