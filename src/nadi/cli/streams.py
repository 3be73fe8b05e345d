"""`nadi scope` and `nadi stream`: manage scopes and streams, and show how streams scale."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.options import POSITION, SEVERAL, By, OfTag, Scope, Stream, Tags, TimeBasis, Yes, cut_at
from nadi.cli.printing import Form, confirm, report_deleted, say, show, utc
from nadi.cli.session import Resource, Row, check_absent, choose_one, option, taking
from nadi.defaults import PICTURE_SUFFIXES
from nadi.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, ProtocolError, ScopeNotFoundError

if TYPE_CHECKING:
    from nadi.client import RetentionHolder, ScalingPolicy, StreamManager
    from nadi.model.event_time import EventTime
    from nadi.model.reports import ScalingReport, SegmentReport

_LISTED = 8  # segments or key ranges shown per decision

_POLICIES = {
    "segments": option(int, "Minimum number of segments. (default: 1)", min=1),
    "events_per_s": option(int, "Split segments that receive more events per second.", min=1),
    "kib_per_s": option(int, "Split segments that receive more KiB per second.", min=1),
    "scale_factor": option(int, "Maximum pieces of one split. (default: 2)", min=2),
    "retention": option(str, "Minimum retention: an age (90s, 15min, 12h, 7d) or a size (500MB, 10GiB)."),
    "retention_max": option(str, "Maximum retention, even if reader groups need more."),
    "over_bookmarks": option(
        bool,
        "Whether retention may delete events that bookmarks and slices refer to.",
        "--retention-over-bookmarks/--retention-under-bookmarks",
    ),
    "by_event_time": option(
        bool, "Whether ages refer to the events' own time.", "--retention-by-event-time/--retention-by-arrival"
    ),
    "event_time": option(str, "Field with the event time, such as read_at or meta.time.", metavar="PATH"),
    "event_time_unit": option(Literal["s", "ms", "us", "ns"], "Unit of a numeric event time since 1970. (default: s)"),
    "event_time_format": option(Literal["json", "msgpack"], "Format of the events. (default: json)"),
}
_SCALING = "segments", "events_per_s", "kib_per_s", "scale_factor"
_RETENTION = "retention", "retention_max", "over_bookmarks", "by_event_time"


# --- scopes ----------------------------------------------------------------------------------------------

scope_app = Resource(
    noun="scope",
    names={"scope": Scope},
    columns=["scope"],
    rows=lambda manager: (
        [{"scope": scope} for scope in sorted(manager.list_scopes()) if not scope.startswith("_")],
        (),
    ),
    empty="No scopes found: create one with `nadi scope create NAME`.",
).app()


@scope_app.command("create")
def create_scope(manager: StreamManager, scope: Scope) -> None:
    """Create a scope."""
    is_new = manager.create_scope(scope)
    say(f"created scope {scope}" if is_new else f"scope {scope} already exists")


@scope_app.command("delete")
def delete_scope(
    manager: StreamManager,
    scope: Scope,
    recursive: Annotated[bool, typer.Option("--recursive", help="Delete everything in the scope, too.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a scope with its bookmarks, slices and search indexes."""
    from nadi.search import indexes

    if not yes:
        manager.list_streams(scope)  # ScopeNotFoundError
        confirm(f"Delete scope {scope}{' and all its streams' if recursive else ''}?")
    catalog, orphaned = indexes(manager, scope), set()
    with suppress(NotFoundError, PermissionDeniedError):
        readable, unreadable = catalog.list_with_unreadable()
        remaining = set() if recursive else set(manager.list_streams(scope))
        orphaned = {*(index.stream for index in readable), *(index.name for index in unreadable)} - remaining
    for stream in orphaned:
        catalog.delete(stream)
    is_deleted = manager.delete_scope(scope, recursive=recursive)
    report_deleted(is_deleted, f"deleted scope {scope}", f"scope {scope}")


# --- streams ---------------------------------------------------------------------------------------------


def _row(manager: StreamManager, scope: str, stream: str) -> Row:
    segments = manager.current_segments(scope, stream)
    tags = sorted(manager.stream_configuration(scope, stream).tags)
    return {"stream": stream, "segments": len(segments), "sealed": not segments, "tags": tags}


stream_app = Resource(
    noun="stream",
    names={"scope": Scope, "stream": Stream},
    columns=["stream", "segments", "sealed", "tags"],
    rows=lambda manager, scope, tag: (
        [_row(manager, scope, stream) for stream in sorted(manager.list_streams(scope, tag))],
        (),
    ),
    filters={"tag": OfTag},
).app()


