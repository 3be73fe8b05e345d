"""Events as CloudEvents over HTTP, and CloudEvents in a service's answers as outputs.

An event's `id` is its place in its stream, the same each time that it is sent, so that a receiver can tell that it has
seen it; `source` is the stream, `partitionkey` the routing key, or the segment where that isn't known: events of one
partition key are sent in order. `subject` is the routing key. Needs the package `cloudevents`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.functions.handlers.event import Event
from nadi.functions.handlers.outcome import Output
from nadi.limits import MAX_EVENT_BYTES
from nadi.model.cloud_events import (
    BATCH,
    PREFIX,
    STRUCTURED,
    Fields,
    check,
    data_of,
    header_text,
    is_json_type,
    key_from,
)
from nadi.model.json_events import NotJsonError, checked, elements_of, fields_of

_EVENT = "the event"


@dataclass(frozen=True, slots=True)
class Request:
    """The headers and the body of a POST."""

    headers: Mapping[str, str]
    body: bytes


class BadReplyError(Exception):
    """An answer that says it has CloudEvents, and has none that can be read."""


def cloud_event(event: Event, event_type: str, content_type: str, now: datetime) -> CloudEvent:
    """Return an event as a CloudEvent; `now`: when it was read, its `time`."""
    attributes: dict[str, Any] = {
        "id": event.id,
        "source": f"/nadi/{event.stream}",
        "type": event_type,
        "time": now,
        "datacontenttype": content_type,
        "partitionkey": event.routing_key or event.segment,  # which must not be empty
    }
    if event.routing_key:
        attributes["subject"] = event.routing_key
    return CloudEvent(attributes, event.data)


def binary(event: CloudEvent) -> Request:
    """Attributes as headers, the event's bytes as the body."""
    message = to_binary_event(event)
    return Request(message.headers, message.body)


def structured(event: CloudEvent) -> Request:
    """One JSON document."""
    message = to_structured_event(CloudEvent(event.get_attributes()))
    return Request(message.headers, _document(event))


def batched(events: Sequence[CloudEvent]) -> Request:
    """A JSON list of such documents."""
    return Request({"content-type": BATCH}, b"[" + b",".join(map(_document, events)) + b"]")


def _document(event: CloudEvent) -> bytes:
    """JSON stays the JSON it is within JSON, to the byte, instead of base64."""
    data = event.get_data()
    says_json = is_json_type(str(event.get_attributes()["datacontenttype"]))
    if not says_json or not isinstance(data, bytes) or not _is_json(data):
        return JSONFormat().write(event)
    return JSONFormat().write(CloudEvent(event.get_attributes())).removesuffix(b"}") + b', "data": ' + data + b"}"


def _is_json(data: bytes) -> bool:
    """Whether it is what it says of itself, and can be within other JSON.

    >>> _is_json(b'{"wh": 1.50}'), _is_json(b"NaN"), _is_json(b"[" * 100_000)
    (True, False, False)
    """
    try:
        return checked(data) == data
    except NotJsonError:
        return False


def outputs_of_reply(headers: Mapping[str, str], body: bytes) -> list[Output]:
    """The events of an answer, with their partition keys or subjects as routing keys; none if it has no CloudEvents.
    Each is its data, the same bytes in every form. headers: as Latin-1, which HTTP's are.

    >>> outputs_of_reply({"ce-id": "1", "ce-source": "/", "ce-type": "t", "ce-specversion": "1.0"}, b"12")
    [(None, b'12')]
    >>> outputs_of_reply({"content-type": "text/plain"}, b"OK")
    []
    """
    names = {name.lower(): value for name, value in headers.items()}
    content_type = names.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if content_type == BATCH:
            return [_of_document(bytes(document)) for document in elements_of(body)]
        if content_type == STRUCTURED:
            return [_of_document(body)]
        if PREFIX + "specversion" in names:
            attributes = {
                name.removeprefix(PREFIX): msgspec.Raw(msgspec.json.encode(header_text(name, value)))
                for name, value in names.items()
                if name.startswith(PREFIX)
            }
            return [_output(attributes, body)]
    except InvalidArgumentError as error:
        raise BadReplyError(str(error)) from None
    return []


def _of_document(document: bytes) -> Output:
    fields = fields_of(document)
    return _output(fields, data_of(fields, _EVENT))


def _output(event: Fields, data: bytes) -> Output:
    check(event, _EVENT)
    if len(data) > MAX_EVENT_BYTES:
        raise EventTooLargeError(len(data), MAX_EVENT_BYTES)
    key = key_from(event, "partitionkey", _EVENT)
    return key_from(event, "subject", _EVENT) if key is None else key, data


def now() -> datetime:
    return datetime.now(UTC)
