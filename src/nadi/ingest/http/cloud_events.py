"""CloudEvents in requests: structured, batched and binary. Each is stored as a structured CloudEvent in JSON, and the
extension `partitionkey` is its routing key.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from nadi.controller.rest.intake import Sent
from nadi.errors import InvalidArgumentError
from nadi.model.cloud_events import PREFIX, check, check_data, header_text, is_json_type, key_from
from nadi.model.json_events import NotJsonError, checked, elements_of, fields_of, with_whole_characters


def structured(body: bytes) -> list[tuple[bytes, str | None]]:
    """One event: the body as it came."""
    return [_event(with_whole_characters(body), "the event")]


def batched(body: bytes) -> list[tuple[bytes, str | None]]:
    """The events of a JSON array, each as it came."""
    try:
        events = elements_of(body)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the body is {error}") from None
    return [_event(bytes(event), f"event {number:,}") for number, event in enumerate(events, 1)]


def from_binary(sent: Sent) -> list[tuple[bytes, str | None]]:
    """Attributes that are headers, and data that is the body: put together as one event."""
    event: dict[str, Any] = {
        _attribute(name): header_text(name, value) for name, value in sent.headers.items() if name.startswith(PREFIX)
    }
    if sent.media:
        event["datacontenttype"] = sent.headers["content-type"]
    if sent.body and is_json_type(sent.media):
        try:
            event["data"] = msgspec.Raw(checked(sent.body))
        except NotJsonError as error:
            raise InvalidArgumentError(f"the data is {error}") from None
    elif sent.body:
        event["data_base64"] = base64.b64encode(sent.body).decode()
    return [_event(msgspec.json.encode(event), "the event")]


def _attribute(header: str) -> str:
    name = header.removeprefix(PREFIX)
    if not (name.isascii() and name.isalnum()) or name in ("data", "datacontenttype"):
        raise InvalidArgumentError(
            f"the header {header[:40]!r} is none of a CloudEvent: attributes are letters and digits, its data is the "
            "body, and of the Content-Type that this has"
        )
    return name


def _event(text: bytes, what: str) -> tuple[bytes, str | None]:
    """An event, and its routing key; InvalidArgumentError unless it is a CloudEvent."""
    try:
        fields = fields_of(text)
    except NotJsonError as error:
        raise InvalidArgumentError(f"{what} is {error}") from None
    check(fields, what)
    check_data(fields, what)
    return text, key_from(fields, "partitionkey", what)
