"""Parser of Arrow IPC streams in requests: returns the columns `event` and `key`, in types that a writer accepts.

Sizes are checked before memory is allocated: buffers may be compressed, views may repeat the same bytes, and rows of
width 0 cost nothing. Dictionaries are rejected: each batch may replace or extend them, so that their size is unknown
before they are read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from nadi.errors import InvalidArgumentError
from nadi.limits import INGEST_BODY_MAX_BYTES, INGEST_EVENTS_MAX

_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
_VIEWS = (pa.types.is_string_view, pa.types.is_binary_view)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_COLUMNS = "the columns have more than {:,} bytes: send fewer events"


def columns_of(body: bytes, *, has_key: bool) -> tuple[list[bytes] | pa.ChunkedArray, list[str | None] | None]:
    """Return the body's events, and their keys, if any; InvalidArgumentError.

    has_key: the request names one key for all events.
    """
    try:
        if sum(_buffer_sizes(body)) > INGEST_BODY_MAX_BYTES:
            raise InvalidArgumentError(_COLUMNS.format(INGEST_BODY_MAX_BYTES))
        with pa.ipc.open_stream(body) as reader:
            _check(reader.schema, has_key=has_key)
            table = reader.read_all()
        if len(table) > INGEST_EVENTS_MAX:
            raise InvalidArgumentError(f"the request has {len(table):,} events: send at most {INGEST_EVENTS_MAX:,}")
        table.validate(full=True)
        columns = dict(zip(table.column_names, map(_storage, table.columns), strict=True))
        for column in columns.values():
            _check_views(column)
    except InvalidArgumentError:
        raise
    except (ValueError, NotImplementedError, OSError, struct.error) as error:  # such as names that aren't UTF-8
        raise InvalidArgumentError(f"the body is not an Arrow IPC stream: {error}") from None
    return _events(columns["event"]), columns["key"].to_pylist() if "key" in columns else None


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _storage(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column as its storage type, which is text for the JSON extension."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _check(schema: pa.Schema, *, has_key: bool) -> None:
    allowed = {"event"} if has_key else {"event", "key"}
    if unknown := sorted(set(schema.names) - allowed):
        raise InvalidArgumentError(f"unknown column {unknown[0][:40]!r}: send only {', '.join(sorted(allowed))}")
    if schema.names.count("event") != 1 or schema.names.count("key") > 1:
        raise InvalidArgumentError(
            "the body must have one column `event`, of binaries or strings, and at most one `key`"
        )
    kind = _storage_type(schema.field("event").type)
    if not _is_of(kind, *_BYTES, *_TEXTS, pa.types.is_binary_view):
        raise InvalidArgumentError(f"the column `event` has type {kind}: cast or encode it to binary or string first")
    if "key" in schema.names and not _is_of(kind := _storage_type(schema.field("key").type), *_TEXTS, pa.types.is_null):
        raise InvalidArgumentError(f"the column `key` has type {kind}: cast it to string first")


def _is_of(kind: pa.DataType, *kinds: Callable[[pa.DataType], bool]) -> bool:
    return any(is_kind(kind) for is_kind in kinds)


def _events(events: pa.ChunkedArray) -> list[bytes] | pa.ChunkedArray:
    if events.null_count:
        raise InvalidArgumentError(f"{events.null_count:,} events are null: drop or fill them first")
    if _is_of(events.type, *_BYTES):
        return events
    if _is_of(events.type, *_VIEWS):  # one by one, as keys: a cast also follows null views, which aren't validated
        return [event.encode() if isinstance(event, str) else event for event in events.to_pylist()]
    return events.cast(pa.large_binary())


def _check_views(column: pa.ChunkedArray) -> None:
    """Limit the total size of views, which may repeat the same bytes."""
    if not _is_of(column.type, *_VIEWS):
        return
    size = 0
    for chunk in column.chunks:
        views = np.frombuffer(chunk.buffers()[1] or b"", np.int32)
        size += int(views[::4][chunk.offset : chunk.offset + len(chunk)].clip(0).sum(dtype=np.int64))
    if size > INGEST_BODY_MAX_BYTES:
        raise InvalidArgumentError(_COLUMNS.format(INGEST_BODY_MAX_BYTES))


# --- sizes of decompressed buffers, which pyarrow reports only after decompression ------------------


def _buffer_sizes(body: bytes) -> Iterator[int]:
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type == "dictionary":
            raise InvalidArgumentError(
                "a column is dictionary-encoded (a categorical): cast `event` and `key` to binary or string first"
            )
        if message.type == "record batch":
            yield from _of_batch(message.metadata, message.body)


def _of_batch(metadata: pa.Buffer, body: pa.Buffer) -> Iterator[int]:
    """Yield the buffers' sizes; a compressed buffer starts with its decompressed size, or -1 if stored raw."""
    head = memoryview(metadata)
    table = _follow(head, 0)
    at = _field(head, table, 2)
    if at is None:
        raise struct.error("the head of a batch is missing")
    batch = _follow(head, at)
    buffers, compression = _field(head, batch, 2), _field(head, batch, 3)
    if buffers is None:
        return
    start = _follow(head, buffers)
    (count,) = struct.unpack_from("<I", head, start)
    for offset, size in struct.iter_unpack("<qq", head[start + 4 : start + 4 + 16 * count]):
        unpacked = struct.unpack_from("<q", body, offset)[0] if compression is not None and size >= 8 else -1
        yield size if unpacked < 0 else unpacked


def _follow(head: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", head, at)[0])


def _field(head: memoryview, table: int, slot: int) -> int | None:
    """Return the position of a table's field, or None if it has its default."""
    (back,) = struct.unpack_from("<i", head, table)
    (size,) = struct.unpack_from("<H", head, table - back)
    if 4 + 2 * slot >= size:
        return None
    (offset,) = struct.unpack_from("<H", head, table - back + 4 + 2 * slot)
    return table + int(offset) if offset else None
