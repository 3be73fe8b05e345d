"""The query language's parser.

    either   = both { "OR" both }
    both     = one { ["AND"] one }
    one      = ("NOT" | "-") one | "(" either ")" | [field ":"] value
    value    = word | prefix "*" | "quoted words" | "two words" "~" number | "(" either ")"
             | ("[" | "{") word "TO" word ("]" | "}") | (">" | ">=" | "<" | "<=") word

Nothing stands between a field's colon, or a sign behind it, and the value. A backslash makes a character plain. Words
side by side must all be there. `_since:` and `_until:` bound the whole query by stream cuts, and so stand beside
its other parts, not within alternatives.
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
    """`timeout`, `level:error`, `"connection reset"`; `time*`, what begins so; `"crown king"~5`, two words of which the
    one is at most so many words before or behind the other."""

    field: str | None
    text: str
    apart: int = 0
    is_prefix: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """`ms:[10 TO 20}`, `ms:>10`; None is no bound."""

    field: str
    low: str | None
    high: str | None
    with_low: bool = True
    with_high: bool = True


@dataclass(frozen=True, slots=True)
class And(Generic[T]):
    parts: tuple[T, ...]  # of none: every event


@dataclass(frozen=True, slots=True)
class Or(Generic[T]):
    parts: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Not(Generic[T]):
    part: T


Node: TypeAlias = "Term | Range | And[Node] | Or[Node] | Not[Node]"


@dataclass(frozen=True, slots=True)
class Parsed:
    """since, until: the stream cuts between which events are asked for, as `StreamCuts.named` takes them."""

    node: Node
    since: str | None = None
    until: str | None = None


_FIELD = re.compile(r'(?=[^\W\d]|[@"])(?:[\w.@-]++|"[^"\\]*+")++:')  # a path, see `field_path`
_MISSPELT = re.compile(r"(?=[^\W\d]|[@`])[\w@-]*(?:\.[\w@-]+)*(?:\\\.|\.?`)[\w.@\\`-]*:")  # one with \. or `
_MARKED = re.compile(r'(?=[^\W\d]|@)[^\s:\\"()\[\]{}]+:')  # one with accents or vowel signs, if it has such
_QUOTED = re.compile(r'"((?:\\.|[^"\\])*+)(?:"(?:~([^\s()\[\]{}"]*))?)?', re.DOTALL)
_WORD = re.compile(r'(?:\\.|[^\s()\[\]{}"\\])++\\?|\\', re.DOTALL)
_COMPARE = re.compile(r"[<>]=?")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PREFIX = re.compile(r"(?:\\.|[^\\])*\*", re.DOTALL)  # its star isn't plain
_OPERATORS = ("AND", "OR", "NOT", "TO")
_SINCE, _UNTIL = "_since", "_until"


@dataclass(frozen=True, slots=True)
class _Value:
    """A word, or quoted ones: apart is what stands behind their `~`."""

    text: str
    apart: str | None = None
    is_prefix: bool = False


def parse(text: str) -> Parsed:
    """Parse a query; an empty one asks for all events.

    >>> [(term.field, term.text) for term in parse("timeout level:error").node.parts]
    [(None, 'timeout'), ('level', 'error')]

    InvalidArgumentError: it says what is wrong, and where.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"a query is a text, not {type(text).__name__}")
    if len(text) > SEARCH_QUERY_CHARS:
        raise InvalidArgumentError(f"a query has at most {SEARCH_QUERY_CHARS:,} characters, not {len(text):,}")
    check_text(text, "a query")
    return _Parser(text).parsed()


