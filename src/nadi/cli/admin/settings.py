"""The options of `nadi up` as settings of a TOML file, each under its own name: `--tls-cert` is `tls-cert`.

They are defined once, by the command's signature. What is read here of it says which settings there are, what each may
be, and what the guide's table has of them.
"""

from __future__ import annotations

import difflib
import inspect
import re
import tomllib
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any

from nadi.errors import InvalidArgumentError

_USUAL = re.compile(r"\s*\[default: ([^\]]*)\]")
_MOST_BYTES = 1 << 16  # of larger ones it may take minutes to say that they are none
_NOT_IN_A_FILE = ("config", "print_config")


class Form(Enum):
    """What a setting may be; the value is how that is said."""

    TEXT = "a text"
    NUMBER = "a whole number"
    SWITCH = "true or false"
    TEXTS = "a list of texts"


_EXAMPLES = {
    Form.TEXT: '"…"',
    Form.NUMBER: "1",
    Form.SWITCH: "true",
    Form.TEXTS: '["…"]',
}
_NAMES = {bool: "true or false", int: "a number", float: "a decimal number", str: "a text", list: "a list"}


@dataclass(frozen=True, slots=True)
class Setting:
    """name: of the parameter; key: of the setting, as of the option without its dashes. usual: what holds where nothing
    is given, in words; "" is nothing. variable: of the environment, which comes before a file. panel: of `--help`."""

    name: str
    key: str
    form: Form
    usual: str
    help: str
    variable: str
    panel: str
    least: int | None
    most: int | None
    may_be_empty: bool

    @property
    def allowed(self) -> str:
        """What it may be, in words."""
        if self.form is not Form.NUMBER or self.least is None:
            return self.form.value
        return f"{self.form.value} from {self.least} to {self.most}" if self.most is not None else (
            f"{self.form.value}, {self.least} or more"
        )  # fmt: skip


def settings_of(command: Callable[..., None]) -> dict[str, Setting]:
    """The settings of a command that Typer runs, by their keys."""
    hints = typing.get_type_hints(command, include_extras=True)
    given = inspect.signature(command).parameters
    found = [
        _setting(name, hint, given[name].default)
        for name, hint in hints.items()
        if name not in _NOT_IN_A_FILE and typing.get_origin(hint) is typing.Annotated
    ]
    return {setting.key: setting for setting in found}


def _setting(name: str, hint: Any, default: Any) -> Setting:
    kind, option = typing.get_args(hint)[:2]
    kinds = [one for one in typing.get_args(kind) if one is not NoneType] or [kind]
    declared = (option.default, *option.param_decls)  # Typer takes the first for a default, until the command is made
    names = [one for one in declared if isinstance(one, str) and one.startswith("--")]
    said = _USUAL.search(option.help)
    panel = option.rich_help_panel
    return Setting(
        name=name,
        key=(names[0] if names else name.replace("_", "-")).removeprefix("--"),
        form=_form(kind if typing.get_origin(kind) is list else kinds[0]),
        usual=said[1] if said is not None else _usual(default),
        help=_USUAL.sub("", option.help),
        variable=option.envvar or "",
        panel=panel if isinstance(panel, str) else "",
        least=option.min,
        most=option.max,
        may_be_empty=default == "",
    )


def _form(kind: Any) -> Form:
    if kind is bool:
        return Form.SWITCH
    if kind is int:
        return Form.NUMBER
    return Form.TEXTS if typing.get_origin(kind) is list else Form.TEXT


def _usual(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default is None else str(default)


# --- a file of them --------------------------------------------------------------------------------------


def read_settings(file: Path, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """What a file says, by the names of parameters.

    InvalidArgumentError: it can't be read, isn't TOML, or has something that is not a setting, or not what that
    setting may be.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(f"the settings in {file} can't be read: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise InvalidArgumentError(f"{file} has more than {_MOST_BYTES:,} bytes: it isn't a file of settings")
    try:
        found = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not TOML, or a number of thousands of digits
        raise InvalidArgumentError(f"{file} is not TOML: {error}") from error
    for key, value in found.items():
        if key not in settings:
            raise InvalidArgumentError(f"{file}: {_unknown(key, value, settings)}")
        if (wrong := _wrong(value, settings[key])) is not None:
            raise InvalidArgumentError(f"{file}: {key} {wrong}")
    return {settings[key].name: value for key, value in found.items()}


def _unknown(key: str, value: Any, settings: Mapping[str, Setting]) -> str:
    name = repr(key[:60])
    if key.replace("-", "_") in _NOT_IN_A_FILE:
        return f"{name} is an option of the command line alone: leave it out"
    if isinstance(value, dict) and any(one in settings for one in value):
        return f"there are no tables, and [{key[:60]}] begins one: leave that line out"
    near = difflib.get_close_matches(key.replace("_", "-").lower(), settings, 1, 0.7)
    if near:
        return f"there is no setting {name}: did you mean {near[0]!r}?"
    return f"there is no setting {name}: there are {', '.join(settings)}"


def _wrong(value: Any, setting: Setting) -> str | None:
    """What is wrong with a value; None if nothing is."""
    problem = _problem(value, setting)
    if problem is None:
        return None
    return f"{problem}: it is {setting.allowed}, such as {setting.key} = {_EXAMPLES[setting.form]}"


def _problem(value: Any, setting: Setting) -> str | None:
    kinds = {Form.TEXT: str, Form.NUMBER: int, Form.SWITCH: bool, Form.TEXTS: list}
    found = type(value)
    if found is not kinds[setting.form]:  # true is no number, though Python says so
        return f"can't be {_NAMES.get(found, 'a table' if found is dict else 'a time')}"
    if setting.form is Form.NUMBER:
        return None if _within(value, setting.least, setting.most) else f"can't be {value}"
    if setting.form is Form.SWITCH:
        return None
    texts = value if setting.form is Form.TEXTS else [value]
    if any(type(one) is not str for one in texts):
        return "has an entry that isn't a text"
    if "" in texts and not setting.may_be_empty:
        return "is empty (leave it out instead)"
    return "has a NUL character" if any("\0" in one for one in texts) else None


def _within(number: int, least: int | None, most: int | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)
