"""Paths to the fields of events that are JSON objects: the one syntax wherever nadi takes a field's name.

A path is names with dots between them, `resource.service.name`. A name of letters, digits, `_`, `@` and `-` stands as
it is; any other is quoted, `resource."service.name"`, with a quote in it doubled. Names without quotes may be joined in
an event: `log.level` is in `{"log": {"level": …}}` and in `{"log.level": …}`. Where an event has both, the longest name
that leads to a value counts: the latter. A name in quotes is that member alone. A member that is null isn't there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from nadi.errors import InvalidArgumentError
from nadi.limits import FIELD_PATH_NAMES

KEY_FIELD = "the key field"  # what a path is, of an option or a parameter for keys
_NAME = re.compile(r'"((?:[^"]|"")*)"|([\w@-]+)')
_SPELLING = (
    "Write names with dots between them, as resource.service.name, and in quotes a name with anything but letters, "
    'digits, _, @ and -, as resource."service.name"'
)


class FieldPath:
    """A path, parsed. text: as it was written.

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
        # of each dot: whether a name ends there; None where that may be
        self._dots: list[bool | None] = []
        for (name, _), is_fixed in zip(names, fixed, strict=True):
            self._dots += [False] * name.count(".")
            self._dots.append(True if is_fixed else None)
        self._dots.pop()
        self._end = len(names)
        # by where in the path one is: the names that may follow, the longest first, and where these lead
        self._ways: list[list[tuple[str, int]]] = []
        for start in range(len(names)):
            end = start + 1
            while end < len(names) and not fixed[end - 1]:
                end += 1
            joined = [(".".join(name for name, _ in names[start:to]), to) for to in range(end, start, -1)]
            self._ways.append(joined)

    @property
    def name(self) -> str | None:
        """The member that it is, where it is one of the event itself."""
        return self._ways[0][0][0] if len(self._ways) == 1 else None

    def find(self, value: Any, opened: Callable[[Any], Any] | None = None, at: int = 0) -> Any:
        """Return what an event has there; None where that is nothing. Of a list on the way, a list of what its elements
        have there. opened: of a value that isn't decoded, the dict, list or None that it is; what is neither stays."""
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
                found = self.find(member, opened, after)
                if found is not None:
                    return found
        elif type(value) is list:
            every: list[Any] = []
            for one in value:
                found = self.find(one, opened, at)
                every += found if type(found) is list else [] if found is None else [found]
            return every or None
        return None

    def may_be(self, other: FieldPath) -> bool:
        """Whether one member can be both."""
        return self._flat == other._flat and all(
            None in pair or pair[0] == pair[1] for pair in zip(self._dots, other._dots, strict=True)
        )

    def may_lie_within(self, other: FieldPath) -> bool:
        """Whether this may be a member of an object that is the other."""
        count = len(other._dots)
        return (
            self._flat.startswith(other._flat + ".")
            and self._dots[count] is not False
            and all(None in pair or pair[0] == pair[1] for pair in zip(self._dots, other._dots, strict=False))
        )


def parse_path(text: str, what: str = "the field") -> FieldPath:
    """InvalidArgumentError unless it is a path; what: it is, in the message."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what} is a text, not {type(text).__name__}")
    return _parsed(text, what)


@lru_cache(1_000)
def _parsed(text: str, what: str) -> FieldPath:
    names: list[tuple[str, bool]] = []
    at = 0
    while not names or at <= len(text):
        name = _NAME.match(text, at)
        if name is None or text[name.end() : name.end() + 1] not in ("", "."):
            raise InvalidArgumentError(f"{what} {_shown(text)} is not a field: {_problem(text, at)}. {_SPELLING}")
        names.append((name[2], False) if name[1] is None else (name[1].replace('""', '"'), True))
        at = name.end() + 1
    if len(names) > FIELD_PATH_NAMES:
        raise InvalidArgumentError(f"{what} {_shown(text)} has {len(names):,} names: {FIELD_PATH_NAMES} are the most")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{what} {_shown(text)} has half of a character at character {error.start + 1}: no event has such a name"
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
        return f"{text[at]!r} comes where a dot should after a name in quotes, at character {at + 1}"
    if text[at] == '"' and name is None:
        return f"its quote at character {at + 1} is not closed"
    return f"a name without quotes has no {text[at]!r}, as at character {at + 1}"