def check_text(text: str, what: str) -> None:
    """InvalidArgumentError for one with half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} can't be sent: its character {error.start + 1} is half of one") from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._behind_value = -1  # where the last value ended
        self._bounds: dict[str, str] = {}
        self._depth = 0

    def parsed(self) -> Parsed:
        node: Node = And(())
        if self._next():
            node = self._either(None, top=True)
            if left := self._next():
                raise InvalidArgumentError(f"{left!r} at character {self._at + 1} has nothing to close")
        return Parsed(node, self._bounds.get(_SINCE), self._bounds.get(_UNTIL))

    def _either(self, field: str | None, *, top: bool = False) -> Node:
        self._deeper("parentheses")
        bounds = len(self._bounds)
        parts = [self._both(field, top)]
        while self._takes("OR"):
            parts.append(self._both(field, top))
        if len(parts) > 1 and len(self._bounds) > bounds:
            raise InvalidArgumentError(f"{_SINCE} and {_UNTIL} bound the whole query: put its alternatives in ( )")
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _deeper(self, what: str) -> None:
        self._depth += 1
        if self._depth > SEARCH_QUERY_DEPTH:
            raise InvalidArgumentError(f"a query has at most {SEARCH_QUERY_DEPTH} {what} within each other")

    def _both(self, field: str | None, top: bool) -> Node:
        parts: list[Node] = []
        while True:
            if not (top and self._bound()):
                parts.append(self._one(field))
            if not self._takes("AND") and (self._next() in ("", ")") or self._word() == "OR"):
                return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _bound(self) -> bool:
        """Take `_since:` or `_until:`, if it comes."""
        self._next()
        name = next((name for name in (_SINCE, _UNTIL) if self._text.startswith(f"{name}:", self._at)), None)
        if name is None:
            return False
        if name in self._bounds:
            raise InvalidArgumentError(f"{name} stands twice in the query: leave one out")
        self._at += len(name) + 1
        self._bounds[name] = _exact(self._value_behind(f"{name}:"))
        return True

    def _one(self, field: str | None) -> Node:
        char = self._next()
        if not char:
            raise InvalidArgumentError(f"after {self._text.split()[-1][-40:]!r} the query lacks what it is about")
        begin = self._at
        is_minus = char == "-" and begin != self._behind_value and not self._text[begin + 1 : begin + 2].isspace()
        if self._takes("NOT") or (is_minus and begin + 1 < len(self._text)):
            self._at = max(self._at, begin + 1)
            self._deeper("NOTs")
            part = self._one(field)
            self._depth -= 1
            return Not(part)
        if char == "(":
            return self._group(field)
        if char in ")[]{}":
            raise InvalidArgumentError(f"{char!r} at character {begin + 1} is out of place: quote it")
        if match := self._take(_FIELD, SEARCH_FIELD_CHARS + 1):
            name = match[0][:-1]
            if name in (_SINCE, _UNTIL):
                raise InvalidArgumentError(f"{name} bounds the whole query: put it outside of parentheses")
            if field is not None:
                raise InvalidArgumentError(f"{name}: stands within what is about {field}: close that before")
            return self._about(name)
        if char != '"':
            self._check_field()
        if self._word() in _OPERATORS:
            raise InvalidArgumentError(f"{self._word()} at character {begin + 1} has nothing before it")
        return _plain(self._value(), field)

    def _group(self, field: str | None) -> Node:
        begin = self._at
        self._at += 1
        node = self._either(field)
        if self._next() != ")":
            raise InvalidArgumentError(f"the parenthesis at character {begin + 1} is not closed: add a )")
        self._at += 1
        return node

    def _check_field(self) -> None:
        """InvalidArgumentError for what would be a field's name, were its dots not escaped, or the accents and vowel
        signs that stand alone in it letters."""
        match = _MISSPELT.match(self._text, self._at)
        if match is None and (match := _MARKED.match(self._text, self._at)):
            others = [char for char in match[0][:-1] if not char.isalnum() and char not in "_@-."]
            if not others or any(unicodedata.category(char)[0] != "M" for char in others):
                return
        if match:
            raise InvalidArgumentError(
                f"the field {match[0][:60]!r} at character {self._at + 1} can't be read: put a name that has a dot, or "
                'an accent apart from its letter, in quotes, as resource."service.name":shop; in a text write '
                "\\: for the colon"
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
            raise InvalidArgumentError(f"{what} is not closed: add a ] or a }}")
        self._at += 1
        return Range(field, low, high, with_low=with_low, with_high=closing == "]")

    def _border(self, what: str) -> str | None:
        if self._next() in ("", *"()[]{}") or self._word() == "TO":
            raise InvalidArgumentError(f"{what} lacks a bound: write * for none")
        value = self._value()
        text = _exact(value)
        return None if text == "*" and value.is_prefix else text

    # --- the text -------------------------------------------------------------------------------

    def _next(self) -> str:
        """The next character that isn't a space; "" at the end."""
        while (char := self._text[self._at : self._at + 1]).isspace():
            self._at += 1
        return char

    def _take(self, pattern: re.Pattern[str], most: int = SEARCH_QUERY_CHARS) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at, self._at + most)
        self._at = match.end() if match else self._at
        return match

    def _word(self) -> str:
        """The word that comes next, as it is written."""
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
                f"{sign!r} at character {self._at - len(sign) + 1} lacks a value right behind it"
            )
        return self._value()

    def _value(self) -> _Value:
        begin = self._at
        if match := self._take(_QUOTED):
            if (not match[0].endswith('"') and match[2] is None) or len(match[0]) == 1:
                raise InvalidArgumentError(f"the query's quote at character {begin + 1} is not closed: add a \"")
            if match[2] == "":
                raise InvalidArgumentError(f'the ~ at character {self._at} lacks how many words apart: write "a b"~5')
            value = _Value(_ESCAPED.sub(r"\1", match[1]), match[2])
        else:
            match = self._take(_WORD)
            assert match is not None, "whatever isn't a sign is a word"
            value = _Value(_ESCAPED.sub(r"\1", match[0]), is_prefix=_PREFIX.fullmatch(match[0]) is not None)
        self._behind_value = self._at
        return value


def _exact(value: _Value) -> str:
    if value.apart is not None:
        raise InvalidArgumentError(f"~{value.apart[:20]} is about two words of a text, not about a bound: leave it out")
    return value.text


def _plain(value: _Value, field: str | None) -> Node:
    if (apart := value.apart) is not None:
        if not apart.isascii() or not apart.isdecimal() or not 0 < int(apart[:9]) <= SEARCH_APART:
            raise InvalidArgumentError(f"words lie 1 to {SEARCH_APART} words apart, not {apart[:20]!r}")
        return Term(field, value.text, int(apart))
    if not value.is_prefix:
        return Term(field, value.text)
    if len(value.text) > 1:
        return Term(field, value.text[:-1], is_prefix=True)
    if field is None:
        return And(())
    raise InvalidArgumentError(f"{field}:* says nothing about its value: write what it begins with")
