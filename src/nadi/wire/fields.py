"""Field types of wire commands, with their encoders and decoders.

A command class annotates its fields with these types; `codec` compiles them. Everything is big-endian. Fixed-size
fields carry their `struct` letter so that adjacent fields are packed together. `View` is for large data: it returns a
memoryview of the receive buffer instead of a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from nadi.errors import ProtocolError
from nadi.limits import LIST_MAX_ENTRIES

Buffer = bytes | bytearray | memoryview


NO_VERSION = -(1 << 63)  # a table key without condition; also "never wrote" and "missing attribute"
NOT_EXISTS = -1  # a table key's condition: absent


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field of fixed size, described by its struct letter."""

    letter: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A field of variable size.

    write(parts, value) appends buffers; read(data, position, end) returns (value, next position).
    """

    write: Callable[[list[Buffer], Any], None]
    read: Callable[[memoryview, int, int], tuple[Any, int]]


class WireTableKey(NamedTuple):
    key: bytes
    version: int = NO_VERSION


class WireTableEntry(NamedTuple):
    key: bytes
    version: int
    value: bytes


class AttributeUpdate(NamedTuple):
    attribute: bytes  # 16 bytes
    kind: int  # 0 none, 1 replace, 2 replace if greater, 3 accumulate, 4 replace if equals
    value: int
    expected: int


_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_UPDATE = struct.Struct(">16sbqq")


def take_count(data: memoryview, position: int, end: int, each: int = 1) -> tuple[int, int]:
    """Read a count or length at `position`, checked against the frame's remaining bytes."""
    if position + 4 > end:
        raise ProtocolError("the frame ends within a length")
    count = _I32.unpack_from(data, position)[0]
    if count < 0 or position + 4 + count * each > end:
        raise ProtocolError(f"a length of {count} does not fit its frame")
    return count, position + 4


def _write_str(parts: list[Buffer], value: str) -> None:
    raw = value.encode()
    if len(raw) > 0xFFFF:
        raise ProtocolError(f"a string of {len(raw)} bytes does not fit the protocol's 65,535")
    parts.append(_U16.pack(len(raw)) + raw)


def _read_str(data: memoryview, position: int, end: int) -> tuple[str, int]:
    if position + 2 > end:
        raise ProtocolError("the frame ends within a string's length")
    stop = position + 2 + _U16.unpack_from(data, position)[0]
    if stop > end:
        raise ProtocolError("the frame ends within a string")
    raw = bytes(data[position + 2 : stop])
    try:
        return raw.decode(), stop
    except UnicodeDecodeError:
        # Java writes modified UTF-8: NUL as C0 80 and characters beyond 16 bits as two surrogates
        try:
            text = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
            return text.encode("utf-16", "surrogatepass").decode("utf-16"), stop
        except UnicodeDecodeError as error:
            raise ProtocolError("a string is not UTF-8") from error


def _write_blob(parts: list[Buffer], value: Buffer) -> None:
    parts.append(_I32.pack(len(value)))
    parts.append(value)


def _read_view(data: memoryview, position: int, end: int) -> tuple[memoryview, int]:
    size, position = take_count(data, position, end)
    return data[position : position + size], position + size


def _read_blob(data: memoryview, position: int, end: int) -> tuple[bytes, int]:
    view, position = _read_view(data, position, end)
    return bytes(view), position


def _read_rest(data: memoryview, position: int, end: int) -> tuple[memoryview, int]:
    return data[position:end], end


def list_of(
    write: Callable[[list[Buffer], Any], None],
    read: Callable[[memoryview, int, int], tuple[Any, int]],
    least: int,
) -> Variable:
    """Return a list field: `i32 count`, then the elements, each at least `least` bytes long."""

    def write_all(parts: list[Buffer], values: Any) -> None:
        parts.append(_I32.pack(len(values)))
        for value in values:
            write(parts, value)

    def read_all(data: memoryview, position: int, end: int) -> tuple[Any, int]:
        count, position = take_count(data, position, end, least)
        if count > LIST_MAX_ENTRIES:
            raise ProtocolError(f"a list of {count:,} entries exceeds {LIST_MAX_ENTRIES:,}")
        values = []
        for _ in range(count):
            value, position = read(data, position, end)
            values.append(value)
        return tuple(values), position

    return Variable(write_all, read_all)


