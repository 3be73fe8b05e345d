"""How commands answer: a line, a table or JSON, and errors in words."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer


def say(text: str) -> None:
    """A line for a person."""
    typer.echo(text)


def failure(error: Exception) -> typer.Exit:
    """Says what went wrong on standard error; what it gives is to be raised, and ends the command with code 1."""
    from rich.console import Console

    Console(stderr=True, highlight=False).print(f"[red]error:[/red] {_plain(str(error))}", soft_wrap=True)
    return typer.Exit(1)


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Rows as a table of these columns, or whole as JSON."""
    if as_json:
        _print_json(rows)
    elif rows:
        _print_table(rows, columns)
    else:
        say(empty)


def _print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows)).decode() + "\n")


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    Console(highlight=False).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return _plain(", ".join(map(str, value)))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _plain(str(value))


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
