"""What somebody has chosen for `nadi up`, and where: on the command line, in the environment, in a file, or nowhere.

The command line comes before the environment, that before the file, and the file before what is usual. Typer does that:
a file's values are put where it looks for defaults, before it looks at the other options.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from nadi.cli.admin.settings import Form, Setting, read_settings, settings_of
from nadi.errors import InvalidArgumentError

_RANKS = {"COMMANDLINE": 3, "ENVIRONMENT": 2, "DEFAULT_MAP": 1, "DEFAULT_MAP_FLAG": 1}


class Chosen:
    """The values of a command's options, by the names of parameters.

    command: its function. given: what that was called with, which Typer has made of what `context` has.
    """

    def __init__(self, context: typer.Context, command: Callable[..., None], given: Mapping[str, Any]) -> None:
        self._command, self._file = command, given["config"]
        self.values = {name: given[name] for name in self._by_name()}
        self._usual = {name: one.default for name, one in inspect.signature(command).parameters.items()}
        self._sources = {
            name: source.name for name in self.values if (source := context.get_parameter_source(name)) is not None
        }

    def rank(self, name: str) -> int:
        """What comes first has more; 0: nobody has chosen it."""
        return _RANKS.get(self._sources.get(name, ""), 0)

    def told(self, name: str) -> str:
        """How an error names what was chosen: `--data`, `NADI_STORE`, `nadi.toml: data`."""
        setting = self._by_name()[name]
        rank = self.rank(name)
        if rank == 1:
            return f"{self._file}: {setting.key}"
        return setting.variable if rank == 2 else f"--{setting.key}"

    def has_it_from(self, name: str, other: str) -> None:
        """Its value follows from that of another one, and so comes from where that does."""
        self._sources[name] = self._sources[other]

    def check_absent(self, names: Iterable[str], why: str) -> None:
        """InvalidArgumentError if any of these was chosen, to be other than usual; why: what is said of it."""
        for name in names:
            if self.values[name] not in ([], self._usual[name]):
                raise InvalidArgumentError(f"{self.told(name)} {why}")

    @contextmanager
    def checking(self, name: str) -> Iterator[None]:
        """What is found wrong meanwhile is so with this value; if it is the file's, the error says that."""
        try:
            yield
        except InvalidArgumentError as error:
            if self.rank(name) != 1:
                raise
            raise InvalidArgumentError(f"{self.told(name)}: {error}") from error

    def as_toml(self, effective: Mapping[str, Any]) -> Iterator[str]:
        """Lines of a file with which the command does the same, each with where it comes from."""
        for setting in self._by_name().values():
            value = effective[setting.name]
            if value is None or value in ([], ()):
                yield f"# {setting.key}: " + (f"default, {setting.usual}" if setting.usual else "not given")
            else:
                yield f"{setting.key} = {_literal(value, setting)}  # {self._whence(setting)}"

    def _whence(self, setting: Setting) -> str:
        by_rank = ("default", str(self._file), f"environment: {setting.variable}", "command line")
        return " ".join(by_rank[self.rank(setting.name)].splitlines())

    def _by_name(self) -> dict[str, Setting]:
        return {setting.name: setting for setting in settings_of(self._command).values()}


def take_settings(context: typer.Context, file: Path, command: Callable[..., None]) -> None:
    """Let the file's settings hold where neither command line nor environment say anything; to be called before the
    other options are looked at. InvalidArgumentError: as `read_settings`."""
    context.default_map = {**(context.default_map or {}), **read_settings(file, settings_of(command))}


def _literal(value: Any, setting: Setting) -> str:
    if setting.form is Form.TEXTS:
        return f"[{', '.join(_text(one, setting) for one in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else _text(str(value), setting)


def _text(value: str, setting: Setting) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError(f"--{setting.key} isn't UTF-8, and a file of settings is: rename it") from None
    return json.dumps(_without_secrets(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _without_secrets(value: str) -> str:
    """A URL's user and password, and its query, are left out; no setting has another secret.

    >>> _without_secrets("https://me:secret@host/keys?sig=1"), _without_secrets("https://host/keys")
    ('https://…@host/keys?…', 'https://host/keys')
    """
    scheme, found, rest = value.partition("://")
    if not found:
        return value
    rest, query, _ = rest.partition("?")
    place, slash, path = rest.partition("/")
    if "@" in place:
        place = f"…@{place.rpartition('@')[2]}"
    return f"{scheme}://{place}{slash}{path}{'?…' if query else ''}"
