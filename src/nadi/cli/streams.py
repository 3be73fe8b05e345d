"""`nadi scope` and `nadi stream`: list, create, change and delete scopes and streams."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.bookmarks import PLACE, By, Clock, Scope, Stream, place
from nadi.cli.printing import Form, say, say_gone, show
from nadi.cli.scaling import EventsPerS, KibPerS, ScaleFactor, policy_of, scaling, scaling_log, scaling_text
from nadi.cli.session import Yes, connected
from nadi.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, ProtocolError, ScopeNotFoundError

if TYPE_CHECKING:
    from nadi.client import Holder, RetentionPolicy, ScalingPolicy, StreamManager
    from nadi.model.event_time import EventTime, TimeFormat
    from nadi.model.reports import LoadReport, SegmentReport


@connected
def show_segments(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    history: Annotated[
        bool, typer.Option("--history", help="All segments ever, drawn over time: keys up, time across, shade by rate.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw it into this file instead: .svg, .png or .pdf (needs 'nadi[pictures]').")
    ] = None,
    last: Annotated[
        float | None, typer.Option(help="Draw only so many seconds up to now.", min=0.001, show_default=False)
    ] = None,
    form: Form = Form.TABLE,
) -> None:
    """Show a stream's current segments, or how they were split and merged."""
    from nadi.errors import InvalidArgumentError

    if last is not None and (form is not Form.TABLE or not (history or picture)):
        raise InvalidArgumentError("--last is for pictures: add --history or --picture FILE")
    if form is not Form.TABLE and picture is not None:
        raise InvalidArgumentError("--json, or -o, and --picture exclude each other: choose one")
    if picture is not None:
        from nadi import charts

        charts.check_file(picture)
    segments = manager.segment_history(scope, stream)
    if (history or picture is not None) and form is Form.TABLE:
        _draw(segments, f"{scope}/{stream}", picture, last)
        return
    if not history:
        current = {segment.segment_id for segment in manager.current_segments(scope, stream)}
        segments = sorted((s for s in segments if s.segment_id in current), key=lambda s: s.low)
    columns = ["segment", "low", "high", "since", "bytes", *([] if history else ["events/s", "bytes/s"])]
    loads = {load.segment_id: load for load in manager.segment_loads(scope, stream)} if not history else {}
    rows = [_segment_row(s) | (_rates(loads.get(s.segment_id)) if not history else {}) for s in segments]
    show(rows, columns, form=form, empty=f"Stream {scope}/{stream} is sealed.")


def _segment_row(segment: SegmentReport) -> dict[str, object]:
    from nadi.charts import name_of

    return {
        "segment": name_of(segment.segment_id),
        "segment_id": segment.segment_id,
        "low": round(segment.low, 6),
        "high": round(segment.high, 6),
        "since": datetime.fromtimestamp(segment.created_ms / 1000, UTC).isoformat(" ", "seconds"),
        "bytes": segment.end_offset - segment.start_offset,
        "created_ms": segment.created_ms,
        "replaced_ms": segment.replaced_ms,
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "rolled": segment.rolled,
    }


def _rates(load: LoadReport | None) -> dict[str, object]:
    """Means over ten seconds."""
    if load is None:
        return {"events/s": 0, "bytes/s": 0}
    return {"events/s": round(load.events_per_s[1]), "bytes/s": round(load.bytes_per_s[1])}


def _draw(segments: list[SegmentReport], name: str, file: Path | None, last_s: float | None) -> None:
    from nadi import charts

    now_ms = time.time_ns() // 1_000_000
    spans = charts.spans_of(segments, now_ms, now_ms - round(last_s * 1000) if last_s is not None else 0)
    if file is not None:
        charts.save(spans, file, name)
        say(f"drew {len(spans):,} segments of {name} into {file}")
        return
    from rich.console import Console

    say(charts.picture(spans, columns=max(20, Console().width - 8)))


