"""The fields of an index: names, kinds, and conversion of an event's values.

An event is a JSON object, in which a field's name is a path, see `model.field_path`; or plain UTF-8 text, its only
field. A missing or null member isn't indexed; a value of another kind makes the event invalid. All values of a list are
indexed, and a path through a list takes each element's values.

A word of a text is a run of letters and digits, in lower case. The same analyzer splits the texts of events, queries
and standing queries. Tantivy knows fields by number, `f0`, `f1` …, so names may have any characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from itertools import chain, repeat
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from nadi.client.control.arguments import check_strings
from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_FIELD_CHARS, SEARCH_FIELDS, SEARCH_KEYWORD_BYTES, SEARCH_TOKEN_BYTES
from nadi.model.field_path import FieldPath, parse_path
from nadi.model.instants import EARLIEST_US, LATEST_US, instant_of

if TYPE_CHECKING:
    from tantivy import Facet, Index, Schema, TextAnalyzer

Counted = Literal["timestamp_s", "timestamp_ms", "timestamp_us", "timestamp_ns"]
Kind = Literal["text", "keyword", "long", "double", "date", Counted, "bool", "facet"]
Format = Literal["json", "text"]
Value = str | int | float | bool
KINDS: tuple[str, ...] = get_args(Kind)
COUNTED = {kind: kind.removeprefix("timestamp_") for kind in get_args(Counted)}  # and the unit of their numbers
TIMES = ("date", *COUNTED)  # indexed in microseconds since 1970
RANGES = ("long", "double", *TIMES)
_SAME = {"timestamp": "date"}  # the name that tables use
_LONG = 1 << 63
_US = 1_000_000
_INTEGER = re.compile(r"[-+]?[0-9]{1,30}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Field(msgspec.Struct, frozen=True):
    """kind: `text` is found by its words, `keyword` by its value, numbers and times also by ranges, `facet`, a path
    such as `/shop/shoes`, by itself or a parent."""

    name: str
    kind: Kind

    def __post_init__(self) -> None:
        parse_path(self.name)  # also checks records written by other programs

    @property
    def path(self) -> FieldPath:
        return parse_path(self.name)


class InvalidEventError(Exception):
    """An event can't be indexed."""


def fields_of(text: str | Iterable[str]) -> tuple[Field, ...]:
    """Parse `name:kind,name:kind`.

    >>> fields_of("message:text, ms:long")
    (Field(name='message', kind='text'), Field(name='ms', kind='long'))
    """
    texts = _divided(text) if isinstance(text, str) else check_strings(text, "the fields of an index")
    parts = [part.strip() for part in texts]
    if not 0 < len(parts) <= SEARCH_FIELDS:
        raise InvalidArgumentError(f"an index must have 1 to {SEARCH_FIELDS} fields, not {len(parts):,}")
    accepted: list[tuple[Field, FieldPath]] = []
    for part in parts:
        name, _, kind = part.rpartition(":")
        kind = _SAME.get(kind, kind)
        if kind not in KINDS:
            raise InvalidArgumentError(
                f"{part[:80]!r} is not a field: write name:kind with one of the kinds {', '.join(KINDS)}"
            )
        path = parse_path(name)
        _check_name(name)
        if same := next((field for field, other in accepted if path.may_be(other)), None):
            both = name if name == same.name else f"{same.name} and {name}"
            raise InvalidArgumentError(f"the fields {both} may be the same member: name each member once")
        accepted.append((Field(name, kind), path))  # type: ignore[arg-type]
    return tuple(field for field, _ in accepted)


def _divided(text: str) -> list[str]:
    """Split at the commas outside quotes."""
    parts = [""]
    for number, piece in enumerate(text.split('"')):
        if number:
            parts[-1] += '"'
        first, *others = [piece] if number % 2 else piece.split(",")
        parts[-1] += first
        parts += others
    return parts


