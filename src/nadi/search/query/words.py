"""A query's text as words, quoted texts and signs: each knows where it begins, for errors, and what it touches."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_FIELD_CHARS

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