EventTimeField = Annotated[
    str | None,
    typer.Option("--event-time", help="The field that has an event's time: read_at, meta.time.", metavar="PATH"),
]
EventTimeUnit = Annotated[
    Literal["s", "ms", "us", "ns"] | None,
    typer.Option(help="What the field counts since 1970, if it is a number. [default: s]", show_default=False),
]
EventTimeFormat = Annotated[
    Literal["json", "msgpack"] | None, typer.Option(help="What the events are. [default: json]", show_default=False)
]


@connected
def update_stream(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    fixed: Annotated[bool, typer.Option("--fixed", help="Keep the number of segments, whatever the load.")] = False,
    events_per_s: EventsPerS = None,
    kib_per_s: KibPerS = None,
    scale_factor: Annotated[int | None, typer.Option(help="Pieces that one split may make, at most.", min=2)] = None,
    segments: Annotated[int | None, typer.Option(help="Minimum number of segments.", min=1)] = None,
    retention: Annotated[
        str | None, typer.Option(help="Keep at least this: an age (90s, 15min, 12h, 7d) or a size (500MB, 10GiB).")
    ] = None,
    retention_most: Annotated[
        str | None, typer.Option(help="Keep at most this for reader groups that hold back retention.")
    ] = None,
    over_bookmarks: Annotated[
        bool | None,
        typer.Option(
            "--retention-over-bookmarks/--retention-under-bookmarks",
            help="Whether bookmarks and slices hold retention back.",
            show_default=False,
        ),
    ] = None,
    by_event_time: Annotated[
        bool | None,
        typer.Option(
            "--retention-by-event-time/--retention-by-arrival",
            help="Whether ages are of the events' own time.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--everything", help="End retention: keep everything.")] = False,
    tag: Annotated[list[str] | None, typer.Option("--add-tag", help="A tag; may be given several times.")] = None,
    remove_tag: Annotated[list[str] | None, typer.Option(help="A tag to remove; may be given several times.")] = None,
    watermark_timeout: Annotated[
        str | None, typer.Option(help="How long watermarks wait for a writer that notes no times any more: 30s, 5min.")
    ] = None,
    event_time: EventTimeField = None,
    event_time_unit: EventTimeUnit = None,
    event_time_format: EventTimeFormat = None,
    arrival_only: Annotated[bool, typer.Option("--no-event-time", help="Events have no time of their own.")] = False,
) -> None:
    """Change how a stream is scaled, what it keeps, its tags: only what is given."""
    from nadi.cli.amounts import age_s, changed_policy, policy_text

    old = manager.stream_configuration(scope, stream)
    new = old
    changes = []
    if fixed or [events_per_s, kib_per_s, scale_factor, segments] != [None] * 4:
        scaling = _scaling(old.scaling, segments, events_per_s, kib_per_s, scale_factor, fixed=fixed)
        new = replace(new, scaling=scaling)
        changes.append(f"has {scaling_text(scaling)}")
    kept = retention, retention_most, over_bookmarks, by_event_time
    keeps_less = any(given is not None for given in kept)
    if keeps_less and everything:
        raise InvalidArgumentError("--everything ends retention: leave out what else is to be kept")
    if keeps_less:
        new = replace(new, retention=changed_policy(old.retention, *kept))
        changes.append(f"keeps {policy_text(new.retention)}")
    elif everything:
        new = replace(new, retention=None)
        changes.append("keeps everything")
    if tag or remove_tag:
        new = replace(new, tags=_tags(old.tags, tag or [], remove_tag or [], f"{scope}/{stream}"))
        changes.append(f"has the tags {', '.join(new.tags)}" if new.tags else "has no tags")
    if watermark_timeout is not None:
        new = replace(new, timestamp_aggregation_timeout_ms=round(age_s(watermark_timeout) * 1000))
        changes.append(f"has watermarks that wait {watermark_timeout}")
    if arrival_only and event_time is not None:
        raise InvalidArgumentError("--event-time and --no-event-time exclude each other: choose one")
    found = event_time_of(event_time, event_time_unit, event_time_format)
    if found is not None or arrival_only:
        new = replace(new, event_time=found)
        changes.append("has no event time" if found is None else f"has the event time {found.path}")
    if not changes:
        raise InvalidArgumentError("say what to change: --help lists the options")
    manager.update_stream(
        scope,
        stream,
        scaling=new.scaling,
        retention=new.retention,
        tags=new.tags,
        timestamp_aggregation_timeout_ms=new.timestamp_aggregation_timeout_ms,
        event_time=new.event_time,
    )
    say(f"stream {scope}/{stream} {', '.join(changes)}")


