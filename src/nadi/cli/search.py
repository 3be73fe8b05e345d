"""`nadi search`: full-text indexes of streams, their indexers, and queries; and queries that wait for events."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.options import Controller, DeadLetters, DryRun, OfIndex, RoutingKeys, Scope, Stream, TrustStore, Yes
from nadi.cli.printing import Form, confirm, output, processes, say, show, warn
from nadi.cli.session import Resource, Row
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.search import IndexDefinition, IndexStatus, Page, StandingStatus
    from nadi.search.blocking import Indexes, StandingQueries
    from nadi.search.percolate.records import QuerySet

_POSITION = "head, tail, a time, a bookmark, or a cut's text"
_FIELDS = "`name:kind,…`, where a kind is text, keyword, long, double, date or timestamp"
FormatHelp = typer.Option(
    "--format", help="What events are: json, objects with these fields, or text, each one field of the kind text."
)


def _indexes(manager: StreamManager, scope: str) -> Indexes:
    from nadi.search import indexes

    return indexes(manager, scope)


def _standing(manager: StreamManager, scope: str) -> StandingQueries:
    from nadi.search import standing_queries

    return standing_queries(manager, scope)


def _fields(one: IndexDefinition | QuerySet) -> str:
    return ",".join(f"{field.name}:{field.kind}" for field in one.fields)


# --- indexes ---------------------------------------------------------------------------------------------


def _rows(manager: StreamManager, scope: str) -> Any:
    definitions, unreadable = _indexes(manager, scope).list_with_unreadable()
    rows = [
        {
            "stream": one.stream,
            "fields": _fields(one),
            "format": one.format,
            "stopped": "being deleted" if one.is_dropped else one.is_stopped,
            "store": one.url,
        }
        for one in definitions
    ]
    return rows, unreadable


def _show(manager: StreamManager, scope: str, stream: str) -> Row:
    one = _indexes(manager, scope).get(stream)
    row = {"stream": one.stream, "fields": _fields(one), "format": one.format, "stopped": one.is_stopped}
    return row | {"store": one.url, "dead-letter stream": one.dead_letters or "", "begins": one.start}


def _status(manager: StreamManager, scope: str, stream: str) -> Row:
    status = _indexes(manager, scope).status(stream)
    one = status.definition
    row = {"store": one.url, "dead-letter stream": one.dead_letters or "", "indexed": status.indexed}
    row |= {"bytes of the past": status.past_bytes, "shards": status.shards, "bytes": status.size_bytes}
    return _progress(status) | row | processes("indexer", status.indexers)


def _progress(status: IndexStatus | StandingStatus) -> Row:
    one = status.definition
    return {
        "stream": one.stream,
        "fields": _fields(one),
        "format": one.format,
        "stopped": one.is_stopped,
        "didn't parse": status.unfit,
        "events with each field": status.having,
        "gaps": status.gaps,
        "bytes behind": status.behind_bytes,
    }


KeepObjects = Annotated[
    bool | None, typer.Option("--keep-objects", help="Don't delete its shards, as where their store is gone for good.")
]

search_app = Resource(
    noun="search index",
    names={"scope": Scope, "stream": Stream},
    columns=["stream", "fields", "format", "stopped", "store"],
    rows=_rows,
    show=_show,
    status=_status,
    stop=lambda manager, scope, stream: _indexes(manager, scope).stop(stream),
    delete=lambda manager, scope, stream, keep_objects: _indexes(manager, scope).drop(
        stream, leave_shards=bool(keep_objects)
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
    fields: Annotated[str, typer.Option(help=f"{_FIELDS}; with --format text one name, such as line:text.")],
    index: OfIndex,
    form_of: Annotated[Literal["json", "text"], FormatHelp] = "json",
    start: Annotated[str, typer.Option("--from", help=f"Where it begins: {_POSITION}.")] = "head",
    dead_letters: DeadLetters = None,
) -> None:
    """Define the search index of a stream; `nadi search run` fills it."""
    _indexes(manager, scope).create(stream, fields, where=index, format=form_of, start=start, dead_letters=dead_letters)
    say(f"created the search index of {scope}/{stream}: fill it with `{_run(scope, stream)}`")


def _run(scope: str, stream: str) -> str:
    return shlex.join(["nadi", "search", "run", scope, stream])


@search_app.command("run")
def run_indexer(
    scope: Scope, stream: Stream, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Fill a search index until Ctrl-C; several that run share the work."""
    from nadi.search import run

    run(scope, stream, controller, trust_store=trust_store)


