"""Which routing key an event of a file has: what an expression finds in it, a field of its JSON, or its file's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from nadi.errors import InvalidArgumentError

KeyOf = Callable[[bytes], str | None]  # None: the file's


def by_pattern(text: str) -> KeyOf:
    """The group `key` of an expression, or its first one, or all that it matches."""
    pattern = compiled(text, "key pattern")
    group: str | int = "key" if "key" in pattern.groupindex else min(1, pattern.groups)

    def key_of(event: bytes) -> str | None:
        found = pattern.search(event)
        key = found[group] if found is not None else None
        return None if not key else key.decode("utf-8", "surrogateescape")

    return key_of


def by_field(path: str) -> KeyOf:
    """A field of an event that is a JSON object, also one within another, as in `device.id`."""
    names = path.split(".")
    if not all(names):
        raise InvalidArgumentError(f"{path!r} is no field: write it as id, or device.id")

    def key_of(event: bytes) -> str | None:
        try:
            found: Any = msgspec.json.decode(event)
            for name in names:
                found = found[name]
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, IndexError, RecursionError):
            return None
        if isinstance(found, str):
            return found or None
        return msgspec.json.encode(found).decode() if isinstance(found, bool | int | float) else None

    return key_of


def compiled(text: str, what: str) -> re.Pattern[bytes]:
    """An expression over bytes; InvalidArgumentError if it isn't one."""
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise InvalidArgumentError(f"the {what} {text!r} is no regular expression: {error}") from None