def _write_key(parts: list[Buffer], key: WireTableKey | WireTableEntry) -> None:
    size = len(key.key)
    if not size:
        raise ProtocolError("a table key can't be empty")
    parts.append(struct.pack(">ii", 12 + size, size))
    parts.append(key.key)
    parts.append(_I64.pack(key.version))


def _read_key(data: memoryview, position: int, end: int) -> tuple[WireTableKey, int]:
    payload, position = take_count(data, position, end)
    stop = position + payload
    size, position = take_count(data, position, stop)
    key = bytes(data[position : position + size])
    position += size
    if position + 8 > stop:
        raise ProtocolError("a table key ends before its version")
    return WireTableKey(key, _I64.unpack_from(data, position)[0]), stop


def _write_entry(parts: list[Buffer], entry: WireTableEntry) -> None:
    _write_key(parts, entry)
    size = len(entry.value)
    parts.append(struct.pack(">ii", 4 + size, size))
    parts.append(entry.value)


def _read_entry(data: memoryview, position: int, end: int) -> tuple[WireTableEntry, int]:
    key, position = _read_key(data, position, end)
    payload, position = take_count(data, position, end)
    stop = position + payload
    value, _ = _read_blob(data, position, stop)
    return WireTableEntry(key.key, key.version, value), stop


def _write_update(parts: list[Buffer], update: AttributeUpdate) -> None:
    parts.append(_UPDATE.pack(*update))


def _read_update(data: memoryview, position: int, end: int) -> tuple[AttributeUpdate, int]:
    if position + _UPDATE.size > end:
        raise ProtocolError("the frame ends within an attribute update")
    return AttributeUpdate(*_UPDATE.unpack_from(data, position)), position + _UPDATE.size


def _write_i64(parts: list[Buffer], value: int) -> None:
    parts.append(_I64.pack(value))


def _read_i64(data: memoryview, position: int, end: int) -> tuple[int, int]:
    if position + 8 > end:
        raise ProtocolError("the frame ends within a number")
    return _I64.unpack_from(data, position)[0], position + 8


def _write_merged(parts: list[Buffer], merged: tuple[str, int]) -> None:
    _write_str(parts, merged[0])
    _write_i64(parts, merged[1])


def _read_merged(data: memoryview, position: int, end: int) -> tuple[tuple[str, int], int]:
    source, position = _read_str(data, position, end)
    offset, position = _read_i64(data, position, end)
    return (source, offset), position


def _write_range(parts: list[Buffer], ends: tuple[bytes, bytes, bytes]) -> None:
    _write_blob(parts, ends[0])
    parts.append(_I32.pack(0))
    _write_blob(parts, ends[1])
    _write_blob(parts, ends[2])


def _read_range(data: memoryview, position: int, end: int) -> tuple[tuple[bytes, bytes, bytes], int]:
    token, position = _read_blob(data, position, end)
    low = high = b""
    if position < end:  # the Rust client stops after the token
        _, position = _read_blob(data, position, end)
    if position < end:
        low, position = _read_blob(data, position, end)
    if position < end:
        high, position = _read_blob(data, position, end)
    return (token, low, high), position


I8 = Annotated[int, Fixed("b")]
I32 = Annotated[int, Fixed("i")]
I64 = Annotated[int, Fixed("q")]
Bool = Annotated[bool, Fixed("?")]
Uuid = Annotated[bytes, Fixed("16s")]
Str = Annotated[str, Variable(_write_str, _read_str)]
Blob = Annotated[bytes, Variable(_write_blob, _read_blob)]
View = Annotated[Buffer, Variable(_write_blob, _read_view)]
Rest = Annotated[Buffer, Variable(list.append, _read_rest)]
Strs = Annotated[tuple[str, ...], list_of(_write_str, _read_str, 2)]
I64s = Annotated[tuple[int, ...], list_of(_write_i64, _read_i64, 8)]
Keys = Annotated[tuple[WireTableKey, ...], list_of(_write_key, _read_key, 16)]
Entries = Annotated[tuple[WireTableEntry, ...], list_of(_write_entry, _read_entry, 24)]
Updates = Annotated[tuple[AttributeUpdate, ...], list_of(_write_update, _read_update, 33)]
Merged = Annotated[tuple[tuple[str, int], ...], list_of(_write_merged, _read_merged, 10)]
# (continuation token, from key, to key)
TableKeyRange = Annotated[tuple[bytes, bytes, bytes], Variable(_write_range, _read_range)]
