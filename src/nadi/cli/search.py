"""`nadi search`: full-text indexes of streams, indexers and queries; and standing queries that match new events."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.options import Controller, DeadLetters, DryRun, OfIndex, RoutingKeys, Scope, Stream, TrustStore, Yes
from nadi.cli.printing import Form, confirm, output, processes, say, show, utc, warn
from nadi.cli.session import Resource, Row
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.search import IndexDefinition, IndexStatus, Page, StandingStatus
    from nadi.search.blocking import Indexes, StandingQueries
    from nadi.search.percolate.records import QuerySet

_POSITION = "head, tail, a time, a bookmark, or a cut's text"
_FIELDS = "Fields as `name:kind,…`; kinds: text, keyword, long, double, date, timestamp"
FormatHelp = typer.Option(
    "--format", help="Format of the events: json objects with these fields, or text as a single field."
)


def _indexes(manager: StreamManager, scope: str) -> Indexes:
    from nadi.search import indexes

    return indexes(manager, scope)


def _standing(manager: StreamManager, scope: str) -> StandingQueries:
    from nadi.search import standing_queries

    return standing_queries(manager, scope)


def _fields(definition: IndexDefinition | QuerySet) -> str:
    return ",".join(f"{field.name}:{field.kind}" for field in definition.fields)


# --- indexes ---------------------------------------------------------------------------------------------


def _rows(manager: StreamManager, scope: str) -> Any:
    definitions, unreadable = _indexes(manager, scope).list_with_unreadable()
    rows = [
        {
            "stream": index.stream,
            "fields": _fields(index),
            "format": index.format,
            "stopped": "being deleted" if index.is_deleted else index.is_stopped,
            "store": index.url,
        }
        for index in definitions
    ]
    return rows, unreadable


def _show(manager: StreamManager, scope: str, stream: str) -> Row:
    index = _indexes(manager, scope).get(stream)
    row = {"stream": index.stream, "fields": _fields(index), "format": index.format, "stopped": index.is_stopped}
    return row | {"store": index.url, "dead_letter_stream": index.dead_letters or "", "begins": index.start}


def _status(manager: StreamManager, scope: str, stream: str) -> Row:
    status = _indexes(manager, scope).status(stream)
    definition = status.definition
    row = {"store": definition.url, "dead_letter_stream": definition.dead_letters or "", "indexed": status.indexed}
    row |= {"backfill_bytes": status.backfill_bytes, "shards": status.shards, "bytes": status.size_bytes}
    return _progress(status) | row | processes("indexer", status.indexers)


def _progress(status: IndexStatus | StandingStatus) -> Row:
    definition = status.definition
    return {
        "stream": definition.stream,
        "fields": _fields(definition),
        "format": definition.format,
        "stopped": definition.is_stopped,
        "invalid": status.invalid,
        "events_with_field": status.field_counts,
        "gaps": status.gaps,
        "lag_bytes": status.lag_bytes,
    }


KeepObjects = Annotated[
    bool | None,
    typer.Option("--keep-objects", help="Don't delete its shards, for example if their store no longer exists."),
]

search_app = Resource(
    noun="search index",
    names={"scope": Scope, "stream": Stream},
    columns=["stream", "fields", "format", "stopped", "store"],
    rows=_rows,
    show=_show,
    status=_status,
    stop=lambda manager, scope, stream: _indexes(manager, scope).stop(stream),
    delete=lambda manager, scope, stream, keep_objects: _indexes(manager, scope).delete(
        stream, keep_objects=bool(keep_objects)
    ),
    find=lambda manager, scope, stream, **_: _indexes(manager, scope).get(stream),
    question="? The stream stays.",
    options={"keep_objects": KeepObjects},
    stays="; the stream stays",
).app()


@search_app.command("create")
def create_index(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    fields: Annotated[str, typer.Option(help=f"{_FIELDS}; with --format text a single field, such as line:text.")],
    index: OfIndex,
    form_of: Annotated[Literal["json", "text"], FormatHelp] = "json",
    start: Annotated[str, typer.Option("--from", help=f"Start: {_POSITION}.")] = "head",
    dead_letters: DeadLetters = None,
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Encrypt the shards (docs/encryption.md).")] = False,
) -> None:
    """Create a search index for a stream. `nadi search run` fills it."""
    _indexes(manager, scope).create(
        stream, fields, where=index, format=form_of, start=start, dead_letters=dead_letters, encrypt=encrypt
    )
    say(f"created search index {scope}/{stream}: fill it with `{_run(scope, stream)}`")


def _run(scope: str, stream: str) -> str:
    return shlex.join(["nadi", "search", "run", scope, stream])


@search_app.command("run")
def run_indexer(
    scope: Scope, stream: Stream, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Run an indexer until Ctrl-C. Several indexers share the work."""
    from nadi.search import run

    run(scope, stream, controller, trust_store=trust_store)


