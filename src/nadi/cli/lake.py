"""`nadi lake`: Iceberg tables that are kept level with streams."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from nadi.cli.options import DeadLetters, Scope, Stream
from nadi.cli.printing import say
from nadi.cli.session import Resource, Row, choose_one, option, taking
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.lake import LakeDefinition

Lake = Annotated[str, typer.Argument(help="The lake's name: STREAM-lake, unless it was given another.")]


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
            "wanted": "yes" if record.is_wanted else "no",
        }
        for name, record in records.items()
    ]
    return rows, unreadable


def _show(manager: StreamManager, scope: str, lake: str) -> Row:
    from msgspec.structs import asdict

    from nadi.lake.definition import record_of

    record = record_of(manager, scope, lake)
    names = {"name": "lake", "event_time_unit": "event time", "holds_back": "protects unconsumed"}
    row = {
        names.get(key, key.removesuffix("_s").replace("_", " ")): one for key, one in asdict(record.definition).items()
    }
    return row | {"catalog": _properties(record.definition.catalog), "wanted": record.is_wanted}


def _properties(catalog: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in catalog.items())


def _status(manager: StreamManager, scope: str, lake: str) -> Row:
    status = _lakes().status(manager, scope, lake)
    made, states = status.lake, [one.state for one in status.writers]
    return {
        "lake": made.name,
        "stream": made.full_name,
        "table": made.table,
        "catalog": _properties(made.catalog),
        "partition": made.partition,
        "state": states[0] if states else "not running" if status.is_wanted else "stopped",
        "cut": None if status.cut is None else str(status.cut),
        "snapshot": None if status.snapshot_id is None else str(status.snapshot_id),
        "behind bytes": status.behind_bytes,
        "rows": status.rows,
        "files": status.files,
        "dead letters": status.letters,
        "trouble": status.trouble,
        "writers": ", ".join(f"{one.host}, process {one.pid}, {one.state}" for one in status.writers),
    }


lake_app = Resource(
    noun="lake",
    names={"scope": Scope, "lake": Lake},
    columns=["lake", "stream", "table", "writers", "wanted"],
    rows=_rows,
    empty="Scope {scope} has no lakes yet: run one with `nadi lake run`.",
    show=_show,
    status=_status,
    stop=lambda manager, scope, lake: _lakes().stop(manager, scope, lake),
    delete=lambda manager, scope, lake: _lakes().delete(manager, scope, lake),
    question="? Its table stays.",
    stays="; its table stays",
).app()


_OPTIONS = {
    "table": option(str, "The table with its namespace, such as home.meters."),
    "catalog": option(
        list[str],
        "A property of the catalog, as PyIceberg has them: type=sql, uri=…, warehouse=…; secrets as KEY=${VARIABLE}. "
        "Or the name of one in PyIceberg's own configuration.",
        metavar="KEY=VALUE",
    ),
    "partition": option(str, "Such as 'day(event_time),bucket(16,key)'."),
    "value_format": option(str, "json, msgpack, avro, protobuf, arrow: fields are columns.", "--format"),
    "value_schema": option(str, "Fields in Spark's DDL, where the stream has no schema: 'wh double'.", "--schema"),
    "event_time_unit": option(str, "Of the times that writers note: ms."),
    "keep_events": option(bool, "Have the events' bytes as a column, too.", "--keep-events"),
    "dead_letters": DeadLetters,
    "holds_back": option(
        bool, "Retention keeps what isn't in the table: yes.", "--protect-unconsumed/--no-protect-unconsumed"
    ),
    "skip_truncated": option(bool, "Continue after events that were truncated.", "--skip-truncated"),
    "start": option(Literal["head", "tail"], "Where a new lake begins: at the head.", "--from"),
    "every_s": option(float, "Seconds between two commits: 30.", "--every"),
    "commit_bytes": option(int, "Of the stream in one commit, about: 512 MiB."),
    "compact_files": option(int, "Join so many small files of a partition: 16; 0 leaves them."),
    "keep_snapshots_s": option(float, "Seconds; older ones are expired: five days.", "--keep-snapshots"),
    "name": option(str, "The lake's name. [default: STREAM-lake]"),
}


def _defined(manager: StreamManager, scope: str, stream: str, given: Mapping[str, Any]) -> LakeDefinition:
    properties: dict[str, str] = {}
    for one in given["catalog"] or ():
        key, _, value = one.partition("=") if "=" in one else ("name", "=", one)
        if key in properties:
            raise InvalidArgumentError(f"--catalog {key}=… is there twice: give each property once")
        properties[key] = value
    options: Any = {name: value for name, value in {**given, "catalog": properties}.items() if value not in (None, {})}
    return cast("LakeDefinition", _lakes().define(manager, scope, stream, **options))


@lake_app.command("create")
@taking(_OPTIONS)
def create(manager: StreamManager, scope: Scope, stream: Stream, **given: Any) -> None:
    """Define a lake, or change its options; `nadi lake run` writes its table."""
    lake = _defined(manager, scope, stream, given)
    say(f"lake {lake.name} of {lake.full_name} is defined: `{shlex.join(['nadi', 'lake', 'run', scope, stream])}`")


@lake_app.command("run")
@taking(_OPTIONS)
def run(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    once: Annotated[bool, typer.Option("--once", help="End when the table is level with the stream.")] = False,
    define_only: Annotated[bool, typer.Option("--define-only", help="Keep the options, and write nothing.")] = False,
    **given: Any,
) -> None:
    """Keep a table level with a stream, until Ctrl-C or `nadi lake stop`. An existing lake continues, with the options
    that are given changed."""
    choose_one(once=once, define_only=define_only)
    lake = _defined(manager, scope, stream, given)
    if define_only:
        say(f"lake {lake.name} of {lake.full_name} is defined, and not running: run it without --define-only")
        return
    say(f"lake {lake.name}: {lake.full_name} to table {lake.table}")

    def report(done: Any) -> None:
        letters = f", {done.letters:,} dead letters" if done.letters else ""
        say(f"{done.rows:,} rows{letters}, {done.size_bytes:,} bytes of the stream")
        sys.stdout.flush()

    _lakes().run(manager, lake, once=once, on_progress=report)


@lake_app.command("rebuild")
def rebuild(
    manager: StreamManager,
    scope: Scope,
    lake: Lake,
    to: Annotated[str, typer.Argument(help="The stream to make, of the same scope.")],
    key: Annotated[str | None, typer.Option("--key", help="Column to route by, where positions can't be kept.")] = None,
) -> None:
    """Make a stream again from a lake's table: with the order of each key, and with all positions if the table has all
    of the events' bytes. Given again, it continues where it was killed."""

    def report(events: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{events:,} events", err=True, nl=False)

    done = _lakes().rebuild(manager, scope, lake, to, key=key, on_progress=report)
    kept = "with their positions" if done.keeps_positions else "in order by key, at other positions"
    say(f"{done.events:,} events in {scope}/{to}, {kept}")
