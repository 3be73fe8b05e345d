"""`nadi stream update`: change what was given at a stream's creation, only what is asked for, in one step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nadi.cli.bookmarks import Scope, Stream
from nadi.cli.printing import say
from nadi.cli.scaling import EventsPerS, KibPerS, scaling_text
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import ScalingPolicy, StreamManager
    from nadi.model.event_time import EventTime, TimeFormat


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