def _check_name(name: str) -> None:
    """Raise InvalidArgumentError for a name that a query can't use."""
    if len(name) > SEARCH_FIELD_CHARS:
        raise InvalidArgumentError(
            f"the field name {name[:60]!r}… is too long: use at most {SEARCH_FIELD_CHARS} characters"
        )
    if not name[0].isalpha() and name[0] not in '@"':
        raise InvalidArgumentError(
            f"the field {name!r} begins with {name[0]!r}, which has a meaning in queries: quote the name"
        )
    if "\\" in name or not name.isprintable():
        raise InvalidArgumentError(
            f"the field {name!r} has a backslash or a control character, which queries can't contain: rename it"
        )


def number_of(fields: tuple[Field, ...], name: str) -> int | None:
    """Return the number of the field with that name, or of the only one that can be the same member; None otherwise."""
    path = parse_path(name)
    possible = [number for number, field in enumerate(fields) if field.path.may_be(path)]
    exact = [number for number in possible if fields[number].name == name]
    return next(iter(exact or possible), None) if exact or len(possible) == 1 else None


def by_field(fields: Iterable[Field], counts: Iterable[int]) -> dict[str, int]:
    """Return the counts by field name, 0 if missing."""
    return {field.name: count for field, count in zip(fields, chain(counts, repeat(0)), strict=False)}


def check_format(form: str, fields: tuple[Field, ...]) -> Format:
    """Return the format; InvalidArgumentError if its events can't have these fields."""
    if form not in get_args(Format):
        raise InvalidArgumentError(f"the format must be json or text, not {form!r}")
    if form == "text" and [field.kind for field in fields] != ["text"]:
        raise InvalidArgumentError("the format text has exactly one field, of the kind text: name only that")
    return form  # type: ignore[return-value]


Values = list[tuple[int, Value]]  # of an event: field numbers and values


@lru_cache(100)
def reader_of(form: Format, fields: tuple[Field, ...]) -> Callable[[bytes], Values]:
    """Return the function that extracts an event's values from its bytes; it raises InvalidEventError."""
    if form == "text":
        return _text_values
    decode = msgspec.json.Decoder().decode
    paths = [(number, _taking(field, fields), _CHECKS[field.kind], field.name) for number, field in enumerate(fields)]

    def values(data: bytes) -> Values:
        try:
            event = decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidEventError(f"the event is not JSON: {error}") from None
        if type(event) is not dict:
            raise InvalidEventError(f"the event is not a JSON object, but {_kind_of(event)}")
        extracted: Values = []
        for number, take, check, name in paths:
            try:
                value = take(event)
            except RecursionError:
                raise InvalidEventError(f"{name} is nested too deeply in lists") from None
            if value is None:
                continue
            try:
                if type(value) is list:
                    extracted += [(number, check(item)) for item in value if item is not None]
                else:
                    extracted.append((number, check(value)))
            except ValueError as error:
                raise InvalidEventError(f"{name} is {error}") from None
        return extracted

    return values


def _taking(field: Field, fields: tuple[Field, ...]) -> Callable[[dict[str, Any]], Any]:
    """Return the function that extracts the field's value from an event, without objects if other fields are in
    them."""
    path = field.path
    if any(other.path.may_lie_within(path) for other in fields):
        return lambda event: _without_objects(path.find(event))
    return path.find if path.name is None else methodcaller("get", path.name)


def _without_objects(value: Any) -> Any:
    if type(value) is list:
        return [item for item in value if type(item) is not dict]
    return None if type(value) is dict else value


def _text_values(data: bytes) -> Values:
    try:
        return [(0, data.decode())]
    except UnicodeDecodeError as error:
        raise InvalidEventError(f"the event is not UTF-8 text: {error}") from None


def value_of(kind: Kind, text: str) -> Value:
    """Convert a query's text to a field's value; ValueError with the reason if that fails."""
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(f"not a bool (true or false): {text[:60]!r}")
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
    raise ValueError(f"not a text, but {_kind_of(value)}")


def _keyword(value: object) -> str:
    text = _text(value)
    if len(text) > SEARCH_KEYWORD_BYTES // 4 and len(text.encode()) > SEARCH_KEYWORD_BYTES:
        raise ValueError(f"longer than the {SEARCH_KEYWORD_BYTES:,} bytes of a keyword: use the kind text")
    return text


def _long(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"not a whole number, but {_kind_of(value)}")
    if not -_LONG <= value < _LONG:
        raise ValueError(f"{value}, out of a long's range: use the kind double or keyword")
    return value


