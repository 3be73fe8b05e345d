"""The routing keys of lines: one for all, a field of each, or what stands before a separator.

A `Split` takes lines and gives events and keys, up to the first line that has none; what is before that line can
still be written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nadi.errors import InvalidArgumentError
from nadi.model.field_path import KEY_FIELD, FieldPath, parse_path
from nadi.model.json_events import NotJsonError, checked, key_in, with_whole_characters


@dataclass(frozen=True, slots=True)
class Keyed:
    """Events and their routing keys: one for all, or one for each. fault: why the line after them is not an event."""

    events: list[bytes]
    keys: list[str | None] | str | None
    fault: str = ""


Split = Callable[[list[bytes]], Keyed]


def split_of(key: str | None, field: str | None, separator: bytes | None, *, is_json: bool) -> Split:
    """What the options --key, --key-field, --key-separator and --json want of each line."""
    if [key, field, separator].count(None) < 2:
        raise InvalidArgumentError("--key, --key-field and --key-separator exclude each other: choose one")
    if separator is not None:
        return lambda lines: _separated(lines, separator, is_json=is_json)
    if field is not None:
        path = parse_path(field, KEY_FIELD)
        return lambda lines: _with_fields(lines, path, is_json=is_json)
    return lambda lines: _plain(lines, key, is_json=is_json)


def _plain(lines: list[bytes], key: str | None, *, is_json: bool) -> Keyed:
    if not is_json:
        return Keyed(lines, key)
    events: list[bytes] = []
    for line in lines:
        try:
            events.append(checked(line))
        except NotJsonError as error:
            return Keyed(events, key, f"it is {error}")
    return Keyed(events, key)


def _with_fields(lines: list[bytes], path: FieldPath, *, is_json: bool) -> Keyed:
    lines = list(map(with_whole_characters, lines)) if is_json else lines
    keys: list[str | None] = []
    for line in lines:
        try:
            keys.append(key_in(line, path))
        except InvalidArgumentError as error:
            fault = f"it is {error}" if isinstance(error, NotJsonError) else str(error)
            return Keyed(lines[: len(keys)], keys, fault)
    return Keyed(lines, keys)


def _separated(lines: list[bytes], separator: bytes, *, is_json: bool) -> Keyed:
    events: list[bytes] = []
    keys: list[str | None] = []
    for line in lines:
        before, found, event = line.partition(separator)
        if not found:
            return Keyed(events, keys, f"it has no separator {separator.decode(errors='replace')!r} after a key")
        try:
            if is_json:
                event = checked(event)
            keys.append(before.decode())
        except UnicodeDecodeError:
            return Keyed(events, keys, "its key is not UTF-8")
        except NotJsonError as error:
            return Keyed(events, keys, f"it is {error}")
        events.append(event)
    return Keyed(events, keys)
