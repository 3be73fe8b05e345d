"""What a request's body holds: its events, and their keys. By its content type; nothing is written of a body with a
mistake in it.

- JSON lines: each line is an event, as it came; with `key-field` a field of it is its key.
- Arrow: a stream with a column `event`, and one `key` if they have keys.
- CloudEvents: see `cloud_events`.
- anything else: one event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from nadi.controller.rest.intake import Sent
from nadi.controller.rest.own.ingest import ARROW, CLOUD_EVENT, CLOUD_EVENTS, NDJSON
from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.ingest.http.cloud_events import batched, from_binary, structured
from nadi.limits import INGEST_EVENTS_MAX, KEY_FIELD_MAX_NAMES, MAX_EVENT_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

KEY_HEADER = "nadi-routing-key"
_JSON_LINES = {NDJSON, "application/jsonl", "application/x-jsonlines", "application/jsonlines"}
_PARAMETERS = {"key", "key-field"}
_TOO_MANY = "{:,} events in one request: send {:,} at most"


@dataclass(frozen=True, slots=True)
class Batch:
    """keys: one for all, one for each, or None."""

    events: list[bytes] | pa.ChunkedArray
    keys: str | list[str | None] | None

    def __len__(self) -> int:
        return len(self.events)


def batch_of(sent: Sent) -> Batch:
    """InvalidArgumentError says what is wrong, and where."""
    if unknown := sorted(sent.query.keys() - _PARAMETERS):
        raise InvalidArgumentError(f"there is no parameter {unknown[0][:40]!r} here: there are key and key-field")
    key, field = sent.query.get("key", sent.headers.get(KEY_HEADER)), sent.query.get("key-field")
    batch = _batch(sent, key, field)
    if len(batch) > INGEST_EVENTS_MAX:
        raise InvalidArgumentError(_TOO_MANY.format(len(batch), INGEST_EVENTS_MAX))
    return batch


def _batch(sent: Sent, key: str | None, field: str | None) -> Batch:
    if field is not None and sent.media not in _JSON_LINES:
        raise InvalidArgumentError(f"key-field has no effect here: it is for lines sent as Content-Type: {NDJSON}")
    if field is not None and key is not None:
        raise InvalidArgumentError("key and key-field both say which key the lines have: give one of them")
    if sent.media in _JSON_LINES:
        return _lines(sent.body, key, field)
    if sent.media == ARROW:
        from nadi.ingest.http.arrow import columns_of  # most requests need no Arrow

        events, keys = columns_of(sent.body, has_key=key is not None)
        return Batch(events, key if keys is None else keys)
    readers: dict[str, Callable[[bytes], list[tuple[bytes, str | None]]]] = {
        CLOUD_EVENT: structured,
        CLOUD_EVENTS: batched,
    }
    if sent.media in readers:
        found = readers[sent.media](sent.body)
    elif "ce-specversion" in sent.headers:
        found = from_binary(sent)
    else:
        return Batch([_checked(sent.body)], key)
    keys = [own for _, own in found]
    if key is not None and any(own is not None for own in keys):
        raise InvalidArgumentError("the events have partition keys of their own: leave the key out")
    return Batch([event for event, _ in found], keys if key is None else key)


def _checked(event: bytes) -> bytes:
    if len(event) > MAX_EVENT_BYTES:
        raise EventTooLargeError(len(event), MAX_EVENT_BYTES)
    return event


def _lines(body: bytes, key: str | None, field: str | None) -> Batch:
    count = body.count(b"\n") + (not body.endswith(b"\n"))
    if body and count > INGEST_EVENTS_MAX:
        raise InvalidArgumentError(_TOO_MANY.format(count, INGEST_EVENTS_MAX))
    lines = body.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    lines = [line[:-1] if line.endswith(b"\r") else line for line in lines] if b"\r" in body else lines
    keyed = field is not None
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(_fields(field) if keyed else Any).decode
    keys: list[str | None] = []
    for number, line in enumerate(lines, 1):
        try:
            found = decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(
                f"line {number:,} is not JSON{' with a key' if keyed else ''}: {error}"
            ) from None
        if keyed:
            keys.append(_text(found, number, field))
    return Batch(lines, keys if keyed else key)


def _fields(path: str | None) -> Any:
    """A type that decodes nothing but the field at a path, such as `device.id`."""
    kind: Any = Any
    names = (path or "").split(".")
    if not all(names) or len(names) > KEY_FIELD_MAX_NAMES:
        raise InvalidArgumentError(
            f"the key-field {(path or '')[:60]!r} is no field: write it as id, or device.id, of "
            f"{KEY_FIELD_MAX_NAMES} names at most"
        )
    for name in reversed(names):
        try:
            kind = msgspec.defstruct("Line", [("found", kind)], rename={"found": name})
        except ValueError as error:
            raise InvalidArgumentError(f"there is no key-field {name[:60]!r}: {error}") from None
    return kind


def _text(found: Any, number: int, field: str | None) -> str:
    while isinstance(found, msgspec.Struct):
        found = found.found  # type: ignore[attr-defined]
    if isinstance(found, str):
        return found
    if isinstance(found, bool | int | float):
        return msgspec.json.encode(found).decode()
    raise InvalidArgumentError(f"line {number:,}: its {field} is no key: it is to be a string or a number")
