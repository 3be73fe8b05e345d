"""`nadi lake`: Iceberg tables that follow streams."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from nadi.cli.options import DeadLetters, Scope, Stream
from nadi.cli.printing import say
from nadi.cli.session import Resource, Row, choose_one, option, taking
from nadi.defaults import VALUE_FORMATS
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.lake import LakeDefinition

Lake = Annotated[str, typer.Argument(help="Name of the lake, STREAM-lake by default.")]


def _lakes() -> Any:
    from nadi import lake

    return lake


def _rows(manager: StreamManager, scope: str) -> Any:
    from nadi.lake.definition import writers_of

    records, unreadable = _lakes().lakes_of(manager, scope)
    rows = [
        {
            "lake": name,
            "stream": record.definition.stream,
            "table": record.definition.table,
            "writers": len(writers_of(manager, scope, name)),
            "stopped": not record.is_wanted,
        }
        for name, record in records.items()
    ]
    return rows, unreadable


def _show(manager: StreamManager, scope: str, lake: str) -> Row:
    from msgspec.structs import asdict

    from nadi.lake.definition import record_of

    record = record_of(manager, scope, lake)
    names = {"name": "lake", "protect_unconsumed": "protects_unconsumed"}
    row = {names.get(key, key): value for key, value in asdict(record.definition).items()}
    return row | {"catalog": _properties(record.definition.catalog), "stopped": not record.is_wanted}


def _properties(catalog: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in catalog.items())


def _status(manager: StreamManager, scope: str, lake: str) -> Row:
    status = _lakes().status(manager, scope, lake)
    definition, states = status.lake, [writer.state for writer in status.writers]
    return {
        "lake": definition.name,
        "stream": definition.full_name,
        "table": definition.table,
        "catalog": _properties(definition.catalog),
        "partition": definition.partition,
        "state": states[0] if states else "not running" if status.is_wanted else "stopped",
        "cut": None if status.cut is None else str(status.cut),
        "snapshot": None if status.snapshot_id is None else str(status.snapshot_id),
        "lag_bytes": status.lag_bytes,
        "rows": status.rows,
        "files": status.files,
        "dead_letters": status.dead_letters,
        "trouble": status.trouble,
        "writers": ", ".join(f"{writer.host}, process {writer.pid}, {writer.state}" for writer in status.writers),
    }


lake_app = Resource(
    noun="lake",
    names={"scope": Scope, "lake": Lake},
    columns=["lake", "stream", "table", "writers", "stopped"],
    rows=_rows,
    empty="No lakes in scope {scope}: start one with `nadi lake run`.",
    show=_show,
    status=_status,
    stop=lambda manager, scope, lake: _lakes().stop(manager, scope, lake),
    delete=lambda manager, scope, lake: _lakes().delete(manager, scope, lake),
    question="? Its table stays.",
    stays="; its table stays",
).app()


_OPTIONS = {
    "table": option(str, "Table with its namespace, such as home.meters."),
    "catalog": option(
        list[str],
        "PyIceberg catalog property: type=sql, uri=…, warehouse=…; secrets as KEY=${VARIABLE}. Or the name of a "
        "catalog in PyIceberg's configuration.",
        metavar="KEY=VALUE",
    ),
    "partition": option(str, "Partitioning, such as 'day(event_time),bucket(16,key)'."),
    "value_format": option(
        str, f"Format of the events, whose fields become columns: {', '.join(VALUE_FORMATS)}.", "--format"
    ),
    "value_schema": option(str, "Fields in Spark DDL if the stream doesn't have a schema: 'wh double'.", "--schema"),
    "event_time_unit": option(str, "Unit of times noted by writers. (default: ms)"),
    "keep_events": option(bool, "Store the events' bytes in a column, too.", "--keep-events"),
    "dead_letters": DeadLetters,
    "protect_unconsumed": option(
        bool,
        "Protect events that aren't in the table yet from retention. (default: protect)",
        "--protect-unconsumed/--no-protect-unconsumed",
    ),
    "skip_truncated": option(bool, "Continue after truncated events.", "--skip-truncated"),
    "start": option(Literal["head", "tail"], "Start of a new lake. (default: head)", "--from"),
    "every_s": option(float, "Seconds between commits. (default: 30)", "--every"),
    "commit_bytes": option(int, "Approximate bytes of the stream per commit. (default: 512 MiB)"),
    "compact_files": option(int, "Small files in a partition that trigger compaction; 0: never. (default: 16)"),
    "keep_snapshots_s": option(float, "Seconds until snapshots expire. (default: 5 days)", "--keep-snapshots"),
    "name": option(str, "Name of the lake. (default: STREAM-lake)"),
}


def _defined(manager: StreamManager, scope: str, stream: str, given: Mapping[str, Any]) -> LakeDefinition:
    properties: dict[str, str] = {}
    for text in given["catalog"] or ():
        key, _, value = text.partition("=") if "=" in text else ("name", "=", text)
        if key in properties:
            raise InvalidArgumentError(f"--catalog {key}=… is given twice: remove one")
        properties[key] = value
    options: Any = {name: value for name, value in {**given, "catalog": properties}.items() if value not in (None, {})}
    return cast("LakeDefinition", _lakes().define(manager, scope, stream, **options))


@lake_app.command("create")
@taking(_OPTIONS)
def create(manager: StreamManager, scope: Scope, stream: Stream, **given: Any) -> None:
    """Define a lake, or change its options. `nadi lake run` writes its table."""
    lake = _defined(manager, scope, stream, given)
    command = shlex.join(["nadi", "lake", "run", scope, stream])
    say(f"defined lake {lake.name} of {lake.full_name}: start it with `{command}`")


@lake_app.command("run")
@taking(_OPTIONS)
def run(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    once: Annotated[bool, typer.Option("--once", help="Exit when the table has caught up with the stream.")] = False,
    define_only: Annotated[bool, typer.Option("--define-only", help="Save the options and exit.")] = False,
    **given: Any,
) -> None:
    """Write a stream to its table until Ctrl-C or `nadi lake stop`.

    An existing lake continues; options that are given change its definition.
    """
    choose_one(once=once, define_only=define_only)
    lake = _defined(manager, scope, stream, given)
    if define_only:
        say(f"defined lake {lake.name} of {lake.full_name}: start it without --define-only")
        return
    say(f"lake {lake.name}: {lake.full_name} to table {lake.table}")

    def report(progress: Any) -> None:
        dead_letters = f", {progress.dead_letters:,} dead letters" if progress.dead_letters else ""
        say(f"{progress.rows:,} rows{dead_letters}, {progress.size_bytes:,} bytes of the stream")
        sys.stdout.flush()

    _lakes().run(manager, lake, once=once, on_progress=report)


@lake_app.command("rebuild")
def rebuild(
    manager: StreamManager,
    scope: Scope,
    lake: Lake,
    to: Annotated[str, typer.Argument(help="New stream in the same scope.")],
    key: Annotated[
        str | None, typer.Option("--key", help="Column with routing keys, if positions can't be restored.")
    ] = None,
) -> None:
    """Rebuild a stream from a lake's table.

    The order of each key is preserved, and all positions if the table contains the events' bytes. If interrupted, run
    it again to continue.
    """

    def report(events: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{events:,} events", err=True, nl=False)

    result = _lakes().rebuild(manager, scope, lake, to, key=key, on_progress=report)
    positions = "with their positions" if result.keeps_positions else "ordered by key, at other positions"
    say(f"{result.events:,} events in {scope}/{to}, {positions}")
