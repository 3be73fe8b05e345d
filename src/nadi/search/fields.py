"""The fields of an index: their names, their kinds, and how an event's values become them.

An event is a JSON object, whose members, also within each other (`user.name`), are the fields; or plain UTF-8 text,
which is the one field there is. A member that isn't there, or null, isn't indexed; one of another kind than its field's
makes the event one that doesn't parse. A list has each of its values indexed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_FIELD_CHARS, SEARCH_FIELDS, SEARCH_KEYWORD_BYTES

Kind = Literal["text", "keyword", "long", "double", "date", "bool", "facet"]
Format = Literal["json", "text"]
Value = str | int | float | bool
KINDS: tuple[str, ...] = get_args(Kind)
NUMBERS = ("long", "double", "date")
_NAME = re.compile(r"[A-Za-z@][A-Za-z0-9_@-]*(\.[A-Za-z0-9_@-]+)*")
_LONG = 1 << 63
_US = 1_000_000
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_800_000  # of the years 1 to 9999


class Field(msgspec.Struct, frozen=True):
    """kind: `text` is found by its words, `keyword` as it is, `long`, `double` and `date` also by ranges, `facet` is a
    path (`/shop/shoes`), found by what it begins with."""

    name: str
    kind: Kind


class UnfitError(Exception):
    """Why an event can't be indexed."""


def fields_of(text: str | Iterable[str]) -> tuple[Field, ...]:
    """The fields that `name:kind,name:kind` says.

    >>> fields_of("message:text, ms:long")
    (Field(name='message', kind='text'), Field(name='ms', kind='long'))
    """
    parts = [part.strip() for part in (text.split(",") if isinstance(text, str) else text)]
    found = []
    for part in parts:
        name, _, kind = part.partition(":")
        if kind not in KINDS:
            raise InvalidArgumentError(f"{part!r} is not a field: write name:kind, with one of {', '.join(KINDS)}")
        if not _NAME.fullmatch(name) or len(name) > SEARCH_FIELD_CHARS:
            raise InvalidArgumentError(
                f"{name[:40]!r} can't be a field's name: it is of letters, digits, _, @ and -, begins with a letter, "
                "and has dots between the names of objects within each other"
            )
        found.append(Field(name, kind))  # type: ignore[arg-type]
    names = [field.name for field in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidArgumentError(f"the field {twice} is named twice: an event's member has one kind")
    if not 0 < len(found) <= SEARCH_FIELDS:
        raise InvalidArgumentError(f"an index has 1 to {SEARCH_FIELDS} fields, not {len(found)}")
    return tuple(found)


def check_format(form: str, fields: tuple[Field, ...]) -> Format:
    """InvalidArgumentError unless events of that form have these fields."""
    if form not in get_args(Format):
        raise InvalidArgumentError(f"events are json or text, not {form!r}")
    if form == "text" and [field.kind for field in fields] != ["text"]:
        raise InvalidArgumentError("an event that is plain text is one field of the kind text: name it, and no others")
    return form  # type: ignore[return-value]


Values = list[tuple[int, Value]]  # of an event: the number of the field, and what it holds there


def reader_of(form: Format, fields: tuple[Field, ...]) -> Callable[[bytes], Values]:
    """What makes an event's values of its bytes; UnfitError where it can't be done."""
    if form == "text":
        return _text_values
    decode = msgspec.json.Decoder().decode
    paths = [(number, field.name.split("."), _CHECKS[field.kind], field.name) for number, field in enumerate(fields)]

    def values(data: bytes) -> Values:
        try:
            event = decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UnfitError(f"it is not JSON: {error}") from None
        if type(event) is not dict:
            raise UnfitError(f"it is not a JSON object, but {_kind_of(event)}")
        found: Values = []
        for number, path, check, name in paths:
            value: Any = event
            for step in path:
                value = value.get(step) if type(value) is dict else None
            if value is None:
                continue
            try:
                if type(value) is list:
                    found += [(number, check(one)) for one in value if one is not None]
                else:
                    found.append((number, check(value)))
            except ValueError as error:
                raise UnfitError(f"{name} is {error}") from None
        return found

    return values


def _text_values(data: bytes) -> Values:
    try:
        return [(0, data.decode())]
    except UnicodeDecodeError as error:
        raise UnfitError(f"it is not text in UTF-8: {error}") from None


def value_of(kind: Kind, text: str) -> Value:
    """What a query's text means for a field of that kind; ValueError, in words, if it can't mean anything."""
    if kind == "date":
        return _date(text)
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(f"no bool, which is true or false: {text[:60]!r}")
        return text == "true"
    if kind in ("long", "double"):
        try:
            return _long(int(text)) if kind == "long" else _double(float(text))
        except ValueError:
            raise ValueError(f"not a {kind}: {text[:60]!r}") from None
    return _CHECKS[kind](text)


def _kind_of(value: object) -> str:
    return {dict: "an object", list: "a list", str: "a text", bool: "a bool", int: "a number", float: "a number"}.get(
        type(value), "null"
    )


def _text(value: object) -> str:
    if type(value) is str:
        return value
    raise ValueError(f"no text, but {_kind_of(value)}")


def _keyword(value: object) -> str:
    text = _text(value)
    if len(text) > SEARCH_KEYWORD_BYTES // 4 and len(text.encode()) > SEARCH_KEYWORD_BYTES:
        raise ValueError(f"longer than the {SEARCH_KEYWORD_BYTES:,} bytes of a keyword: make it a text")
    return text


def _long(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"not a whole number, but {_kind_of(value)}")
    if not -_LONG <= value < _LONG:
        raise ValueError(f"{value}, which is out of a long's range: make it a double or a keyword")
    return value


def _double(value: object) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"not a number, but {_kind_of(value)}")
    try:
        found = float(value)  # type: ignore[arg-type]
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError("a number out of a double's range")
    return found + 0.0  # which makes -0.0 what it equals: tantivy has it apart


def _date(value: object) -> int:
    """In microseconds since 1970: of a text in ISO 8601, in UTC where it has no zone, or of a number of
    milliseconds."""
    if type(value) is int:
        if not _FIRST_MS <= value < _LAST_MS:
            raise ValueError(f"{str(value)[:30]}, which as milliseconds since 1970 isn't in the years 1 to 9999")
        return value * 1_000
    if type(value) is not str:
        raise ValueError(f"no date, but {_kind_of(value)}")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"no date in ISO 8601, as 2026-11-14T00:00Z: {value[:60]!r}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _US + since.microseconds


def _bool(value: object) -> bool:
    if type(value) is bool:
        return value
    raise ValueError(f"no bool, but {_kind_of(value)}")


def _facet(value: object) -> str:
    path = _keyword(value)
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise ValueError(f"not a path, as /shop/shoes is: {path[:60]!r}")
    return path


_CHECKS: dict[str, Callable[[object], Value]] = {
    "text": _text,
    "keyword": _keyword,
    "long": _long,
    "double": _double,
    "date": _date,
    "bool": _bool,
    "facet": _facet,
}
