"""CloudEvents 1.0 in HTTP: what their headers say, and their JSON, whose data stays the text that it is.

The routing key of an event is its extension `partitionkey`, by the rule of `json_events`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

import msgspec

from nadi.errors import InvalidArgumentError
from nadi.model.json_events import key_of, text_of

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
PREFIX = "ce-"
_NEEDED = ("specversion", "id", "source", "type")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

Fields = Mapping[str, msgspec.Raw]


def is_json_type(content_type: str) -> bool:
    """Whether data of that content type is JSON.

    >>> is_json_type("application/json; charset=utf-8"), is_json_type("text/plain"), is_json_type("a/b+JSON")
    (True, False, True)
    """
    media = content_type.partition(";")[0].strip().lower()
    return media.endswith(("/json", "+json"))


def header_text(name: str, value: str) -> str:
    r"""Return the text of an attribute's header (HTTP binding, 3.1.3.2): of the inside of quotes, each `%` with two
    digits is a byte of UTF-8. value: as Latin-1, which HTTP's is. InvalidArgumentError if it isn't UTF-8.

    >>> header_text("ce-subject", r'"a \"b\""'), header_text("ce-subject", "100%"), header_text("ce-subject", "%C3%A4")
    ('a "b"', '100%', 'ä')
    """
    quoted = _QUOTED.fullmatch(value.strip(" \t"))
    if quoted is not None:
        value = _ESCAPED.sub(r"\1", quoted[1])
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeError:
        raise InvalidArgumentError(
            f"the header {name} is {value[:40]!r}, which is not UTF-8: encode each byte of UTF-8 as %E2, say"
        ) from None


def check(event: Fields, what: str) -> None:
    """InvalidArgumentError unless it is a CloudEvent. what: how it is called there."""
    for name in _NEEDED:
        if not attribute(event, name, what):
            raise InvalidArgumentError(f"{what} is not a CloudEvent: it has no {name}")
    if (version := attribute(event, "specversion", what)) != "1.0":
        raise InvalidArgumentError(f"{what} is of CloudEvents {version!r:.40}: 1.0 is taken")


def attribute(event: Fields, name: str, what: str) -> str:
    """Return an attribute that is a string; an empty one if the event has none."""
    value = bytes(event.get(name, b"null"))
    if value == b"null":
        return ""
    if value[:1] != b'"':
        raise InvalidArgumentError(f"{what} is not a CloudEvent: its {name} has to be a string")
    return text_of(value)


def key_from(event: Fields, name: str, what: str) -> str | None:
    """Return the routing key that an attribute is, if the event has it."""
    try:
        return key_of(bytes(event.get(name, b"null")), name)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{what}: {error}") from None


def check_data(event: Fields, what: str) -> bytes | None:
    """Return the data that is in base64, if it is; InvalidArgumentError if it isn't base64, or not the only data."""
    binary = attribute(event, "data_base64", what)
    if not binary:
        return None
    if bytes(event.get("data", b"null")) != b"null":
        raise InvalidArgumentError(f"{what} is not a CloudEvent: it has both data and data_base64")
    try:
        return base64.b64decode(binary, validate=True)
    except ValueError as error:
        raise InvalidArgumentError(f"{what} is not a CloudEvent: its data_base64 is not base64: {error}") from None


def data_of(event: Fields, what: str) -> bytes:
    r"""Return the data, as the body of a binary message has it: JSON as it is written, any other text without quotes.

    >>> data_of({"data": msgspec.Raw(b'"sold"')}, "it")
    b'"sold"'
    >>> data_of({"data": msgspec.Raw(b'"sold"'), "datacontenttype": msgspec.Raw(b'"text/plain"')}, "it")
    b'sold'
    """
    if (binary := check_data(event, what)) is not None:
        return binary
    data = bytes(event.get("data", b""))
    if is_json_type(attribute(event, "datacontenttype", what) or "application/json"):
        return data
    if data[:1] == b'"':
        return text_of(data).encode()
    return b"" if data == b"null" else data
