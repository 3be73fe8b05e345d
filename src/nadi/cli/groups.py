"""`nadi group`: the reader groups of a scope, and how far each is behind the tails of its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.bookmarks import Scope
from nadi.cli.printing import Form, say, show
from nadi.cli.session import connected

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.model.reports import GroupLagReport

group_app = typer.Typer(help="Reader groups: list them, and show how far they are behind.", no_args_is_help=True)
Group = Annotated[str, typer.Argument(help="The reader group.")]


@group_app.command("list")
@connected
def list_groups(manager: StreamManager, scope: Scope, form: Form = Form.TABLE) -> None:
    """List a scope's reader groups, with what all their streams together are behind."""
    from nadi.errors import ReaderGroupNotFoundError

    groups = manager.reader_group_manager(scope)
    rows = []
    for name in groups.list_reader_groups():
        try:
            rows.append(_summary(name, groups.lag(name)))
        except ReaderGroupNotFoundError:
            continue  # deleted meanwhile
    columns = ["group", "streams", "readers", "bytes", "events", "seconds"]
    show(_shown(rows, form), columns, form=form, empty=f"Scope {scope} has no reader groups.")


@group_app.command("show")
@connected
def show_group(manager: StreamManager, scope: Scope, group: Group, form: Form = Form.TABLE) -> None:
    """Show how far a reader group is behind, stream by stream."""
    lags = manager.reader_group_manager(scope).lag(group)
    columns = ["stream", "bytes", "events", "seconds", "readers", "segments", "unassigned"]
    rows = [_row(lag) for lag in lags]
    show(_shown(rows, form), columns, form=form, empty=f"Reader group {scope}/{group} reads no stream.")
    if form is not Form.TABLE:
        return
    for lag in lags:
        if lag.why:
            say(f"{lag.stream}: unknown, for {lag.why}")
        elif lag.source == "subscriber":
            say(f"{lag.stream}: from what the group last released to retention")


def _row(lag: GroupLagReport) -> dict[str, Any]:
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


def _summary(group: str, lags: list[GroupLagReport]) -> dict[str, Any]:
    """All streams together; unknown if it is for one of them."""

    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    seconds = [lag.seconds_behind for lag in lags if lag.seconds_behind is not None]
    return {
        "group": group,
        "streams": [lag.stream for lag in lags],
        "readers": lags[0].readers if lags else None,
        "bytes": total([lag.bytes_behind for lag in lags]),
        "events": total([lag.events_behind for lag in lags]),
        "seconds": max(seconds) if seconds and len(seconds) == len(lags) else None,
    }


def _shown(rows: list[dict[str, Any]], form: Form) -> list[dict[str, Any]]:
    """For people, a dash where something is unknown, and whole seconds."""
    if form is not Form.TABLE:
        return rows
    return [{key: _text(key, value) for key, value in row.items()} for row in rows]


def _text(key: str, value: Any) -> Any:
    if value is None:
        return "-"
    if key == "events":
        return f"~{value:,}" if value else 0  # an estimate, unless there is none
    return round(value) if key == "seconds" else value
