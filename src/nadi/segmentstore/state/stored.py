"""Encodes a container's segments as keys and values of its state's tables, and decodes them.

A stored value ends in the CRC-32C of container, table, key and value, four bytes little-endian: so a damaged value, or
one of another key, table or container, is detected.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from operator import attrgetter

import msgspec
from crc32c import crc32c

from nadi.segmentstore.state.records import Extent, FrameRef, SegmentRecord
from nadi.segmentstore.tier1.blob_files import run_name, run_number
from nadi.segmentstore.tier1.log import LogAddress
from nadi.wire.fields import Buffer

TABLES = ("state", "names", "segments", "attributes", "extents", "logged", "entries", "positions", "times")
STATE_KEY = b"state"
CRC_BYTES = 4
_WHOLE = 0x48674BC7  # the CRC-32C of any data followed by its CRC-32C, little-endian
_KEY_MAX = 500  # LMDB's limit is 511
HEAD_BYTES = _KEY_MAX - 32  # of a longer key, stored before its digest
ID = struct.Struct(">Q")
PAIR = struct.Struct(">QQ")
I64 = struct.Struct(">q")
_TIME_KEY = struct.Struct(">QQQ")
_EARLIEST = -(1 << 63)
EXTENT = struct.Struct(">QQQQQ")  # length, sequence, file, offset, position and whether it continues an event
CONTINUES = 1 << 63  # in the position
Change = tuple[str, bytes, bytes | None]  # (table, key, value or None to delete)


def seeds_of(container: int) -> dict[str, int]:
    return {table: int(crc32c(f"{container}/{table}/".encode())) for table in TABLES}


def is_whole(seed: int, key: Buffer, raw: Buffer) -> bool:
    """Return whether a stored value belongs to that key and is undamaged.

    >>> is_whole(0, b"key", b"value" + crc32c(b"keyvalue").to_bytes(4, "little")), is_whole(0, b"key", b"")
    (True, False)
    """
    return len(raw) >= CRC_BYTES and bool(crc32c(raw, crc32c(key, seed)) == _WHOLE)


class ContainerState(msgspec.Struct, array_like=True):
    sequence: int = 0
    next_segment: int = 1
    planned: list[str] = []
    garbage: list[str] = []
    transients: list[int] = []


class StoredSegment(msgspec.Struct, array_like=True, gc=False):
    name: str
    kind: int
    created_ms: int
    modified_ms: int
    start_offset: int
    length: int
    sealed: bool
    scale_type: int
    target_rate: int
    rollover_bytes: int
    key_length: int
    event_count: int
    entry_count: int
    table_length: int
    appended_ms: int
    entered_ms: int
    entered_offset: int


_fields_of = attrgetter(*StoredSegment.__struct_fields__)


def time_key(segment: int, clock: int, time: int | None = None) -> bytes:
    """Return the key of an entry in the time index, or the prefix of a clock's keys; keys are ordered by time."""
    return PAIR.pack(segment, clock) if time is None else _TIME_KEY.pack(segment, clock, time - _EARLIEST)


def time_of(key: bytes) -> tuple[int, int]:
    _, clock, time = _TIME_KEY.unpack(key)
    return clock, time + _EARLIEST


_encode = msgspec.msgpack.Encoder().encode
decode_segment = msgspec.msgpack.Decoder(StoredSegment).decode
decode_state = msgspec.msgpack.Decoder(ContainerState).decode


def bounded_key(raw: bytes) -> bytes:
    """Return a key within LMDB's limit: long keys keep their head, so they stay ordered unless they share it."""
    if len(raw) <= _KEY_MAX:
        return raw
    return raw[:HEAD_BYTES] + hashlib.sha256(raw).digest()


def state_change(state: ContainerState) -> Change:
    return "state", STATE_KEY, _encode(state)


def record_changes(record: SegmentRecord) -> list[Change]:
    """Return the changes of the record and its attributes; the caller clears its marks."""
    prefix = ID.pack(record.id)
    changes: list[Change] = [("segments", prefix, _encode(_fields_of(record)))]  # a tuple is encoded as a StoredSegment
    if record.is_listed is not bool(record.log_bytes):
        changes.append(("logged", prefix, b"" if record.log_bytes else None))
    if not record.is_stored:
        changes.append(("names", bounded_key(record.name.encode()), prefix))
    for attribute in sorted(record.changed_attributes):  # so that equal states are stored equally
        changes.append(("attributes", prefix + attribute, I64.pack(record.attributes[attribute])))
    return changes


def decode_record(
    segment: int, raw: bytes, extents: Iterable[tuple[bytes, bytes]], frames: dict[int, FrameRef]
) -> SegmentRecord:
    """Return a segment's record; frames in the log are shared through `frames`, by sequence."""
    stored = decode_segment(raw)
    record = SegmentRecord(segment, stored.name, stored.kind, stored.created_ms)
    for field in StoredSegment.__struct_fields__[3:]:
        setattr(record, field, getattr(stored, field))
    record.durable_length, record.durable_sealed, record.exists = stored.length, stored.sealed, True
    record.attributes_loaded, record.is_stored = False, True
    for key, value in extents:
        length, sequence, file, offset, position = EXTENT.unpack_from(value)
        frame = None
        if sequence:
            frame = frames.get(sequence)
            if frame is None:
                frame = frames[sequence] = FrameRef(sequence, LogAddress(sequence, file, offset), 0.0)
        chunk, checksums = unpack_chunk(value)
        at, continues = position & ~CONTINUES, bool(position & CONTINUES)
        run, chunk = (run_number(chunk), "") if frame is not None else (0, chunk)
        extent = Extent(PAIR.unpack(key)[1], length, frame, at, chunk, checksums, continues=continues, run=run)
        record.extents.append(extent)
        if frame is not None:
            record.log_bytes += length
    record.is_listed = record.log_bytes > 0
    record.stored_length = max(stored.length, record.extents[-1].end if record.extents else 0)
    return record


def pack_fixed(extent: Extent) -> bytes:
    """Encode the fixed-length part of an extent's value."""
    address = extent.frame.address if extent.frame is not None else LogAddress(0, 0, 0)
    assert address is not None, "a checkpoint holds durable frames only"
    position = extent.position | CONTINUES if extent.continues else extent.position
    return EXTENT.pack(extent.length, *address, position)


def pack_extent(extent: Extent) -> bytes:
    checksums = b"\0" + extent.checksums if extent.checksums else b""
    place = run_name(extent.run) if extent.run else extent.chunk
    return pack_fixed(extent) + place.encode() + checksums


def unpack_chunk(value: bytes) -> tuple[str, bytes]:
    """Return the rest of an extent's value: the name of its chunk or separate file, and the checksums."""
    chunk, _, checksums = bytes(value[EXTENT.size :]).partition(b"\0")
    return chunk.decode(), checksums


def unpack_entry(raw: bytes) -> tuple[bytes, int, bytes]:
    size = ID.unpack_from(raw, 8)[0]
    return raw[16 : 16 + size], int(I64.unpack_from(raw)[0]), raw[16 + size :]
