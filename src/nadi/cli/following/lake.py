"""`nadi lake`: Iceberg tables that are kept level with streams."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.bookmarks import Scope
from nadi.cli.printing import Form, say, show, show_with
from nadi.cli.session import Yes, connected

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.lake.states import LakeStatus

Stream = Annotated[str, typer.Argument(metavar="SCOPE.STREAM", help="The stream, as scope.stream or scope/stream.")]
Name = Annotated[str | None, typer.Option(help="The lake's name. [default: STREAM-lake]", show_default=False)]
lake_app = typer.Typer(help="Iceberg tables that are kept level with streams.", no_args_is_help=True)


@lake_app.command("start")
@connected
def start(
    manager: StreamManager,
    stream: Stream,
    table: Annotated[str | None, typer.Option(help="The table with its namespace, such as home.meters.")] = None,
    catalog: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A property of the catalog, as PyIceberg has them: type=sql, uri=…, warehouse=…; secrets as "
            "KEY=${VARIABLE}. Or the name of one in PyIceberg's own configuration.",
        ),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Such as 'day(event_time),bucket(16,key)'.")] = None,
    value_format: Annotated[
        str | None, typer.Option("--format", help="json, msgpack, avro, protobuf, arrow: fields are columns.")
    ] = None,
    value_schema: Annotated[
        str | None,
        typer.Option("--schema", help="Fields of events in Spark's DDL, where the stream has no schema: 'wh double'."),
    ] = None,
    event_time_unit: Annotated[str | None, typer.Option(help="Of the times that writers note: ms.")] = None,
    keep_events: Annotated[
        bool | None, typer.Option("--keep-events", help="Have the events' bytes as a column, too.", show_default=False)
    ] = None,
    dead_letters: Annotated[
        str | None, typer.Option("--dead-letter", help="Stream for events that are no rows; else it stops there.")
    ] = None,
    holds_back: Annotated[
        bool | None,
        typer.Option(
            "--hold-back/--no-hold-back", help="Retention keeps what isn't in the table: yes.", show_default=False
        ),
    ] = None,
    skip_truncated: Annotated[
        bool | None,
        typer.Option("--skip-truncated", help="Go on after events that were truncated.", show_default=False),
    ] = None,
    begin: Annotated[
        Literal["head", "tail"] | None, typer.Option("--from", help="Where a new lake begins: at the head.")
    ] = None,
    every_s: Annotated[float | None, typer.Option("--every", help="Seconds between two commits: 30.")] = None,
    commit_bytes: Annotated[int | None, typer.Option(help="Of the stream in one commit, about: 512 MiB.")] = None,
    compact_files: Annotated[
        int | None, typer.Option(help="Join so many small files of a partition: 16; 0 leaves them.")
    ] = None,
    keep_snapshots_s: Annotated[
        float | None, typer.Option("--keep-snapshots", help="Seconds; older ones are expired: five days.")
    ] = None,
    name: Name = None,
    once: Annotated[bool, typer.Option("--once", help="End when the table is level with the stream.")] = False,
    define_only: Annotated[bool, typer.Option("--define-only", help="Keep the options, and write nothing.")] = False,
) -> None:
    """Keep a table level with a stream, until Ctrl-C or `nadi lake stop`. A lake that was there before goes on, with
    the options given now changed."""
    from nadi import lake as lakes
    from nadi.errors import InvalidArgumentError

    given: dict[str, Any] = {
        "table": table,
        "catalog": _properties(catalog) if catalog else None,
        "partition": partition,
        "value_format": value_format,
        "value_schema": value_schema,
        "event_time_unit": event_time_unit,
        "keep_events": keep_events,
        "dead_letters": dead_letters,
        "holds_back": holds_back,
        "skip_truncated": skip_truncated,
        "start": begin,
        "every_s": every_s,
        "commit_bytes": commit_bytes,
        "compact_files": compact_files,
        "keep_snapshots_s": keep_snapshots_s,
    }
    if once and define_only:
        raise InvalidArgumentError("--once and --define-only exclude each other: choose one")
    options: Any = {option: value for option, value in given.items() if value is not None}
    lake = lakes.start(manager, *_split(stream), name=name, **options)
    if define_only:
        say(f"lake {lake.name} of {lake.full_name} is kept, and not running: start it again without --define-only")
        return
    say(f"lake {lake.name}: {lake.full_name} to table {lake.table}")

    def told(done: Any) -> None:
        letters = f", {done.letters:,} dead letters" if done.letters else ""
        say(f"{done.rows:,} rows{letters}, {done.size_bytes:,} bytes of the stream")
        sys.stdout.flush()

    lakes.run(manager, lake, once=once, told=told)


@lake_app.command("status")
@connected
def status(manager: StreamManager, stream: Stream, name: Name = None, form: Form = Form.TABLE) -> None:
    """Show where a lake's table is, how far behind the stream, and who writes it."""
    from nadi import lake as lakes
    from nadi.lake.definition import lake_name

    scope, of_stream = _split(stream)
    row = _row(lakes.status(manager, scope, lake_name(of_stream, name)))
    if form is not Form.TABLE:
        show([row], [], form=form, empty="")
    else:
        show([{"": key, " ": value} for key, value in row.items()], ["", " "], form=Form.TABLE, empty="")


