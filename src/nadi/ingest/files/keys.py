"""Which routing key an event of a file has: what an expression finds in it, a field of its JSON, or its file's."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from nadi.errors import InvalidArgumentError
from nadi.model.field_path import KEY_FIELD, parse_path
from nadi.model.json_events import NotJsonError, key_in
from nadi.throttled_log import SeldomWarning

_log = logging.getLogger("nadi.ingest")

KeyOf = Callable[[bytes], str | None]  # None: that of the file


def by_pattern(text: str) -> KeyOf:
    """The group `key` of an expression, or its first one, or all that it matches."""
    pattern = compiled(text, "key pattern")
    group: str | int = "key" if "key" in pattern.groupindex else min(1, pattern.groups)

    def key_of(event: bytes) -> str | None:
        found = pattern.search(event)
        key = found[group] if found is not None else None
        return None if not key else key.decode("utf-8", "surrogateescape")

    return key_of


class FieldKey:
    """What takes the key out of a field of an event that is a JSON object, also one within another, as in `device.id`.

    A file can't be asked for another line: an event whose field can't be a key has its file's. refused: how many had;
    problem: why the last one was.
    """

    def __init__(self, path: str) -> None:
        self.refused, self.problem = 0, ""
        self._path = parse_path(path, KEY_FIELD)
        self._warn = SeldomWarning(_log, "%d events have the keys of their files instead, the last: %s")

    def __call__(self, event: bytes) -> str | None:
        try:
            return key_in(event, self._path)
        except NotJsonError:
            return None
        except InvalidArgumentError as error:
            self.refused, self.problem = self.refused + 1, str(error)
            self._warn(error)
            return None


def compiled(text: str, what: str) -> re.Pattern[bytes]:
    """An expression over bytes; InvalidArgumentError if it isn't one."""
    try:
        return re.compile(text.encode())
    except re.error as error:
        raise InvalidArgumentError(f"the {what} {text!r} is no regular expression: {error}") from None
