"""`nadi scope` and `nadi stream`: list, create, change and delete scopes and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.bookmarks import PLACE, By, Clock, Scope, Stream, place
from nadi.cli.printing import Form, say, say_gone, show
from nadi.cli.scaling import EventsPerS, KibPerS, ScaleFactor, policy_of, scaling, scaling_log, scaling_text
from nadi.cli.search.beside import beside_scope, beside_stream
from nadi.cli.segments import show_segments
from nadi.cli.session import Yes, connected
from nadi.cli.updating import EventTimeField, EventTimeFormat, EventTimeUnit, event_time_of, update_stream
from nadi.errors import InvalidArgumentError, PermissionDeniedError, ScopeNotFoundError

if TYPE_CHECKING:
    from nadi.client import Holder, RetentionPolicy, StreamManager
    from nadi.model.reports import LoadReport

scope_app = typer.Typer(help="Scopes: the namespaces of streams.", no_args_is_help=True)
stream_app = typer.Typer(help="Streams: list, create, show, seal, truncate, delete.", no_args_is_help=True)


Retention = Annotated[
    str | None,
    typer.Option("--retention", help="Keep at least this: an age (90s, 15min, 12h, 7d) or a size (500MB, 10GiB)."),
]
RetentionMost = Annotated[
    str | None,
    typer.Option("--retention-most", help="Keep at most this for reader groups that hold back retention."),
]
OverBookmarks = Annotated[
    bool,
    typer.Option("--retention-over-bookmarks", help="Bookmarks and slices don't hold retention back."),
]
ByEventTime = Annotated[
    bool, typer.Option("--retention-by-event-time", help="Ages are of the events' own time.", show_default=False)
]


@scope_app.command("list")
@connected
def list_scopes(manager: StreamManager, form: Form = Form.TABLE) -> None:
    """List the scopes."""
    rows = [{"scope": scope} for scope in sorted(manager.list_scopes()) if not scope.startswith("_")]
    show(rows, ["scope"], form=form, empty="There are no scopes yet: create one with `nadi scope create NAME`.")


@scope_app.command("create")
@connected
def create_scope(manager: StreamManager, scope: Scope) -> None:
    """Create a scope."""
    made = manager.create_scope(scope)
    say(f"created scope {scope}" if made else f"scope {scope} already exists")


@scope_app.command("delete")
@connected
def delete_scope(
    manager: StreamManager,
    scope: Scope,
    recursive: Annotated[bool, typer.Option("--recursive", help="Including everything in it.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a scope, with its bookmarks, named slices and search indexes."""
    if not yes:
        typer.confirm(f"Delete scope {scope}{' and all its streams' if recursive else ''}?", abort=True)
    for drop in beside_scope(manager, scope, of_streams=recursive):
        drop()
    gone = manager.delete_scope(scope, recursive=recursive)
    say_gone(gone, f"deleted scope {scope}", f"scope {scope}")


@stream_app.command("list")
@connected
def list_streams(
    manager: StreamManager,
    scope: Scope,
    tag: Annotated[str | None, typer.Option(help="Only streams with this tag.")] = None,
    form: Form = Form.TABLE,
) -> None:
    """List a scope's streams."""
    rows = [_row(manager, scope, stream) for stream in sorted(manager.list_streams(scope, tag))]
    show(rows, ["stream", "segments", "sealed", "tags"], form=form, empty=f"Scope {scope} has no such stream.")


