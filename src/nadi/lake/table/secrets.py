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
_PORT = r"(?!\d{1,5}(?:[/?#\s]|$))"  # whose digits are no password
# Up to the last "@", as what reads the address may see it. In a text with words around it, up to the next blank.
_OF_USER = re.compile(rf"(://[^/:@]*:){_PORT}(.+)(?=@)", re.DOTALL)
_OF_USER_IN_TEXT = re.compile(rf"(://[^\s/:@'\",]*:){_PORT}(\S+)(?=@)")
_OF_QUERY = re.compile(r"([?&;]([^\s=&;#?]{1,60})=)([^\s&;#'\"]+)")
_SECRET_IN_QUERY = re.compile(rf"{_SECRET.pattern}|pwd|signature|^sig$|^odbc_connect$", re.IGNORECASE)
_SHOWN = "***"
_LEAST_CHARS = 4  # a shorter secret would blot out the words of a text


def plain_secret(name: str, value: str) -> str | None:
    """What a property has that is secret and not a variable's name, in words; None if nothing is."""
    if _SECRET.search(name):
        return None if VARIABLE.search(value) else "a secret"
    return "a password" if _blotted(value, _OF_USER) != value else None


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without passwords in addresses, and without these secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _LEAST_CHARS:
            text = text.replace(secret, _SHOWN)
    return _blotted(text, _OF_USER_IN_TEXT)


def _blotted(text: str, of_user: re.Pattern[str]) -> str:
    return _changed(text, of_user, lambda password: _SHOWN if VARIABLE.sub("", password) else password)


def _changed(text: str, of_user: re.Pattern[str], change: Callable[[str], str]) -> str:
    """The text with the passwords in its addresses changed."""

    def in_query(found: re.Match[str]) -> str:
        return found[1] + change(found[3]) if _SECRET_IN_QUERY.search(found[2]) else found[0]

    return _OF_QUERY.sub(in_query, of_user.sub(lambda found: found[1] + change(found[2]), text))


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties as they may be shown: names of variables stay.

    >>> shown({"token": "sesame", "credential": "lake:${LAKE_SECRET}"})
    {'token': '***', 'credential': 'lake:${LAKE_SECRET}'}
    """
    return {
        name: _SHOWN if plain_secret(name, value) == "a secret" else _blotted(value, _OF_USER)
        for name, value in properties.items()
    }


def resolved(properties: Mapping[str, str], value_of: Callable[[str], str]) -> tuple[dict[str, str], list[str]]:
    """The properties with the values of their variables, and those of them that are secret. A variable is its own text:
    where it is a password within an address, what an address can't have is quoted."""
    secrets: list[str] = []

    def quoted(variable: re.Match[str]) -> str:
        value = value_of(variable[1])
        secrets.extend((value, quote(value, safe="")))
        return quote(value, safe="")

    def noted(password: str) -> str:
        secrets.append(password)
        return password

    made = {}
    for name, value in properties.items():
        whole = _changed(value, _OF_USER, lambda password: VARIABLE.sub(quoted, password))
        made[name] = VARIABLE.sub(lambda found: value_of(found[1]), whole)
        if _SECRET.search(name):
            secrets.append(made[name])
        _changed(made[name], _OF_USER, noted)
    return made, secrets
