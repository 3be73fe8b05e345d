"""Conversion of an OTLP request's log records to events: a JSON object each, with its resource and scope.

The routing key is the resource's `service.name`, so that the records of a service keep their order. Protobuf and JSON
requests give identical events, byte for byte; JSON fields must have protobuf's types. Values lose their OTLP wrapping:
{"stringValue": "a"} becomes "a", bytes are base64, and ids of traces and spans are hex. Numbers that JSON lacks become
strings, as in protobuf's JSON: "NaN". Only invalid records are rejected.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from google.protobuf.message import DecodeError, Message
from starlette.exceptions import HTTPException

from nadi.controller.rest.endpoint import JSON
from nadi.controller.rest.intake import DataRequest, RejectedRecords
from nadi.controller.rest.own import PROTOBUF
from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.ingest.batch import IngestBatch
from nadi.limits import INGEST_EVENTS_MAX, MAX_EVENT_BYTES, OTLP_DEPTH_MAX, OTLP_EVENTS_MAX_BYTES
from nadi.model.json_events import key_of, with_whole_characters

_SERVICE = "service.name"
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_FLOAT = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")
_SEVERITY = "SEVERITY_NUMBER_"
_SEVERITIES = {
    f"{_SEVERITY}{name}{number or ''}": 4 * at + max(number, 1)
    for at, name in enumerate(("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"))
    for number in (0, 2, 3, 4)
} | {f"{_SEVERITY}UNSPECIFIED": 0}


def records_of(sent: DataRequest) -> IngestBatch:
    """Convert a request's records; InvalidArgumentError if the request, or each of its records, is invalid."""
    if sent.media == PROTOBUF:
        request = _parsed(sent.body)
    elif sent.media == JSON:
        request = _decoded(sent.body)
    else:
        raise HTTPException(415, f"send OTLP as Content-Type: {PROTOBUF} or {JSON}")
    events: list[bytes] = []
    keys: list[str | None] = []
    size = number = 0
    problem = ""
    for number, (resource, scope, record) in enumerate(_records(request), 1):
        if number > INGEST_EVENTS_MAX:
            raise InvalidArgumentError(f"the request has more than {INGEST_EVENTS_MAX:,} records: send fewer at a time")
        try:
            key, values = resource()
            event = msgspec.json.encode(_record(record, values, scope()))
            if len(event) > MAX_EVENT_BYTES:
                raise EventTooLargeError(len(event), MAX_EVENT_BYTES)
        except InvalidArgumentError as error:
            problem = problem or f"record {number:,}: {error}"
            continue
        events.append(event)
        keys.append(key)
        size += len(event)
        if size > OTLP_EVENTS_MAX_BYTES:
            raise InvalidArgumentError(
                f"the records, each with its resource and scope, exceed {OTLP_EVENTS_MAX_BYTES:,} bytes: send fewer at "
                "a time"
            )
    if problem and not events:
        raise InvalidArgumentError(problem)
    return IngestBatch(events, keys, RejectedRecords(number - len(events), problem) if problem else None)


def _parsed(body: bytes) -> dict[str, Any]:
    from nadi.wire.rpc import logs_pb2

    message = logs_pb2.Request()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise InvalidArgumentError(f"the body is not an ExportLogsServiceRequest: {error}") from None
    return _as_json(message)


def _as_json(message: Message) -> dict[str, Any]:
    """Convert a message to OTLP's JSON, without unset fields."""
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, Message):
            values[field.json_name] = _as_json(value)
        elif field.message_type is not None:
            values[field.json_name] = [_as_json(element) for element in value]
        elif field.json_name in ("traceId", "spanId"):
            values[field.json_name] = value.hex()
        elif isinstance(value, bytes):
            values[field.json_name] = base64.b64encode(value).decode()
        elif isinstance(value, float) and not math.isfinite(value):
            values[field.json_name] = "NaN" if math.isnan(value) else _NOT_NUMBERS[1 + (value < 0)]
        else:
            values[field.json_name] = value
    return values


