"""`nadi search standing`: queries that wait for events."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.bookmarks import Scope, Stream
from nadi.cli.printing import Form, errors_told, say, show, show_with
from nadi.cli.session import Controller, TrustStore, Yes, connected
from nadi.defaults import DEFAULT_URI

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.search import StandingStatus

FIELDS = "`name:kind,…`, where a kind is text, keyword, long, double, date or timestamp"
FormatHelp = typer.Option(
    "--format", help="What events are: json, objects with these fields, or text, each one field of the kind text."
)
standing_app = typer.Typer(help="Standing queries: create, add, remove, list, start.", no_args_is_help=True)


@standing_app.command("create")
@connected
def create(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    hits: Annotated[str, typer.Option(help="The stream for hits.")],
    fields: Annotated[str | None, typer.Option(help=f"{FIELDS}; by default those of the stream's index.")] = None,
    form_of: Annotated[Literal["json", "text"] | None, FormatHelp] = None,
    start: Annotated[str, typer.Option("--from", help="Where it begins: head, tail, a time, a bookmark.")] = "tail",
) -> None:
    """Have a stream's events matched with standing queries; `nadi search standing start` does it."""
    from nadi.search import standing_queries

    standing_queries(manager, scope).create(stream, hits, fields=fields, format=form_of, start=start)
    say(f"created: add queries with `nadi search standing add {scope} {stream} NAME QUERY`")


@standing_app.command("add")
@connected
def add(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    name: Annotated[str, typer.Argument(help="Its name, which is its hits' routing key.")],
    text: Annotated[str, typer.Argument(metavar="QUERY", help="What events are to fit.")],
    since: Annotated[str | None, typer.Option("--from", help="First what came since: head, a time.")] = None,
) -> None:
    """Add a standing query."""
    from nadi.search import standing_queries

    standing_queries(manager, scope).add(stream, {name: text}, since=since)
    say(f"added standing query {name}")


@standing_app.command("remove")
@connected
def remove(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Their names.")],
) -> None:
    """Remove standing queries; their hits stay."""
    from nadi.search import standing_queries

    standing_queries(manager, scope).remove(stream, names)
    say(f"removed {', '.join(names)}")


@standing_app.command("list")
@connected
def list_queries(manager: StreamManager, scope: Scope, stream: Stream, form: Form = Form.TABLE) -> None:
    """List a stream's standing queries."""
    from nadi.search import standing_queries

    found, unreadable = standing_queries(manager, scope).list_with_unreadable(stream)
    rows = [{"name": one.name, "query": one.text, "from": one.since or "when it was added"} for one in found]
    empty = f"Stream {scope}/{stream} has no standing queries yet."
    show_with(unreadable, rows, ["name", "query", "from"], form=form, empty=empty)


@standing_app.command("status")
@connected
def status(manager: StreamManager, scope: Scope, stream: Stream, form: Form = Form.TABLE) -> None:
    """Show how far a stream is matched, and by whom."""
    from nadi.search import standing_queries

    row = _row(standing_queries(manager, scope).status(stream))
    if form is not Form.TABLE:
        show([row], [], form=form, empty="")
    else:
        show([{"": key, " ": value} for key, value in row.items()], ["", " "], form=Form.TABLE, empty="")


@standing_app.command("start")
def start_matcher(
    scope: Scope, stream: Stream, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Match events until Ctrl-C; several that run share the work."""
    from nadi.search import match

    with errors_told():
        match(scope, stream, controller, trust_store=trust_store)


@standing_app.command("stop")
@connected
def stop(manager: StreamManager, scope: Scope, stream: Stream) -> None:
    """Have all matchers of a stream end; `nadi search standing start` goes on where they were."""
    from nadi.search import standing_queries

    standing_queries(manager, scope).stop(stream)
    say(f"stopped the standing queries of {scope}/{stream}")


@standing_app.command("drop")
@connected
def drop(manager: StreamManager, scope: Scope, stream: Stream, yes: Yes = False) -> None:
    """Delete all standing queries of a stream; their hits stay."""
    from nadi.errors import ProtocolError
    from nadi.search import standing_queries

    found = standing_queries(manager, scope)
    with suppress(ProtocolError):  # what can't be read can be dropped
        found.get(stream)
    if not yes:
        typer.confirm(f"Delete all standing queries of {scope}/{stream}? Their hits stay.", abort=True)
    found.drop(stream)
    say(f"deleted the standing queries of {scope}/{stream}")


def _row(status: StandingStatus) -> dict[str, Any]:
    one = status.definition
    row: dict[str, Any] = {
        "stream": one.stream,
        "hits": one.hits,
        "fields": ",".join(f"{field.name}:{field.kind}" for field in one.fields),
        "format": one.format,
        "stopped": one.is_stopped,
        "queries": status.queries,
        "queries in the past": status.catching_up,
        "events": status.events,
        "found": status.hits,
        "didn't parse": status.unfit,
        "events with each field": status.having,
        "gaps": status.gaps,
        "bytes behind": status.behind_bytes,
    }
    for number, told in enumerate(status.matchers, 1):
        error = f", last error: {told.last_error}" if told.last_error else ""
        row[f"matcher {number}"] = (
            f"{told.host}, process {told.pid}, {told.segments} segments, {told.events:,} events{error}"
        )
    return row