@search_app.command("backfill")
def backfill(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    processes: Annotated[int, typer.Option(help="That work at it, on this machine.", min=1, max=1_000)] = 1,
) -> None:
    """Index what is in a stream already, by several processes; run again, it continues with what is left."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    from nadi.search import backfill_parts

    parts = backfill_parts(manager, scope, stream)
    total, done, told = sum(part.size_bytes for part in parts), 0, 0
    with ProcessPoolExecutor(min(processes, len(parts) or 1), multiprocessing.get_context("spawn")) as pool:
        try:
            running = {pool.submit(part.index): part.size_bytes for part in parts}
            for ended in as_completed(running):
                ended.result()
                done += running[ended]
                if (percent := done * 10 // max(total, 1) * 10) > told:
                    told = percent
                    warn(f"{percent} % of {total:,} bytes")
        except BaseException:  # Ctrl-C, too: only what is begun is finished
            pool.shutdown(cancel_futures=True)
            raise
    say(f"indexed {total:,} bytes of {scope}/{stream} in {len(parts):,} parts")


@search_app.command("clean")
def clean(
    manager: StreamManager, index: OfIndex, dry_run: DryRun = False, yes: Yes = False, form: Form = Form.TABLE
) -> None:
    """Delete shards whose index is gone, as after a program has deleted its scope. Others' stay."""
    from nadi import search

    leftovers = search.orphaned_shards(manager, index)
    columns = ["scope", "stream", "shards", "bytes", "folder", "kept"]
    fields = ["scope", "stream", "shards", "size_bytes", "folder", "kept"]
    rows = [{name: getattr(one, field) for name, field in zip(columns, fields, strict=True)} for one in leftovers]
    show(rows, columns, form=form, empty=f"No index has left anything in {index}.")
    wanted = [one for one in leftovers if not one.kept]
    if dry_run or not wanted:
        return
    confirm(f"Delete {sum(one.shards for one in wanted):,} shards that aren't kept?", yes)
    done = search.clean(manager, index)
    warn(f"deleted {sum(one.shards for one in done):,} shards, {sum(one.size_bytes for one in done):,} bytes")


@search_app.command("query")
def query(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    text: Annotated[
        str, typer.Argument(metavar="[QUERY]", help="What to find; see docs/search.md. All by default.")
    ] = "",
    order: Annotated[Literal["newest", "oldest", "best"], typer.Option(help="Which come first.")] = "newest",
    limit: Annotated[int, typer.Option("--limit", "-c", help="Hits of a page.", min=1)] = 20,
    after: Annotated[str | None, typer.Option(help="Show the page that begins there: the `next` of one.")] = None,
    since: Annotated[str | None, typer.Option("--from", help=f"Only from there on: {_POSITION}.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Only up to there.")] = None,
    key: RoutingKeys = None,
    wait_for: Annotated[str | None, typer.Option(help="Wait until all up to there is indexed.")] = None,
    by: Annotated[str | None, typer.Option(help="Count by that field instead, or by _came.")] = None,
    interval_s: Annotated[float | None, typer.Option("--interval", help="Of a count by time: in seconds.")] = None,
    form: Form = Form.TABLE,
) -> None:
    """Find events, or count them."""
    bounds: dict[str, Any] = {"since": since, "until": until, "keys": key or None, "wait_for": wait_for}
    with _indexes(manager, scope).open(stream) as index:
        if by is not None or interval_s is not None:
            if after is not None or order != "newest":
                raise InvalidArgumentError("--after and --order are about hits, and --by counts them: choose one")
            counts = index.count(text, by=by, interval_s=interval_s, limit=limit, **bounds)
            rows = [{"value": str(value), "events": count} for value, count in counts.items()]
            show(rows, ["value", "events"], form=form, empty="Nothing found.")
            return
        page = index.query(text, order=order, limit=limit, after=after, **bounds)
    _show_page(page, form)
    if page.hits:
        return
    status = _indexes(manager, scope).status(stream)
    if status.indexed and (unseen := [name for name, events in status.having.items() if not events]):
        warn(f"none of the {status.indexed:,} events has {', '.join(unseen)}: is a field's name misspelt?")
    if status.behind_bytes and not status.indexers:
        warn(f"{status.behind_bytes:,} bytes aren't indexed, and no indexer runs: `{_run(scope, stream)}`")


