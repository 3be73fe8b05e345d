"""Parsing a request's bytes, in portions if it is large, so that other tasks get their turns in between.

A message of 2 MiB may hold a million empty parts: a tenth of a second to parse, and seconds to work on. No request
needs more parts of one kind than two epochs of a stream have segments, so parts are counted first and more are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message

from nadi.errors import InvalidArgumentError
from nadi.limits import RPC_PARTS_MAX, RPC_PORTION_BYTES, RPC_PORTION_PARTS

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_VARINT_MAX_BYTES = 10


async def parsed(kind: type[Message], raw: bytes, turn: Callable[[], Awaitable[None]]) -> Message:
    """Return the message; InvalidArgumentError if it isn't one or has too many parts. Await `turn` between portions."""
    try:
        if len(raw) <= RPC_PORTION_BYTES:
            message = kind.FromString(raw)
        else:
            message = kind()
            for begin, end in _portions(raw, 0, len(raw), kind.DESCRIPTOR):
                message.MergeFromString(raw[begin:end])
                await turn()
    except DecodeError as error:
        raise InvalidArgumentError(f"the request is no {kind.DESCRIPTOR.name}") from error
    for field, value in message.ListFields():
        if field.is_repeated and len(value) > RPC_PARTS_MAX:
            raise _too_many(field.name)
    return message


def _portions(raw: bytes, at: int, end: int, kind: Any) -> Iterator[tuple[int, int]]:
    """Start and end of each run of fields to parse together: few of them, or few bytes. (0, 0) is a pause."""
    begun, parts = at, 0
    counts = Counter[int]()
    while at < end:
        number, inside, following = _field(raw, at, end)
        counts[number] += 1
        if counts[number] > RPC_PARTS_MAX:
            raise _too_many(kind.fields_by_number[number].name if number in kind.fields_by_number else str(number))
        parts += 1
        if following - at > RPC_PORTION_BYTES:
            field = kind.fields_by_number.get(number)
            if field is not None and field.message_type is not None and raw[at] & 7 == _BYTES:
                for _ in _portions(raw, inside, following, field.message_type):
                    yield 0, 0
        at = following
        if at - begun >= RPC_PORTION_BYTES or parts >= RPC_PORTION_PARTS:
            yield begun, at
            begun, parts = at, 0
    if begun < end:
        yield begun, end


def _field(raw: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Number of the field at this position, where its content starts, and where it ends."""
    tag, at = _varint(raw, at, end)
    form = tag & 7
    inside = at
    if form == _BYTES:
        length, inside = _varint(raw, at, end)
        at = inside + length
    elif form == _VARINT:
        _, at = _varint(raw, at, end)
    elif form in (_FIXED_32, _FIXED_64):
        at += 4 if form == _FIXED_32 else 8
    else:
        raise DecodeError(f"there are no fields of form {form}")
    if at > end:
        raise DecodeError("the message ends within a field")
    return tag >> 3, inside, at


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """A number, and where it ends."""
    if at < end and raw[at] < 0x80:  # nearly always
        return raw[at], at + 1
    found = 0
    for shift, place in enumerate(range(at, min(end, at + _VARINT_MAX_BYTES))):
        found |= (raw[place] & 0x7F) << 7 * shift
        if raw[place] < 0x80:
            return found, place + 1
    raise DecodeError("the message ends within a number")


def _too_many(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the request has more than {RPC_PARTS_MAX:,} parts in {what}: no stream has as many")
