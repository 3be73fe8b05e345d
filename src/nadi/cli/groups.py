"""`nadi group`: reader groups, their lag, checkpoints and positions; and the lag of Kafka groups.

A group of several streams takes either one position for all of them, or `STREAM=POSITION` for each.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.options import POSITION, By, Scope, TimeBasis, Yes, cut_at
from nadi.cli.printing import Form, confirm, say, show
from nadi.cli.session import Resource, Row
from nadi.errors import ConflictError, InvalidArgumentError, NotFoundError, PermissionDeniedError

if TYPE_CHECKING:
    from nadi.client import Checkpoint, StreamManager, Unreadable
    from nadi.model.reports import GroupLagReport
    from nadi.model.streamcut import StreamCut

Group = Annotated[str, typer.Argument(help="Name of the reader group.")]


def _rows(manager: StreamManager, scope: str) -> Any:
    """Return a row per reader group and Kafka group, summed over its streams; a sum is None if one of its values is
    unknown."""
    from nadi.errors import ReaderGroupNotFoundError

    def total(values: list[Any], of: Callable[[list[Any]], Any]) -> Any:
        return of(values) if values and None not in values else None

    groups, lags_of = manager.reader_group_manager(scope), []
    for name in groups.list_reader_groups():
        with suppress(ReaderGroupNotFoundError):  # deleted meanwhile
            lags_of.append((name, groups.lag(name)))
    kafka, unreadable = _kafka_lags(manager, scope)
    lags_of += [(name, list(lags)) for name, lags in groupby(kafka, lambda lag: lag.group)]
    rows = [
        {
            "group": name,
            "streams": [lag.stream for lag in lags],
            "readers": lags[0].readers if lags else None,
            "bytes": total([lag.lag_bytes for lag in lags], sum),
            "events": total([lag.lag_events for lag in lags], sum),
            "seconds": total([lag.lag_seconds for lag in lags], max),
        }
        for name, lags in lags_of
    ]
    return rows, unreadable


def _kafka_lags(manager: StreamManager, scope: str) -> tuple[list[GroupLagReport], list[Unreadable]]:
    """Return the lags of the scope's Kafka groups that the caller may see."""
    from nadi.client import Unreadable
    from nadi.naming import KAFKA_TABLE

    with suppress(NotFoundError, PermissionDeniedError):
        manager.table(scope, KAFKA_TABLE).get(b"group")  # NotFoundError unless Kafka clients have used the scope
        try:
            import nadi.kafka

            return nadi.kafka.group_lags(manager, scope=scope), []
        except InvalidArgumentError as error:  # no kio
            return [], [Unreadable("Kafka groups", str(error))]
    return [], []


def _for_people(row: Row) -> Row:
    """Format a row: a dash for unknown values, whole seconds."""

    def text(key: str, value: Any) -> Any:
        if value is None:
            return "-"
        if key == "events":
            return f"~{value:,}" if value else 0  # an estimate, except for 0
        return round(value) if key == "seconds" else value

    return {key: text(key, value) for key, value in row.items()}


def _check_own(manager: StreamManager, scope: str, group: str, force: bool | None) -> None:
    """Raise ConflictError if the group belongs to a function or a lake, which would lose its position."""
    from nadi.naming import READER_GROUP_PREFIX

    for kind in ("function", "lake") if not force else ():
        with suppress(NotFoundError, PermissionDeniedError):
            if manager.table(scope, READER_GROUP_PREFIX + group).get(kind.encode()) is not None:
                command = shlex.join(["nadi", kind, "delete", scope, group])
                raise ConflictError(
                    f"reader group {scope}/{group} belongs to a {kind}, which would start over: use `{command}`, or "
                    "add --force"
                )


def _delete(manager: StreamManager, scope: str, group: str, force: bool | None) -> bool:
    _check_own(manager, scope, group, force)
    return manager.reader_group_manager(scope).delete_reader_group(group)


def _find(manager: StreamManager, scope: str, group: str, force: bool | None) -> None:
    _check_own(manager, scope, group, force)
    manager.reader_group_manager(scope).get_reader_group(group)


