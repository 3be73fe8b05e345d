"""A schema in Spark's DDL, as the option `value_schema` has it, as an Arrow type.

>>> str(of_ddl("time timestamp, value double, tags array<string>"))
'struct<time: timestamp[s, tz=UTC], value: double, tags: list<element: string>>'
"""

from __future__ import annotations

import re

import pyarrow as pa

from nadi.client.values.types import COUNTED, LOCAL_SECONDS, SECONDS
from nadi.errors import InvalidArgumentError
from nadi.naming import is_number

_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": SECONDS,
    "timestamp_ltz": SECONDS,
    "timestamp_ntz": LOCAL_SECONDS,
    **{f"timestamp_{unit}": kind for unit, kind in COUNTED.items()},
}
_DECIMALS = ("decimal", "dec", "numeric")
_TOKENS = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([^\W]+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:]))")
_UNREADABLE = re.compile(r'["\\\x00-\x1f]')  # by msgspec
_MAX_DEPTH = 60  # Arrow has at most 64 levels


def of_ddl(text: str) -> pa.DataType:
    """The struct that the text describes; InvalidArgumentError, with the option's name, if it is none."""
    reader = _Reader(text)
    if reader.ahead(2) == ["struct", "<"]:  # as `simpleString` writes it
        kind = reader.kind(0)
    else:
        kind = reader.fields("", 0)
    if reader.ahead():
        raise reader.wrong(f"{reader.ahead()[0]!r} comes where it should end")
    return kind


def to_ddl(kind: pa.DataType) -> str:
    """The other way: the text that describes a struct whose types are plain; InvalidArgumentError if none does.

    >>> to_ddl(of_ddl("meter string, `wh.sum` decimal(9, 2), tags map<string, array<struct<a: int>>>"))
    '`meter` string, `wh.sum` decimal(9, 2), `tags` map<string, array<struct<`a` int>>>'
    """
    fields = (kind.field(number) for number in range(kind.num_fields))
    return ", ".join(f"`{field.name.replace('`', '``')}` {_text(field.type)}" for field in fields)


def _text(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_struct(kind):
        return f"struct<{to_ddl(kind)}>"
    if types.is_list(kind):
        return f"array<{_text(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{_text(kind.key_type)}, {_text(kind.item_type)}>"
    if types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if types.is_timestamp(kind) and kind not in COUNTED.values():
        return "timestamp" if kind.tz is not None else "timestamp_ntz"
    found = next((name for name, known in _TYPES.items() if known == kind), None)
    if found is None:
        raise InvalidArgumentError(f"a column can't be described as one of JSON: it is {kind}")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._tokens: list[str] = []
        position = 0
        while text[position:].strip():
            found = _TOKENS.match(text, position)
            if found is None:
                raise self.wrong(f"{text[position:].strip()[:20]!r} is neither a name nor a type")
            self._tokens.append(next(token for token in found.groups() if token is not None))
            position = found.end()
        if not self._tokens:
            raise self.wrong("it is empty")

    def ahead(self, count: int = 1) -> list[str]:
        """The next tokens, in small letters."""
        return [token.lower() for token in self._tokens[self._at : self._at + count]]

    def wrong(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the option 'value_schema' is {self._text[:80]!r}, and {why}: write it as "
            "'time timestamp, value double, tags array<string>'"
        )

    def fields(self, end: str, depth: int) -> pa.DataType:
        """A struct's fields, up to the token `end`."""
        found: list[pa.Field] = []
        while True:
            found.append(self._field(depth))
            if self._is_next(end):
                break
            self._expect(",")
        names = [field.name for field in found]
        if len(set(names)) < len(names):
            raise self.wrong("it names a field twice")
        return pa.struct(found)

    def kind(self, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise self.wrong(f"its types lie in each other more than {_MAX_DEPTH} deep")
        name = self._next("a type").lower()
        if name == "struct":
            self._expect("<")
            return self._closed(self.fields(">", depth + 1))
        if name == "array":
            self._expect("<")
            return self._closed(pa.list_(pa.field("element", self.kind(depth + 1))))
        if name == "map":
            self._expect("<")
            key = self.kind(depth + 1)
            self._expect(",")
            return self._closed(pa.map_(key, self.kind(depth + 1)))
        if name in _DECIMALS:
            return self._decimal()
        if name not in _TYPES:
            raise self.wrong(
                f"there is no type {name[:30]!r} for values: there are {', '.join(_TYPES)}, decimal(p, s), "
                "array<…>, map<…, …> and struct<…>"
            )
        return _TYPES[name]

    def _field(self, depth: int) -> pa.Field:
        name = self._next("a field's name")
        name = name[1:-1].replace("``", "`") if name.startswith("`") else name
        if not (name.isidentifier() or name.isalnum() or self._tokens[self._at - 1].startswith("`")):
            raise self.wrong(f"{name!r} comes where a field's name should")
        if _UNREADABLE.search(name):
            raise self.wrong(
                f"the field {name[:30]!r} can't be read: names have no quotes, backslashes or control characters"
            )
        if self.ahead() == [":"]:
            self._at += 1
        kind, is_nullable = self.kind(depth), True
        if self.ahead(2) == ["not", "null"]:
            self._at, is_nullable = self._at + 2, False
        if self.ahead() == ["comment"]:
            self._at += 2
        return pa.field(name, kind, is_nullable)

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self.ahead() == ["("]:
            self._at += 1
            precision = self._number()
            if self.ahead() == [","]:
                self._at += 1
                scale = self._number()
            self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self.wrong(f"there is no decimal({precision}, {scale}): at most 38 digits, so many behind the point")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._next("a number")
        if not is_number(token):
            raise self.wrong(f"{token[:30]!r} comes where a number should")
        return int(token)

    def _closed(self, kind: pa.DataType) -> pa.DataType:
        self._expect(">")
        return kind

    def _is_next(self, token: str) -> bool:
        return (self.ahead() or [""])[0] == token

    def _expect(self, token: str) -> None:
        found = self._next(repr(token))
        if found != token:
            raise self.wrong(f"{found!r} comes where {token!r} should")

    def _next(self, wanted: str) -> str:
        if self._at >= len(self._tokens):
            raise self.wrong(f"it ends where {wanted} should come")
        self._at += 1
        return self._tokens[self._at - 1]
