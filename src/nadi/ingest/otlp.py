"""Log records of an OTLP request as events: each a JSON object of its own, with what its resource and scope say.

The routing key is the resource's `service.name`, so that the records of a service keep their order. Both forms that
OTLP has become the same, byte for byte: protobuf is read by field, JSON by its names, with the types that protobuf has.
Values lose their OTLP wrapping: {"stringValue": "a"} is "a", bytes are base64, and the ids of traces and spans are hex.
A number that JSON lacks is the text that protobuf's JSON has for it, "NaN". A record that can't be one is rejected
alone.
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
from nadi.controller.rest.intake import Rejected, Sent
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


def records_of(sent: Sent) -> IngestBatch:
    """InvalidArgumentError says what is wrong with the request, or with all of its records."""
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
            raise InvalidArgumentError(f"more than {INGEST_EVENTS_MAX:,} records in one request: send fewer at a time")
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
                f"the records have more than {OTLP_EVENTS_MAX_BYTES:,} bytes, each with its resource and scope: send "
                "fewer at a time"
            )
    if problem and not events:
        raise InvalidArgumentError(problem)
    return IngestBatch(events, keys, Rejected(number - len(events), problem) if problem else None)


def _parsed(body: bytes) -> dict[str, Any]:
    from nadi.wire.rpc import logs_pb2

    message = logs_pb2.Request()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise InvalidArgumentError(f"the body is not an ExportLogsServiceRequest: {error}") from None
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
        elif isinstance(value, float) and not math.isfinite(value):
            found[field.json_name] = "NaN" if math.isnan(value) else _NOT_NUMBERS[1 + (value < 0)]
        else:
            found[field.json_name] = value
    return found


def _decoded(body: bytes) -> dict[str, Any]:
    """By Python's own decoder: it takes all that is JSON, such as 1e400, so one value can't cost the other records."""
    try:
        found = json.loads(with_whole_characters(body).decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the body is not OTLP in JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgumentError("the body is not OTLP in JSON: it is not an object")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON: a double that isn't a number is sent as the string {constant!r}")


_Resource = tuple[str | None, dict[str, Any]]  # its routing key, and its attributes


def _records(
    request: dict[str, Any],
) -> Iterator[tuple[Callable[[], _Resource], Callable[[], dict[str, Any]], Any]]:
    """Each record with what makes its resource and its scope: InvalidArgumentError, if these can't be."""
    for of_resource in _objects(request, "resourceLogs"):
        resource = _once(_resource, of_resource)
        for of_scope in _objects(of_resource, "scopeLogs"):
            scope = _once(_scope, of_scope)
            for record in _list(of_scope, "logRecords"):
                yield resource, scope, record


def _once(make: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Callable[[], Any]:
    """What returns what is made, or raises why it can't be, the same each time."""
    try:
        made = make(given)
    except InvalidArgumentError as error:
        reason = str(error)

        def fail() -> Any:
            raise InvalidArgumentError(reason)

        return fail
    return lambda: made


def _resource(of_resource: dict[str, Any]) -> _Resource:
    values = _attributes(_object(of_resource, "resource"))
    return key_of(msgspec.json.encode(values.get(_SERVICE)), _SERVICE), values


def _scope(of_scope: dict[str, Any]) -> dict[str, Any]:
    scope = _object(of_scope, "scope")
    found: dict[str, Any] = {name: text for name in ("name", "version") if (text := _string(scope, name))}
    return found | ({"attributes": attributes} if (attributes := _attributes(scope)) else {})


def _record(record: Any, resource: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise InvalidArgumentError("a record is an object")
    event: dict[str, Any] = {}
    for name in ("timeUnixNano", "observedTimeUnixNano"):
        if time := _integer(record, name, 0, (1 << 64) - 1):
            event[name] = str(time)  # more digits than a JSON number keeps everywhere
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
    """What an AnyValue holds; None if that is nothing, or of a kind that is newer than this."""
    if value is None or value == {}:
        return None
    if depth > OTLP_DEPTH_MAX:
        raise InvalidArgumentError(f"a value is nested deeper than {OTLP_DEPTH_MAX} times")
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"the value {str(value)[:40]!r} is not an AnyValue, such as {{'stringValue': 'a'}}")
    kinds = [name for name in _READERS if value.get(name) is not None]
    if len(kinds) > 1:
        raise InvalidArgumentError(f"an AnyValue has both {kinds[0]} and {kinds[1]}: it has one value")
    return _READERS[kinds[0]](value, kinds[0], depth) if kinds else None


def _list(found: dict[str, Any], name: str) -> list[Any]:
    values = found.get(name)
    if values is not None and not isinstance(values, list):
        raise InvalidArgumentError(f"{name} is not a list")
    return values or []


def _objects(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = _list(found, name)
    if not all(isinstance(one, dict) for one in values):
        raise InvalidArgumentError(f"{name} is not a list of objects")
    return values


def _object(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidArgumentError(f"{name} is not an object")
    return value or {}


def _string(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(value, name, "a string")
    return value or ""


def _hex(text: str, name: str) -> str:
    try:
        return binascii.unhexlify(text).hex()
    except ValueError:
        raise _wrong(text, name, "hex digits, two for each byte") from None


def _integer(found: dict[str, Any], name: str, least: int, most: int) -> int:
    """OTLP's JSON has large numbers as texts, and takes small ones so; 1.0 is an integer to protobuf."""
    value = found.get(name)
    if value is None:
        return 0
    if (isinstance(value, str) and _INTEGER.fullmatch(value)) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise _wrong(value, name, f"an integer from {least} to {most}")
    return value


def _double(found: dict[str, Any], name: str) -> float | str:
    value = found[name]
    if value in _NOT_NUMBERS:
        return str(value)
    if type(value) in (int, float) or (isinstance(value, str) and _FLOAT.fullmatch(value)):
        try:
            if math.isfinite(number := float(value)):
                return number
        except OverflowError:
            pass
    raise _wrong(value, name, "a number of 64 bits, or 'NaN', 'Infinity' or '-Infinity'")


def _bytes(found: dict[str, Any], name: str) -> str:
    """In the one form of base64: protobuf's JSON takes that of addresses too, and both without their padding."""
    text = _string(found, name).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64encode(base64.b64decode(text + "=" * (-len(text) % 4), validate=True)).decode()
    except ValueError:
        raise _wrong(found[name], name, "base64") from None


def _bool(found: dict[str, Any], name: str) -> bool:
    value = found[name]
    if not isinstance(value, bool):
        raise _wrong(value, name, "true or false")
    return value


def _wrong(value: Any, name: str, wanted: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} is {str(value)[:40]!r}: it has to be {wanted}")


_READERS: dict[str, Callable[[dict[str, Any], str, int], Any]] = {
    "stringValue": lambda found, name, _: _string(found, name),
    "boolValue": lambda found, name, _: _bool(found, name),
    "intValue": lambda found, name, _: _integer(found, name, -(1 << 63), (1 << 63) - 1),
    "doubleValue": lambda found, name, _: _double(found, name),
    "bytesValue": lambda found, name, _: _bytes(found, name),
    "arrayValue": lambda found, name, depth: [_value(one, depth + 1) for one in _list(_object(found, name), "values")],
    "kvlistValue": lambda found, name, depth: _attributes(_object(found, name), "values", depth + 1),
}
