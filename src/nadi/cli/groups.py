"""`nadi group`: the reader groups of a scope, their lag, and where they continue.

Positions are given as everywhere, `head`, a bookmark, a time; for groups of several streams also one by one, as
`STREAM=POSITION`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.options import POSITION, By, Scope, TimeBasis, Yes, cut_at
from nadi.cli.printing import Form, confirm, say, show
from nadi.cli.session import Resource, Row
from nadi.errors import ConflictError, InvalidArgumentError, NotFoundError, PermissionDeniedError

if TYPE_CHECKING:
    from nadi.client import Checkpoint, StreamManager
    from nadi.model.reports import GroupLagReport
    from nadi.model.streamcut import StreamCut

Group = Annotated[str, typer.Argument(help="The reader group.")]


def _rows(manager: StreamManager, scope: str) -> Any:
    """All streams of each together; unknown if it is for one of them."""
    from nadi.errors import ReaderGroupNotFoundError

    def total(values: list[Any], of: Callable[[list[Any]], Any]) -> Any:
        return of(values) if values and None not in values else None

    groups, rows = manager.reader_group_manager(scope), []
    for name in groups.list_reader_groups():
        with suppress(ReaderGroupNotFoundError):  # deleted meanwhile
            lags = groups.lag(name)
            row = {
                "group": name,
                "streams": [lag.stream for lag in lags],
                "readers": lags[0].readers if lags else None,
                "bytes": total([lag.bytes_behind for lag in lags], sum),
                "events": total([lag.events_behind for lag in lags], sum),
                "seconds": total([lag.seconds_behind for lag in lags], max),
            }
            rows.append(row)
    return rows, ()


def _for_people(row: Row) -> Row:
    """With a dash where something is unknown, and whole seconds."""

    def text(key: str, value: Any) -> Any:
        if value is None:
            return "-"
        if key == "events":
            return f"~{value:,}" if value else 0  # an estimate, unless there is none
        return round(value) if key == "seconds" else value

    return {key: text(key, value) for key, value in row.items()}


def _check_own(manager: StreamManager, scope: str, group: str, force: bool | None) -> None:
    """ConflictError if the group belongs to a function or a lake, which would lose its position."""
    from nadi.naming import READER_GROUP_PREFIX

    for kind in ("function", "lake") if not force else ():
        with suppress(NotFoundError, PermissionDeniedError):
            if manager.table(scope, READER_GROUP_PREFIX + group).get(kind.encode()) is not None:
                command = shlex.join(["nadi", kind, "delete", scope, group])
                raise ConflictError(
                    f"reader group {scope}/{group} is that of a {kind}, which would be forgotten: use `{command}`, or "
                    "add --force"
                )


def _delete(manager: StreamManager, scope: str, group: str, force: bool | None) -> bool:
    _check_own(manager, scope, group, force)
    return manager.reader_group_manager(scope).delete_reader_group(group)


Force = Annotated[
    bool | None,
    typer.Option("--force", help="Delete it even if it belongs to a function or a lake, which then starts over."),
]
group_app = Resource(
    noun="reader group",
    names={"scope": Scope, "group": Group},
    columns=["group", "streams", "readers", "bytes", "events", "seconds"],
    rows=_rows,
    for_people=_for_people,
    delete=_delete,
    find=_check_own,
    question=" and its positions?",
    options={"force": Force},
).app()


@group_app.command("create")
def create_group(
    manager: StreamManager,
    scope: Scope,
    group: Group,
    streams: Annotated[list[str], typer.Argument(help="What it reads: streams of the scope, or SCOPE/STREAM.")],
    start: Annotated[
        list[str] | None,
        typer.Option("--from", help=f"Where it begins: {POSITION}; or STREAM=POSITION. [default: head]"),
    ] = None,
    end: Annotated[
        list[str] | None,
        typer.Option("--to", help=f"Where it ends: {POSITION}; or STREAM=POSITION. [default: nowhere]"),
    ] = None,
    by: By = TimeBasis.ARRIVAL,
    checkpoint_every: Annotated[
        str | None, typer.Option(help="Have checkpoints made at this interval: 30s, 5min.")
    ] = None,
    retention: Annotated[
        Literal["none", "manual", "automatic"],
        typer.Option(help="Whether its streams keep what it hasn't read: by hand, or by its checkpoints."),
    ] = "none",
) -> None:
    """Create a reader group."""
    from nadi.cli.amounts import age_s
    from nadi.client import StreamDataRetention

    named = [stream if "/" in stream else f"{scope}/{stream}" for stream in streams]
    kinds = {
        "none": StreamDataRetention.NONE,
        "manual": StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT,
        "automatic": StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT,
    }
    made = manager.reader_group_manager(scope).create_reader_group(
        group,
        streams,
        starts=_cuts(manager, named, start or [], "--from", by).values(),
        ends=_cuts(manager, named, end or [], "--to", by, end=True).values(),
        checkpoint_interval_ms=round(age_s(checkpoint_every) * 1000) if checkpoint_every is not None else 0,
        retention=kinds[retention],
    )
    say(f"created reader group {scope}/{group}" if made else f"reader group {scope}/{group} already exists")


@group_app.command("reset")
def reset_group(
    manager: StreamManager,
    scope: Scope,
    group: Group,
    to: Annotated[list[str] | None, typer.Option(help=f"Where to continue: {POSITION}; or STREAM=POSITION.")] = None,
    by: By = TimeBasis.ARRIVAL,
    checkpoint: Annotated[str | None, typer.Option(help="Continue at this checkpoint of the group.")] = None,
    yes: Yes = False,
) -> None:
    """Have all readers of a group continue at another position: they read what follows it, again if need be."""
    if (to is None) == (checkpoint is None):
        raise InvalidArgumentError("say where to continue: either --to or --checkpoint")
    opened = manager.reader_group_manager(scope).get_reader_group(group)
    if checkpoint is not None:
        kept = opened.checkpoints()
        wanted = next((one for one in kept if one.name == checkpoint), None)
        if wanted is None:
            names = ", ".join(one.name for one in kept) or "none"
            raise InvalidArgumentError(
                f"reader group {scope}/{group} has no checkpoint {checkpoint!r} any more: {names}"
            )
        cuts = dict(wanted.stream_cuts)
    else:
        streams = opened.stream_names()
        cuts = _cuts(manager, streams, to or [], "--to", by)
        if missing := [stream for stream in streams if stream not in cuts]:
            raise InvalidArgumentError(f"say for each stream where to continue: --to {missing[0]}=POSITION is missing")
    confirm(f"Have reader group {scope}/{group} continue at {checkpoint or ', '.join(to or [])}?", yes)
    opened.reset_reader_group(cuts.values())
    say(f"reset reader group {scope}/{group}")


@group_app.command("checkpoint")
def make_checkpoint(
    manager: StreamManager,
    scope: Scope,
    group: Group,
    name: Annotated[str, typer.Argument(help="The checkpoint's name.")],
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the readers to pass it.", min=0.1)] = 60.0,
    form: Form = Form.TABLE,
) -> None:
    """Make a checkpoint, which all readers pass as they read on, and show its cuts."""
    made = manager.reader_group_manager(scope).get_reader_group(group).initiate_checkpoint(name, timeout=timeout)
    show(_checkpoint_rows([made]), ["checkpoint", "stream", "cut"], form=form)


@group_app.command("checkpoints")
def list_checkpoints(manager: StreamManager, scope: Scope, group: Group, form: Form = Form.TABLE) -> None:
    """List the newest checkpoints of a group, oldest first."""
    kept = manager.reader_group_manager(scope).get_reader_group(group).checkpoints()
    empty = f"Reader group {scope}/{group} has no checkpoints."
    show(_checkpoint_rows(kept), ["checkpoint", "stream", "cut"], form=form, empty=empty)


@group_app.command("offline")
def take_offline(
    manager: StreamManager,
    scope: Scope,
    group: Group,
    reader: Annotated[str, typer.Argument(help="The reader's id.")],
    yes: Yes = False,
) -> None:
    """Declare a reader dead: others continue from its recorded positions."""
    opened = manager.reader_group_manager(scope).get_reader_group(group)
    if reader not in (online := opened.online_readers()):
        raise InvalidArgumentError(
            f"{reader!r} is not a reader of {scope}/{group}: it has {', '.join(online) or 'none'}"
        )
    confirm(f"Have others continue where reader {reader} was?", yes)
    opened.reader_offline(reader)
    say(f"reader {reader} of {scope}/{group} is offline")


def _checkpoint_rows(kept: list[Checkpoint]) -> list[Row]:
    return [
        {"checkpoint": one.name, "stream": stream, "cut": cut.as_text()}
        for one in kept
        for stream, cut in one.stream_cuts.items()
    ]


def _cuts(
    manager: StreamManager, streams: list[str], positions: list[str], option: str, by: TimeBasis, *, end: bool = False
) -> dict[str, StreamCut]:
    """By stream: what is given for it, or for all."""
    for_all: list[str] = []
    of_one: dict[str, str] = {}
    short = {stream: stream for stream in streams} | {stream.partition("/")[2]: stream for stream in streams}
    for text in positions:
        name, equals, where = text.partition("=")
        if equals and name in short:  # else it is the text of a cut
            of_one[short[name]] = where
        else:
            for_all.append(text)
    if len(for_all) > 1 or len(of_one) + len(for_all) < len(positions):
        raise InvalidArgumentError(f"{option} is given twice for the same stream: {', '.join(streams)}")
    if for_all and len(of_one) == len(streams):
        raise InvalidArgumentError(f"{option} {for_all[0]} has no effect: each stream has a position of its own")
    wanted = dict.fromkeys(streams, for_all[0]) | of_one if for_all else of_one
    return {stream: cut_at(manager.cuts(*stream.split("/")), text, by, end=end) for stream, text in wanted.items()}


@group_app.command("show")
def show_group(manager: StreamManager, scope: Scope, group: Group, form: Form = Form.TABLE) -> None:
    """Show how far a reader group is behind, stream by stream."""
    lags = manager.reader_group_manager(scope).lag(group)
    columns = ["stream", "bytes", "events", "seconds", "readers", "segments", "unassigned"]
    rows = [_row(lag) if form is not Form.TABLE else _for_people(_row(lag)) for lag in lags]
    show(rows, columns, form=form, empty=f"Reader group {scope}/{group} reads no stream.")
    for lag in lags if form is Form.TABLE else ():
        if lag.why:
            say(f"{lag.stream}: unknown, for {lag.why}")
        elif lag.source == "subscriber":
            say(f"{lag.stream}: from what the group last released to retention")


def _row(lag: GroupLagReport) -> Row:
    return {
        "stream": lag.stream,
        "bytes": lag.bytes_behind,
        "events": lag.events_behind,
        "seconds": lag.seconds_behind,
        "readers": lag.readers,
        "segments": lag.segments,
        "unassigned": lag.unassigned,
        "source": lag.source,
        "recorded_every_s": lag.recorded_every_s,
        "published_ms": lag.published_ms,
        "why": lag.why,
    }
