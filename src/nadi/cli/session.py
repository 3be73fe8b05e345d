"""What the commands that talk to a server share: its address, one client for the command, tables and JSON, errors.

A command does its work in `with client(uri) as manager` and hands rows to `show`. Errors of nadi end the command with
their message and exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from nadi.client import StreamManager
from nadi.client.streams import DEFAULT_URI
from nadi.errors import NadiError

Controller = Annotated[
    str,
    typer.Option(
        "--controller", envvar="NADI_CONTROLLER", help="The controller, as tcp://host:port or tls://host:port."
    ),
]
TrustStore = Annotated[
    str | None, typer.Option(envvar="NADI_TRUST_STORE", help="PEM file of certificates to trust, with tls://.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one document for the whole answer.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]

__all__ = ["DEFAULT_URI", "AsJson", "Controller", "TrustStore", "Yes", "client", "say", "show"]


@contextmanager
def client(uri: str, trust_store: str | None = None) -> Iterator[StreamManager]:
    """A client of that controller; what goes wrong with it ends the command, in words."""
    try:
        with StreamManager(uri, trust_store=trust_store) as manager:
            yield manager
    except NadiError as error:
        Console(stderr=True, highlight=False).print(f"[red]error:[/red] {_plain(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from None


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Rows as a table of these columns, or whole as JSON."""
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows)).decode() + "\n")
        return
    if not rows:
        say(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    Console(highlight=False).print(table)


def say(text: str) -> None:
    """A line for a person."""
    Console(highlight=False).print(_plain(text), soft_wrap=True)


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return _plain(", ".join(map(str, value)))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _plain(str(value))


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
