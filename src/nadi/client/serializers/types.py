"""Arrow types of the schemas of each format, and of Spark's DDL.

The Arrow type of a schema describes how its values become a column: a field that isn't nullable is required, a field
with a default has it where the event omits the field, integers for a timestamp count its unit. The JSON type stands
for types that Spark lacks (unions of several types, recursive types); its values are JSON texts.
`serializers.arrow_columns.plain` maps such a type to the type in a scan and in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from nadi.errors import InvalidArgumentError
from nadi.naming import PER_SECOND, is_number

DEFAULT = b"default"  # in the metadata of a field: its default as JSON, unless the format's library knows it
ABSENT = b"absent"  # in the metadata of a field that is omitted instead of null
SECONDS = pa.timestamp("s", "UTC")  # of documents: ISO 8601, or a number of seconds since 1970
LOCAL_SECONDS = pa.timestamp("s")
COUNTED = {unit: pa.timestamp(unit, "+00:00") for unit in PER_SECOND}  # of documents whose schema names the unit
JSON = pa.opaque(pa.string(), "json", "nadi")
UUID_TEXT = pa.opaque(pa.string(), "text", "nadi")  # of Avro: str(UUID)
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
_UNREADABLE = re.compile(r'["\\\x00-\x1f]')  # msgspec can't read such names
_MAX_DEPTH = 60  # Arrow has at most 64 levels


def is_json(kind: pa.DataType) -> bool:
    """Return whether the type's values are JSON texts."""
    return bool(kind == JSON)


def is_uuid(kind: pa.DataType) -> bool:
    """Return whether the type's values are the texts of Avro's UUIDs."""
    return bool(kind == UUID_TEXT)


def names_differing_in_case(fields: Iterable[pa.Field], before: Iterable[pa.Field] = ()) -> tuple[str, str] | None:
    """Return two sibling names that differ in case only, which SQL doesn't distinguish; None if all differ.

    Looks at the fields, at those nested in them, and at the fields that existed `before`.
    """
    existing = {field.name: field for field in before}
    known = {name.lower(): field for name, field in existing.items()}
    seen: dict[str, str] = {}
    for field in fields:
        low = field.name.lower()
        other = existing.get(field.name, known.get(low))
        name = seen.setdefault(low, field.name if other is None else other.name)
        if name != field.name:
            return name, field.name
        pair = names_differing_in_case(_within(field.type), () if other is None else _within(other.type))
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
    """Return the struct that the text describes; InvalidArgumentError, naming the option, if it isn't DDL.

    >>> str(of_ddl("time timestamp, value double, tags array<string>"))
    'struct<time: timestamp[s, tz=UTC], value: double, tags: list<element: string>>'
    """
    ddl = _Ddl(text)
    kind = (
        ddl.kind(0) if ddl.is_next("struct", "<") else ddl.fields("", 0)
    )  # with the brackets of `simpleString`, or without
    ddl.check_end()
    return kind


def to_ddl(kind: pa.DataType) -> str:
    """Return the DDL of a struct of plain types; InvalidArgumentError if a type has none.

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
        raise InvalidArgumentError(f"a column of type {kind} can't be written as DDL: use a type that JSON has")
    return name


class _Ddl:
    """A parser over the tokens of a text."""

    def __init__(self, text: str) -> None:
        self._text, self._next_index = text, 0
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
        """Return a struct of the fields before the token `end`."""
        fields = [self._field(depth)]
        while self._take(","):
            fields.append(self._field(depth))
        if self._next_index < len(self._tokens) and not self.is_next(end):
            self._expect(",")
        if len({field.name for field in fields}) < len(fields):
            raise self._wrong("it names a field twice")
        return pa.struct(fields)

    def kind(self, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise self._wrong(f"its types are nested more than {_MAX_DEPTH} levels deep")
        name = self._next("a type").lower()
        if name in ("struct", "array", "map"):
            self._expect("<")
            if name == "struct":
                parsed = self.fields(">", depth + 1)
            elif name == "array":
                parsed = pa.list_(pa.field("element", self.kind(depth + 1)))
            else:
                key = self.kind(depth + 1)
                self._expect(",")
                parsed = pa.map_(key, self.kind(depth + 1))
            self._expect(">")
            return parsed
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name not in _TYPES:
            raise self._wrong(
                f"{name[:30]!r} is not a type: use one of {', '.join(_TYPES)}, decimal(p, s), "
                "array<…>, map<…, …>, struct<…>"
            )
        return _TYPES[name]

    def is_next(self, *tokens: str) -> bool:
        return [token.lower() for token in self._tokens[self._next_index : self._next_index + len(tokens)]] == [*tokens]

    def check_end(self) -> None:
        if self._next_index < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._next_index]!r} follows its end")

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
            raise self._wrong(f"{name!r} is not a field's name")
        if _UNREADABLE.search(name):
            raise self._wrong(f"the field {name[:30]!r} has a quote, a backslash or a control character")
        self._take(":")
        kind = self.kind(depth)
        field = pa.field(name, kind, nullable=not self._take("not", "null"))
        if self._take("comment"):
            self._next_index += 1
        return field

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            scale = self._number() if self._take(",") else 0
            self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self._wrong(f"decimal({precision}, {scale}) has more than 38 digits, or a scale above its precision")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token = self._next("a number")
        if not is_number(token):
            raise self._wrong(f"{token[:30]!r} is not a number")
        return int(token)

    def _take(self, *tokens: str) -> bool:
        """Skip these tokens if they are next; return whether they were."""
        is_next = self.is_next(*tokens)
        self._next_index += len(tokens) if is_next else 0
        return is_next

    def _expect(self, token: str) -> None:
        following = self._next(repr(token))
        if following != token:
            raise self._wrong(f"{following!r} stands in place of {token!r}")

    def _next(self, expected: str) -> str:
        if self._next_index >= len(self._tokens):
            raise self._wrong(f"it ends before {expected}")
        self._next_index += 1
        return self._tokens[self._next_index - 1]
