"""Parses the query language.

    either   = both { "OR" both }
    both     = single { ["AND"] single }
    single   = ("NOT" | "-") single | "(" either ")" | [field ":"] value
    value    = word | prefix "*" | "quoted words" | "two words" "~" number | "(" either ")"
             | ("[" | "{") word "TO" word ("]" | "}") | (">" | ">=" | "<" | "<=") word

No space may follow a field's colon, or a sign after it. A backslash escapes a character. Adjacent words must all match.
`_since:` and `_until:` bound the whole query by stream cuts, so they may not be within alternatives.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_APART, SEARCH_FIELD_CHARS, SEARCH_QUERY_CHARS, SEARCH_QUERY_DEPTH

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Term:
    """`timeout`, `level:error`, `"connection reset"`; `time*`, a prefix; `"crown king"~5`, two words at most `apart`
    words apart, in any order."""

    field: str | None
    text: str
    apart: int = 0
    is_prefix: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """`ms:[10 TO 20}`, `ms:>10`; None means unbounded."""

    field: str
    low: str | None
    high: str | None
    with_low: bool = True
    with_high: bool = True


@dataclass(frozen=True, slots=True)
class And(Generic[T]):
    parts: tuple[T, ...]  # empty: every event


@dataclass(frozen=True, slots=True)
class Or(Generic[T]):
    parts: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Not(Generic[T]):
    part: T


Node: TypeAlias = "Term | Range | And[Node] | Or[Node] | Not[Node]"


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query. since, until: its stream cuts, as text for `StreamCuts.named`."""

    node: Node
    since: str | None = None
    until: str | None = None


_FIELD = re.compile(r'(?=[^\W\d]|[@"])(?:[\w.@-]++|"[^"\\]*+")++:')  # a path, see `field_path`
_MISSPELT = re.compile(r"(?=[^\W\d]|[@`])[\w@-]*(?:\.[\w@-]+)*(?:\\\.|\.?`)[\w.@\\`-]*:")  # a path with \. or `
_MARKED = re.compile(r'(?=[^\W\d]|@)[^\s:\\"()\[\]{}]+:')  # possibly a name with combining accents or vowel signs
_QUOTED = re.compile(r'"((?:\\.|[^"\\])*+)(?:"(?:~([^\s()\[\]{}"]*))?)?', re.DOTALL)
_WORD = re.compile(r'(?:\\.|[^\s()\[\]{}"\\])++\\?|\\', re.DOTALL)
_COMPARE = re.compile(r"[<>]=?")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PREFIX = re.compile(r"(?:\\.|[^\\])*\*", re.DOTALL)  # its star isn't escaped
_OPERATORS = ("AND", "OR", "NOT", "TO")
_SINCE, _UNTIL = "_since", "_until"


@dataclass(frozen=True, slots=True)
class _Value:
    """A word or quoted words. apart: the text after their `~`."""

    text: str
    apart: str | None = None
    is_prefix: bool = False


