"""Parser of request bodies by content type: returns events and keys; a mistake anywhere rejects the entire body.

- JSON lines: each line is an event, verbatim except for unpaired surrogates; with `key-field`, a field is its key.
- Arrow: a stream with a column `event`, and optionally a column `key`.
- CloudEvents: structured, batched and binary. Each is stored as a structured CloudEvent in JSON, and the extension
  `partitionkey` is its routing key.
- anything else: one event.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from nadi.controller.rest.intake import DataRequest, RejectedRecords
from nadi.controller.rest.own import ARROW, NDJSON
from nadi.errors import EventTooLargeError, InvalidArgumentError
from nadi.limits import INGEST_EVENTS_MAX, MAX_EVENT_BYTES
from nadi.model.cloud_events import BATCH, PREFIX, STRUCTURED, check, check_data, header_text, is_json_type, key_from
from nadi.model.field_path import KEY_FIELD, parse_path
from nadi.model.json_events import NotJsonError, checked, elements_of, fields_of, key_in, with_whole_characters

if TYPE_CHECKING:
    import pyarrow as pa


def structured(body: bytes) -> list[tuple[bytes, str | None]]:
    """Return the body as one event, verbatim."""
    return [_event(with_whole_characters(body), "the event")]


def batched(body: bytes) -> list[tuple[bytes, str | None]]:
    """Return the events of a JSON array, each verbatim."""
    try:
        events = elements_of(body)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the body is {error}") from None
    return [_event(bytes(event), f"event {number:,}") for number, event in enumerate(events, 1)]


def from_binary(sent: DataRequest) -> list[tuple[bytes, str | None]]:
    """Combine attributes in headers and data in the body into one event."""
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
            f"{header[:40]!r} is not a CloudEvents header: attribute names have letters and digits; send the data as "
            "the body, with its Content-Type"
        )
    return name


def _event(text: bytes, subject: str) -> tuple[bytes, str | None]:
    """Return an event and its routing key; InvalidArgumentError unless it is a CloudEvent."""
    try:
        fields = fields_of(text)
    except NotJsonError as error:
        raise InvalidArgumentError(f"{subject} is {error}") from None
    check(fields, subject)
    check_data(fields, subject)
    return text, key_from(fields, "partitionkey", subject)


KEY_HEADER = "nadi-routing-key"
_JSON_LINES = {NDJSON, "application/jsonl", "application/x-jsonlines", "application/jsonlines"}
_PARAMETERS = {"key", "key-field"}
_TOO_MANY = "the request has {:,} events: send at most {:,}"


@dataclass(frozen=True, slots=True)
class IngestBatch:
    """The events of a request. keys: one for all, one for each, or None. rejected: records left out, for OTLP."""

    events: list[bytes] | pa.ChunkedArray
    keys: str | list[str | None] | None
    rejected: RejectedRecords | None = None

    def __len__(self) -> int:
        return len(self.events)


def batch_of(sent: DataRequest) -> IngestBatch:
    """Parse a request; InvalidArgumentError names the position of the mistake."""
    if unknown := sorted(sent.query.keys() - _PARAMETERS):
        raise InvalidArgumentError(f"unknown parameter {unknown[0][:40]!r}: use key or key-field")
    key, field = sent.query.get("key", _key_of_header(sent)), sent.query.get("key-field")
    batch = _batch(sent, key, field)
    if len(batch) > INGEST_EVENTS_MAX:
        raise InvalidArgumentError(_TOO_MANY.format(len(batch), INGEST_EVENTS_MAX))
    return batch


def _key_of_header(sent: DataRequest) -> str | None:
    key = sent.headers.get(KEY_HEADER)
    try:
        return None if key is None else key.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError("the header Nadi-Routing-Key is not UTF-8: encode it so, or send ?key=") from None


def _batch(sent: DataRequest, key: str | None, field: str | None) -> IngestBatch:
    if field is not None and sent.media not in _JSON_LINES:
        raise InvalidArgumentError(f"key-field requires lines of JSON, sent as Content-Type: {NDJSON}")
    if field is not None and key is not None:
        raise InvalidArgumentError("key and key-field exclude each other: send one of them")
    if sent.media in _JSON_LINES:
        return _lines(sent.body, key, field)
    if sent.media == ARROW:
        from nadi.ingest.arrow import columns_of  # most requests need no Arrow

        events, keys = columns_of(sent.body, has_key=key is not None)
        return IngestBatch(events, key if keys is None else keys)
    if sent.media == STRUCTURED:
        keyed = structured(sent.body)
    elif sent.media == BATCH:
        keyed = batched(sent.body)
    elif "ce-specversion" in sent.headers:
        keyed = from_binary(sent)
    elif len(sent.body) > MAX_EVENT_BYTES:
        raise EventTooLargeError(len(sent.body), MAX_EVENT_BYTES)
    else:
        return IngestBatch([sent.body], key)
    keys = [partition_key for _, partition_key in keyed]
    if key is not None and any(partition_key is not None for partition_key in keys):
        raise InvalidArgumentError("the events have partition keys: leave out the key")
    return IngestBatch([event for event, _ in keyed], keys if key is None else key)


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
