"""`nadi stream-table`: how streams are read as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from nadi.cli.options import POSITION, SEVERAL, Note, OfStream, Scope, cut_at
from nadi.cli.printing import INTERRUPTED, say, warn
from nadi.cli.session import Resource, Row, option, taking
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager, TableDefinition
    from nadi.client.streamtables.change_writer import IfUnknown

Name = Annotated[str, typer.Argument(help="The table: letters, digits, '.' and '-'.")]


def _columns(manager: StreamManager, definition: TableDefinition) -> str:
    from nadi.client.streamtables.table import StreamTable

    return ", ".join(f"{field.name} {field.type}" for field in StreamTable(manager, definition).schema)


def _row(definition: TableDefinition) -> Row:
    return {
        "table": definition.name,
        "stream": definition.stream,
        "key": definition.key,
        "event time": definition.event_time,
        "format": definition.value_format,
        "schema": definition.value_schema,
        "mode": definition.value_mode,
        "made at": definition.made_at.strftime("%Y-%m-%d %H:%M:%SZ"),
        "note": definition.note,
    }


def _rows(manager: StreamManager, scope: str, stream: str | None) -> Any:
    definitions, unreadable = manager.stream_tables(scope).list_with_unreadable(stream=stream)
    return [_row(one) | {"columns": one.value_schema or "of the stream's schema"} for one in definitions], unreadable


def _shown(manager: StreamManager, scope: str, name: str) -> Row:
    """With the columns that its rows have now."""
    definition = manager.stream_tables(scope).get(name)
    try:
        return _row(definition) | {"columns": _columns(manager, definition)}
    except InvalidArgumentError as error:  # the stream's schema isn't any more what it was defined with
        return _row(definition) | {"columns": f"can't be read: {error}"}


stream_table_app = Resource(
    noun="stream table",
    names={"scope": Scope, "name": Name},
    columns=["table", "stream", "key", "event time", "columns", "note"],
    rows=_rows,
    filters={"stream": OfStream},
    show=_shown,
    delete=lambda manager, scope, name: manager.stream_tables(scope).drop(name),
    stays="; the stream stays",
).app()


_OPTIONS = {
    "stream": option(str, "The stream. [default: the one of that name]"),
    "value_schema": option(
        str, "The columns, as 'meter string, wh double'. [default: those of the stream's schema]", "--schema"
    ),
    "value_format": option(
        str,
        "What events are: json, msgpack, avro, protobuf or arrow. [default: as the stream's schema says, or json with "
        "--schema]",
        "--format",
    ),
    "value_mode": option(
        str,
        "Events that are not such a row: PERMISSIVE has them as nulls, DROPMALFORMED leaves them out, FAILFAST ends "
        "the read. [default: PERMISSIVE]",
        "--mode",
    ),
    "key": option(list[str], f"A column that tells rows apart, of which the latest counts; {SEVERAL}."),
    "event_time": option(str, "The column that has an event's time."),
}


@stream_table_app.command("create")
@taking(_OPTIONS)
def create(
    manager: StreamManager,
    scope: Scope,
    name: Name,
    note: Note = "",
    replace: Annotated[bool, typer.Option("--replace", help="In place of a table of that name.")] = False,
    **given: Any,
) -> None:
    """Define how a stream is read as a table."""
    given["key"] = given["key"] or ()
    made = manager.stream_tables(scope).define(name, note=note, replace=replace, **given)
    say(f"created stream table {name} of stream {scope}/{made.stream}: {_columns(manager, made)}")


@stream_table_app.command("write-changes")
def write_changes(
    manager: StreamManager,
    scope: Scope,
    name: Name,
    to: Annotated[str, typer.Argument(help="The stream that gets the changes, or a table of it.")],
    end: Annotated[str | None, typer.Option(help=f"Where to stop: {POSITION}. [default: none: until Ctrl-C]")] = None,
    every: Annotated[float, typer.Option(help="Look for new rows every so many seconds.", min=0.01)] = 1.0,
    on_unknown_commit: Annotated[
        str,
        typer.Option(
            help="What to do if nobody knows whether the last changes of an earlier run are there: raise (an error), "
            "written (continue after them), again (write them)."
        ),
    ] = "raise",
) -> None:
    """Write the changes of a table into another stream, each once, from where it was left."""
    import nadi

    count, what = 0, f"changes of {scope}/{name} to {to}"

    def note_progress(so_far: int) -> None:
        nonlocal count
        count = so_far

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
        warn(f"wrote {count:,} {what}")
        raise typer.Exit(INTERRUPTED) from None
    except Exception:
        if count:
            warn(f"wrote {count:,} {what}, and no more")
        raise
    warn(f"wrote {count:,} {what}")
