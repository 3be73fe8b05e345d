"""`python -m nadi.cli.admin.reference` prints the tables of docs/configuration.md, made of what `nadi up` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from nadi.cli.admin.settings import Setting, settings_of

_GENERAL = "In general"


def markdown(command: Callable[..., None]) -> str:
    """A table for each group of settings, in the order of `--help`."""
    return "\n".join(_lines(command)) + "\n"


def _lines(command: Callable[..., None]) -> Iterator[str]:
    panels = list(dict.fromkeys(one.panel for one in settings_of(command).values()))
    by_panel = sorted(settings_of(command).values(), key=lambda one: panels.index(one.panel))
    for number, (panel, settings) in enumerate(groupby(by_panel, key=lambda one: one.panel)):
        yield from [""] if number else []
        yield from (f"**{panel or _GENERAL}**", "", "| setting | is | default | |", "|---|---|---|---|")
        yield from map(_row, settings)


def _row(setting: Setting) -> str:
    variable = f" From the environment: `{setting.variable}`." if setting.variable else ""
    return f"| `{setting.key}` | {setting.allowed} | {setting.usual or '–'} | {setting.help}{variable} |"


if __name__ == "__main__":
    from nadi.cli.admin.up import up

    print(markdown(up), end="")