@stream_app.command("create")
@taking(_POLICIES)
def create_stream(manager: StreamManager, scope: Scope, stream: Stream, tag: Tags = None, **given: Any) -> None:
    """Create a stream. The scope must exist."""
    from nadi.cli.amounts import retention_of
    from nadi.client import ScalingPolicy

    retention = [given[name] for name in _RETENTION]
    is_new = manager.create_stream(
        scope,
        stream,
        scaling=_scaling(ScalingPolicy.fixed(1), given),
        retention=None if retention == [None] * 4 else retention_of(None, *retention),
        tags=tag or (),
        event_time=_event_time(given),
    )
    say(f"created stream {scope}/{stream}" if is_new else f"stream {scope}/{stream} already exists")


@stream_app.command("update")
@taking(_POLICIES)
def update_stream(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    fixed: Annotated[bool, typer.Option("--fixed", help="Stop scaling: fix the number of segments.")] = False,
    everything: Annotated[
        bool, typer.Option("--everything", help="Remove the retention policy: keep everything.")
    ] = False,
    tag: Annotated[list[str] | None, typer.Option("--add-tag", help=f"Tag to add; {SEVERAL}.")] = None,
    remove_tag: Annotated[list[str] | None, typer.Option(help=f"Tag to remove; {SEVERAL}.")] = None,
    watermark_timeout: Annotated[
        str | None, typer.Option(help="How long watermarks wait for a writer that stopped noting times: 30s, 5min.")
    ] = None,
    arrival_only: Annotated[bool, typer.Option("--no-event-time", help="Remove the event time.")] = False,
    **given: Any,
) -> None:
    """Change a stream's scaling, retention, tags or event time. Whatever isn't given stays as it is."""
    from nadi.cli.amounts import age_s, retention_of, retention_text, scaling_text

    old = manager.stream_configuration(scope, stream)
    new: dict[str, Any] = {}
    changes = []
    if fixed or any(given[name] is not None for name in _SCALING):
        new["scaling"] = _scaling(old.scaling, given, fixed=fixed)
        changes.append(f"has {scaling_text(new['scaling'])}")
    retention = [given[name] for name in _RETENTION]
    if everything and retention != [None] * 4:
        raise InvalidArgumentError("--everything removes the retention policy: omit the other retention options")
    if everything or retention != [None] * 4:
        new["retention"] = None if everything else retention_of(old.retention, *retention)
        changes.append(f"keeps {retention_text(new['retention'])}")
    if tag or remove_tag:
        added, removed = set(tag or ()), set(remove_tag or ())
        for name in added & removed:
            raise InvalidArgumentError(f"tag {name!r} is both added and removed: choose one")
        for name in removed - set(old.tags):
            tags = ", ".join(sorted(old.tags)) or "none"
            raise InvalidArgumentError(f"stream {scope}/{stream} doesn't have tag {name!r}: its tags are {tags}")
        new["tags"] = sorted({*old.tags, *added} - removed)
        changes.append(f"has the tags {', '.join(new['tags'])}" if new["tags"] else "is untagged")
    if watermark_timeout is not None:
        new["timestamp_aggregation_timeout_ms"] = round(age_s(watermark_timeout) * 1000)
        changes.append(f"has watermarks that wait {watermark_timeout}")
    choose_one(event_time=given["event_time"] is not None, no_event_time=arrival_only)
    event_time = _event_time(given)
    if event_time is not None or arrival_only:
        new["event_time"] = event_time
        changes.append("has the event time removed" if event_time is None else f"has the event time {event_time.path}")
    if not changes:
        raise InvalidArgumentError("nothing to change: give an option; --help lists them")
    manager.update_stream(scope, stream, **new)
    say(f"stream {scope}/{stream} {', '.join(changes)}")


def _scaling(old: ScalingPolicy, given: Mapping[str, Any], *, fixed: bool = False) -> ScalingPolicy:
    """Return the old policy with the given changes."""
    from nadi.client.control.policy import BY_EVENTS, BY_KBYTES, FIXED

    choose_one(fixed=fixed, events_per_s=given["events_per_s"], kib_per_s=given["kib_per_s"])
    rates = {BY_EVENTS: given["events_per_s"], BY_KBYTES: given["kib_per_s"], FIXED: 0 if fixed else None}
    chosen = [(kind, rate) for kind, rate in rates.items() if rate is not None]
    kind, rate = chosen[0] if chosen else (old.kind, old.target_rate)
    factor = given["scale_factor"]
    if kind == FIXED and factor is not None:
        raise InvalidArgumentError(
            "--scale-factor can't be used with a fixed number of segments: add --events-per-s or --kib-per-s"
        )
    scale_factor = 0 if kind == FIXED else max(2, factor or old.scale_factor)
    segments = given["segments"] or old.min_segments
    return replace(old, kind=kind, target_rate=rate, scale_factor=scale_factor, min_segments=segments)


