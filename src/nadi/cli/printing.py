"""Output of commands: lines, tables, JSON, CSV and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from nadi.errors import InvalidArgumentError, NadiError, NotFoundError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from nadi.client import Unreadable
    from nadi.process.members import WorkerInfo

_ANY_WIDTH = 1_000_000
INVALID, INTERRUPTED = 2, 130  # exit codes, like those of typer and of shells


class Form(StrEnum):
    """Output format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def say(text: str) -> None:
    """Print a line, with control characters escaped."""
    typer.echo(plain(text))


def warn(text: str) -> None:
    """Print a line on standard error, with control characters escaped."""
    typer.echo(plain(text), err=True)


def confirm(question: str, yes: bool = False) -> None:
    """Ask for confirmation unless `yes`; abort the command if the user declines."""
    if not yes:
        typer.confirm(plain(question), abort=True)


def report_deleted(was_there: bool, done: str, missing: str) -> None:
    """Print `done`; NotFoundError if nothing was deleted."""
    if not was_there:
        raise NotFoundError(f"{missing} doesn't exist: check the spelling")
    say(done)


def failure(error: Exception, code: int = 1) -> typer.Exit:
    """Print an error on standard error; return the exception that ends the command with this exit code."""
    from rich.console import Console

    Console(stderr=True, highlight=False).print(f"[red]error:[/red] {_unmarked(str(error))}", soft_wrap=True)
    return typer.Exit(code)


@contextmanager
def reporting_errors(*more: type[Exception]) -> Iterator[None]:
    """End the command with the message of an error of nadi's, or of one of these types, and its exit code."""
    kinds: tuple[type[Exception], ...] = (NadiError, *more)
    try:
        yield
    except kinds as error:
        raise failure(error, INVALID if isinstance(error, InvalidArgumentError) else 1) from None


def show(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] = (),
    *,
    form: Form,
    empty: str = "",
    unreadable: Sequence[Unreadable] = (),
) -> None:
    """Print rows: as a table of these columns, or with all their fields as JSON or CSV. An unreadable record is a row
    with its name in the first column and the problem in the last."""
    if unreadable:
        unknown = dict.fromkeys(columns)
        bad = [unknown | {columns[0]: record.name, "problem": record.problem} for record in unreadable]
        rows, columns = [*({**row, "problem": None} for row in rows), *bad], [*columns, "problem"]
    if form is Form.JSON:
        print_json(rows)
    elif form is Form.CSV:
        _print_csv(rows, columns)
    elif rows:
        table = table_of(rows, columns)
        for column in table.columns:
            column.header = str(column.header).replace("_", " ")
        output().print(table)
    else:
        say(empty)


def print_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value)))


def show_fields(row: Mapping[str, Any], form: Form) -> None:
    """Print one row; as a table, one line per field."""
    if form is Form.TABLE:
        show([{"": key.replace("_", " "), " ": value} for key, value in row.items()], ["", " "], form=form)
    else:
        show([row], form=form)


@contextmanager
def bar(what: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error if that is a terminal. Yields a function that updates the bytes done, and
    optionally `description` and `total`."""
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
    """Print CSV: nested values as JSON within a field, None as an empty field."""
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
    """Return a console on standard output; without a terminal it is never wrapped, so that each row is one line."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = _ANY_WIDTH
    return console


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """Return a table of these columns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:  # unknown, as in `nadi group show`
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        value = [f"{name} {_cell(item)}" for name, item in value.items()]
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return _unmarked(text).replace("\n", r"\n")


def plain(text: str) -> str:
    """Escape control characters."""
    return "".join([char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text])


def _unmarked(text: str) -> str:
    """Escape control characters and rich's markup."""
    return plain(text).replace("[", r"\[")


def utc(at: datetime | int, timespec: str = "seconds") -> str:
    """Return a time, or milliseconds since 1970, as text.

    >>> utc(1_794_610_800_000)
    '2026-11-13T23:00:00Z'
    """
    moment = at if isinstance(at, datetime) else datetime.fromtimestamp(at / 1000, UTC)
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def processes(kind: str, members: Iterable[WorkerInfo]) -> dict[str, str]:
    """Return a field per worker, for `show_fields`."""
    from nadi.naming import plural  # imported here: it loads limits

    return {
        f"{kind}_{number}": f"{member.host}, process {member.pid}, {plural(member.segments, 'segment')}, "
        f"{plural(member.events, 'event')}, {member.events_per_s:,.0f} events/s"
        f"{f', last error: {member.last_error}' if member.last_error else ''}"
        for number, member in enumerate(members, 1)
    }
