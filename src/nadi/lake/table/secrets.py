"""What of a catalog's properties is secret: named by a variable of the environment, kept out of the store, of messages
and of whatever else is shown.

A property is secret by its name, or has a password within its URI. Definitions that were made before passwords within
URIs were refused may have one, and texts of others may quote an address: so what is shown passes here.

>>> plain_secret("uri", "postgresql://lake:sesame@db/catalog")
'a password'
>>> plain_secret("uri", "postgresql://lake:${LAKE_PASSWORD}@db/catalog") is None
True
>>> without_secrets("can't reach postgresql://lake:sesame@db/catalog")
"can't reach postgresql://lake:***@db/catalog"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(
    r"secret|password|passwd|token|credential|(access|account|api|private).?key|connection-string"
    r"|^header\..*(authorization|cookie)",
    re.IGNORECASE,
)
# A password goes up to the last "@" of the address, as what reads it may see it so; a port's digits are none.
_OF_USER = re.compile(r"(://[^\s/?#:@'\",]*:)(?!\d{1,5}(?:[/?#\s]|$))([^\s]+)(?=@)")
_OF_QUERY = re.compile(
    r"([?&;][^\s=&;#]*(?:secret|password|passwd|pwd|token|credential|signature|(?:access|account|api|private).?key"
    r"|odbc_connect)[^\s=&;#]*=|[?&;]sig=)([^\s&;#'\"]+)",
    re.IGNORECASE,
)
_SHOWN = "***"
_LEAST_CHARS = 4  # a shorter secret would blot out the words of a text


def plain_secret(name: str, value: str) -> str | None:
    """What a property has that is secret and not a variable's name, in words; None if nothing is."""
    if _SECRET.search(name):
        return None if VARIABLE.search(value) else "a secret"
    found = [*_OF_USER.finditer(value), *_OF_QUERY.finditer(value)]
    return "a password" if any(VARIABLE.sub("", one[2]) for one in found) else None


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without passwords in addresses, and without these secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _LEAST_CHARS:
            text = text.replace(secret, _SHOWN)
    for pattern in (_OF_USER, _OF_QUERY):
        text = pattern.sub(lambda found: found[1] + (_SHOWN if VARIABLE.sub("", found[2]) else found[2]), text)
    return text


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties as they may be shown: names of variables stay.

    >>> shown({"token": "sesame", "credential": "lake:${LAKE_SECRET}"})
    {'token': '***', 'credential': 'lake:${LAKE_SECRET}'}
    """
    return {
        name: _SHOWN if plain_secret(name, value) == "a secret" else without_secrets(value)
        for name, value in properties.items()
    }


def resolved(properties: Mapping[str, str], value_of: Callable[[str], str]) -> tuple[dict[str, str], list[str]]:
    """The properties with the values of their variables, and those of them that are secret. A variable is its own text:
    where it is a password within an address, what an address can't have is quoted."""
    secrets: list[str] = []

    def within(found: re.Match[str]) -> str:
        def quoted(variable: re.Match[str]) -> str:
            value = value_of(variable[1])
            secrets.extend((value, quote(value, safe="")))
            return quote(value, safe="")

        return found[1] + VARIABLE.sub(quoted, found[2])

    made = {}
    for name, value in properties.items():
        whole = _OF_QUERY.sub(within, _OF_USER.sub(within, value))
        made[name] = VARIABLE.sub(lambda found: value_of(found[1]), whole)
        if _SECRET.search(name):
            secrets.append(made[name])
        secrets += [one[2] for pattern in (_OF_USER, _OF_QUERY) for one in pattern.finditer(made[name])]
    return made, secrets
