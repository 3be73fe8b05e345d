"""CloudEvents in requests: structured, batched and binary. Each is stored as a structured CloudEvent in JSON, and the
extension `partitionkey` is its routing key.
"""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import unquote

import msgspec

from nadi.controller.rest.intake import Sent
from nadi.errors import InvalidArgumentError

_NEEDED = ("specversion", "id", "source", "type")
_PREFIX = "ce-"


def structured(body: bytes) -> list[tuple[bytes, str | None]]:
    """One event: the body as it came."""
    return [(body, _key(_decoded(body, dict[str, msgspec.Raw]), "the event"))]


def batched(body: bytes) -> list[tuple[bytes, str | None]]:
    """The events of a JSON array, each as it came."""
    found = []
    for number, raw in enumerate(_decoded(body, list[msgspec.Raw]), 1):
        what = f"event {number:,}"
        found.append((bytes(raw), _key(_decoded(bytes(raw), dict[str, msgspec.Raw], what), what)))
    return found


def from_binary(sent: Sent) -> list[tuple[bytes, str | None]]:
    """Attributes that are headers, and data that is the body: put together as one event."""
    event: dict[str, Any] = {
        _attribute(name): unquote(value) for name, value in sent.headers.items() if name.startswith(_PREFIX)
    }
    if sent.media:
        event["datacontenttype"] = sent.headers["content-type"]
    is_json = sent.media in ("application/json", "text/json") or sent.media.endswith("+json")
    if is_json and sent.body:
        _decoded(sent.body, Any, "the data")
        event["data"] = msgspec.Raw(sent.body)
    elif sent.body:
        event["data_base64"] = base64.b64encode(sent.body).decode()
    encoded = msgspec.json.encode(event)
    return [(encoded, _key(_decoded(encoded, dict[str, msgspec.Raw]), "the event"))]


def _attribute(header: str) -> str:
    name = header.removeprefix(_PREFIX)
    if not (name.isascii() and name.isalnum()) or name in ("data", "datacontenttype"):
        raise InvalidArgumentError(
            f"the header {header[:40]!r} is none of a CloudEvent: attributes are letters and digits, its data is the "
            "body, and of the Content-Type that this has"
        )
    return name


def _decoded(body: bytes, kind: Any, what: str = "the body") -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{what} is not what CloudEvents are in JSON: {error}") from None


def _key(event: dict[str, msgspec.Raw], what: str) -> str | None:
    for name in _NEEDED:
        if not _text(event, name, what):
            raise InvalidArgumentError(f"{what} is no CloudEvent: it has no {name}")
    if (version := _text(event, "specversion", what)) != "1.0":
        raise InvalidArgumentError(f"{what} is of CloudEvents {version!r:.40}: 1.0 is taken")
    return _text(event, "partitionkey", what) or None


def _text(event: dict[str, msgspec.Raw], name: str, what: str) -> str:
    raw = event.get(name)
    if raw is None:
        return ""
    value = _decoded(bytes(raw), Any, what)
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} is no CloudEvent: its {name} is to be a string")
    return value
