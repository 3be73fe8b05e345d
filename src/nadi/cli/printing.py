"""How commands answer: a line; a table, JSON or CSV; and errors in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from nadi.errors import NadiError, NotFoundError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from nadi.client import Unreadable
    from nadi.process.members import WorkerInfo

_ANY_WIDTH = 1_000_000
INTERRUPTED = 130  # the exit code, as shells have it


class Form(StrEnum):
    """How a command prints rows: for people, or for other programs."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def say(text: str) -> None:
    """Print a line for a person; what would move or colour a terminal, as an escape."""
    typer.echo(plain(text))


def warn(text: str) -> None:
    """Print a line for a person on standard error, beside what the command prints for others."""
    typer.echo(plain(text), err=True)


def confirm(question: str, yes: bool = False) -> None:
    """Ask, unless --yes was given; end the command at a no."""
    if not yes:
        typer.confirm(plain(question), abort=True)


def say_gone(was_there: bool, done: str, missing: str) -> None:
    """Print what was deleted; NotFoundError, with which the command ends, if nothing had that name."""
    if not was_there:
        raise NotFoundError(f"there was no {missing}: nothing was changed, check its spelling")
    say(done)


def failure(error: Exception, code: int = 1) -> typer.Exit:
    """Print what went wrong on standard error; return the exception to raise, which ends the command with that code."""
    from rich.console import Console

    Console(stderr=True, highlight=False).print(f"[red]error:[/red] {_unmarked(str(error))}", soft_wrap=True)
    return typer.Exit(code)


@contextmanager
def errors_told(*more: type[Exception]) -> Iterator[None]:
    """End the command with the message of nadi's errors, and of these."""
    kinds: tuple[type[Exception], ...] = (NadiError, *more)
    try:
        yield
    except kinds as error:
        raise failure(error) from None


def show(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] = (),
    *,
    form: Form,
    empty: str = "",
    unreadable: Sequence[Unreadable] = (),
) -> None:
    """Print rows as a table of these columns, or all of their fields as JSON, or as CSV. Records that are unreadable
    have a row, too, with their name in the first column, and the problem."""
    if unreadable:
        unknown = dict.fromkeys(columns)
        bad = [unknown | {columns[0]: one.name, "problem": one.problem} for one in unreadable]
        rows, columns = [*({**row, "problem": None} for row in rows), *bad], [*columns, "problem"]
    if form is Form.JSON:
        print_json(rows)
    elif form is Form.CSV:
        _print_csv(rows, columns)
    elif rows:
        output().print(table_of(rows, columns))
    else:
        say(empty)


def print_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value)))


def show_fields(row: Mapping[str, Any], form: Form) -> None:
    """Print one row, as a table with a line for each of its fields."""
    if form is Form.TABLE:
        show([{"": key, " ": value} for key, value in row.items()], ["", " "], form=form)
    else:
        show([row], form=form)


@contextmanager
def bar(what: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Give a function of the number of bytes done, and of another `description` or `total`; on a terminal it draws a
    bar of them on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    text, size = TextColumn("{task.description}"), DownloadColumn(binary_units=True)
    columns = text, BarColumn(), size, TransferSpeedColumn(), TimeRemainingColumn()
    is_shown = not quiet and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as drawn:
        task = drawn.add_task(what, total=total)

        def report(done_bytes: int, **changed: Any) -> None:
            drawn.update(task, completed=done_bytes, **changed)

        yield report


def _print_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Values without a plain text are JSON, within a field; what is unknown is an empty field."""
    import csv
    import io

    import msgspec

    def field(value: object) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        return msgspec.json.encode(value).decode()

    names = list(dict.fromkeys(name for row in rows for name in row)) or list(columns)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(names)
    lines.writerows([field(row.get(name)) for name in names] for row in rows)
    typer.echo(text.getvalue(), nl=False)


def output() -> Console:
    """Standard output; as wide as it takes where it isn't a terminal, since programs take a line for a row."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = _ANY_WIDTH
    return console


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """The rows as a table of these columns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:  # not known, as in `nadi group show`
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        value = [f"{name} {_cell(one)}" for name, one in value.items()]
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return _unmarked(text).replace("\n", r"\n")


def plain(text: str) -> str:
    """As it is, but for what would move or colour a terminal."""
    return "".join([one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text])


def _unmarked(text: str) -> str:
    """Plain, for the library that colours it."""
    return plain(text).replace("[", r"\[")


def processes(kind: str, members: Iterable[WorkerInfo]) -> dict[str, str]:
    """Those that work at something, as a field of a table for each."""
    return {
        f"{kind} {number}": f"{one.host}, process {one.pid}, {one.segments} segments, {one.events:,} events, "
        f"{one.events_per_s:,.0f} events/s{f', last error: {one.last_error}' if one.last_error else ''}"
        for number, one in enumerate(members, 1)
    }
