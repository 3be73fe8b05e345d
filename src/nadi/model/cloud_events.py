"""Parsing of CloudEvents 1.0 in HTTP: headers, and JSON whose data is kept verbatim.

The routing key is the extension `partitionkey`, by the rule in `json_events`.
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
    """Return whether the content type is JSON.

    >>> is_json_type("application/json; charset=utf-8"), is_json_type("text/plain"), is_json_type("a/b+JSON")
    (True, False, True)
    """
    media = content_type.partition(";")[0].strip().lower()
    return media.endswith(("/json", "+json"))


def header_text(name: str, value: str) -> str:
    r"""Decode an attribute's header (HTTP binding, 3.1.3.2): remove quotes and percent-encoding.

    value: decoded as Latin-1, as HTTP headers are. InvalidArgumentError if the result isn't UTF-8.

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
            f"the header {name} is not UTF-8: {value[:40]!r}; percent-encode each byte of UTF-8, such as %E2"
        ) from None


def check(event: Fields, subject: str) -> None:
    """Raise InvalidArgumentError unless it is a CloudEvent. subject: its name in messages."""
    for name in _NEEDED:
        if not attribute(event, name, subject):
            raise InvalidArgumentError(f"{subject} is not a CloudEvent: {name} is missing")
    if (version := attribute(event, "specversion", subject)) != "1.0":
        raise InvalidArgumentError(f"{subject} has CloudEvents version {version!r:.40}: only 1.0 is supported")


def attribute(event: Fields, name: str, subject: str) -> str:
    """Return a string attribute; "" if the event doesn't have it."""
    value = bytes(event.get(name, b"null"))
    if value == b"null":
        return ""
    if value[:1] != b'"':
        raise InvalidArgumentError(f"{subject} is not a CloudEvent: {name} must be a string")
    return text_of(value)


def key_from(event: Fields, name: str, subject: str) -> str | None:
    """Return an attribute as a routing key; None if the event doesn't have it."""
    try:
        return key_of(bytes(event.get(name, b"null")), name)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{subject}: {error}") from None


def check_data(event: Fields, subject: str) -> bytes | None:
    """Return the decoded `data_base64`, or None; InvalidArgumentError if it isn't base64, or `data` is present too."""
    binary = attribute(event, "data_base64", subject)
    if not binary:
        return None
    if bytes(event.get("data", b"null")) != b"null":
        raise InvalidArgumentError(f"{subject} is not a CloudEvent: it has both data and data_base64")
    try:
        return base64.b64decode(binary, validate=True)
    except ValueError as error:
        raise InvalidArgumentError(f"{subject} is not a CloudEvent: its data_base64 is not base64: {error}") from None


def data_of(event: Fields, subject: str) -> bytes:
    r"""Return the data as the body of a binary message: JSON verbatim, any other text without quotes.

    >>> data_of({"data": msgspec.Raw(b'"sold"')}, "it")
    b'"sold"'
    >>> data_of({"data": msgspec.Raw(b'"sold"'), "datacontenttype": msgspec.Raw(b'"text/plain"')}, "it")
    b'sold'
    """
    if (binary := check_data(event, subject)) is not None:
        return binary
    data = bytes(event.get("data", b""))
    if is_json_type(attribute(event, "datacontenttype", subject) or "application/json"):
        return data
    if data[:1] == b'"':
        return text_of(data).encode()
    return b"" if data == b"null" else data
