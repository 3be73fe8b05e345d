"""The query language's parser.

    either   = both { "OR" both }
    both     = one { ["AND"] one }
    one      = ("NOT" | "-") one | "(" either ")" | [field ":"] value
    value    = word | prefix "*" | "quoted words" | "two words" "~" number | "(" either ")"
             | ("[" | "{") word "TO" word ("]" | "}") | (">" | ">=" | "<" | "<=") word

Words side by side must all be there. `_since:` and `_until:` bound the whole query by stream cuts, and so stand beside
its other parts, not within alternatives.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

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


Kind = Literal["word", "quoted", "sign"]
_SIGNS = "()[]{}"
_FIELD = re.compile(r'(?=[^\W\d]|[@"])(?:[\w.@-]++|"[^"\\]*+")++:')  # a path, see `field_path`
_MISSPELT = re.compile(r"(?=[^\W\d]|[@`])[\w@-]*(?:\.[\w@-]+)*(?:\\\.|\.?`)[\w.@\\`-]*:")  # one with \. or `
_MARKED = re.compile(r'(?=[^\W\d]|@)[^\s:\\"()\[\]{}]+:')  # one with accents or vowel signs, if it has such
_APART = re.compile(r"~([^\s()\[\]{}\"]*)")
_COMPARE = re.compile(r"[<>]=?")


@dataclass(frozen=True, slots=True)
class Word:
    """is_glued: nothing lies between it and the one before. apart: of quoted words, what stands behind a `~`. escaped:
    places in `text` that a backslash makes plain."""

    kind: Kind
    text: str
    at: int
    is_glued: bool
    apart: str = ""
    escaped: frozenset[int] = frozenset()

    @property
    def is_prefix(self) -> bool:
        return self.kind == "word" and self.text.endswith("*") and len(self.text) - 1 not in self.escaped


def words_of(text: str) -> list[Word]:
    """Split a query. A field's name is a sign that ends in a colon, as are `-` before something, and `>`, `>=`.

    >>> [word.text for word in words_of('level:error AND -("not found" ms:>=10)')]
    ['level:', 'error', 'AND', '-', '(', 'not found', 'ms:', '>=', '10', ')']
    """
    found: list[Word] = []
    at = end = 0
    while at < len(text):
        char = text[at]
        glued = at == end and bool(found)
        if char.isspace():
            at += 1
            continue
        if char in _SIGNS:
            found.append(Word("sign", char, at, glued))
            at += 1
        elif ((match := _FIELD.match(text, at, at + SEARCH_FIELD_CHARS + 1)) and not _is_after_field(found, glued)) or (
            _is_after_field(found, glued) and (match := _COMPARE.match(text, at))
        ):
            found.append(Word("sign", match[0], at, glued))
            at = match.end()
        elif char == '"':
            word, at = _quoted(text, at, glued)
            found.append(word)
        elif char == "-" and not glued_to_word(found, glued) and at + 1 < len(text) and not text[at + 1].isspace():
            found.append(Word("sign", "-", at, glued))
            at += 1
        else:
            if not _is_after_field(found, glued) and (match := _MISSPELT.match(text, at) or _with_marks(text, at)):
                raise InvalidArgumentError(
                    f"the field {match[0][:60]!r} at character {at + 1} can't be read: put a name that has a dot, or "
                    'an accent apart from its letter, in quotes, as resource."service.name":shop; in a text write '
                    "\\: for the colon"
                )
            word, at = _word(text, at, glued)
            found.append(word)
        end = at
    return found


def _with_marks(text: str, at: int) -> re.Match[str] | None:
    """What would be a field's name, were the accents and vowel signs that stand alone in it letters."""
    match = _MARKED.match(text, at)
    if match is None:
        return None
    others = [char for char in match[0][:-1] if not char.isalnum() and char not in "_@-."]
    return match if others and all(unicodedata.category(char)[0] == "M" for char in others) else None


def glued_to_word(found: list[Word], glued: bool) -> bool:
    """Whether what comes belongs to a value: a minus there is a part of it."""
    return glued and (found[-1].kind != "sign" or found[-1].text[-1] in ":<>=[{")


def _is_after_field(found: list[Word], glued: bool) -> bool:
    return glued and found[-1].kind == "sign" and found[-1].text.endswith((":", "<", ">", "="))


