"""A query's text as words, quoted texts and signs: each knows where it begins, for errors, and what it touches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from nadi.errors import InvalidArgumentError

Kind = Literal["word", "quoted", "sign"]
_SIGNS = "()[]{}"
_FIELD = re.compile(r"[A-Za-z_@][A-Za-z0-9_.@-]*:")
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
        elif char == '"':
            word, at = _quoted(text, at, glued)
            found.append(word)
        elif ((match := _FIELD.match(text, at)) and not _is_after_field(found, glued)) or (
            _is_after_field(found, glued) and (match := _COMPARE.match(text, at))
        ):
            found.append(Word("sign", match[0], at, glued))
            at = match.end()
        elif char == "-" and not glued_to_word(found, glued) and at + 1 < len(text) and not text[at + 1].isspace():
            found.append(Word("sign", "-", at, glued))
            at += 1
        else:
            word, at = _word(text, at, glued)
            found.append(word)
        end = at
    return found


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
