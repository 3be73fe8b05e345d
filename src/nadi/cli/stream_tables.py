"""`nadi stream-table`: definitions of streams as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from nadi.cli.options import POSITION, SEVERAL, Note, OfStream, Scope, cut_at
from nadi.cli.printing import INTERRUPTED, say, utc, warn
from nadi.cli.session import Resource, Row, option, taking
from nadi.defaults import VALUE_FORMATS
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager, TableDefinition
    from nadi.client.streamtables.change_writer import IfUnknown

Name = Annotated[str, typer.Argument(help="Name of the table: letters, digits, '.' and '-'.")]


def _columns(manager: StreamManager, definition: TableDefinition) -> str:
    from nadi.client.streamtables.table import StreamTable

    return ", ".join(f"{field.name} {field.type}" for field in StreamTable(manager, definition).schema)


def _row(definition: TableDefinition) -> Row:
    return {
        "table": definition.name,
        "stream": definition.stream,
        "key": definition.key,
        "event_time": definition.event_time,
        "format": definition.value_format,
        "schema": definition.value_schema,
        "mode": definition.value_mode,
        "created_at": utc(definition.created_at),
        "note": definition.note,
    }


def _rows(manager: StreamManager, scope: str, stream: str | None) -> Any:
    definitions, unreadable = manager.stream_tables(scope).list_with_unreadable(stream=stream)
    return [_row(each) | {"columns": each.value_schema or "of the stream's schema"} for each in definitions], unreadable


def _show(manager: StreamManager, scope: str, name: str) -> Row:
    """Return a definition with its current columns."""
    definition = manager.stream_tables(scope).get(name)
    try:
        return _row(definition) | {"columns": _columns(manager, definition)}
    except InvalidArgumentError as error:  # the stream's schema has changed
        return _row(definition) | {"columns": f"unreadable: {error}"}


stream_table_app = Resource(
    noun="stream table",
    names={"scope": Scope, "name": Name},
    columns=["table", "stream", "key", "event_time", "columns", "note"],
    rows=_rows,
    filters={"stream": OfStream},
    show=_show,
    delete=lambda manager, scope, name: manager.stream_tables(scope).delete(name),
    stays="; the stream stays",
).app()


_OPTIONS = {
    "stream": option(str, "Stream. (default: the stream with the table's name)"),
    "value_schema": option(
        str, "Columns, such as 'meter string, wh double'. (default: from the stream's schema)", "--schema"
    ),
    "value_format": option(
        str,
        f"Format of the events: {', '.join(VALUE_FORMATS)}. (default: from the stream's schema, or json with --schema)",
        "--format",
    ),
    "value_mode": option(
        str,
        "Handling of malformed events: PERMISSIVE returns nulls, DROPMALFORMED skips them, FAILFAST fails. "
        "(default: PERMISSIVE)",
        "--mode",
    ),
    "key": option(list[str], f"Column of the primary key, whose latest row counts; {SEVERAL}."),
    "event_time": option(str, "Column with the event time."),
}


@stream_table_app.command("create")
@taking(_OPTIONS)
def create(
    manager: StreamManager,
    scope: Scope,
    name: Name,
    note: Note = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing definition.")] = False,
    **given: Any,
) -> None:
    """Define a stream table."""
    given["key"] = given["key"] or ()
    definition = manager.stream_tables(scope).define(name, note=note, replace=replace, **given)
    say(f"created stream table {name} of stream {scope}/{definition.stream}: {_columns(manager, definition)}")


@stream_table_app.command("write-changes")
def write_changes(
    manager: StreamManager,
    scope: Scope,
    name: Name,
    to: Annotated[str, typer.Argument(help="Target stream, or a stream table of it.")],
    end: Annotated[str | None, typer.Option(help=f"End: {POSITION}. (default: none, runs until Ctrl-C)")] = None,
    every: Annotated[float, typer.Option(help="Seconds between checks for new rows.", min=0.01)] = 1.0,
    on_unknown_commit: Annotated[
        str,
        typer.Option(
            help="If it is unknown whether an earlier run's last changes were written: raise (fail), written (skip "
            "them), again (write them again)."
        ),
    ] = "raise",
) -> None:
    """Write a table's changes to another stream exactly once, continuing from the previous run."""
    import nadi

    count, changes = 0, f"changes of {scope}/{name} to {to}"

    def note_progress(total: int) -> None:
        nonlocal count
        count = total

    cuts = manager.cuts(scope, manager.stream_tables(scope).get(name).stream)
    cut = None if end is None else cut_at(cuts, end, end=True)
    try:
        nadi.write_changes(
            manager,
            scope,
            name,
            to,
            end=cut,
            every=every,
            on_progress=note_progress,
            on_unknown_commit=cast("IfUnknown", on_unknown_commit),
        )
    except KeyboardInterrupt:
        warn(f"wrote {count:,} {changes}")
        raise typer.Exit(INTERRUPTED) from None
    except Exception:
        if count:
            warn(f"wrote only {count:,} {changes}")
        raise
    warn(f"wrote {count:,} {changes}")