def _quoted(text: str, start: int, glued: bool) -> tuple[Word, int]:
    made, at = [], start + 1
    while at < len(text) and text[at] != '"':
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
        made.append(text[at])
        at += 1
    if at == len(text):
        raise InvalidArgumentError(f"the query's quote at character {start + 1} is not closed: add a \"")
    apart = _APART.match(text, at + 1)
    if apart is None:
        return Word("quoted", "".join(made), start, glued), at + 1
    if not apart[1]:
        raise InvalidArgumentError(f'the ~ at character {at + 2} lacks how many words apart: write "a b"~5')
    return Word("quoted", "".join(made), start, glued, apart[1]), apart.end()


def _word(text: str, start: int, glued: bool) -> tuple[Word, int]:
    made: list[str] = []
    escaped = set()
    at = start
    while at < len(text) and not text[at].isspace() and text[at] not in _SIGNS and text[at] != '"':
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            escaped.add(len(made))
        made.append(text[at])
        at += 1
    return Word("word", "".join(made), start, glued, escaped=frozenset(escaped)), at


_OPERATORS = ("AND", "OR", "NOT", "TO")
_SINCE, _UNTIL = "_since", "_until"


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
    return _Parser(words_of(text)).parsed()


def check_text(text: str, what: str) -> None:
    """InvalidArgumentError for one with half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} can't be sent: its character {error.start + 1} is half of one") from None


class _Parser:
    def __init__(self, words: list[Word]) -> None:
        self._words, self._at = words, 0
        self._bounds: dict[str, str] = {}
        self._depth = 0

    def parsed(self) -> Parsed:
        node: Node = And(())
        if self._words:
            node = self._either(None, top=True)
            if (left := self._next()) is not None:
                raise InvalidArgumentError(f"{left.text!r} at character {left.at + 1} has nothing to close")
        return Parsed(node, self._bounds.get(_SINCE), self._bounds.get(_UNTIL))

    def _either(self, field: str | None, *, top: bool = False) -> Node:
        self._depth += 1
        if self._depth > SEARCH_QUERY_DEPTH:
            raise InvalidArgumentError(f"a query has at most {SEARCH_QUERY_DEPTH} parentheses within each other")
        bounds = len(self._bounds)
        parts = [self._both(field, top)]
        while self._takes("OR"):
            parts.append(self._both(field, top))
        if len(parts) > 1 and len(self._bounds) > bounds:
            raise InvalidArgumentError(f"{_SINCE} and {_UNTIL} bound the whole query: put its alternatives in ( )")
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _both(self, field: str | None, top: bool) -> Node:
        parts: list[Node] = []
        bounded = False
        while True:
            if top and self._bound():
                bounded = True
            else:
                parts.append(self._one(field))
            if self._takes("AND"):
                continue
            word = self._next()
            if word is None or self._is_operator(word, "OR") or (word.kind == "sign" and word.text == ")"):
                break
        if not parts:
            assert bounded
            return And(())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _bound(self) -> bool:
        """Take `_since:` or `_until:`, if it comes."""
        word = self._next()
        if word is None or word.kind != "sign" or word.text[:-1] not in (_SINCE, _UNTIL):
            return False
        self._at += 1
        name = word.text[:-1]
        if name in self._bounds:
            raise InvalidArgumentError(f"{name} stands twice in the query: leave one out")
        value = self._value_of(word)
        _check_exact(value)
        self._bounds[name] = value.text
        return True

    def _one(self, field: str | None) -> Node:
        word = self._next()
        if word is None:
            before = self._words[-1]
            raise InvalidArgumentError(f"after {before.text!r} the query lacks what it is about")
        self._at += 1
        if self._is_operator(word, "NOT") or (word.kind == "sign" and word.text == "-"):
            self._depth += 1
            if self._depth > SEARCH_QUERY_DEPTH:
                raise InvalidArgumentError(f"a query has at most {SEARCH_QUERY_DEPTH} NOTs within each other")
            part = self._one(field)
            self._depth -= 1
            return Not(part)
        if word.kind == "sign":
            return self._sign(word, field)
        if word.kind == "word" and not word.escaped and word.text in _OPERATORS:
            raise InvalidArgumentError(f"{word.text} at character {word.at + 1} has nothing before it")
        return _plain(word, field)

    def _sign(self, word: Word, field: str | None) -> Node:
        if word.text == "(":
            node = self._either(field)
            if not self._takes_sign(")"):
                raise InvalidArgumentError(f"the parenthesis at character {word.at + 1} is not closed: add a )")
            return node
        if word.text[:-1] in (_SINCE, _UNTIL):
            raise InvalidArgumentError(f"{word.text[:-1]} bounds the whole query: put it outside of parentheses")
        if not word.text.endswith(":"):
            raise InvalidArgumentError(f"{word.text!r} at character {word.at + 1} is out of place: quote it")
        if field is not None:
            raise InvalidArgumentError(f"{word.text} stands within what is about {field}: close that before")
        return self._value(word)

    def _value(self, name: Word) -> Node:
        """What comes after a field's name."""
        field = name.text[:-1]
        following = self._next()
        if following is not None and following.kind == "sign" and following.is_glued:
            if following.text == "(":
                return self._one(field)
            if following.text in ("[", "{"):
                self._at += 1
                return self._range(field, following)
            if following.text in ("<", "<=", ">", ">="):
                self._at += 1
                bound = self._value_of(following)
                _check_exact(bound)
                value, with_it = bound.text, following.text.endswith("=")
                if following.text.startswith(">"):
                    return Range(field, value, None, with_low=with_it)
                return Range(field, None, value, with_high=with_it)
        return _plain(self._value_of(name), field)

    def _range(self, field: str, opening: Word) -> Node:
        low = self._border(opening)
        if not self._takes("TO"):
            raise InvalidArgumentError(f"the range at character {opening.at + 1} lacks TO: write [low TO high]")
        high = self._border(opening)
        closing = self._next()
        if closing is None or closing.kind != "sign" or closing.text not in ("]", "}"):
            raise InvalidArgumentError(f"the range at character {opening.at + 1} is not closed: add a ] or a }}")
        self._at += 1
        return Range(field, low, high, with_low=opening.text == "[", with_high=closing.text == "]")

    def _border(self, opening: Word) -> str | None:
        word = self._next()
        minus = ""
        if word is not None and word.kind == "sign" and word.text == "-":
            self._at += 1
            minus, word = "-", self._next()
        if word is None or word.kind == "sign" or self._is_operator(word, "TO"):
            raise InvalidArgumentError(f"the range at character {opening.at + 1} lacks a bound: write * for none")
        self._at += 1
        _check_exact(word)
        text = minus + word.text
        return None if text == "*" and word.is_prefix else text

    def _value_of(self, sign: Word) -> Word:
        word = self._next()
        if word is None or word.kind == "sign" or not word.is_glued:
            raise InvalidArgumentError(f"{sign.text!r} at character {sign.at + 1} lacks a value right behind it")
        self._at += 1
        return word

    def _next(self) -> Word | None:
        return self._words[self._at] if self._at < len(self._words) else None

    def _is_operator(self, word: Word, text: str) -> bool:
        return word.kind == "word" and word.text == text and not word.escaped

    def _takes(self, operator: str) -> bool:
        word = self._next()
        if word is None or not self._is_operator(word, operator):
            return False
        self._at += 1
        return True

    def _takes_sign(self, text: str) -> bool:
        word = self._next()
        if word is None or word.kind != "sign" or word.text != text:
            return False
        self._at += 1
        return True


def _check_exact(word: Word) -> None:
    if word.apart:
        raise InvalidArgumentError(f"~{word.apart[:20]} is about two words of a text, not about a bound: leave it out")


def _plain(word: Word, field: str | None) -> Node:
    if word.apart:
        if not word.apart.isascii() or not word.apart.isdecimal() or not 0 < int(word.apart[:9]) <= SEARCH_APART:
            raise InvalidArgumentError(f"words lie 1 to {SEARCH_APART} words apart, not {word.apart[:20]!r}")
        return Term(field, word.text, int(word.apart))
    if word.is_prefix:
        if len(word.text) > 1:
            return Term(field, word.text[:-1], is_prefix=True)
        if field is None:
            return And(())
        raise InvalidArgumentError(f"{field}:* says nothing about its value: write what it begins with")
    return Term(field, word.text)
