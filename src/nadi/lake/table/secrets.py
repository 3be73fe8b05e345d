"""What of a catalog's properties is secret: named by a variable of the environment, kept out of the store, of messages
and of whatever else is shown.

A property is secret by its name, or has a password within its URI. Texts of others may quote an address: so errors pass
here.

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
from urllib.parse import quote, unquote

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET = re.compile(
    r"secret|password|passwd|pwd|passphrase|token|credential|(access|account|api|private).?key|connection-string"
    r"|^header\..*(authorization|cookie)",
    re.IGNORECASE,
)
_PORT = r"(?!\d{1,5}(?:[/?#\s]|$))"  # whose digits are no password
_OF_USER = re.compile(rf"(://[^/:@]*:){_PORT}(.+)(?=@$)", re.DOTALL)
_OF_USER_IN_WORD = re.compile(rf"(://[^/:@'\",]*:){_PORT}(.+)(?=@$)")
_WORD = re.compile(r"\S+")
_KEY = r"((?:^|[?&;])([^\s=&;#?]{1,60})=)"
_OF_QUERY = re.compile(_KEY + "([^&;]+)")
_OF_QUERY_IN_TEXT = re.compile(_KEY + r"([^\s&;#'\"]+)")
_SECRET_IN_QUERY = re.compile(rf"{_SECRET.pattern}|signature|^sig$|^pass$|^pw$|^odbc_connect$", re.IGNORECASE)
_SHOWN = "***"
_LEAST_CHARS = 4  # a shorter secret would blot out the words of a text


def plain_secret(name: str, value: str) -> str | None:
    """What a property has that is secret and not a variable's name, in words; None if nothing is."""
    if _SECRET.search(name) and not VARIABLE.search(value):
        return "a secret"
    return (
        "a password" if _changed(value, _hidden) != value else None
    )  # also beside a variable, as in a connection string


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without passwords in addresses, and without these secrets."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _LEAST_CHARS:
            text = text.replace(secret, _SHOWN)
    text = _WORD.sub(lambda word: _of_user(word[0], _OF_USER_IN_WORD, _hidden), text)
    return _of_query(text, _OF_QUERY_IN_TEXT, _hidden)


def _hidden(password: str) -> str:
    return _SHOWN if VARIABLE.sub("", password) else password


def _changed(text: str, change: Callable[[str], str]) -> str:
    return _of_query(_of_user(text, _OF_USER, change), _OF_QUERY, change)


def _of_user(text: str, of_user: re.Pattern[str], change: Callable[[str], str]) -> str:
    """Up to the last "@", as what reads the address may see it; what is behind that isn't looked at, which would take
    time that grows with its square."""
    before, at, after = text.rpartition("@")
    return of_user.sub(lambda found: found[1] + change(found[2]), before + at) + after


def _of_query(text: str, of_query: re.Pattern[str], change: Callable[[str], str]) -> str:
    def changed(found: re.Match[str]) -> str:
        return found[1] + change(found[3]) if _SECRET_IN_QUERY.search(unquote(found[2])) else found[0]

    return of_query.sub(changed, text)


def resolved(properties: Mapping[str, str], value_of: Callable[[str], str]) -> tuple[dict[str, str], list[str]]:
    """The properties with the values of their variables, and those of them that are secret. A variable is its own text:
    where it is a password within an address, what an address can't have is quoted."""
    secrets: list[str] = []

    def quoted(variable: re.Match[str]) -> str:
        value = value_of(variable[1])
        secrets.extend((value, quote(value, safe="")))
        return quote(value, safe="")

    def noted(password: str) -> str:
        secrets.extend((password, unquote(password)))
        return password

    made = {}
    for name, value in properties.items():
        whole = _changed(value, lambda password: VARIABLE.sub(quoted, password))
        made[name] = VARIABLE.sub(lambda found: value_of(found[1]), whole)
        if _SECRET.search(name):
            secrets.append(made[name])
        _changed(made[name], noted)
    return made, secrets
