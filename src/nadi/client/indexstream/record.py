"""Encoding of an index stream's records, in the official Rust client's format (`pravega_client::index`, version 0).

A record is an event, padded with zeros to the stream's record size. So all records start at multiples of that size, and
event readers can read them, too. All numbers are big-endian:

    int32 0, int32 size - 8      the event's header
    int32 0, int32 0             record type and format version
    uint32, uint32               bytes of all fields, bytes of data
    uint32, each 16 + 8 bytes    number of fields; hash of each name, and its value
    uint32, bytes                the data

The hash is the first 16 bytes of SHAKE128 of the name in UTF-8. Names themselves are not stored.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index

from nadi.display import Displayed
from nadi.errors import EventTooLargeError, InvalidArgumentError, SerializationError
from nadi.limits import INDEX_FIELDS
from nadi.wire.fields import NO_VERSION, Buffer

RECORD_SIZE = 4096  # if the stream doesn't define it
RECORD_SIZE_ATTRIBUTE = bytes.fromhex("ffffffe8b78918010000000000000011")  # of the segment: its record size
LARGEST_VALUE = (1 << 64) - 1

_FRONT = struct.Struct(">iiiiIII")  # up to the fields
_FIELD = struct.Struct(">16sQ")
_DATA = struct.Struct(">I")
_HEADER_BYTES = 8
_EMPTY_BYTES = _FRONT.size + _DATA.size  # of a record without fields and data


@dataclass(frozen=True, slots=True)
class IndexRecord(Displayed):
    """A record: its offset, the values of its fields by the hashes of their names, and its data."""

    offset: int
    hashed_fields: tuple[tuple[int, int], ...]
    data: bytes

    def has(self, field: str) -> bool:
        """Return whether the record has that field."""
        return _of(self, field_hash(field)) is not None

    def value(self, field: str) -> int:
        """Return the field's value; InvalidArgumentError if the record doesn't have it."""
        value = _of(self, field_hash(field))
        if value is None:
            raise InvalidArgumentError(
                f"field {field!r} not found in the record at {self.offset:,}, which has {len(self.hashed_fields)}"
            )
        return value


def _of(record: IndexRecord, hashed: int) -> int | None:
    return next((value for name, value in record.hashed_fields if name == hashed), None)


class Fields:
    """The names of an index stream's fields, and the encoder of records with them."""

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError(f"fields must be a list of names, not {str(names)[:60]!r}")
        self.names = tuple(names)
        if not 1 <= len(self.names) <= INDEX_FIELDS:
            raise InvalidArgumentError(f"a record has 1 to {INDEX_FIELDS} fields, not {len(self.names)}")
        if len(set(self.names)) < len(self.names):
            raise InvalidArgumentError(f"names of fields must differ: {', '.join(self.names)}")
        self.hashes = tuple(field_hash(name) for name in self.names)
        self._packed = [hashed.to_bytes(16) for hashed in self.hashes]

    @property
    def size_bytes(self) -> int:
        """Size of all fields in a record."""
        return len(self.names) * _FIELD.size

    def values(self, fields: Mapping[str, int]) -> tuple[int, ...]:
        """Return the values in order; InvalidArgumentError unless each field has a whole number from 0 to 2^64 - 1."""
        if not isinstance(fields, Mapping) or fields.keys() != set(self.names):
            raise InvalidArgumentError(f"a record needs values for {', '.join(self.names)}, not {str(fields)[:120]}")
        return tuple(whole_number(name, fields[name]) for name in self.names)

    def encode(self, values: Sequence[int], data: Buffer, record_size: int) -> bytes:
        """Encode a record; EventTooLargeError if it exceeds `record_size`."""
        size, most = memoryview(data).nbytes, data_limit(record_size, len(self.names))
        if size > most:
            raise EventTooLargeError(size, most)
        length = self.size_bytes
        parts = [_FRONT.pack(0, record_size - _HEADER_BYTES, 0, 0, length, size, len(self.names))]
        parts += [_FIELD.pack(name, value) for name, value in zip(self._packed, values, strict=True)]
        parts += [_DATA.pack(size), bytes(data), bytes(record_size - _EMPTY_BYTES - length - size)]
        return b"".join(parts)


def decode(record: Buffer, offset: int) -> IndexRecord:
    """Decode the record at `offset` of its stream; SerializationError."""
    try:
        kind, size_after_header, type_code, version, fields_bytes, data_bytes, count = _FRONT.unpack_from(record)
        start = _FRONT.size + count * _FIELD.size
        (size,) = _DATA.unpack_from(record, start)
    except struct.error:
        raise _no_record(offset, "it is too short") from None
    start += _DATA.size
    if kind or type_code or size_after_header != len(record) - _HEADER_BYTES:
        raise _no_record(offset, f"the header isn't that of a record of {len(record):,} bytes")
    if version:
        raise SerializationError(f"the index record at {offset:,} has version {version}, not 0: use a newer client")
    if fields_bytes != count * _FIELD.size or data_bytes != size or start + size > len(record):
        raise _no_record(offset, "its lengths don't agree")
    fields = _FIELD.iter_unpack(memoryview(record)[_FRONT.size : start - _DATA.size])
    hashed = tuple((int.from_bytes(name), value) for name, value in fields)
    return IndexRecord(offset, hashed, bytes(memoryview(record)[start : start + size]))


def _no_record(offset: int, why: str) -> SerializationError:
    return SerializationError(f"the bytes at {offset:,} are not an index record ({why}): read them as bytes or events")


@lru_cache(maxsize=1024)
def field_hash(name: str) -> int:
    """Return the hash of a field's name; InvalidArgumentError if the name is invalid."""
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"a field's name must be a non-empty string, not {str(name)[:60]!r}")
    try:
        return int.from_bytes(hashlib.shake_128(name.encode()).digest(16))
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{name[:60]!r} can't be encoded in UTF-8: rename the field") from None


def whole_number(name: str, value: object) -> int:
    """Return the value as int; InvalidArgumentError unless it is a whole number from 0 to 2^64 - 1."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= LARGEST_VALUE:
        raise InvalidArgumentError(f"{name} can't be {str(value)[:60]}: use whole numbers from 0 to 2^64 - 1")
    return number


def data_limit(record_size: int, fields: int) -> int:
    return record_size - _EMPTY_BYTES - fields * _FIELD.size


def stated_size(stored: int) -> int | None:
    return None if stored == NO_VERSION else stored
