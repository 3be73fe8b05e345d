"""Which names engines and registries take: all of them the same, so that what runs on a folder runs on a store."""

from __future__ import annotations

import re

from nadi.errors import InvalidNameError

_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9.-]*(/[A-Za-z0-9-][A-Za-z0-9.-]*)*")
_LONGEST = 200  # of each part, as files may have 255 with what is appended; of all parts together, see S3: 1,024
_LONGEST_ALL = 800


def check_name(name: str) -> None:
    """Raise InvalidNameError unless it may be stored under.

    >>> check_name("log/3/7.frame")
    >>> check_name("log/../3")
    Traceback (most recent call last):
    nadi.errors.InvalidNameError: 'log/../3' is not a valid object name: letters, digits, - and ., in folders by /
    """
    if len(name) > _LONGEST_ALL or not _NAME.fullmatch(name) or max(map(len, name.split("/"))) > _LONGEST:
        raise InvalidNameError("valid object", name, "letters, digits, - and ., in folders by /")
