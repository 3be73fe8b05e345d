"""Kafka's record batches: an event is a batch, as Kafka's producers send it, and its records are rows.

The columns are `key` and `value`, `headers` and `timestamp`. kio's reader of records isn't used, because datetimes
can't hold all timestamps that producers send.

Layout: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import crc32c
import numpy as np
import pyarrow as pa

from nadi.client.serializers.columns import Decoded, reason
from nadi.errors import SerializationError

_ATTRIBUTES, _BASE_TIME, _COUNT = struct.Struct(">h"), struct.Struct(">q"), struct.Struct(">i")
_AT_ATTRIBUTES, _AT_BASE_TIME, _AT_LAST_TIME, _AT_COUNT = 21, 27, 35, 57
LOG_APPEND_TIME = 0x08  # of the attributes: all records have the batch's last time
HEADER, HEADER_BYTES = struct.Struct(">qiibIhiqqqhii"), 61
_STREAMED = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
_FRAMED_SNAPPY = b"\x82SNAPPY\x00"
_FRAMED_SNAPPY_HEAD = 16
_MOST_BYTES = 256 << 20  # of the records of a batch


KIND = pa.struct(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


class Record(NamedTuple):
    """A record of a batch. delta: its offset minus the batch's. timestamp_ms: -1 if the producer gave none."""

    delta: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def records_of(batch: bytes) -> Iterator[Record]:
    """Yield a batch's records; SerializationError if it can't be decoded."""
    try:
        base_ms = _BASE_TIME.unpack_from(batch, _AT_BASE_TIME)[0]
        attributes = _ATTRIBUTES.unpack_from(batch, _AT_ATTRIBUTES)[0]
        appended_ms = _BASE_TIME.unpack_from(batch, _AT_LAST_TIME)[0] if attributes & LOG_APPEND_TIME else None
        data = _uncompressed(attributes & 7, batch[HEADER_BYTES:])
        position = 0
        for _ in range(_COUNT.unpack_from(batch, _AT_COUNT)[0]):
            size, position = _varint(data, position)
            end = position + size
            time_delta, position = _varint(data, position + 1)
            delta, position = _varint(data, position)
            key, position = _bytes(data, position)
            value, position = _bytes(data, position)
            count, position = _varint(data, position)
            headers = []
            for _ in range(count):
                name, position = _bytes(data, position)
                header, position = _bytes(data, position)
                headers.append(((name or b"").decode(errors="replace"), header))
            if position != end:
                raise SerializationError("a Kafka record's length doesn't match its contents")
            yield Record(delta, base_ms + time_delta if appended_ms is None else appended_ms, key, value, headers)
    except (IndexError, struct.error, pa.ArrowException, OSError, ValueError) as error:
        raise SerializationError(f"the event isn't a batch of Kafka records: {error}") from error


def batch_of(records: Iterable[Record], partition: int = 0) -> bytes:
    """Return an uncompressed batch of records, numbered in their order."""
    records = list(records)
    base_ms = records[0].timestamp_ms
    encoded = bytearray()
    for delta, record in enumerate(records):
        body = bytearray(b"\0")
        body += _zigzag(record.timestamp_ms - base_ms) + _zigzag(delta)
        body += _sized(record.key) + _sized(record.value) + _zigzag(len(record.headers))
        for name, value in record.headers:
            body += _sized(name.encode()) + _sized(value)
        encoded += _zigzag(len(body)) + body
    latest = max(record.timestamp_ms for record in records)
    count = len(records)
    head = HEADER.pack(
        0, HEADER_BYTES - 12 + len(encoded), partition, 2, 0, 0, count - 1, base_ms, latest, -1, -1, -1, count
    )
    checked = head[_AT_ATTRIBUTES:] + bytes(encoded)
    return head[: _AT_ATTRIBUTES - 4] + crc32c.crc32c(checked).to_bytes(4, "big") + checked


def appended_at(batch: bytes, time_ms: int) -> bytes:
    """Return a batch whose records have the time of their storing."""
    changed = bytearray(batch)
    _ATTRIBUTES.pack_into(changed, _AT_ATTRIBUTES, _ATTRIBUTES.unpack_from(batch, _AT_ATTRIBUTES)[0] | LOG_APPEND_TIME)
    _BASE_TIME.pack_into(changed, _AT_LAST_TIME, time_ms)
    changed[_AT_ATTRIBUTES - 4 : _AT_ATTRIBUTES] = crc32c.crc32c(memoryview(changed)[_AT_ATTRIBUTES:]).to_bytes(
        4, "big"
    )
    return bytes(changed)


