"""What a request's body holds: its events, and their keys. By its content type; nothing is written of a body with a
mistake in it.

- JSON lines: each line is an event, as it came, but for halves of characters; with `key-field` a field is its key.
- Arrow: a stream with a column `event`, and one `key` if they have keys.
- CloudEvents: structured, batched and binary. Each is stored as a structured CloudEvent in JSON, and the extension
  `partitionkey` is its routing key.
- anything else: one event.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from nadi.controller.rest.intake import Rejected, Sent
from nadi.controller.rest.own import ARROW, NDJSON
from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.limits import INGEST_EVENTS_MAX, MAX_EVENT_BYTES
from nadi.model.cloud_events import BATCH, PREFIX, STRUCTURED, check, check_data, header_text, is_json_type, key_from
from nadi.model.field_path import KEY_FIELD, parse_path
from nadi.model.json_events import NotJsonError, checked, elements_of, fields_of, key_in, with_whole_characters

if TYPE_CHECKING:
    import pyarrow as pa


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


KEY_HEADER = "nadi-routing-key"
_JSON_LINES = {NDJSON, "application/jsonl", "application/x-jsonlines", "application/jsonlines"}
_PARAMETERS = {"key", "key-field"}
_TOO_MANY = "{:,} events in one request: send {:,} at most"


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """keys: one for all, one for each, or None. rejected: what isn't among the events, where such is rejected alone."""

    events: list[bytes] | pa.ChunkedArray
    keys: str | list[str | None] | None
    rejected: Rejected | None = None

    def __len__(self) -> int:
        return len(self.events)


def batch_of(sent: Sent) -> IngestBatch:
    """InvalidArgumentError says what is wrong, and where."""
    if unknown := sorted(sent.query.keys() - _PARAMETERS):
        raise InvalidArgumentError(f"there is no parameter {unknown[0][:40]!r} here: there are key and key-field")
    key, field = sent.query.get("key", _key_of_header(sent)), sent.query.get("key-field")
    batch = _batch(sent, key, field)
    if len(batch) > INGEST_EVENTS_MAX:
        raise InvalidArgumentError(_TOO_MANY.format(len(batch), INGEST_EVENTS_MAX))
    return batch


def _key_of_header(sent: Sent) -> str | None:
    key = sent.headers.get(KEY_HEADER)
    try:
        return None if key is None else key.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError("the header Nadi-Routing-Key is not UTF-8: send the key so, or as ?key=") from None


def _batch(sent: Sent, key: str | None, field: str | None) -> IngestBatch:
    if field is not None and sent.media not in _JSON_LINES:
        raise InvalidArgumentError(f"key-field has no effect here: it is for lines sent as Content-Type: {NDJSON}")
    if field is not None and key is not None:
        raise InvalidArgumentError("key and key-field both say which key the lines have: give one of them")
    if sent.media in _JSON_LINES:
        return _lines(sent.body, key, field)
    if sent.media == ARROW:
        from nadi.ingest.arrow import columns_of  # most requests need no Arrow

        events, keys = columns_of(sent.body, has_key=key is not None)
        return IngestBatch(events, key if keys is None else keys)
    if sent.media == STRUCTURED:
        found = structured(sent.body)
    elif sent.media == BATCH:
        found = batched(sent.body)
    elif "ce-specversion" in sent.headers:
        found = from_binary(sent)
    elif len(sent.body) > MAX_EVENT_BYTES:
        raise EventTooLargeError(len(sent.body), MAX_EVENT_BYTES)
    else:
        return IngestBatch([sent.body], key)
    keys = [own for _, own in found]
    if key is not None and any(own is not None for own in keys):
        raise InvalidArgumentError("the events have partition keys of their own: leave the key out")
    return IngestBatch([event for event, _ in found], keys if key is None else key)


def _lines(body: bytes, key: str | None, field: str | None) -> IngestBatch:
    count = body.count(b"\n") + (not body.endswith(b"\n"))
    if body and count > INGEST_EVENTS_MAX:
        raise InvalidArgumentError(_TOO_MANY.format(count, INGEST_EVENTS_MAX))
    lines = with_whole_characters(body).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    lines = [line[:-1] if line.endswith(b"\r") else line for line in lines] if b"\r" in body else lines
    path = parse_path(field, KEY_FIELD) if field is not None else None
    keys: list[str | None] = []
    for number, line in enumerate(lines, 1):
        try:
            if path is None:
                checked(line)
            else:
                keys.append(key_in(line, path))
        except InvalidArgumentError as error:
            verb = " is" if isinstance(error, NotJsonError) else ":"
            raise InvalidArgumentError(f"line {number:,}{verb} {error}") from None
    return IngestBatch(lines, key if path is None else keys)