@search_app.command("backfill")
def backfill(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    processes: Annotated[int, typer.Option(help="Number of processes on this machine.", min=1, max=1_000)] = 1,
) -> None:
    """Index a stream's existing events with several processes.

    If interrupted, run it again to continue.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    from nadi.search import backfill_parts

    parts = backfill_parts(manager, scope, stream)
    total, done, reported = sum(part.size_bytes for part in parts), 0, 0
    with ProcessPoolExecutor(min(processes, len(parts) or 1), multiprocessing.get_context("spawn")) as pool:
        try:
            running = {pool.submit(part.index): part.size_bytes for part in parts}
            for future in as_completed(running):
                future.result()
                done += running[future]
                if (percent := done * 10 // max(total, 1) * 10) > reported:
                    reported = percent
                    warn(f"{percent} % of {total:,} bytes")
        except BaseException:  # also on Ctrl-C: finish only parts already started
            pool.shutdown(cancel_futures=True)
            raise
    say(f"indexed {total:,} bytes of {scope}/{stream} in {len(parts):,} parts")


@search_app.command("clean")
def clean(
    manager: StreamManager, index: OfIndex, dry_run: DryRun = False, yes: Yes = False, form: Form = Form.TABLE
) -> None:
    """Delete orphaned shards, whose index no longer exists. Shards of other servers are kept."""
    from nadi import search

    orphaned = search.orphaned_shards(manager, index)
    columns = ["scope", "stream", "shards", "bytes", "folder", "reason"]
    fields = ["scope", "stream", "shards", "size_bytes", "folder", "why_retained"]
    rows = [{name: getattr(each, field) for name, field in zip(columns, fields, strict=True)} for each in orphaned]
    show(rows, columns, form=form, empty=f"No orphaned shards in {index}.")
    removable = [each for each in orphaned if not each.why_retained]
    if dry_run or not removable:
        return
    confirm(f"Delete {sum(each.shards for each in removable):,} orphaned shards?", yes)
    deleted = search.clean(manager, index)
    shards, size_bytes = sum(each.shards for each in deleted), sum(each.size_bytes for each in deleted)
    warn(f"deleted {shards:,} shards, {size_bytes:,} bytes")


@search_app.command("query")
def query(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    text: Annotated[
        str, typer.Argument(metavar="[QUERY]", help="Query (see docs/search.md). (default: all events)")
    ] = "",
    order: Annotated[Literal["newest", "oldest", "best"], typer.Option(help="Order of hits.")] = "newest",
    limit: Annotated[int, typer.Option("--limit", "-c", help="Hits per page.", min=1)] = 20,
    after: Annotated[
        str | None, typer.Option(help="Show the page that starts here: the `next` of the previous page.")
    ] = None,
    since: Annotated[str | None, typer.Option("--from", help=f"Start of the range: {_POSITION}.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="End of the range.")] = None,
    key: RoutingKeys = None,
    wait_for: Annotated[str | None, typer.Option(help="Wait until everything before this position is indexed.")] = None,
    by: Annotated[
        str | None, typer.Option(help="Count by this field, or by _arrival_time, instead of listing hits.")
    ] = None,
    interval_s: Annotated[
        float | None, typer.Option("--interval", help="Interval of counts by time in seconds.")
    ] = None,
    form: Form = Form.TABLE,
) -> None:
    """Search events, or count them."""
    bounds: dict[str, Any] = {"since": since, "until": until, "keys": key or None, "wait_for": wait_for}
    with _indexes(manager, scope).open(stream) as index:
        if by is not None or interval_s is not None:
            if after is not None or order != "newest":
                raise InvalidArgumentError(
                    "--after and --order can't be combined with --by, which counts hits: choose one"
                )
            counts = index.count(text, by=by, interval_s=interval_s, limit=limit, **bounds)
            rows = [{"value": str(value), "events": count} for value, count in counts.items()]
            show(rows, ["value", "events"], form=form, empty="Nothing found.")
            return
        page = index.query(text, order=order, limit=limit, after=after, **bounds)
    _show_page(page, form)
    if page.hits:
        return
    status = _indexes(manager, scope).status(stream)
    if status.indexed and (unseen := [name for name, events in status.field_counts.items() if not events]):
        warn(f"no event of {status.indexed:,} has the field {', '.join(unseen)}: check its spelling")
    if status.lag_bytes and not status.indexers:
        warn(f"{status.lag_bytes:,} bytes aren't indexed and no indexer is running: use `{_run(scope, stream)}`")


def _show_page(page: Page, form: Form) -> None:
    if form is not Form.TABLE:
        rows: list[Row] = [
            {
                "arrival_time": utc(hit.arrival_time, "milliseconds"),
                "segment": hit.segment_id,
                "offset": hit.offset,
                "score": hit.score,
                "event": hit.data.decode(errors="replace"),
            }
            for hit in page.hits
        ]
        if form is Form.JSON:
            rows = [{"count": page.count, "next": page.next, "hits": rows}]
        show(rows, ["arrival_time", "segment", "offset", "score", "event"], form=form)
        return
    from rich.text import Text

    console = output()
    for hit in page.hits:
        excerpt = hit.excerpt
        line = hit.data.decode(errors="replace") if excerpt is None else excerpt.text
        text = Text("".join(char if char.isprintable() else " " for char in line))
        for start, end in () if excerpt is None else excerpt.matches:
            text.stylize("bold", start, end)
        location = f"{utc(hit.arrival_time)} {hit.segment_id}@{hit.offset} "
        console.print(Text(location).append_text(text), soft_wrap=True)
    say(f"{len(page.hits):,} of {page.count:,} events" if page.hits else "Nothing found.")
    if page.next is not None:
        say(f"next page: --after {page.next}")


# --- standing queries ------------------------------------------------------------------------------------


def _queries(manager: StreamManager, scope: str, stream: str) -> Any:
    queries, unreadable = _standing(manager, scope).list_with_unreadable(stream)
    rows = [{"name": each.name, "query": each.text, "from": each.since or "when it was added"} for each in queries]
    return rows, unreadable


def _standing_status(manager: StreamManager, scope: str, stream: str) -> Row:
    status = _standing(manager, scope).status(stream)
    row = {"hits": status.definition.hits, "queries": status.queries, "queries_backfilling": status.catching_up}
    row |= {"events": status.events, "found": status.hits}
    return _progress(status) | row | processes("matcher", status.matchers)


standing_app = typer.Typer(help="Manage standing queries, which match new events.", no_args_is_help=True)
search_app.add_typer(standing_app, name="standing")
Resource(
    noun="standing query",
    names={"scope": Scope, "stream": Stream, "name": Stream},
    columns=["name", "query", "from"],
    rows=_queries,
    empty="No standing queries of stream {scope}/{stream}.",
).add_to(standing_app)
Resource(
    noun="set of standing queries",
    names={"scope": Scope, "stream": Stream},
    status=_standing_status,
    stop=lambda manager, scope, stream: _standing(manager, scope).stop(stream),
    delete=lambda manager, scope, stream: _standing(manager, scope).delete(stream),
    find=lambda manager, scope, stream: _standing(manager, scope).get(stream),
    question="? Their hits stay.",
    stays="; their hits stay",
).add_to(standing_app)


@standing_app.command("create")
def create_standing(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    hits: Annotated[str, typer.Option(help="Stream for hits.")],
    fields: Annotated[str | None, typer.Option(help=f"{_FIELDS}. (default: those of the stream's index)")] = None,
    form_of: Annotated[Literal["json", "text"] | None, FormatHelp] = None,
    start: Annotated[str, typer.Option("--from", help="Start: head, tail, a time, a bookmark.")] = "tail",
) -> None:
    """Set up standing queries for a stream. `nadi search standing run` matches them."""
    _standing(manager, scope).create(stream, hits, fields=fields, format=form_of, start=start)
    command = shlex.join(["nadi", "search", "standing", "add", scope, stream])
    say(f"created standing queries of {scope}/{stream}: add one with `{command} NAME QUERY`")


@standing_app.command("add")
def add(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    name: Annotated[str, typer.Argument(help="Name, which is the routing key of its hits.")],
    text: Annotated[str, typer.Argument(metavar="QUERY", help="Query that events must match.")],
    since: Annotated[
        str | None, typer.Option("--from", help="Match earlier events first, from here: head, a time.")
    ] = None,
) -> None:
    """Add a standing query."""
    _standing(manager, scope).add(stream, {name: text}, since=since)
    say(f"added standing query {name}")


@standing_app.command("remove")
def remove(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of standing queries.")],
) -> None:
    """Remove standing queries; their hits stay."""
    _standing(manager, scope).remove(stream, names)
    say(f"removed {', '.join(names)}")


@standing_app.command("run")
def run_matcher(
    scope: Scope, stream: Stream, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Run a matcher until Ctrl-C. Several matchers share the work."""
    from nadi.search import match

    match(scope, stream, controller, trust_store=trust_store)
