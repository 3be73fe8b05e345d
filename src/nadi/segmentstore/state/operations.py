"""Defines a container's log records: operations, grouped in frames.

A frame's payload is `u32 size · msgpack list of operations · data`; in an encrypted store, the list and the data of
each `Append` are sealed blocks. To the log, everything before the data area is the
frame's head, and the data of each `Append` a part. An operation describes the resulting change, not the request, so
replay only applies it. Large runs are stored in separate files (`tier1.blob_files`).
"""

from __future__ import annotations

import struct
from typing import cast

import msgspec

from nadi.encryption.sealing import PLAIN, SealBrokenError, Sealing
from nadi.errors import CorruptLogError

_SIZE = struct.Struct(">I")


class Operation(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """One change of a container's state."""


class Create(Operation, frozen=True, tag="C"):
    segment: int
    name: str
    kind: int  # see records.SegmentKind
    at_ms: int
    scale_type: int = 0
    target_rate: int = 0
    rollover_bytes: int = 0
    key_length: int = 0


class Append(Operation, frozen=True, tag="A"):
    segment: int
    offset: int  # in the segment
    length: int
    position: int  # in the frame's data area
    events: int
    writers: dict[bytes, int]  # writer id: last event number
    at_ms: int

    @property
    def logged_bytes(self) -> int:
        return self.length


class AppendBeside(Append, frozen=True, tag="B"):
    """An append whose first `beside_bytes` are in a separate file, and the remainder in the frame's data area."""

    run: int = 0  # the file's number
    run_position: int = 0  # in the file
    beside_bytes: int = 0
    checksum: bytes = b""  # of the bytes in the file

    @property
    def logged_bytes(self) -> int:
        return self.length - self.beside_bytes


class Seal(Operation, frozen=True, tag="S"):
    segment: int
    at_ms: int


class Truncate(Operation, frozen=True, tag="T"):
    segment: int
    offset: int


class Delete(Operation, frozen=True, tag="D"):
    segment: int


class Merge(Operation, frozen=True, tag="M"):
    """All bytes of `source` are appended to `target`; `source` ceases to exist."""

    target: int
    source: int
    at_ms: int


class Attributes(Operation, frozen=True, tag="U"):
    segment: int
    values: dict[bytes, int]


class SetPolicy(Operation, frozen=True, tag="P"):
    segment: int
    scale_type: int
    target_rate: int


class AddIndexTimes(Operation, frozen=True, tag="t"):
    """Entries of a segment's time index, (time, offset); see `time_index`."""

    segment: int
    clock: int  # an even number
    until: int  # the offset up to which the segment is indexed now
    latest: list[tuple[int, int]]
    earliest: list[tuple[int, int]]
    cut: int  # the odd clock's entries from that time on are deleted first


class TableUpdate(Operation, frozen=True, tag="K"):
    """Entries in order: (key, version, value); a removal has value None and the position it takes."""

    segment: int
    entries: list[tuple[bytes, int, bytes | None]]
    at_ms: int


class ChunkPlanned(Operation, frozen=True, tag="p"):
    """An object of that name may exist from now on."""

    chunk: str


class ChunkStored(Operation, frozen=True, tag="c"):
    """The segment's range is stored durably in that object."""

    segment: int
    offset: int
    length: int
    chunk: str
    checksums: bytes = b""  # of its blocks, see `tier2.checksums`


class ChunksDropped(Operation, frozen=True, tag="x"):
    """Planned objects that turned out useless, and become garbage."""

    chunks: list[str]


class ChunksDeleted(Operation, frozen=True, tag="d"):
    """Garbage that has been deleted."""

    chunks: list[str]


_OfSegments = Create | Append | AppendBeside | Seal | Truncate | Delete | Merge | Attributes | SetPolicy
AnyOperation = _OfSegments | AddIndexTimes | TableUpdate | ChunkPlanned | ChunkStored | ChunksDropped | ChunksDeleted

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyOperation])


def most_bytes(operation: AnyOperation) -> int:
    """Return an upper bound on the operation's size in a frame."""
    match operation:
        case TableUpdate():
            return 64 + sum(32 + len(key) + len(value or b"") for key, _, value in operation.entries)
        case Create():
            return 64 + 4 * len(operation.name)
        case Attributes():
            return 64 + sum(16 + len(key) for key in operation.values)
        case AddIndexTimes():
            return 64 + 19 * (len(operation.latest) + len(operation.earliest))
        case ChunkPlanned() | ChunkStored():
            return 64 + 4 * len(operation.chunk)
        case ChunksDropped() | ChunksDeleted():
            return 64 + sum(8 + 4 * len(chunk) for chunk in operation.chunks)
    return 64


def encode_head(operations: list[AnyOperation], sealing: Sealing = PLAIN, sequence: int = 0) -> bytes:
    """Return the head of the frame with that number."""
    body = bytes(sealing.seal(_encoder.encode(operations), frame_context(sequence)))
    return _SIZE.pack(len(body)) + body


def decode_frame(payload: bytes, sealing: Sealing = PLAIN, sequence: int = 0) -> tuple[list[AnyOperation], int]:
    """Return the operations of the frame with that number, and where its data area starts. CorruptLogError: it
    can't be decrypted."""
    (size,) = _SIZE.unpack_from(payload)
    try:
        body = sealing.open(memoryview(payload)[4 : 4 + size], frame_context(sequence))
    except SealBrokenError as error:
        raise CorruptLogError("the log", 0, f"the head of frame {sequence:,} can't be decrypted: {error}") from None
    return _decoder.decode(body), 4 + size


def seal_frame(parts: list[bytes], sealing: Sealing, sequence: int) -> list[bytes]:
    """Return the frame with that number as stored. parts: its head, sealed already, and its data."""
    if not sealing.overhead:
        return parts
    stored, position = parts[:1], len(parts[0])
    for part in parts[1:]:
        stored.append(cast("bytes", sealing.seal(part, frame_context(sequence, position))))  # copied by the log
        position += len(stored[-1])
    return stored


def frame_context(sequence: int, position: int = 0) -> bytes:
    """Return what a block of a frame is sealed for. position: of a part in the payload; 0: the head."""
    return b"frame %d/%d" % (sequence, position)