def _event_time(given: Mapping[str, Any]) -> EventTime | None:
    """Return the event time that the options describe."""
    from nadi.model.event_time import EventTime

    if given["event_time"] is not None:
        return EventTime(given["event_time"], given["event_time_unit"] or "s", given["event_time_format"] or "json")
    unused = {name: given[name] is not None for name in ("event_time_unit", "event_time_format")}
    check_absent("can't be used without --event-time", **unused)
    return None


@stream_app.command("show")
def show_stream(manager: StreamManager, scope: Scope, stream: Stream, form: Form) -> None:
    """Show a stream's segments, size, scaling and retention, and what delays truncation."""
    from nadi.charts import name_of
    from nadi.cli.amounts import retention_text, scaling_text

    row = _row(manager, scope, stream)
    info = manager.stream_info(scope, stream)
    row["bytes"] = manager.cuts(scope, stream).bytes_between(info.head, info.tail)
    row["head"], row["tail"] = info.head.as_text(), info.tail.as_text()
    configuration = manager.stream_configuration(scope, stream)
    row["scaling"], row["retention"] = scaling_text(configuration.scaling), retention_text(configuration.retention)
    row["hot_keys"] = [
        {"segment": name_of(load.segment_id), "position": load.hot_key.position, "share": load.hot_key.share}
        for load in manager.segment_loads(scope, stream)
        if load.hot_key is not None
    ]
    holders: tuple[RetentionHolder, ...] = ()
    try:
        retained = manager.retained(scope, stream)
    except PermissionDeniedError:  # the report names groups, which need a permission of their own
        row["oldest"], more = "?", 0
    else:
        row["oldest"] = "-" if retained.oldest_at is None else utc(retained.oldest_at)
        holders, more = retained.holders, retained.more_holders
    row["holders"] = [
        {"kind": holder.kind, "name": holder.name, "bytes_after": holder.bytes_after, "cut": holder.cut.as_text()}
        for holder in holders
    ]
    columns = ["stream", "segments", "sealed", "tags", "bytes", "oldest", "retention"]
    show([row], columns, form=form)
    if form is Form.TABLE:
        say(f"scaling: {row['scaling']}")
        for key in row["hot_keys"]:
            unknown = "key unknown, as no writer reports keys"
            share = unknown if key["share"] is None else f"{key['share']:.0%} of its load"
            say(f"hot key in segment {key['segment']}: {share}; splitting doesn't divide a key")
        for holder in holders:
            say(f"truncation delayed by {holder.kind} {holder.name}: {holder.bytes_after:,} bytes after it")
        if more:
            say(f"and by {more:,} others")