def _show_page(page: Page, form: Form) -> None:
    if form is not Form.TABLE:
        rows: list[Row] = [
            {
                "came": hit.came.isoformat(),
                "segment": hit.segment_id,
                "offset": hit.offset,
                "score": hit.score,
                "event": hit.data.decode(errors="replace"),
            }
            for hit in page.hits
        ]
        if form is Form.JSON:
            rows = [{"count": page.count, "next": page.next, "hits": rows}]
        show(rows, ["came", "segment", "offset", "score", "event"], form=form)
        return
    from rich.text import Text

    console = output()
    for hit in page.hits:
        excerpt = hit.excerpt
        line = hit.data.decode(errors="replace") if excerpt is None else excerpt.text
        text = Text("".join(one if one.isprintable() else " " for one in line))
        for start, end in () if excerpt is None else excerpt.found:
            text.stylize("bold", start, end)
        place = f"{hit.came:%Y-%m-%d %H:%M:%S} {hit.segment_id}@{hit.offset} "
        console.print(Text(place).append_text(text), soft_wrap=True)
    say(f"{len(page.hits):,} of {page.count:,} events" if page.hits else "Nothing found.")
    if page.next is not None:
        say(f"the next page: --after {page.next}")


# --- standing queries ------------------------------------------------------------------------------------


def _queries(manager: StreamManager, scope: str, stream: str) -> Any:
    queries, unreadable = _standing(manager, scope).list_with_unreadable(stream)
    rows = [{"name": one.name, "query": one.text, "from": one.since or "when it was added"} for one in queries]
    return rows, unreadable


def _standing_status(manager: StreamManager, scope: str, stream: str) -> Row:
    status = _standing(manager, scope).status(stream)
    row = {"hits": status.definition.hits, "queries": status.queries, "queries in the past": status.catching_up}
    row |= {"events": status.events, "found": status.hits}
    return _progress(status) | row | processes("matcher", status.matchers)


standing_app = typer.Typer(help="Standing queries: they wait for events.", no_args_is_help=True)
search_app.add_typer(standing_app, name="standing")
Resource(
    noun="standing query",
    names={"scope": Scope, "stream": Stream, "name": Stream},
    columns=["name", "query", "from"],
    rows=_queries,
    empty="Stream {scope}/{stream} has no standing queries yet.",
).add_to(standing_app)
Resource(
    noun="set of standing queries",
    names={"scope": Scope, "stream": Stream},
    status=_standing_status,
    stop=lambda manager, scope, stream: _standing(manager, scope).stop(stream),
    delete=lambda manager, scope, stream: _standing(manager, scope).drop(stream),
    find=lambda manager, scope, stream: _standing(manager, scope).get(stream),
    question="? Their hits stay.",
    stays="; their hits stay",
).add_to(standing_app)


@standing_app.command("create")
def create_standing(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    hits: Annotated[str, typer.Option(help="The stream for hits.")],
    fields: Annotated[str | None, typer.Option(help=f"{_FIELDS}; by default those of the stream's index.")] = None,
    form_of: Annotated[Literal["json", "text"] | None, FormatHelp] = None,
    start: Annotated[str, typer.Option("--from", help="Where it begins: head, tail, a time, a bookmark.")] = "tail",
) -> None:
    """Have a stream's events matched with standing queries; `nadi search standing run` does it."""
    _standing(manager, scope).create(stream, hits, fields=fields, format=form_of, start=start)
    say(f"created: add queries with `{shlex.join(['nadi', 'search', 'standing', 'add', scope, stream])} NAME QUERY`")


@standing_app.command("add")
def add(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    name: Annotated[str, typer.Argument(help="Its name, which is its hits' routing key.")],
    text: Annotated[str, typer.Argument(metavar="QUERY", help="What events are to fit.")],
    since: Annotated[str | None, typer.Option("--from", help="First what came since: head, a time.")] = None,
) -> None:
    """Add a standing query."""
    _standing(manager, scope).add(stream, {name: text}, since=since)
    say(f"added standing query {name}")


@standing_app.command("remove")
def remove(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Their names.")],
) -> None:
    """Remove standing queries; their hits stay."""
    _standing(manager, scope).remove(stream, names)
    say(f"removed {', '.join(names)}")


@standing_app.command("run")
def run_matcher(
    scope: Scope, stream: Stream, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Match events until Ctrl-C; several that run share the work."""
    from nadi.search import match

    match(scope, stream, controller, trust_store=trust_store)
