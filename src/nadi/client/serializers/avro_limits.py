"""What keeps a few bytes of Avro from taking down whoever reads them.

fastavro calls itself for each level of a value, without a limit, so that values of a type that contains itself can end
the process at some thousand levels; and an array of values that take no bytes, as nulls, may say that it has any number
of them. So where a schema allows for either, an event's bytes are walked over first. Other schemas cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MOST_LEVELS = 2_000  # of records, arrays, maps and unions within each other; fastavro takes 8,000 in 8 MiB of stack
_MOST_EMPTY = 1_000  # values without bytes, in an event
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS = ("int", "long", "enum")
_MAX_NUMBER_BYTES = 10


class _OddError(Exception):
    """fastavro refuses it, and says why."""


def limits(schema: Any) -> Callable[[bytes], None] | None:
    """What raises ValueError for an event that goes beyond the limits; None if no event of the schema can. schema: as
    fastavro parses it, with full names."""
    named: dict[str, Any] = {}
    return _Walk(named).check(schema) if _needs_limits(schema, named, ()) else None


def _needs_limits(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> bool:
    """Whether it contains itself, or an array of values without bytes; named: gets the types by their names."""
    if isinstance(schema, str):
        return schema in within
    if isinstance(schema, list):
        return _any_needs_limits(schema, named, within)
    kind = schema["type"]
    if not isinstance(kind, str):
        return _needs_limits(kind, named, within)
    if "name" in schema:
        named[schema["name"]] = schema
        within = (*within, schema["name"])
    if kind in ("record", "error"):
        return _any_needs_limits([field["type"] for field in schema["fields"]], named, within)
    if kind == "array":
        found = _needs_limits(schema["items"], named, within)
        return found or _takes_nothing(schema["items"], named)
    if kind == "map":
        return _needs_limits(schema["values"], named, within)
    return kind in within


def _any_needs_limits(schemas: list[Any], named: dict[str, Any], within: tuple[str, ...]) -> bool:
    found = [_needs_limits(one, named, within) for one in schemas]  # all of them, for the names
    return any(found)


def _takes_nothing(schema: Any, named: dict[str, Any]) -> bool:
    """Whether a value of the type has no bytes."""
    if isinstance(schema, list):
        return False  # the number of its branch
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _takes_nothing(named[schema], named))
    kind = schema["type"]
    if kind in ("record", "error"):
        return all(_takes_nothing(field["type"], named) for field in schema["fields"])
    return schema["size"] == 0 if kind == "fixed" else _takes_nothing(kind, named)


class _Walk:
    """Walks over events of one schema, with a stack of its own."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._data, self._at, self._empty = b"", 0, 0

    def check(self, schema: Any) -> Callable[[bytes], None]:
        def checked(event: bytes) -> None:
            self._data, self._at, self._empty = event, 0, 0
            try:
                self._walk(schema)
            except _OddError:
                pass

        return checked

    def _walk(self, schema: Any) -> None:
        left: list[tuple[Any, int]] = [(schema, 0)]  # what comes next is last; with its level
        while left:
            one, level = left.pop()
            if level > _MOST_LEVELS:
                raise ValueError(f"its values lie within each other more than {_MOST_LEVELS:,} deep")
            if isinstance(one, _Items):
                self._items(one, level, left)
                continue
            if isinstance(one, list):
                try:
                    left.append((one[self._number()], level + 1))
                except IndexError:
                    raise _OddError from None
                continue
            kind = one if isinstance(one, str) else one["type"]
            if kind in ("record", "error"):
                left += [(field["type"], level + 1) for field in reversed(one["fields"])]
            elif kind in ("array", "map"):
                left.append((_Items(one["items" if kind == "array" else "values"], kind == "map"), level + 1))
            elif isinstance(kind, str) and kind not in self._named:
                self._leaf(kind, one)
            else:
                left.append((self._named[kind] if isinstance(kind, str) else kind, level))

    def _items(self, items: _Items, level: int, left: list[tuple[Any, int]]) -> None:
        """One more value of an array or map, or its end."""
        if not items.left:
            items.left = self._number()
            if not items.left:
                return
            if items.left < 0:
                items.left = -items.left
                self._number()  # how many bytes they have
            if not items.has_keys and _takes_nothing(items.schema, self._named):
                self._empty += items.left
                if self._empty > _MOST_EMPTY:
                    raise ValueError(f"it has more than {_MOST_EMPTY:,} values without bytes")
        items.left -= 1
        left.append((items, level))
        if items.has_keys:
            self._skip(self._number())
        left.append((items.schema, level))

    def _leaf(self, kind: str, schema: Any) -> None:
        if kind in _NUMBERS:
            self._number()
        elif kind in ("string", "bytes"):
            self._skip(self._number())
        else:
            self._skip(schema["size"] if kind == "fixed" else _SIZES[kind])

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._data) - self._at:
            raise _OddError
        self._at += size

    def _number(self) -> int:
        """Seven bits to a byte, the sign in the last."""
        found = 0
        for count in range(_MAX_NUMBER_BYTES):
            if self._at >= len(self._data):
                raise _OddError
            byte = self._data[self._at]
            self._at += 1
            found |= (byte & 0x7F) << (7 * count)
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
        raise ValueError("it has a number of more than 64 bits")


class _Items:
    """The values of an array or map; left: those of the block that is walked over."""

    def __init__(self, schema: Any, has_keys: bool) -> None:
        self.schema, self.has_keys, self.left = schema, has_keys, 0