def _uncompressed(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    if codec == _SNAPPY:
        return _unsnapped(data)
    with pa.input_stream(pa.BufferReader(data), compression=_STREAMED[codec]) as stream:
        whole: bytes = stream.read(_MOST_BYTES + 1)
    return _limited(whole)


def _unsnapped(data: bytes) -> bytes:
    if not data.startswith(_FRAMED_SNAPPY):
        return _unsnapped_block(data)
    parts, position = [], _FRAMED_SNAPPY_HEAD
    while position < len(data):
        size = _COUNT.unpack_from(data, position)[0]
        parts.append(_unsnapped_block(data[position + 4 : position + 4 + size]))
        position += 4 + size
    return _limited(b"".join(parts))


def _unsnapped_block(data: bytes) -> bytes:
    size, _ = _unsigned(data, 0)
    if size > _MOST_BYTES:
        raise SerializationError(f"a batch of {size:,} bytes is larger than {_MOST_BYTES:,}")
    block: bytes = pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True)
    return block


def _limited(data: bytes) -> bytes:
    if len(data) > _MOST_BYTES:
        raise SerializationError(f"a batch's records are larger than {_MOST_BYTES:,} bytes")
    return data


def _unsigned(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:  # the usual case
        return (byte >> 1) ^ -(byte & 1), position + 1
    number, position = _unsigned(data, position)
    return (number >> 1) ^ -(number & 1), position


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _varint(data, position)
    if size < 0:
        return None, position
    if position + size > len(data):
        raise ValueError("a field ends behind its batch")
    return data[position : position + size], position + size


def _zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _sized(value: bytes | None) -> bytes:
    return _zigzag(-1) if value is None else _zigzag(len(value)) + value


# --- a format of `values.target` ----------------------------------------------------------------------


def type_of(definition: bytes) -> pa.DataType:
    return KIND


def incompatibilities(reader: bytes, writer: bytes) -> list[str]:
    return []


def decoder(kind: pa.DataType, reader: bytes, writer: bytes) -> Callable[[Sequence[bytes]], Decoded]:
    def decode(events: Sequence[bytes]) -> Decoded:
        records: list[Record | None] = []
        rows: list[int] = []
        wrong = {}
        for number, event in enumerate(events):
            try:
                found: list[Record | None] = list(records_of(event))
            except SerializationError as error:
                wrong[number] = reason(error)
                found = [None]
            records += found
            rows += [number] * len(found)
        return Decoded(_column(records), np.array(rows, np.int64), wrong)

    return decode


def encoder(kind: pa.DataType, definition: bytes) -> Callable[[pa.Array], list[bytes]]:
    def encode(values: pa.Array) -> list[bytes]:
        return [batch_of([_record(value)]) for value in values.to_pylist()]

    return encode


def _column(records: Sequence[Record | None]) -> pa.Array:
    there = [record or Record(0, -1, None, None) for record in records]
    times = [None if record.timestamp_ms == -1 else record.timestamp_ms * 1000 for record in there]
    children = [
        pa.array([record.key for record in there], pa.binary()),
        pa.array([record.value for record in there], pa.binary()),
        pa.array(
            [[{"name": name, "value": value} for name, value in record.headers] for record in there],
            KIND.field("headers").type,
        ),
        pa.array(times, pa.int64()).cast(KIND.field("timestamp").type),
    ]
    mask = pa.array([record is None for record in records]) if None in records else None
    return pa.StructArray.from_arrays(children, fields=list(KIND), mask=mask)


def _record(value: Mapping[str, Any] | None) -> Record:
    if value is None:
        raise SerializationError("a Kafka record can't be null")
    moment, headers = value.get("timestamp"), value.get("headers") or ()
    timestamp_ms = -1 if moment is None else round(moment.timestamp() * 1000)
    pairs = [(header["name"], header["value"]) for header in headers]
    return Record(0, timestamp_ms, value.get("key"), value.get("value"), pairs)