Force = Annotated[
    bool | None,
    typer.Option("--force", help="Delete it even if it belongs to a function or lake, which then starts over."),
]
group_app = Resource(
    noun="reader group",
    names={"scope": Scope, "group": Group},
    columns=["group", "streams", "readers", "bytes", "events", "seconds"],
    rows=_rows,
    for_people=_for_people,
    delete=_delete,
    find=_find,
    question=" and its positions?",
    options={"force": Force},
).app()


@group_app.command("create")
def create_group(
    manager: StreamManager,
    scope: Scope,
    group: Group,
    streams: Annotated[list[str], typer.Argument(help="Streams to read: names within the scope, or SCOPE/STREAM.")],
    start: Annotated[
        list[str] | None,
        typer.Option("--from", help=f"Start: {POSITION}; or STREAM=POSITION. (default: head)"),
    ] = None,
    end: Annotated[
        list[str] | None,
        typer.Option("--to", help=f"End: {POSITION}; or STREAM=POSITION. (default: none)"),
    ] = None,
    by: By = TimeBasis.ARRIVAL,
    checkpoint_every: Annotated[str | None, typer.Option(help="Interval of automatic checkpoints: 30s, 5min.")] = None,
    retention: Annotated[
        Literal["none", "manual", "automatic"],
        typer.Option(help="Whether unread events are protected from retention: released by hand, or by checkpoints."),
    ] = "none",
) -> None:
    """Create a reader group."""
    from nadi.cli.amounts import age_s
    from nadi.client import StreamDataRetention

    full_names = [stream if "/" in stream else f"{scope}/{stream}" for stream in streams]
    kinds = {
        "none": StreamDataRetention.NONE,
        "manual": StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT,
        "automatic": StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT,
    }
    is_new = manager.reader_group_manager(scope).create_reader_group(
        group,
        streams,
        starts=_cuts(manager, full_names, start or [], "--from", by).values(),
        ends=_cuts(manager, full_names, end or [], "--to", by, end=True).values(),
        checkpoint_interval_ms=round(age_s(checkpoint_every) * 1000) if checkpoint_every is not None else 0,
        retention=kinds[retention],
    )
    say(f"created reader group {scope}/{group}" if is_new else f"reader group {scope}/{group} already exists")


@group_app.command("reset")
def reset_group(
    manager: StreamManager,
    scope: Scope,
    group: Group,
    to: Annotated[list[str] | None, typer.Option(help=f"New position: {POSITION}; or STREAM=POSITION.")] = None,
    by: By = TimeBasis.ARRIVAL,
    checkpoint: Annotated[str | None, typer.Option(help="Continue from this checkpoint of the group.")] = None,
    yes: Yes = False,
) -> None:
    """Move all readers of a group to another position. Events after it may be read again."""
    if (to is None) == (checkpoint is None):
        raise InvalidArgumentError("no position given: use either --to or --checkpoint")
    opened = manager.reader_group_manager(scope).get_reader_group(group)
    if checkpoint is not None:
        stored = {record.name: record for record in opened.checkpoints()}
        if checkpoint not in stored:
            names = ", ".join(stored) or "none"
            raise InvalidArgumentError(
                f"reader group {scope}/{group} doesn't store checkpoint {checkpoint!r}: its checkpoints are {names}"
            )
        cuts = dict(stored[checkpoint].stream_cuts)
    else:
        streams = opened.stream_names()
        cuts = _cuts(manager, streams, to or [], "--to", by)
        if missing := [stream for stream in streams if stream not in cuts]:
            raise InvalidArgumentError(f"no position for stream {missing[0]}: add --to {missing[0]}=POSITION")
    confirm(f"Reset reader group {scope}/{group} to {checkpoint or ', '.join(to or [])}?", yes)
    opened.reset_reader_group(cuts.values())
    say(f"reset reader group {scope}/{group}")


@group_app.command("checkpoint")
def make_checkpoint(
    manager: StreamManager,
    scope: Scope,
    group: Group,
    name: Annotated[str, typer.Argument(help="Name of the checkpoint.")],
    timeout: Annotated[float, typer.Option(help="Seconds to wait for all readers.", min=0.1)] = 60.0,
    form: Form = Form.TABLE,
) -> None:
    """Create a checkpoint, wait until all readers have reached it, and print its stream cuts."""
    checkpoint = manager.reader_group_manager(scope).get_reader_group(group).initiate_checkpoint(name, timeout=timeout)
    show(_checkpoint_rows([checkpoint]), ["checkpoint", "stream", "cut"], form=form)


