"""Schemas of each format, and those in Spark's DDL, as Arrow types.

The Arrow type of a schema says how its values are made into a column: a field that isn't nullable has to be there, one
with a default is that where it wasn't written, integers for a timestamp count its unit, and JSON's type stands for
what Spark has no type for (unions of several types, types that contain themselves), which comes as the text of its
JSON. What such a column is in Arrow and in Spark, `serializers.arrow_columns.plain` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from nadi.errors import InvalidArgumentError
from nadi.naming import PER_SECOND, is_number

DEFAULT = b"default"  # in the metadata of a field that has one: as JSON, unless the format's library knows it
ABSENT = b"absent"  # in the metadata of a field that is left out where it would be null
SECONDS = pa.timestamp("s", "UTC")  # of documents: ISO 8601, or a number of seconds since 1970
LOCAL_SECONDS = pa.timestamp("s")
COUNTED = {unit: pa.timestamp(unit, "+00:00") for unit in PER_SECOND}  # of documents whose schema names the unit
JSON = pa.opaque(pa.string(), "json", "nadi")
UUID_TEXT = pa.opaque(pa.string(), "text", "nadi")  # of Avro: what `str` makes of one
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
_TOKENS = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([^\W]+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:]))")
_UNREADABLE = re.compile(r'["\\\x00-\x1f]')  # by msgspec
_MAX_DEPTH = 60  # Arrow has at most 64 levels


def is_json(kind: pa.DataType) -> bool:
    """Whether values of that type come as the text of their JSON."""
    return bool(kind == JSON)


def is_uuid(kind: pa.DataType) -> bool:
    """Whether values of that type are the texts of Avro's UUIDs."""
    return bool(kind == UUID_TEXT)


def alike(fields: Iterable[pa.Field], before: Iterable[pa.Field] = ()) -> tuple[str, str] | None:
    """Two names beside each other that differ by case alone, which SQL can't tell apart: among the fields, or in one of
    them, or with one of those that were there before."""
    there = {field.name: field for field in before}
    known = {name.lower(): field for name, field in there.items()}
    seen: dict[str, str] = {}
    for field in fields:
        low = field.name.lower()
        other = there.get(field.name, known.get(low))
        name = seen.setdefault(low, field.name if other is None else other.name)
        if name != field.name:
            return name, field.name
        pair = alike(_within(field.type), () if other is None else _within(other.type))
        if pair is not None:
            return pair
    return None


def _within(kind: pa.DataType) -> list[pa.Field]:
    types = pa.types
    if types.is_struct(kind):
        return list(kind)
    if types.is_map(kind):
        return [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    return [pa.field("element", kind.value_type)] if types.is_list(kind) or types.is_large_list(kind) else []


def struct_of(fields: Iterable[pa.Field]) -> pa.DataType:
    known = list(fields)
    return pa.struct(known) if known else JSON


# --- Spark's DDL ----------------------------------------------------------------------------------------


def of_ddl(text: str) -> pa.DataType:
    """Return the struct that the text describes; InvalidArgumentError, with the option's name, if it is none.

    >>> str(of_ddl("time timestamp, value double, tags array<string>"))
    'struct<time: timestamp[s, tz=UTC], value: double, tags: list<element: string>>'
    """
    ddl = _Ddl(text)
    kind = ddl.kind(0) if ddl.is_next("struct", "<") else ddl.fields("", 0)  # as `simpleString` writes it, or without
    ddl.check_end()
    return kind


def to_ddl(kind: pa.DataType) -> str:
    """Return the text that describes a struct whose types are plain; InvalidArgumentError if none does.

    >>> to_ddl(of_ddl("meter string, `wh.sum` decimal(9, 2), tags map<string, array<struct<a: int>>>"))
    '`meter` string, `wh.sum` decimal(9, 2), `tags` map<string, array<struct<`a` int>>>'
    """
    return ", ".join(f"`{field.name.replace('`', '``')}` {_text(field.type)}" for field in kind)


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
    name = next((name for name, known in _TYPES.items() if known == kind), None)
    if name is None:
        raise InvalidArgumentError(f"a column can't be described as one of JSON: it is {kind}")
    return name


class _Ddl:
    """The tokens of a text, read from the first to the last."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKENS.match(text, position)
            if match is None:
                raise self._wrong(f"{text[position:].strip()[:20]!r} is neither a name nor a type")
            self._tokens += (token for token in match.groups() if token is not None)
            position = match.end()
        if not self._tokens:
            raise self._wrong("it is empty")

    def fields(self, end: str, depth: int) -> pa.DataType:
        """A struct's fields, up to the token `end`."""
        fields = [self._field(depth)]
        while self._take(","):
            fields.append(self._field(depth))
        if self._at < len(self._tokens) and not self.is_next(end):
            self._expect(",")
        if len({field.name for field in fields}) < len(fields):
            raise self._wrong("it names a field twice")
        return pa.struct(fields)

    def kind(self, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise self._wrong(f"its types lie in each other more than {_MAX_DEPTH} deep")
        name = self._next("a type").lower()
        if name in ("struct", "array", "map"):
            self._expect("<")
            if name == "struct":
                made = self.fields(">", depth + 1)
            elif name == "array":
                made = pa.list_(pa.field("element", self.kind(depth + 1)))
            else:
                key = self.kind(depth + 1)
                self._expect(",")
                made = pa.map_(key, self.kind(depth + 1))
            self._expect(">")
            return made
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name not in _TYPES:
            raise self._wrong(
                f"there is no type {name[:30]!r} for values: there are {', '.join(_TYPES)}, decimal(p, s), "
                "array<…>, map<…, …> and struct<…>"
            )
        return _TYPES[name]

    def is_next(self, *tokens: str) -> bool:
        return [token.lower() for token in self._tokens[self._at : self._at + len(tokens)]] == [*tokens]

    def check_end(self) -> None:
        if self._at < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._at]!r} comes where it should end")

    def _wrong(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the option 'value_schema' is {self._text[:80]!r}, and {why}: write it as "
            "'time timestamp, value double, tags array<string>'"
        )

    def _field(self, depth: int) -> pa.Field:
        name = self._next("a field's name")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not (name.isidentifier() or name.isalnum()):
            raise self._wrong(f"{name!r} comes where a field's name should")
        if _UNREADABLE.search(name):
            raise self._wrong(
                f"the field {name[:30]!r} can't be read: names have no quotes, backslashes or control characters"
            )
        self._take(":")
        kind = self.kind(depth)
        field = pa.field(name, kind, nullable=not self._take("not", "null"))
        if self._take("comment"):
            self._at += 1
        return field

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            scale = self._number() if self._take(",") else 0
            self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._wrong(f"there is no decimal({precision}, {scale}): at most 38 digits, so many behind the point")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._next("a number")
        if not is_number(token):
            raise self._wrong(f"{token[:30]!r} comes where a number should")
        return int(token)

    def _take(self, *tokens: str) -> bool:
        """Go behind these tokens, if they come next."""
        is_next = self.is_next(*tokens)
        self._at += len(tokens) if is_next else 0
        return is_next

    def _expect(self, token: str) -> None:
        following = self._next(repr(token))
        if following != token:
            raise self._wrong(f"{following!r} comes where {token!r} should")

    def _next(self, wanted: str) -> str:
        if self._at >= len(self._tokens):
            raise self._wrong(f"it ends where {wanted} should come")
        self._at += 1
        return self._tokens[self._at - 1]
