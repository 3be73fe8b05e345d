"""Access to JSON events without re-encoding them, so 1.50 stays 1.50.

Also defines the routing key of an event with a key field, for every way of ingesting it: a string is the key, even an
empty one; a number's key is its text, so 1, 1.0 and 1e0 are three keys; an event without the field, or with null, has
no key; true, false, lists and objects are rejected.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from nadi.errors import InvalidArgumentError
from nadi.model.field_path import FieldPath

_value = msgspec.json.Decoder(msgspec.Raw).decode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_HIGH, _LOW = rb"u[dD][89abAB][0-9a-fA-F]{2}", rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rb"\\(?:%b\\%b|(%b|%b)|.)" % (_HIGH, _LOW, _HIGH, _LOW), re.DOTALL)


class NotJsonError(InvalidArgumentError):
    """A text is not JSON; callers name it in their message."""


def with_whole_characters(text: bytes) -> bytes:
    r"""Replace each escape of an unpaired surrogate in a JSON text by U+FFFD.

    RFC 8259's grammar allows such escapes, and JavaScript writes one for text cut within an emoji, but UTF-8 can't
    encode it.

    >>> with_whole_characters(rb'["\ud83d", "\ud83d\ude00", "\\ud83d"]')
    b'["\\ufffd", "\\ud83d\\ude00", "\\\\ud83d"]'
    """
    if b"\\" not in text or (b"\\ud" not in text and b"\\uD" not in text):
        return text
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match[1] else match[0], text)


def checked(text: bytes) -> bytes:
    """Return the text without unpaired surrogates; NotJsonError unless it is JSON."""
    text = with_whole_characters(text)
    try:
        text.decode()  # the decoder doesn't check strings that it skips
        _value(text)
    except UnicodeDecodeError:
        raise NotJsonError("not JSON: it is not UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotJsonError(f"not JSON: {error}") from None
    return text


def fields_of(text: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of a JSON object as raw text; {} for any other JSON value. NotJsonError.

    >>> {name: bytes(value) for name, value in fields_of(b'{"price": 1.50, "of": {"a": [1e400]}}').items()}
    {'price': b'1.50', 'of': b'{"a": [1e400]}'}
    """
    text = with_whole_characters(text)
    try:
        text.decode()  # the decoder doesn't check strings that it skips
        return _object(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        checked(text)  # raises unless it is some other JSON value
        return {}


def elements_of(text: bytes) -> list[msgspec.Raw]:
    """Return the elements of a JSON array as raw text. NotJsonError, InvalidArgumentError."""
    text = checked(text)
    try:
        return _array(text)
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"not a JSON array: {error}") from None


def key_in(event: bytes, path: FieldPath) -> str | None:
    """Return the routing key in a field of an event. NotJsonError; InvalidArgumentError if the value can't be a key.

    >>> from nadi.model.field_path import parse_path
    >>> key_in(b'{"id": "a"}', parse_path("id")), key_in(b'{"of": {"id": 1.0}}', parse_path("of.id"))
    ('a', '1.0')
    """
    try:
        value = value_in(event, path)
    except RecursionError:
        raise InvalidArgumentError(f"the field {path.text!r} is nested too deeply in lists") from None
    if type(value) is dict or type(value) is list:
        raise _not_a_key(path.text, "an object" if type(value) is dict else "a list")
    return None if value is None else key_of(bytes(value), path.text)


def value_in(event: bytes, path: FieldPath) -> Any:
    """Return a field's value: a dict, a list, the raw text of any other value, or None. NotJsonError."""
    return path.find(fields_of(event), _opened)


def _opened(value: msgspec.Raw | dict[str, msgspec.Raw]) -> msgspec.Raw | dict[str, msgspec.Raw] | list[Any] | None:
    """Decode one level of raw text for `FieldPath.find`."""
    if type(value) is dict:
        return value
    text = bytes(value)  # type: ignore[arg-type]
    if text[:1] == b"{":
        return _object(text)
    return _array(text) if text[:1] == b"[" else None if text == b"null" else value


def known_key_in(event: bytes, path: FieldPath) -> str | None:
    """Return the key of a stored event, or None if this field can't be its key."""
    try:
        return key_in(event, path)
    except InvalidArgumentError:
        return None


def key_of(value: bytes, name: str) -> str | None:
    """Convert a JSON value to a routing key. name: the field's, for InvalidArgumentError."""
    if value[:1] == b'"':
        return text_of(value)
    if value == b"null":
        return None
    if value[:1] in b"-0123456789":
        return value.decode()
    shown = value.decode() if len(value) <= 40 else value[:40].decode(errors="ignore") + "…"
    raise _not_a_key(name, shown)


def _not_a_key(name: str, value: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the field {name!r} can't be a routing key: {value} is not a string or a number")


def text_of(value: bytes) -> str:
    """Decode a JSON string."""
    return _text(with_whole_characters(value))