def _scaling(
    old: ScalingPolicy,
    segments: int | None,
    events_per_s: int | None,
    kib_per_s: int | None,
    factor: int | None,
    *,
    fixed: bool,
) -> ScalingPolicy:
    """The old policy but for what is given."""
    from nadi.client.control.policy import BY_EVENTS, BY_KBYTES, FIXED

    if [fixed, events_per_s is not None, kib_per_s is not None].count(True) > 1:
        raise InvalidArgumentError("--fixed, --events-per-s and --kib-per-s exclude each other: choose one")
    kind, rate = old.kind, old.target_rate
    if fixed:
        kind, rate = FIXED, 0
    elif events_per_s is not None:
        kind, rate = BY_EVENTS, events_per_s
    elif kib_per_s is not None:
        kind, rate = BY_KBYTES, kib_per_s
    if kind == FIXED and factor is not None:
        raise InvalidArgumentError(
            "--scale-factor has no effect on a fixed number of segments: add --events-per-s or --kib-per-s"
        )
    kept = 0 if kind == FIXED else max(2, factor or old.scale_factor)
    return replace(old, kind=kind, target_rate=rate, scale_factor=kept, min_segments=segments or old.min_segments)


def _tags(old: tuple[str, ...], added: list[str], removed: list[str], name: str) -> tuple[str, ...]:
    for tag in removed:
        if tag in added:
            raise InvalidArgumentError(f"tag {tag!r} is to be added and removed: choose one")
        if tag not in old:
            raise InvalidArgumentError(f"stream {name} has no tag {tag!r}: it has {', '.join(sorted(old)) or 'none'}")
    return tuple(sorted({*old, *added} - set(removed)))


def event_time_of(path: str | None, unit: str | None, form: TimeFormat | None) -> EventTime | None:
    """What the options for the event time say."""
    from nadi.model.event_time import EventTime

    if path is not None:
        return EventTime(path, unit or "s", form or "json")
    if unit is not None or form is not None:
        option = "--event-time-unit" if unit is not None else "--event-time-format"
        raise InvalidArgumentError(f"{option} has no effect without --event-time: name the field")
    return None


def beside_stream(manager: StreamManager, scope: str, stream: str) -> dict[str, Callable[[], None]]:
    """In words, and what deletes it."""
    from nadi.search import indexes, standing_queries

    found: dict[str, Callable[[], None]] = {}
    for name, catalog in (
        ("its search index", indexes(manager, scope)),
        ("its standing queries", standing_queries(manager, scope)),
    ):
        try:
            catalog.get(stream)
        except ProtocolError:  # of what can't be read: it goes all the same
            pass
        except (NotFoundError, PermissionDeniedError):  # what the caller can't read, it can't delete
            continue
        found[name] = partial(catalog.drop, stream)
    return found


def beside_scope(manager: StreamManager, scope: str, *, of_streams: bool) -> list[Callable[[], None]]:
    """Return calls that delete the scope's search indexes, whose shards would be orphaned without it. of_streams:
    include indexes of existing streams."""
    from nadi.search import indexes

    catalog = indexes(manager, scope)
    try:
        there = set() if of_streams else set(manager.list_streams(scope))
        found, unreadable = catalog.list_with_unreadable()
        streams = [*(one.stream for one in found), *(one.name for one in unreadable)]
        return [partial(catalog.drop, stream) for stream in streams if stream not in there]
    except (NotFoundError, PermissionDeniedError):
        return []


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
    from nadi.charts import name_of

    assert load.hot_key is not None
    return {"segment": name_of(load.segment_id), "position": load.hot_key.position, "share": load.hot_key.share}


def _share(share: float | None) -> str:
    return "which one isn't known, for no writer reports its keys" if share is None else f"{share:.0%} of its load"