@stream_app.command("create")
@connected
def create_stream(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    segments: Annotated[int, typer.Option(help="Minimum number of segments.", min=1)] = 1,
    events_per_s: EventsPerS = None,
    kib_per_s: KibPerS = None,
    scale_factor: ScaleFactor = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be given several times.")] = None,
    retention: Retention = None,
    retention_most: RetentionMost = None,
    retention_over_bookmarks: OverBookmarks = False,
    retention_by_event_time: ByEventTime = False,
    event_time: EventTimeField = None,
    event_time_unit: EventTimeUnit = None,
    event_time_format: EventTimeFormat = None,
) -> None:
    """Create a stream; its scope must exist."""
    scaling = policy_of(segments, events_per_s, kib_per_s, scale_factor)
    kept = _policy(retention, retention_most, retention_over_bookmarks, retention_by_event_time)
    own_time = event_time_of(event_time, event_time_unit, event_time_format)
    made = manager.create_stream(scope, stream, scaling=scaling, retention=kept, tags=tag or (), event_time=own_time)
    say(f"created stream {scope}/{stream}" if made else f"stream {scope}/{stream} already exists")


@stream_app.command("retain")
@connected
def retain(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    retention: Retention = None,
    retention_most: RetentionMost = None,
    retention_over_bookmarks: OverBookmarks = False,
    retention_by_event_time: ByEventTime = False,
    everything: Annotated[bool, typer.Option("--everything", help="End retention: keep everything.")] = False,
) -> None:
    """Change what a stream keeps."""
    from nadi.cli.amounts import policy_text

    if everything == (retention is not None):
        raise InvalidArgumentError("say what to keep: either --retention or --everything")
    policy = _policy(retention, retention_most, retention_over_bookmarks, retention_by_event_time)
    manager.update_stream(scope, stream, retention=policy)
    say(f"stream {scope}/{stream} keeps {'everything' if policy is None else policy_text(policy)}")


def _policy(least: str | None, most: str | None, over_bookmarks: bool, by_event_time: bool) -> RetentionPolicy | None:
    from nadi.cli.amounts import policy_of

    if least is not None:
        return policy_of(least, most, over_bookmarks=over_bookmarks, by_event_time=by_event_time)
    for option, is_given in (
        ("--retention-most", most is not None),
        ("--retention-over-bookmarks", over_bookmarks),
        ("--retention-by-event-time", by_event_time),
    ):
        if is_given:
            raise InvalidArgumentError(f"{option} has no effect without --retention: say what to keep at least")
    return None


@stream_app.command("show")
@connected
def show_stream(manager: StreamManager, scope: Scope, stream: Stream, form: Form = Form.TABLE) -> None:
    """Show a stream's segments and size, what it keeps, and who holds that back."""
    from nadi.cli.amounts import policy_text

    row = _row(manager, scope, stream)
    info = manager.stream_info(scope, stream)
    row["bytes"] = manager.cuts(scope, stream).bytes_between(info.head, info.tail)
    row["head"], row["tail"] = info.head.as_text(), info.tail.as_text()
    configuration = manager.stream_configuration(scope, stream)
    row["scaling"], row["retention"] = scaling_text(configuration.scaling), policy_text(configuration.retention)
    hot = [load for load in manager.segment_loads(scope, stream) if load.hot_key is not None]
    row["hot_keys"] = [_hot(load) for load in hot]
    held_by: tuple[Holder, ...] = ()
    try:
        kept = manager.kept(scope, stream)
    except PermissionDeniedError:  # it names groups, which not everybody may see
        row["oldest"], more = "?", 0
    else:
        row["oldest"] = kept.oldest_at.isoformat(timespec="seconds") if kept.oldest_at is not None else "-"
        held_by, more = kept.held_by, kept.more_holders
    row["held_by"] = [
        {"kind": one.kind, "name": one.name, "bytes_after": one.bytes_after, "cut": one.cut.as_text()}
        for one in held_by
    ]
    columns = ["stream", "segments", "sealed", "tags", "bytes", "oldest", "retention"]
    show([row], columns, form=form, empty="")
    if form is Form.TABLE:
        say(f"scaling: {row['scaling']}")
        for key in row["hot_keys"]:
            say(f"hot key in segment {key['segment']}: {_share(key['share'])}; a key isn't divided by splitting")
        for one in held_by:
            say(f"held back by {one.kind} {one.name}: {one.bytes_after:,} bytes after it")
        if more:
            say(f"and by {more:,} others")