@stream_app.command("segments")
def list_segments(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    history: Annotated[
        bool, typer.Option("--history", help="Draw all segments over time: keys vertically, shaded by rate.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(help=f"Draw the history into this file: {', '.join(PICTURE_SUFFIXES)} (needs 'nadi[pictures]')."),
    ] = None,
    last: Annotated[float | None, typer.Option(help="Draw only the last seconds.", min=0.001)] = None,
    form: Form = Form.TABLE,
) -> None:
    """List a stream's current segments, or draw how they were split and merged."""
    if last is not None and (form is not Form.TABLE or not (history or picture)):
        raise InvalidArgumentError("--last can't be used without a drawing: add --history or --picture FILE")
    choose_one(output=form is not Form.TABLE, picture=picture)
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
    columns = ["segment", "low", "high", "since", "bytes", *([] if history else ["events_per_s", "bytes_per_s"])]
    rows = list(map(_segment_row, segments))
    if not history:
        loads = {load.segment_id: load for load in manager.segment_loads(scope, stream)}
        for row in rows:  # means over ten seconds
            load = loads.get(row["segment_id"])
            row["events_per_s"] = 0 if load is None else round(load.events_per_s[1])
            row["bytes_per_s"] = 0 if load is None else round(load.bytes_per_s[1])
    show(rows, columns, form=form, empty=f"Stream {scope}/{stream} is sealed.")


def _segment_row(segment: SegmentReport) -> Row:
    from nadi.charts import name_of

    return {
        "segment": name_of(segment.segment_id),
        "segment_id": segment.segment_id,
        "low": round(segment.low, 6),
        "high": round(segment.high, 6),
        "since": utc(segment.created_ms),
        "bytes": segment.end_offset - segment.start_offset,
        "created_ms": segment.created_ms,
        "replaced_ms": segment.replaced_ms,
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "rolled": segment.rolled,
    }


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


@stream_app.command("scaling-log")
def scaling_log(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    last: Annotated[int, typer.Option(help="Number of recent decisions.", min=1)] = 20,
    form: Form = Form.TABLE,
) -> None:
    """List scaling decisions about a stream, with their reasons."""
    decisions = manager.scaling_log(scope, stream)[-last:]
    rows = list(map(_decision, decisions))
    for row in rows if form is Form.TABLE else ():
        into = [f"{low:.4g}-{high:.4g}" for low, high in row["into"]]
        row |= {"segments": _first(row["segments"]), "into": _first(into)}
    empty = f"No scaling decisions about {scope}/{stream} yet."
    show(rows, ["at", "decision", "segments", "into", "why"], form=form, empty=empty)


def _decision(report: ScalingReport) -> Row:
    from msgspec import structs

    from nadi.charts import name_of

    fields = structs.asdict(report)
    return fields | {
        "at": utc(report.at_ms, "milliseconds"),
        "decision": report.kind if report.is_done else f"{report.kind} (not carried out)",
        "segments": [name_of(segment) for segment in report.segments],
    }


def _first(names: list[str]) -> list[str]:
    remaining = len(names) - _LISTED
    return names if remaining < 2 else [*names[:_LISTED], f"and {remaining:,} more"]


@stream_app.command("seal")
def seal_stream(manager: StreamManager, scope: Scope, stream: Stream, yes: Yes = False) -> None:
    """Seal a stream permanently, so that it accepts no further events."""
    confirm(f"Seal stream {scope}/{stream}? This is permanent: it accepts no further events.", yes)
    manager.seal_stream(scope, stream)
    say(f"sealed stream {scope}/{stream}")


@stream_app.command("truncate")
def truncate_stream(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    at: Annotated[str, typer.Option(help=f"Position: {POSITION}. Earlier events are deleted.")],
    by: By = TimeBasis.ARRIVAL,
    yes: Yes = False,
) -> None:
    """Delete all events before a position, permanently."""
    confirm(f"Delete all events of {scope}/{stream} before {at}?", yes)
    manager.truncate_stream(cut_at(manager.cuts(scope, stream), at, by))
    say(f"truncated stream {scope}/{stream}")


@stream_app.command("delete")
def delete_stream(manager: StreamManager, scope: Scope, stream: Stream, yes: Yes = False) -> None:
    """Delete a sealed stream with its stream tables, search index and standing queries. Tables of its lakes stay."""
    from nadi.lake.definition import lakes_of
    from nadi.search import indexes, standing_queries

    lakes, tables = "", ""
    with suppress(NotFoundError, PermissionDeniedError):  # no such scope, or no permission to list lakes
        definitions = [
            lake.definition for lake in lakes_of(manager, scope)[0].values() if lake.definition.stream == stream
        ]
        lakes = ", ".join(f"table {lake.table} of lake {lake.name}" for lake in definitions)
    with suppress(PermissionDeniedError, ScopeNotFoundError):
        if defined := [table.name for table in manager.stream_tables(scope).list(stream=stream)]:
            tables = f", and its stream tables ({', '.join(defined)})"
    catalogs: dict[str, Any] = {
        "its search index": indexes(manager, scope),
        "its standing queries": standing_queries(manager, scope),
    }
    dependents = [name for name, catalog in catalogs.items() if _has(catalog, stream)]
    if not yes:
        if not dependents:  # else a killed command may have left them behind
            manager.stream_configuration(scope, stream)  # StreamNotFoundError
        warning = f" Events that aren't in {lakes} yet are lost." if lakes else ""
        more = tables + "".join(f", and {name}" for name in dependents)
        confirm(f"Delete stream {scope}/{stream} and all its events{more}?{warning}")
    is_deleted = manager.delete_stream(scope, stream)
    if (
        is_deleted or not dependents
    ):  # otherwise another client deleted the stream, or a killed command: remove the leftovers
        report_deleted(is_deleted, f"deleted stream {scope}/{stream}", f"stream {scope}/{stream}")
    if is_deleted and lakes:
        say(f"{lakes} stays: `nadi lake rebuild` restores a stream from it, `nadi lake delete` deletes the lake")
    for name in dependents:
        catalogs[name].delete(stream)
    if dependents and not is_deleted:
        say(f"stream {scope}/{stream} doesn't exist: deleted {' and '.join(dependents)}")


def _has(catalog: Any, stream: str) -> bool:
    """Return whether the caller can delete the record. It must be visible, but may be unreadable."""
    try:
        catalog.get(stream)
    except ProtocolError:
        return True
    except (NotFoundError, PermissionDeniedError):
        return False
    return True