def _row(found: LakeStatus) -> Mapping[str, Any]:
    from nadi.lake.table.secrets import shown

    lake = found.lake
    return {
        "lake": lake.name,
        "stream": lake.full_name,
        "table": lake.table,
        "catalog": ", ".join(f"{key}={value}" for key, value in shown(lake.catalog).items()),
        "partition": lake.partition,
        "state": _state(found),
        "cut": None if found.cut is None else str(found.cut),
        "snapshot": None if found.snapshot_id is None else str(found.snapshot_id),
        "behind bytes": found.behind_bytes,
        "rows": found.rows,
        "files": found.files,
        "dead letters": found.letters,
        "trouble": found.trouble,
        "writers": ", ".join(f"{one.host}, process {one.pid}, {one.state}" for one in found.writers),
    }


def _state(found: LakeStatus) -> str:
    states = [one.state for one in found.writers]
    if not states:
        return "not running" if found.is_wanted else "stopped"
    return states[0]


@lake_app.command("list")
@connected
def list_lakes(manager: StreamManager, scope: Scope, form: Form = Form.TABLE) -> None:
    """List a scope's lakes."""
    import time

    from nadi.lake.states import lakes_with_unreadable

    found, unreadable = lakes_with_unreadable(manager, scope)
    now_ms = int(time.time() * 1000)
    rows = [
        {
            "lake": name,
            "stream": record.definition.stream,
            "table": record.definition.table,
            "writers": sum(not one.is_gone(now_ms) for one in record.writers.values()),
            "wanted": "yes" if record.is_wanted else "no",
        }
        for name, record in sorted(found.items())
    ]
    empty = f"Scope {scope} has no lakes yet: start one with `nadi lake start`."
    columns = ["lake", "stream", "table", "writers", "wanted"]
    show_with(unreadable, rows, columns, form=form, empty=empty)


@lake_app.command("stop")
@connected
def stop(manager: StreamManager, stream: Stream, name: Name = None) -> None:
    """Have a lake's writer end, wherever it runs, after what it has in hand. `nadi lake start` goes on there."""
    from nadi import lake as lakes
    from nadi.lake.definition import lake_name

    scope, of_stream = _split(stream)
    lakes.stop(manager, scope, lake_name(of_stream, name))
    say(f"lake {lake_name(of_stream, name)} is to stop")


@lake_app.command("rebuild")
@connected
def rebuild(
    manager: StreamManager,
    stream: Stream,
    to: Annotated[str, typer.Argument(help="The stream to make, of the same scope.")],
    key: Annotated[str | None, typer.Option("--key", help="Column to route by, where positions can't be kept.")] = None,
    name: Name = None,
) -> None:
    """Make a stream anew from a lake's table: with the order of each key, and with all positions if the table has all
    of the events' bytes. Given again, it goes on where it was killed."""
    from nadi import lake as lakes
    from nadi.lake.definition import lake_name

    scope, of_stream = _split(stream)

    def told(events: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{events:,} events", err=True, nl=False)

    done = lakes.rebuild(manager, scope, lake_name(of_stream, name), to, key=key, told=told)
    kept = "with their positions" if done.keeps_positions else "in order by key, at other positions"
    say(f"{done.events:,} events in {scope}/{to}, {kept}")


@lake_app.command("forget")
@connected
def forget(manager: StreamManager, stream: Stream, name: Name = None, yes: Yes = False) -> None:
    """Forget a lake that isn't running. Its table stays as it is; the stream's retention no longer waits for it."""
    from nadi import lake as lakes
    from nadi.lake.definition import lake_name

    scope, of_stream = _split(stream)
    found = lake_name(of_stream, name)
    if not yes:
        typer.confirm(f"Forget lake {found}? Its table stays.", abort=True)
    lakes.forget(manager, scope, found)
    say(f"forgot lake {found}")


def _split(stream: str) -> tuple[str, str]:
    from nadi.errors import InvalidArgumentError

    scope, found, name = stream.partition("/" if "/" in stream else ".")
    if not found or not scope or not name:
        raise InvalidArgumentError(f"{stream!r} names no stream: write it as home.meters, or home/meters")
    return scope, name


def _properties(given: list[str]) -> dict[str, str]:
    from nadi.errors import InvalidArgumentError

    found: dict[str, str] = {}
    for one in given:
        key, equals, value = one.partition("=")
        key, value = (key, value) if equals else ("name", key)
        if key in found:
            raise InvalidArgumentError(f"--catalog {key}=… is there twice: give each property once")
        found[key] = value
    return found
