"""Settings of `nadi up`: read from a TOML file and printed as one.

Each setting is named after its option: `tls-cert` is `--tls-cert`. The command line takes precedence over the
environment, the environment over the file, and the file over the default. Typer implements this, as the file's values
become its map of defaults.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from nadi.config import OPTIONS, ConfigOption, OptionKind
from nadi.errors import InvalidArgumentError

_SETTINGS = {option.key: option for option in OPTIONS.values()}
_MOST_BYTES = 1 << 16  # parsing a larger file may take minutes
_NOT_IN_A_FILE = ("config", "print-config")
_RANKS = {"COMMANDLINE": 3, "ENVIRONMENT": 2, "DEFAULT_MAP": 1, "DEFAULT_MAP_FLAG": 1}
_TYPES = {
    OptionKind.TEXT: str,
    OptionKind.SIZE: str,
    OptionKind.NUMBER: int,
    OptionKind.SWITCH: bool,
    OptionKind.TEXTS: list,
}
_EXAMPLES = {
    OptionKind.TEXT: '"…"',
    OptionKind.SIZE: '"20GiB"',
    OptionKind.SWITCH: "true",
    OptionKind.TEXTS: '["…"]',
}
_NUMBERS = {"store_port": 12345, "rest_port": 9091, "kafka_port": 9092, "containers": 8, "workers": 2}
_NAMES = {bool: "true or false", int: "a number", float: "a decimal number", str: "a string", list: "a list"}


class Sources:
    """The source of each option's value."""

    def __init__(self, context: typer.Context, file: Path | None) -> None:
        self._file = file
        sources = {name: context.get_parameter_source(name) for name in OPTIONS}
        self._ranks = {name: _RANKS.get(source.name, 0) for name, source in sources.items() if source is not None}

    def rank(self, name: str) -> int:
        """Return the precedence of the option's source; 0 is the default."""
        return self._ranks.get(name, 0)

    def name(self, option: ConfigOption) -> str:
        """Return the option as the user gave it: `--data`, `NADI_STORE`, `nadi.toml: data`."""
        if (rank := self.rank(option.name)) == 1:
            return f"{self._file}: {option.key}"
        return option.variable if rank == 2 else f"--{option.key}"

    def derive(self, name: str, other: str) -> None:
        """Record that an option's value was derived from another option."""
        self._ranks[name] = self.rank(other)

    def as_toml(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of an equivalent settings file, each with its source."""
        for option in OPTIONS.values():
            if (value := values[option.name]) is None or value == []:
                default = option.default_text or str(option.default or "")
                yield f"# {option.key}: " + (f"default, {default}" if default else "not set")
            else:
                yield f"{option.key} = {_literal(value, option)}  # {self._source(option)}"

    def _source(self, option: ConfigOption) -> str:
        by_rank = ("default", str(self._file), f"environment: {option.variable}", "command line")
        return " ".join(by_rank[self.rank(option.name)].splitlines())


def _literal(value: Any, option: ConfigOption) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(item, option) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else _text(str(value), option)


def _text(value: str, option: ConfigOption) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(
                f"--{option.key} isn't valid UTF-8, which a settings file requires: rename it"
            ) from None
    return json.dumps(_without_secrets(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _without_secrets(value: str) -> str:
    """Remove user, password and query from a URL; no other setting contains secrets.

    >>> _without_secrets("https://me:secret@host/keys?sig=1"), _without_secrets("https://host/keys")
    ('https://…@host/keys?…', 'https://host/keys')
    """
    scheme, separator, rest = value.partition("://")
    if not separator:
        return value
    rest, query, _ = rest.partition("?")
    server, slash, path = rest.partition("/")
    if "@" in server:
        server = f"…@{server.rpartition('@')[2]}"
    return f"{scheme}://{server}{slash}{path}{'?…' if query else ''}"


# --- the settings file ------------------------------------------------------------------------------------


def read_settings(file: Path) -> dict[str, Any]:
    """Read a settings file; return values by option name.

    InvalidArgumentError: the file is unreadable or not TOML, or has an unknown key or an invalid value.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(f"can't read settings file {file}: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise InvalidArgumentError(f"{file} is larger than {_MOST_BYTES:,} bytes: is it a settings file?")
    try:
        values = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not TOML, or a number of thousands of digits
        raise InvalidArgumentError(f"{file} is not TOML: {error}") from error
    for key, value in values.items():
        if key not in _SETTINGS:
            raise InvalidArgumentError(f"{file}: {_unknown(key, value)}")
        option = _SETTINGS[key]
        if (problem := _problem(value, option)) is not None:
            number = option.default or _NUMBERS.get(option.name)
            example = f"{key} = {number if option.kind is OptionKind.NUMBER else _EXAMPLES[option.kind]}"
            raise InvalidArgumentError(f"{file}: {key} {problem}: use {option.allowed}, such as {example}")
    return {_SETTINGS[key].name: value for key, value in values.items()}


def _unknown(key: str, value: Any) -> str:
    name = repr(key[:60])
    if key.replace("_", "-") in _NOT_IN_A_FILE:
        return f"{name} is only available on the command line: remove it"
    if isinstance(value, dict) and any(name in _SETTINGS for name in value):
        return f"tables aren't allowed: remove the line [{key[:60]}]"
    near = difflib.get_close_matches(key.replace("_", "-").lower(), _SETTINGS, 1, 0.7)
    if near:
        return f"unknown setting {name}: did you mean {near[0]!r}?"
    return f"unknown setting {name}: the settings are {', '.join(_SETTINGS)}"


def _problem(value: Any, option: ConfigOption) -> str | None:
    kind = type(value)
    if kind is not _TYPES[option.kind]:  # a bool is an int, too
        return f"can't be {_NAMES.get(kind, 'a table' if kind is dict else 'a date or time')}"
    if kind is int:
        is_within = (option.least is None or value >= option.least) and (option.most is None or value <= option.most)
        return None if is_within else f"can't be {value}"
    if kind is bool:
        return None
    texts = value if kind is list else [value]
    if any(type(text) is not str for text in texts):
        return "has an entry that isn't a string"
    if "" in texts and option.default != "":
        return "is empty (omit it instead)"
    return "has a NUL character" if any("\0" in text for text in texts) else None