stream_app.command("segments")(show_segments)
stream_app.command("update")(update_stream)
stream_app.command("scaling")(scaling)
stream_app.command("scaling-log")(scaling_log)


@stream_app.command("seal")
@connected
def seal_stream(manager: StreamManager, scope: Scope, stream: Stream, yes: Yes = False) -> None:
    """Seal a stream: it accepts no more events, ever."""
    if not yes:
        typer.confirm(f"Seal stream {scope}/{stream}? It will accept no more events.", abort=True)
    manager.seal_stream(scope, stream)
    say(f"sealed stream {scope}/{stream}")


@stream_app.command("truncate")
@connected
def truncate_stream(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    at: Annotated[str, typer.Option(help=f"Where: {PLACE}; events before it are deleted.")],
    by: By = Clock.ARRIVAL,
    yes: Yes = False,
) -> None:
    """Delete the events before a cut, permanently."""
    if not yes:
        typer.confirm(f"Delete all events of {scope}/{stream} before {at}?", abort=True)
    manager.truncate_stream(place(manager.cuts(scope, stream), at, by))
    say(f"truncated stream {scope}/{stream}")


@stream_app.command("delete")
@connected
def delete_stream(manager: StreamManager, scope: Scope, stream: Stream, yes: Yes = False) -> None:
    """Delete a sealed stream, with the tables that are defined on it, its search index and standing queries. Its lakes'
    tables stay."""
    lakes, beside = _lakes(manager, scope, stream), beside_stream(manager, scope, stream)
    if not yes:
        kept = f" What isn't in {lakes} yet is lost, and what is stays." if lakes else ""
        more = _its_tables(manager, scope, stream) + "".join(f", and {one}" for one in beside)
        typer.confirm(f"Delete stream {scope}/{stream} and all its events{more}?{kept}", abort=True)
    gone = manager.delete_stream(scope, stream)
    if gone or not beside:  # else a program has deleted it, or a command that was killed: what it left goes now
        say_gone(gone, f"deleted stream {scope}/{stream}", f"stream {scope}/{stream}")
    if gone and lakes:
        say(f"{lakes} stays: `nadi lake rebuild` makes a stream of it, `nadi lake forget` forgets the lake")
    for drop in beside.values():
        drop()
    if beside and not gone:
        say(f"there was no stream {scope}/{stream}: deleted what it had left, {' and '.join(beside)}")


def _lakes(manager: StreamManager, scope: str, stream: str) -> str:
    """The stream's lakes with their tables, in words; "" if it has none."""
    from nadi.errors import NotFoundError
    from nadi.lake.states import lakes_of

    try:
        found = [one.definition for one in lakes_of(manager, scope).values() if one.definition.stream == stream]
    except (NotFoundError, PermissionDeniedError):  # of the scope, or to see them
        return ""
    return ", ".join(f"table {lake.table} of lake {lake.name}" for lake in found)


def _its_tables(manager: StreamManager, scope: str, stream: str) -> str:
    try:
        tables = [table.name for table in manager.stream_tables(scope).list(stream=stream)]
    except (PermissionDeniedError, ScopeNotFoundError):
        tables = []
    return "" if not tables else f", and the tables defined on it ({', '.join(tables)})"


def _row(manager: StreamManager, scope: str, stream: str) -> dict[str, Any]:
    segments = manager.current_segments(scope, stream)
    tags = sorted(manager.stream_configuration(scope, stream).tags)
    return {"stream": stream, "segments": len(segments), "sealed": not segments, "tags": tags}


def _hot(load: LoadReport) -> dict[str, Any]:
    from nadi.pictures.text import name_of

    assert load.hot_key is not None
    return {"segment": name_of(load.segment_id), "position": load.hot_key.position, "share": load.hot_key.share}


def _share(share: float | None) -> str:
    return "which one isn't known, for no writer reports its keys" if share is None else f"{share:.0%} of its load"
