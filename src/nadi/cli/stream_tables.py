"""`nadi stream-table`: how streams are read as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from nadi.cli.bookmarks import PLACE, Note, Scope, place
from nadi.cli.events.write import INTERRUPTED
from nadi.cli.printing import Form, say, say_gone, show, show_with, warn
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager, TableDefinition
    from nadi.client.streamtables.following import IfUnknown

stream_table_app = typer.Typer(
    help="Stream tables: how streams are read as tables, with columns and keys.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="The table: letters, digits, '.' and '-'.")]
_COLUMNS = ["table", "stream", "key", "event time", "columns", "note"]


@stream_table_app.command("define")
@connected
def define(
    manager: StreamManager,
    scope: Scope,
    name: Name,
    stream: Annotated[
        str | None, typer.Option(help="The stream. [default: the one of that name]", show_default=False)
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            help="The columns, as 'meter string, wh double'. [default: those of the stream's schema]",
            show_default=False,
        ),
    ] = None,
    value_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="What events are: json, msgpack, avro, protobuf or arrow. "
            "[default: as the stream's schema says, or json with --schema]",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="Events that are no such row: PERMISSIVE has them as nulls, DROPMALFORMED leaves them out, FAILFAST "
            "ends the read. [default: PERMISSIVE]",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="A column that tells rows apart, of which the latest counts; may be given several times."),
    ] = None,
    event_time: Annotated[str | None, typer.Option(help="The column that says when something was so.")] = None,
    note: Note = "",
    replace: Annotated[bool, typer.Option("--replace", help="In place of a table of that name.")] = False,
) -> None:
    """Define how a stream is read as a table."""
    made = manager.stream_tables(scope).define(
        name,
        stream=stream,
        value_format=value_format,
        value_schema=schema,
        value_mode=mode,
        key=key or (),
        event_time=event_time,
        note=note,
        replace=replace,
    )
    say(f"defined table {name} of stream {scope}/{made.stream}: {_columns(manager, made)}")


@stream_table_app.command("list")
@connected
def list_stream_tables(
    manager: StreamManager,
    scope: Scope,
    stream: Annotated[str | None, typer.Option(help="Only those of this stream.")] = None,
    form: Form = Form.TABLE,
) -> None:
    """List a scope's stream tables."""
    tables, unreadable = manager.stream_tables(scope).list_with_unreadable(stream=stream)
    rows = [_row(found) for found in tables]
    for row in rows:
        row["columns"] = row["schema"] or "of the stream's schema"
    show_with(unreadable, rows, _COLUMNS, form=form, empty=f"Scope {scope} has no such stream table.")


@stream_table_app.command("show")
@connected
def show_stream_table(manager: StreamManager, scope: Scope, name: Name, form: Form = Form.TABLE) -> None:
    """Show a stream table and the columns that its rows have now."""
    found = manager.stream_tables(scope).get(name)
    row = _row(found)
    try:
        row["columns"] = _columns(manager, found)
    except InvalidArgumentError as error:  # the stream's schema isn't any more what it was defined with
        row["columns"] = f"can't be read: {error}"
    show([row], _COLUMNS, form=form, empty="")


@stream_table_app.command("drop")
@connected
def drop(manager: StreamManager, scope: Scope, name: Name) -> None:
    """Forget how a stream is read as a table; the stream and its events stay."""
    gone = manager.stream_tables(scope).drop(name)
    say_gone(gone, f"dropped table {name}; the stream stays", f"table {name}")


@stream_table_app.command("write-changes")
@connected
def write_changes(
    manager: StreamManager,
    scope: Scope,
    name: Name,
    to: Annotated[str, typer.Argument(help="The stream that gets the changes, or a table of it.")],
    end: Annotated[
        str | None,
        typer.Option(help=f"Where to stop: {PLACE}. [default: it goes on until Ctrl-C]", show_default=False),
    ] = None,
    every: Annotated[float, typer.Option(help="Look for new rows every so many seconds.", min=0.01)] = 1.0,
    if_unknown: Annotated[
        str,
        typer.Option(
            help="What to do if nobody knows whether the last changes of an earlier run are there: raise (an error), "
            "written (go on after them), again (write them)."
        ),
    ] = "raise",
) -> None:
    """Write the changes of a table into another stream, each once, from where it was left."""
    import nadi

    count, what = 0, f"changes of {scope}/{name} to {to}"

    def told(so_far: int) -> None:
        nonlocal count
        count = so_far

    cuts = manager.cuts(scope, manager.stream_tables(scope).get(name).stream)
    cut = None if end is None else place(cuts, end, end=True)
    try:
        nadi.write_changes(
            manager, scope, name, to, end=cut, every=every, told=told, if_unknown=cast("IfUnknown", if_unknown)
        )
    except KeyboardInterrupt:
        warn(f"wrote {count:,} {what}")
        raise typer.Exit(INTERRUPTED) from None
    except Exception:
        if count:
            warn(f"wrote {count:,} {what}, and no more")
        raise
    warn(f"wrote {count:,} {what}")


def _columns(manager: StreamManager, found: TableDefinition) -> str:
    from nadi.client.streamtables.table import StreamTable

    return ", ".join(f"{field.name} {field.type}" for field in StreamTable(manager, found).schema)


def _row(found: TableDefinition) -> dict[str, Any]:
    return {
        "table": found.name,
        "stream": found.stream,
        "key": found.key,
        "event time": found.event_time,
        "format": found.value_format,
        "schema": found.value_schema,
        "mode": found.value_mode,
        "made at": found.made_at.strftime("%Y-%m-%d %H:%M:%SZ"),
        "note": found.note,
    }
