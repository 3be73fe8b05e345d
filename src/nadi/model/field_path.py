"""Paths to fields of JSON events, with one syntax wherever nadi takes a field's name.

A path is a sequence of names joined by dots, such as `resource.service.name`. Names of letters, digits, `_`, `@` and
`-` are written plainly; others are quoted, `resource."service.name"`, with quotes doubled. Plain names also match
joined members: `log.level` matches `{"log": {"level": …}}` and `{"log.level": …}`. If an event has both, the longest
member name that leads to a value wins: the latter. A quoted name matches that member alone. null counts as missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from nadi.errors import InvalidArgumentError
from nadi.limits import FIELD_PATH_NAMES

KEY_FIELD = "the key field"  # name of a path to routing keys in messages
_NAME = re.compile(r'"((?:[^"]|"")*)"|([\w@-]+)')
_SPELLING = (
    "Join names with dots, such as resource.service.name, and quote names with characters other than letters, "
    'digits, _, @ and -, such as resource."service.name"'
)


class FieldPath:
    """A parsed path. text: the original spelling.

    >>> path = parse_path("log.level")
    >>> path.find({"log": {"level": "info"}}), path.find({"log.level": "error", "log": {"level": "info"}})
    ('info', 'error')
    """

    __slots__ = ("_dots", "_end", "_flat", "_ways", "text")

    def __init__(self, text: str, names: list[tuple[str, bool]]) -> None:
        """names: each with whether it was quoted."""
        following = [quoted for _, quoted in names[1:]]
        fixed = [quoted or after for (_, quoted), after in zip(names, [*following, True], strict=True)]
        self.text = text
        self._flat = ".".join(name for name, _ in names)
        # for each dot: whether a member name ends there; None if both are possible
        self._dots: list[bool | None] = []
        for (name, _), is_fixed in zip(names, fixed, strict=True):
            self._dots += [False] * name.count(".")
            self._dots.append(True if is_fixed else None)
        self._dots.pop()
        self._end = len(names)
        # for each index in the path: the possible next member names, the longest first, and the index after each
        self._ways: list[list[tuple[str, int]]] = []
        for start in range(len(names)):
            end = start + 1
            while end < len(names) and not fixed[end - 1]:
                end += 1
            joined = [(".".join(name for name, _ in names[start:to]), to) for to in range(end, start, -1)]
            self._ways.append(joined)

    @property
    def name(self) -> str | None:
        """The member's name, if the path is a top-level member."""
        return self._ways[0][0][0] if len(self._ways) == 1 else None

    def find(self, value: Any, opened: Callable[[Any], Any] | None = None, at: int = 0) -> Any:
        """Return the value at the path, or None; if the path crosses a list, a list of its elements' values.

        opened: decodes a lazy value to a dict, list or None, and returns other values unchanged.
        """
        if opened is not None:
            value = opened(value)
        if at == self._end:
            return value
        if type(value) is dict:
            for name, after in self._ways[at]:
                member = value.get(name)
                if member is None:
                    continue
                if after == self._end and opened is None:
                    return member
                nested = self.find(member, opened, after)
                if nested is not None:
                    return nested
        elif type(value) is list:
            values: list[Any] = []
            for element in value:
                nested = self.find(element, opened, at)
                values += nested if type(nested) is list else [] if nested is None else [nested]
            return values or None
        return None

    def may_be(self, other: FieldPath) -> bool:
        """Return whether both paths can match the same member."""
        return self._flat == other._flat and all(
            None in pair or pair[0] == pair[1] for pair in zip(self._dots, other._dots, strict=True)
        )

    def may_lie_within(self, other: FieldPath) -> bool:
        """Return whether this path can match a member of an object that `other` matches."""
        count = len(other._dots)
        return (
            self._flat.startswith(other._flat + ".")
            and self._dots[count] is not False
            and all(None in pair or pair[0] == pair[1] for pair in zip(self._dots, other._dots, strict=False))
        )


def parse_path(text: str, subject: str = "the field") -> FieldPath:
    """Parse a path; InvalidArgumentError. subject: its name in messages."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{subject} must be a string, not {type(text).__name__}")
    return _parsed(text, subject)


@lru_cache(1_000)
def _parsed(text: str, subject: str) -> FieldPath:
    names: list[tuple[str, bool]] = []
    at = 0
    while not names or at <= len(text):
        name = _NAME.match(text, at)
        if name is None or text[name.end() : name.end() + 1] not in ("", "."):
            raise InvalidArgumentError(f"{subject} {_shown(text)} is not a field: {_problem(text, at)}. {_SPELLING}")
        names.append((name[2], False) if name[1] is None else (name[1].replace('""', '"'), True))
        at = name.end() + 1
    if len(names) > FIELD_PATH_NAMES:
        raise InvalidArgumentError(
            f"{subject} {_shown(text)} has {len(names):,} names: the limit is {FIELD_PATH_NAMES}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{subject} {_shown(text)} has half a surrogate pair at character {error.start + 1}: no event has it"
        ) from None
    return FieldPath(text, names)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def _problem(text: str, at: int) -> str:
    if not text:
        return "it is empty"
    if at == len(text):
        return "it ends with a dot"
    if text[at] == ".":
        return f"a name is empty at character {at + 1}"
    name = _NAME.match(text, at)
    if name is not None:
        at = name.end()
    if name is not None and name[1] is not None:
        return f"{text[at]!r} follows a quoted name instead of a dot, at character {at + 1}"
    if text[at] == '"' and name is None:
        return f"the quote at character {at + 1} is not closed"
    return f"{text[at]!r} is not allowed in a name without quotes, at character {at + 1}"
