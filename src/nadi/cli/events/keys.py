"""The routing keys of lines: one for all, a field of each, or what stands before a separator.

A `Split` takes lines and gives events and keys, up to the first line that has none; what is before that line can
still be written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from nadi.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Keyed:
    """Events and their routing keys: one for all, or one for each. fault: why the line after them is not an event."""

    events: list[bytes]
    keys: list[str] | str | None
    fault: str = ""


Split = Callable[[list[bytes]], Keyed]


def split_of(key: str | None, field: str | None, separator: bytes | None, *, is_json: bool) -> Split:
    """What the options --key, --key-field, --key-separator and --json want of each line."""
    if [key, field, separator].count(None) < 2:
        raise InvalidArgumentError("--key, --key-field and --key-separator exclude each other: choose one")
    if separator == b"":
        raise InvalidArgumentError("--key-separator is empty: give what stands between key and event, such as '\\t'")
    if separator is not None:
        return lambda lines: _separated(lines, separator, is_json=is_json)
    if field is not None:
        take = _key_in(field)
        return lambda lines: _with_fields(lines, take, is_json=is_json)
    return lambda lines: _plain(lines, key, is_json=is_json)


def _plain(lines: list[bytes], key: str | None, *, is_json: bool) -> Keyed:
    if is_json:
        for number, line in enumerate(lines):
            try:
                _check_json(line)
            except ValueError as error:
                return Keyed(lines[:number], key, str(error))
    return Keyed(lines, key)


def _with_fields(lines: list[bytes], take: Callable[[bytes], str], *, is_json: bool) -> Keyed:
    keys: list[str] = []
    for line in lines:
        try:
            if is_json:
                _check_json(line)
            keys.append(take(line))
        except ValueError as error:
            return Keyed(lines[: len(keys)], keys, str(error))
    return Keyed(lines, keys)


def _separated(lines: list[bytes], separator: bytes, *, is_json: bool) -> Keyed:
    events: list[bytes] = []
    keys: list[str] = []
    for line in lines:
        before, found, event = line.partition(separator)
        try:
            if not found:
                raise ValueError(f"it has no separator {separator.decode(errors='replace')!r} after a key")
            if is_json:
                _check_json(event)
            keys.append(before.decode())
        except UnicodeDecodeError:
            return Keyed(events, keys, "its key is not UTF-8")
        except ValueError as error:
            return Keyed(events, keys, str(error))
        events.append(event)
    return Keyed(events, keys)


_whole = msgspec.json.Decoder(msgspec.Raw)


def _check_json(line: bytes) -> None:
    try:
        _whole.decode(line)
        line.decode()  # the decoder looks at no text that it skips
    except UnicodeDecodeError:
        raise ValueError("it is not JSON: it is not UTF-8") from None
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _key_in(field: str) -> Callable[[bytes], str]:
    """What takes the key out of a line; ValueError where there is none. Numbers are keys too, as their text."""
    record = msgspec.defstruct("Keyed", [("key", str | int, msgspec.field(name=field))])
    decode = msgspec.json.Decoder(record).decode

    def take(line: bytes) -> str:
        try:
            key = decode(line).key  # type: ignore[attr-defined]
        except msgspec.ValidationError:
            raise ValueError(f"it is not an object with a text or a whole number as {field!r}") from None
        except msgspec.DecodeError as error:
            raise ValueError(f"it is not JSON: {error}") from None
        return key if type(key) is str else str(key)

    return take