@group_app.command("checkpoints")
def list_checkpoints(manager: StreamManager, scope: Scope, group: Group, form: Form = Form.TABLE) -> None:
    """List the stored checkpoints of a group, oldest first."""
    checkpoints = manager.reader_group_manager(scope).get_reader_group(group).checkpoints()
    empty = f"No checkpoints of reader group {scope}/{group}."
    show(_checkpoint_rows(checkpoints), ["checkpoint", "stream", "cut"], form=form, empty=empty)


@group_app.command("offline")
def take_offline(
    manager: StreamManager,
    scope: Scope,
    group: Group,
    reader: Annotated[str, typer.Argument(help="Id of the reader.")],
    yes: Yes = False,
) -> None:
    """Declare a reader dead, so that others continue from its last recorded positions."""
    opened = manager.reader_group_manager(scope).get_reader_group(group)
    if reader not in (online := opened.online_readers()):
        raise InvalidArgumentError(
            f"{reader!r} is not a reader of {scope}/{group}: its readers are {', '.join(online) or 'none'}"
        )
    confirm(f"Declare reader {reader} dead and reassign its segments?", yes)
    opened.reader_offline(reader)
    say(f"reader {reader} of {scope}/{group} is offline")


def _checkpoint_rows(checkpoints: list[Checkpoint]) -> list[Row]:
    return [
        {"checkpoint": checkpoint.name, "stream": stream, "cut": cut.as_text()}
        for checkpoint in checkpoints
        for stream, cut in checkpoint.stream_cuts.items()
    ]


def _cuts(
    manager: StreamManager, streams: list[str], positions: list[str], option: str, by: TimeBasis, *, end: bool = False
) -> dict[str, StreamCut]:
    """Return the cut of each stream that has a position of its own, or all cuts if one is for all."""
    for_all: list[str] = []
    by_stream: dict[str, str] = {}
    short = {stream: stream for stream in streams} | {stream.partition("/")[2]: stream for stream in streams}
    for text in positions:
        name, equals, position = text.partition("=")
        if equals and name in short:  # otherwise the text of a cut
            by_stream[short[name]] = position
        else:
            for_all.append(text)
    if len(for_all) > 1 or len(by_stream) + len(for_all) < len(positions):
        raise InvalidArgumentError(
            f"{option} is given twice for the same stream: give it once for each of {', '.join(streams)}"
        )
    if for_all and len(by_stream) == len(streams):
        raise InvalidArgumentError(f"{option} {for_all[0]} is unused: every stream is given its own position")
    chosen = dict.fromkeys(streams, for_all[0]) | by_stream if for_all else by_stream
    return {stream: cut_at(manager.cuts(*stream.split("/")), text, by, end=end) for stream, text in chosen.items()}


@group_app.command("show")
def show_group(manager: StreamManager, scope: Scope, group: Group, form: Form = Form.TABLE) -> None:
    """Show the consumer lag of a reader group or Kafka group per stream."""
    try:
        lags = manager.reader_group_manager(scope).lag(group)
    except NotFoundError:
        lags = [lag for lag in _kafka_lags(manager, scope)[0] if lag.group == group]
        if not lags:
            raise
    columns = ["stream", "bytes", "events", "seconds", "readers", "segments", "unassigned"]
    rows = [_row(lag) if form is not Form.TABLE else _for_people(_row(lag)) for lag in lags]
    show(rows, columns, form=form, empty=f"Reader group {scope}/{group} doesn't read any stream.")
    for lag in lags if form is Form.TABLE else ():
        if lag.why:
            say(f"{lag.stream}: unknown: {lag.why}")
        elif lag.source == "subscriber":
            say(f"{lag.stream}: measured from the position last released to retention")


def _row(lag: GroupLagReport) -> Row:
    return {
        "stream": lag.stream,
        "bytes": lag.lag_bytes,
        "events": lag.lag_events,
        "seconds": lag.lag_seconds,
        "readers": lag.readers,
        "segments": lag.segments,
        "unassigned": lag.unassigned,
        "source": lag.source,
        "recorded_every_s": lag.recorded_every_s,
        "published_ms": lag.published_ms,
        "why": lag.why,
    }