def _decoded(body: bytes) -> dict[str, Any]:
    """Decode with the standard library, which accepts all JSON, such as 1e400: msgspec would reject all records."""
    try:
        request = json.loads(with_whole_characters(body).decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the body is not OTLP in JSON: {error}") from None
    if not isinstance(request, dict):
        raise InvalidArgumentError("the body is not OTLP in JSON: it is not an object")
    return request


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON: send it as the string {constant!r}")


_Resource = tuple[str | None, dict[str, Any]]  # its routing key, and its attributes


def _records(
    request: dict[str, Any],
) -> Iterator[tuple[Callable[[], _Resource], Callable[[], dict[str, Any]], Any]]:
    """Yield each record with functions that return its resource and scope, or raise InvalidArgumentError."""
    for of_resource in _objects(request, "resourceLogs"):
        resource = _once(_resource, of_resource)
        for of_scope in _objects(of_resource, "scopeLogs"):
            scope = _once(_scope, of_scope)
            for record in _list(of_scope, "logRecords"):
                yield resource, scope, record


def _once(make: Callable[[dict[str, Any]], Any], message: dict[str, Any]) -> Callable[[], Any]:
    """Call `make` once, and return a function that repeats its result or its InvalidArgumentError."""
    try:
        result = make(message)
    except InvalidArgumentError as error:
        reason = str(error)

        def fail() -> Any:
            raise InvalidArgumentError(reason)

        return fail
    return lambda: result


def _resource(of_resource: dict[str, Any]) -> _Resource:
    values = _attributes(_object(of_resource, "resource"))
    return key_of(msgspec.json.encode(values.get(_SERVICE)), _SERVICE), values


def _scope(of_scope: dict[str, Any]) -> dict[str, Any]:
    scope = _object(of_scope, "scope")
    values: dict[str, Any] = {name: text for name in ("name", "version") if (text := _string(scope, name))}
    return values | ({"attributes": attributes} if (attributes := _attributes(scope)) else {})


def _record(record: Any, resource: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise InvalidArgumentError("a record must be an object")
    event: dict[str, Any] = {}
    for name in ("timeUnixNano", "observedTimeUnixNano"):
        if time := _integer(record, name, 0, (1 << 64) - 1):
            event[name] = str(time)  # many JSON parsers lose digits of such large numbers
    severity = record.get("severityNumber")
    number = _SEVERITIES.get(severity) if isinstance(severity, str) else None
    if number is None:
        number = _integer(record, "severityNumber", -(1 << 31), (1 << 31) - 1)
    if number:
        event["severityNumber"] = number
    for name in ("severityText", "eventName"):
        if text := _string(record, name):
            event[name] = text
    for name in ("traceId", "spanId"):
        if text := _string(record, name):
            event[name] = _hex(text, name)
    if flags := _integer(record, "flags", 0, (1 << 32) - 1):
        event["flags"] = flags
    if record.get("body") is not None:
        event["body"] = _value(record["body"])
    for name, values in (("attributes", _attributes(record)), ("resource", resource), ("scope", scope)):
        if values:
            event[name] = values
    return event


def _attributes(of: dict[str, Any], name: str = "attributes", depth: int = 0) -> dict[str, Any]:
    return {_string(pair, "key"): _value(pair.get("value"), depth) for pair in _objects(of, name)}


def _value(value: Any, depth: int = 0) -> Any:
    """Unwrap an AnyValue; None if it is empty or of an unknown kind."""
    if value is None or value == {}:
        return None
    if depth > OTLP_DEPTH_MAX:
        raise InvalidArgumentError(f"a value is nested more than {OTLP_DEPTH_MAX} levels deep")
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"the value {str(value)[:40]!r} is not an AnyValue, such as {{'stringValue': 'a'}}")
    kinds = [name for name in _READERS if value.get(name) is not None]
    if len(kinds) > 1:
        raise InvalidArgumentError(f"an AnyValue has both {kinds[0]} and {kinds[1]}: send one value")
    return _READERS[kinds[0]](value, kinds[0], depth) if kinds else None


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    values = fields.get(name)
    if values is not None and not isinstance(values, list):
        raise InvalidArgumentError(f"{name} is not a list")
    return values or []


def _objects(fields: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = _list(fields, name)
    if not all(isinstance(value, dict) for value in values):
        raise InvalidArgumentError(f"{name} is not a list of objects")
    return values


def _object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidArgumentError(f"{name} is not an object")
    return value or {}


def _string(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(value, name, "a string")
    return value or ""


def _hex(text: str, name: str) -> str:
    try:
        return binascii.unhexlify(text).hex()
    except ValueError:
        raise _wrong(text, name, "hex digits, two for each byte") from None


def _integer(fields: dict[str, Any], name: str, least: int, most: int) -> int:
    """Return an integer, which JSON may contain as a string; protobuf also accepts 1.0."""
    value = fields.get(name)
    if value is None:
        return 0
    if (isinstance(value, str) and _INTEGER.fullmatch(value)) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise _wrong(value, name, f"an integer from {least} to {most}")
    return value


def _double(fields: dict[str, Any], name: str) -> float | str:
    value = fields[name]
    if value in _NOT_NUMBERS:
        return str(value)
    if type(value) in (int, float) or (isinstance(value, str) and _FLOAT.fullmatch(value)):
        try:
            if math.isfinite(number := float(value)):
                return number
        except OverflowError:
            pass
    raise _wrong(value, name, "a number of 64 bits, or 'NaN', 'Infinity' or '-Infinity'")


def _bytes(fields: dict[str, Any], name: str) -> str:
    """Normalize base64: protobuf's JSON also accepts the URL-safe alphabet, and missing padding."""
    text = _string(fields, name).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64encode(base64.b64decode(text + "=" * (-len(text) % 4), validate=True)).decode()
    except ValueError:
        raise _wrong(fields[name], name, "base64") from None


def _bool(fields: dict[str, Any], name: str) -> bool:
    value = fields[name]
    if not isinstance(value, bool):
        raise _wrong(value, name, "true or false")
    return value


def _wrong(value: Any, name: str, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} is {str(value)[:40]!r}: it must be {expected}")


_READERS: dict[str, Callable[[dict[str, Any], str, int], Any]] = {
    "stringValue": lambda fields, name, _: _string(fields, name),
    "boolValue": lambda fields, name, _: _bool(fields, name),
    "intValue": lambda fields, name, _: _integer(fields, name, -(1 << 63), (1 << 63) - 1),
    "doubleValue": lambda fields, name, _: _double(fields, name),
    "bytesValue": lambda fields, name, _: _bytes(fields, name),
    "arrayValue": lambda fields, name, depth: [
        _value(value, depth + 1) for value in _list(_object(fields, name), "values")
    ],
    "kvlistValue": lambda fields, name, depth: _attributes(_object(fields, name), "values", depth + 1),
}
