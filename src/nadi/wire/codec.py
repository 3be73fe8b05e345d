"""Encoders and decoders of commands, compiled from the annotations in `commands`.

A frame is `i32 type · i32 length · payload`. Encoding returns a list of buffers, so that large data is sent without a
copy; `encode` joins them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from nadi.errors import ProtocolError
from nadi.limits import MAX_FRAME_SENT_BYTES
from nadi.wire.commands import CODES, AppendBlockEnd, Command
from nadi.wire.fields import Buffer, Fixed, Variable

_FRAME = struct.Struct(">ii")

Writer = Callable[[list[Buffer], Command], None]
Reader = Callable[[memoryview, int, int], Command]


@cache
def _fields(kind: type[Command]) -> list[tuple[str, Fixed | Variable]]:
    hints = get_type_hints(kind, include_extras=True)
    fields = []
    for name in kind.__struct_fields__:
        if get_origin(hints[name]) is not Annotated:
            raise TypeError(f"{kind.__name__}.{name} has no wire type")
        fields.append((name, get_args(hints[name])[1]))
    return fields


def _groups(kind: type[Command], optional: int) -> list[tuple[list[str], struct.Struct | None, Variable | None]]:
    """Group adjacent fixed fields to be packed together; fields from index `optional` on may be absent, so each is a
    group."""
    groups: list[tuple[list[str], struct.Struct | None, Variable | None]] = []

    def group_key(item: tuple[int, tuple[str, Fixed | Variable]]) -> int:
        index, (_, field) = item
        return -1 if isinstance(field, Fixed) and index < optional else index

    for _, items in groupby(enumerate(_fields(kind)), group_key):
        names, fields = zip(*(pair for _, pair in items), strict=True)
        letters = "".join(field.letter for field in fields if isinstance(field, Fixed))
        variable = fields[0] if isinstance(fields[0], Variable) else None
        groups.append((list(names), None if variable else struct.Struct(">" + letters), variable))
    return groups


def _step(
    names: list[str], packed: struct.Struct | None, variable: Variable | None
) -> tuple[Callable[[Command], Any], Callable[[list[Buffer], Any], None]]:
    """Return functions that get a group's values from a command, and append them to a frame."""
    get = attrgetter(*names)
    if variable is not None:
        return get, variable.write
    assert packed is not None
    pack = packed.pack
    if len(names) == 1:
        return get, lambda parts, value: parts.append(pack(value))
    return get, lambda parts, values: parts.append(pack(*values))


def _compile(kind: type[Command]) -> tuple[Writer, Reader]:
    fields = len(kind.__struct_fields__)
    mandatory = fields - len(kind.__struct_defaults__)
    groups = _groups(kind, mandatory)
    name = kind.__name__

    steps = [_step(*group) for group in _groups(kind, fields)]

    def write(parts: list[Buffer], command: Command) -> None:
        for get, put in steps:
            put(parts, get(command))

    def read(data: memoryview, position: int, end: int) -> Command:
        values: list[Any] = []
        for _, packed, variable in groups:
            if position >= end and len(values) >= mandatory:
                break  # older peers omit trailing fields
            if packed is not None:
                stop = position + packed.size
                if stop > end:
                    raise ProtocolError(f"a {name} frame ends too early")
                values.extend(packed.unpack_from(data, position))
                position = stop
            elif variable is not None:
                value, position = variable.read(data, position, end)
                values.append(value)
        return kind(*values)

    return write, read


def _packed(kind: type[Command]) -> tuple[struct.Struct, Callable[[Command], tuple[Any, ...]]] | None:
    """Return a one-step encoder for commands whose fields all have fixed size, such as acknowledgements."""
    fields = _fields(kind)
    if len(fields) < 2 or not all(isinstance(field, Fixed) for _, field in fields):
        return None
    letters = "".join(field.letter for _, field in fields if isinstance(field, Fixed))
    return struct.Struct(">ii" + letters), attrgetter(*(name for name, _ in fields))


def _with_own_append(read: Reader) -> Reader:
    """Return a faster decoder of AppendBlockEnd, which usually has all its fields; there may be one for each event."""

    def read_append(data: memoryview, position: int, end: int) -> Command:
        data_start = position + _TO_DATA.size
        if data_start <= end:
            writer, complete_bytes, size = _TO_DATA.unpack_from(data, position)
            if size >= 0 and data_start + size + _AFTER_DATA.size == end:
                stop = data_start + size
                return AppendBlockEnd(
                    writer, complete_bytes, data[data_start:stop], *_AFTER_DATA.unpack_from(data, stop)
                )
        return read(data, position, end)

    return read_append


_TO_DATA, _AFTER_DATA = struct.Struct(">16sii"), struct.Struct(">iqq")
_WRITERS: dict[type[Command], Writer] = {}
_READERS: dict[int, Reader] = {}
_PACKED: dict[type[Command], tuple[struct.Struct, Callable[[Command], tuple[Any, ...]]]] = {}
for _code, _kind in CODES.items():
    _WRITERS[_kind], _READERS[_code] = _compile(_kind)
    if (_one_step := _packed(_kind)) is not None:
        _PACKED[_kind] = _one_step
_READERS[AppendBlockEnd.code] = _with_own_append(_READERS[AppendBlockEnd.code])


def encode_parts(command: Command) -> tuple[list[Buffer], int]:
    """Encode a command as consecutive buffers; return them and their total size. Large data is not copied."""
    packed = _PACKED.get(type(command))
    if packed is not None:
        form, values = packed
        return [form.pack(command.code, form.size - _FRAME.size, *values(command))], form.size
    parts: list[Buffer] = [b""]
    _WRITERS[type(command)](parts, command)
    size = sum(map(len, parts))
    if size > MAX_FRAME_SENT_BYTES:
        raise ProtocolError(f"a {type(command).__name__} of {size:,} bytes exceeds the frame limit")
    parts[0] = _FRAME.pack(command.code, size)
    return parts, _FRAME.size + size


def encode(command: Command) -> bytes:
    """Encode a command as bytes.

    >>> from nadi.wire.commands import Hello
    >>> encode(Hello(17, 5)).hex(" ", 4)
    'ffffff81 00000008 00000011 00000005'
    """
    return b"".join(encode_parts(command)[0])


def encode_alike(commands: Sequence[Command]) -> bytes:
    """Encode commands of one class, whose fields all have fixed size, as consecutive frames.

    >>> from nadi.wire.commands import Hello
    >>> len(encode_alike([Hello(17, 5), Hello(18, 5)]))
    32
    """
    form, values = _PACKED[type(commands[0])]
    pack, code, size = form.pack, commands[0].code, form.size - _FRAME.size
    return b"".join([pack(code, size, *values(command)) for command in commands])


def decode_payload(code: int, data: memoryview, start: int, end: int) -> Command:
    """Decode the payload `data[start:end]` of a command of type `code`; ProtocolError if it is invalid."""
    reader = _READERS.get(code)
    if reader is None:
        raise ProtocolError(f"unknown command type {code}")
    return reader(data, start, end)
