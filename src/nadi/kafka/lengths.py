"""Checks the lengths in a request before kio decodes it.

kio 0.6.5 ends the process for some impossible lengths, so it gets only requests whose strings and arrays fit into
their bytes. The number of items is limited as well: a request's bytes would have room for millions, and other clients
would wait until they are answered. The fields' types are those of kio's classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin

from nadi.errors import ProtocolError
from nadi.limits import KAFKA_REQUEST_ITEMS


class _Request:
    """A request's bytes. left: how many more items its arrays may have."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data, self.left = data, KAFKA_REQUEST_ITEMS

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ProtocolError(f"a request with more than {KAFKA_REQUEST_ITEMS:,} items in its arrays: send several")


_Skip = Callable[[_Request, int], int]  # (request, position) -> position behind the value
_SIZES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


def check_lengths(kind: type, request: bytes, position: int) -> int:
    """Return the position behind a value of one of kio's classes; ProtocolError if it doesn't fit."""
    return _skip_entity(kind)(_Request(request), position)


@cache
def _skip_entity(kind: Any) -> _Skip:
    is_flexible = kind.__flexible__
    steps, tagged = [], {}
    for field in fields(kind):
        is_legacy = not is_flexible or (field.name == "client_id" and kind.__name__ == "RequestHeader")
        step = _skip_field(field.type, field.metadata.get("kafka_type", ""), is_flexible=not is_legacy)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = step
        else:
            steps.append(step)

    def skip(request: _Request, position: int) -> int:
        for step in steps:
            position = step(request, position)
        return _skip_tagged(request, position, tagged) if is_flexible else position

    return skip


def _skip_tagged(request: _Request, position: int, tagged: dict[int, _Skip]) -> int:
    count, position = _unsigned(request, position)
    _check(request, position, count)
    request.take(count)
    for _ in range(count):
        tag, position = _unsigned(request, position)
        size, position = _unsigned(request, position)
        _check(request, position, size)
        if (step := tagged.get(tag)) is not None and step(request, position) != position + size:
            raise ProtocolError("a tagged field's length doesn't match its value")
        position += size
    return position


def _skip_field(declared: Any, kafka_type: str, *, is_flexible: bool) -> _Skip:
    kinds = get_args(declared) if isinstance(declared, UnionType) else (declared,)
    inner: Any = next(kind for kind in kinds if kind is not type(None))
    if get_origin(inner) is tuple:
        item = get_args(inner)[0]
        return _skip_array(_skip_field(item, kafka_type, is_flexible=is_flexible), is_flexible=is_flexible)
    if hasattr(inner, "__flexible__"):
        return _skip_entity(inner)
    if (size := _SIZES.get(kafka_type)) is not None:
        return _skip_fixed(size)
    return _skip_sized(2 if kafka_type == "string" else 4, is_flexible=is_flexible)


def _skip_fixed(size: int) -> _Skip:
    def skip(request: _Request, position: int) -> int:
        _check(request, position, size)
        return position + size

    return skip


def _skip_sized(size_bytes: int, *, is_flexible: bool) -> _Skip:
    def skip(request: _Request, position: int) -> int:
        size, position = _length(request, position, size_bytes, is_flexible=is_flexible)
        _check(request, position, size)
        return position + size

    return skip


def _skip_array(item: _Skip, *, is_flexible: bool) -> _Skip:
    def skip(request: _Request, position: int) -> int:
        count, position = _length(request, position, 4, is_flexible=is_flexible)
        _check(request, position, count)  # each item has a byte or more
        request.take(count)
        for _ in range(count):
            position = item(request, position)
        return position

    return skip


def _length(request: _Request, position: int, size_bytes: int, *, is_flexible: bool) -> tuple[int, int]:
    """Return a length, 0 for a null, and the position behind it."""
    if is_flexible:
        size, position = _unsigned(request, position)
        return max(size - 1, 0), position
    _check(request, position, size_bytes)
    size = int.from_bytes(request.data[position : position + size_bytes], "big", signed=True)
    if size < -1:
        raise ProtocolError(f"a length of {size}")
    return max(size, 0), position + size_bytes


def _unsigned(request: _Request, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        _check(request, position, 1)
        byte = request.data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise ProtocolError("a length of more than five bytes")


def _check(request: _Request, position: int, size: int) -> None:
    if position + size > len(request.data):
        raise ProtocolError(f"a value of {size:,} bytes or items at byte {position:,} of {len(request.data):,}")