def parse(text: str) -> ParsedQuery:
    """Parse a query; an empty query matches all events.

    >>> [(term.field, term.text) for term in parse("timeout level:error").node.parts]
    [(None, 'timeout'), ('level', 'error')]

    InvalidArgumentError: with the mistake and its position.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"a query must be a str, not {type(text).__name__}")
    if len(text) > SEARCH_QUERY_CHARS:
        raise InvalidArgumentError(f"the query has {len(text):,} characters: use at most {SEARCH_QUERY_CHARS:,}")
    check_text(text, "a query")
    return _Parser(text).parsed()


def check_text(text: str, what: str) -> None:
    """Raise InvalidArgumentError if the text contains an unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{what} isn't valid Unicode: character {error.start + 1} is half of a surrogate pair"
        ) from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._value_end = -1  # where the last value ended
        self._bounds: dict[str, str] = {}
        self._depth = 0

    def parsed(self) -> ParsedQuery:
        node: Node = And(())
        if self._next():
            node = self._either(None, top=True)
            if unexpected := self._next():
                raise InvalidArgumentError(f"unmatched {unexpected!r} at character {self._at + 1}: quote or remove it")
        return ParsedQuery(node, self._bounds.get(_SINCE), self._bounds.get(_UNTIL))

    def _either(self, field: str | None, *, top: bool = False) -> Node:
        self._deeper("parentheses")
        bounds = len(self._bounds)
        parts = [self._both(field, top)]
        while self._takes("OR"):
            parts.append(self._both(field, top))
        if len(parts) > 1 and len(self._bounds) > bounds:
            raise InvalidArgumentError(f"{_SINCE} and {_UNTIL} bound the whole query: put alternatives in ( )")
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _deeper(self, what: str) -> None:
        self._depth += 1
        if self._depth > SEARCH_QUERY_DEPTH:
            raise InvalidArgumentError(
                f"the query's {what} are nested too deeply: use at most {SEARCH_QUERY_DEPTH} levels"
            )

    def _both(self, field: str | None, top: bool) -> Node:
        parts: list[Node] = []
        while True:
            if not (top and self._bound()):
                parts.append(self._single(field))
            if not self._takes("AND") and (self._next() in ("", ")") or self._word() == "OR"):
                return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _bound(self) -> bool:
        """Consume `_since:` or `_until:` if it is next."""
        self._next()
        name = next((name for name in (_SINCE, _UNTIL) if self._text.startswith(f"{name}:", self._at)), None)
        if name is None:
            return False
        if name in self._bounds:
            raise InvalidArgumentError(f"{name} occurs twice in the query: remove one")
        self._at += len(name) + 1
        self._bounds[name] = _exact(self._value_behind(f"{name}:"))
        return True

    def _single(self, field: str | None) -> Node:
        char = self._next()
        if not char:
            raise InvalidArgumentError(f"the query is incomplete after {self._text.split()[-1][-40:]!r}: add a term")
        begin = self._at
        is_minus = char == "-" and begin != self._value_end and not self._text[begin + 1 : begin + 2].isspace()
        if self._takes("NOT") or (is_minus and begin + 1 < len(self._text)):
            self._at = max(self._at, begin + 1)
            self._deeper("NOTs")
            part = self._single(field)
            self._depth -= 1
            return Not(part)
        if char == "(":
            return self._group(field)
        if char in ")[]{}":
            raise InvalidArgumentError(f"unexpected {char!r} at character {begin + 1}: quote it")
        if match := self._take(_FIELD, SEARCH_FIELD_CHARS + 1):
            name = match[0][:-1]
            if name in (_SINCE, _UNTIL):
                raise InvalidArgumentError(f"{name} bounds the whole query: put it outside parentheses")
            if field is not None:
                raise InvalidArgumentError(f"{name}: is not allowed inside {field}:(…): close the parenthesis first")
            return self._about(name)
        if char != '"':
            self._check_field()
        if self._word() in _OPERATORS:
            raise InvalidArgumentError(
                f"{self._word()} at character {begin + 1} needs a term before it: add one, or quote it"
            )
        return _plain(self._value(), field)

    def _group(self, field: str | None) -> Node:
        begin = self._at
        self._at += 1
        node = self._either(field)
        if self._next() != ")":
            raise InvalidArgumentError(f"the parenthesis at character {begin + 1} is not closed: add )")
        self._at += 1
        return node

    def _check_field(self) -> None:
        """Raise InvalidArgumentError for a likely field name with escaped dots, backticks or combining marks."""
        match = _MISSPELT.match(self._text, self._at)
        if match is None and (match := _MARKED.match(self._text, self._at)):
            marks = [char for char in match[0][:-1] if not char.isalnum() and char not in "_@-."]
            if not marks or any(unicodedata.category(char)[0] != "M" for char in marks):
                return
        if match:
            raise InvalidArgumentError(
                f"the field {match[0][:60]!r} at character {self._at + 1} is invalid: quote names with dots or "
                'combining accents, as in resource."service.name":shop; in a text, write \\: instead of a colon'
            )

    def _about(self, field: str) -> Node:
        char = self._text[self._at : self._at + 1]
        if char == "(":
            return self._group(field)
        if char in ("[", "{"):
            return self._range(field)
        if match := self._take(_COMPARE):
            value, with_it = _exact(self._value_behind(match[0])), match[0].endswith("=")
            if match[0].startswith(">"):
                return Range(field, value, None, with_low=with_it)
            return Range(field, None, value, with_high=with_it)
        return _plain(self._value_behind(f"{field}:"), field)

    def _range(self, field: str) -> Node:
        begin, with_low = self._at, self._text[self._at] == "["
        self._at += 1
        what = f"the range at character {begin + 1}"
        low = self._border(what)
        if not self._takes("TO"):
            raise InvalidArgumentError(f"{what} lacks TO: write [low TO high]")
        high = self._border(what)
        if (closing := self._next()) not in ("]", "}"):
            raise InvalidArgumentError(f"{what} is not closed: add ] or }}")
        self._at += 1
        return Range(field, low, high, with_low=with_low, with_high=closing == "]")

    def _border(self, what: str) -> str | None:
        if self._next() in ("", *"()[]{}") or self._word() == "TO":
            raise InvalidArgumentError(f"{what} lacks a bound: write * to leave it open")
        value = self._value()
        text = _exact(value)
        return None if text == "*" and value.is_prefix else text

    # --- the text -------------------------------------------------------------------------------

    def _next(self) -> str:
        """Return the next character that isn't a space; "" at the end."""
        while (char := self._text[self._at : self._at + 1]).isspace():
            self._at += 1
        return char

    def _take(self, pattern: re.Pattern[str], most: int = SEARCH_QUERY_CHARS) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at, self._at + most)
        self._at = match.end() if match else self._at
        return match

    def _word(self) -> str:
        """Return the next word as it is written."""
        self._next()
        match = _WORD.match(self._text, self._at)
        return match[0] if match else ""

    def _takes(self, operator: str) -> bool:
        if self._word() != operator:
            return False
        self._at += len(operator)
        return True

    def _value_behind(self, sign: str) -> _Value:
        char = self._text[self._at : self._at + 1]
        if not char or char.isspace() or char in "()[]{}<>":
            raise InvalidArgumentError(
                f"{sign!r} at character {self._at - len(sign) + 1} lacks a value: write it right after the sign"
            )
        return self._value()

    def _value(self) -> _Value:
        begin = self._at
        if match := self._take(_QUOTED):
            if (not match[0].endswith('"') and match[2] is None) or len(match[0]) == 1:
                raise InvalidArgumentError(f'the quote at character {begin + 1} is not closed: add "')
            if match[2] == "":
                raise InvalidArgumentError(f'the ~ at character {self._at} lacks a distance: write "a b"~5')
            value = _Value(_ESCAPED.sub(r"\1", match[1]), match[2])
        else:
            match = self._take(_WORD)
            assert match is not None, "text that isn't a sign is a word"
            value = _Value(_ESCAPED.sub(r"\1", match[0]), is_prefix=_PREFIX.fullmatch(match[0]) is not None)
        self._value_end = self._at
        return value


def _exact(value: _Value) -> str:
    if value.apart is not None:
        raise InvalidArgumentError(f"~{value.apart[:20]} is not allowed with a bound: remove it")
    return value.text


def _plain(value: _Value, field: str | None) -> Node:
    if (apart := value.apart) is not None:
        if not apart.isascii() or not apart.isdecimal() or not 0 < int(apart[:9]) <= SEARCH_APART:
            raise InvalidArgumentError(f"the distance after ~ must be 1 to {SEARCH_APART}, not {apart[:20]!r}")
        return Term(field, value.text, int(apart))
    if not value.is_prefix:
        return Term(field, value.text)
    if len(value.text) > 1:
        return Term(field, value.text[:-1], is_prefix=True)
    if field is None:
        return And(())
    raise InvalidArgumentError(f"{field}:* lacks a prefix: write some of the value before the *")