def _double(value: object) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"not a number, but {_kind_of(value)}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a number out of a double's range")
    return number + 0.0  # turns -0.0 into 0.0: tantivy distinguishes them


def _time(unit: str, are_digits_numbers: bool, value: object) -> int:
    """Return microseconds since 1970, from ISO 8601 text (UTC unless it has a zone), or from a number in that unit,
    which may be text if `are_digits_numbers`."""
    if are_digits_numbers and type(value) is str and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is int or type(value) is float:
        try:
            return instant_of(value, unit)
        except ValueError as error:
            raise ValueError(f"not a time: {error}") from None
    if type(value) is not str:
        raise ValueError(f"not a time, but {_kind_of(value)}")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"not an ISO 8601 time such as 2026-11-14T00:00Z: {value[:60]!r}") from None
    since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * _US + since.microseconds
    if not EARLIEST_US <= micros <= LATEST_US:
        raise ValueError(f"a time outside the years 1 to 9999: {value[:60]!r}")
    return micros


def _bool(value: object) -> bool:
    if type(value) is bool:
        return value
    raise ValueError(f"not a bool, but {_kind_of(value)}")


def _facet(value: object) -> str:
    path = _keyword(value)
    if not path.startswith("/") or path.endswith("/") or "//" in path or "\0" in path:
        raise ValueError(f"not a path such as /shop/shoes: {path[:60]!r}")
    return path


_CHECKS: dict[str, Callable[[object], Value]] = {
    "text": _text,
    "keyword": _keyword,
    "long": _long,
    "double": _double,
    "date": partial(_time, "s", False),
    **{kind: partial(_time, unit, True) for kind, unit in COUNTED.items()},
    "bool": _bool,
    "facet": _facet,
}


ORDER, SEGMENT, OFFSET, SIZE = "_order", "_segment", "_offset", "_size"
_ANALYZER = "nadi"
ORDER_BITS = 8  # the low bits of an order hold the segment's number, the others microseconds


def check_installed() -> None:
    """Raise InvalidArgumentError if tantivy isn't installed."""
    try:
        import tantivy  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("search needs the package tantivy: pip install 'nadi[search]'") from None


@cache
def analyzer() -> TextAnalyzer:
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    builder = TextAnalyzerBuilder(Tokenizer.simple())
    return builder.filter(Filter.remove_long(SEARCH_TOKEN_BYTES)).filter(Filter.lowercase()).build()


def words_in(text: str) -> list[str]:
    """Return the words of a text in order: get, index and html for `GET /Index.html`."""
    words: list[str] = analyzer().analyze(text)
    return words


@cache
def schema_of(fields: tuple[Field, ...]) -> Schema:
    """Return tantivy's schema: each event's position and order, and its fields, without the texts."""
    from tantivy import SchemaBuilder

    builder = SchemaBuilder()
    for name in (ORDER, SEGMENT, OFFSET, SIZE):
        builder.add_unsigned_field(name, fast=True)
    for number, field in enumerate(fields):
        name = name_of(number)
        if field.kind == "text":
            builder.add_text_field(name, tokenizer_name=_ANALYZER)
        elif field.kind == "keyword":
            builder.add_text_field(name, tokenizer_name="raw", index_option="basic", fast=True)
        elif field.kind == "long" or field.kind in TIMES:
            builder.add_integer_field(name, indexed=True, fast=True)
        elif field.kind == "double":
            builder.add_float_field(name, indexed=True, fast=True)
        elif field.kind == "bool":
            builder.add_boolean_field(name, indexed=True, fast=True)
        else:
            builder.add_facet_field(name)
    return builder.build()


def facet_of(path: str) -> Facet:
    """Return a facet from an event's path: tantivy treats a backslash as an escape."""
    from tantivy import Facet

    return Facet.from_string(path.replace("\\", "\\\\"))


def name_of(number: int) -> str:
    """Return tantivy's name of a field."""
    return f"f{number}"


def prepared(index: Index) -> Index:
    """Return the index with nadi's analyzer registered."""
    index.register_tokenizer(_ANALYZER, analyzer())
    return index
