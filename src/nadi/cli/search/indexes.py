"""`nadi search`: full-text indexes of streams, their indexers, and queries."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nadi.cli.bookmarks import Scope, Stream
from nadi.cli.printing import Form, errors_told, output, say, show, show_with, warn
from nadi.cli.search.standing import FIELDS, FormatHelp, standing_app
from nadi.cli.session import Controller, TrustStore, Yes, connected
from nadi.defaults import DEFAULT_URI

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.search import Definition, Hit, Page, Status

search_app = typer.Typer(help="Full-text search: create, list, start, query.", no_args_is_help=True)
search_app.add_typer(standing_app, name="standing")
_PLACE = "head, tail, a time, a bookmark, or a cut's text"


@search_app.command("create")
@connected
def create(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    fields: Annotated[str, typer.Option(help=f"{FIELDS}; with --format text one name, such as line:text.")],
    index: Annotated[str, typer.Option(help="The folder for its shards, or a store: s3://, gs://, az://.")],
    form_of: Annotated[Literal["json", "text"], FormatHelp] = "json",
    start: Annotated[str, typer.Option("--from", help=f"Where it begins: {_PLACE}.")] = "head",
    dead_letters: Annotated[
        str | None, typer.Option("--dead-letter", help="Stream for events that don't parse; else they are counted.")
    ] = None,
) -> None:
    """Define the search index of a stream; `nadi search start` fills it."""
    from nadi.search import indexes

    found = indexes(manager, scope)
    found.create(stream, fields, where=index, format=form_of, start=start, dead_letters=dead_letters)
    say(f"created the search index of {scope}/{stream}: fill it with `nadi search start {scope} {stream}`")


@search_app.command("list")
@connected
def list_indexes(manager: StreamManager, scope: Scope, form: Form = Form.TABLE) -> None:
    """List a scope's search indexes."""
    from nadi.search import indexes

    found, unreadable = indexes(manager, scope).list_with_unreadable()
    rows = [
        {
            "stream": one.stream,
            "fields": _fields(one),
            "format": one.format,
            "stopped": "being dropped" if one.is_dropped else one.is_stopped,
            "store": one.url,
        }
        for one in found
    ]
    columns = ["stream", "fields", "format", "stopped", "store"]
    show_with(unreadable, rows, columns, form=form, empty=f"Scope {scope} has no search indexes.")


@search_app.command("status")
@connected
def status(manager: StreamManager, scope: Scope, stream: Stream, form: Form = Form.TABLE) -> None:
    """Show how far a search index is, and who fills it."""
    from nadi.search import indexes

    row = _row(indexes(manager, scope).status(stream))
    if form is not Form.TABLE:
        show([row], [], form=form, empty="")
    else:
        show([{"": key, " ": value} for key, value in row.items()], ["", " "], form=Form.TABLE, empty="")


@search_app.command("start")
def start_indexer(
    scope: Scope, stream: Stream, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Fill a search index until Ctrl-C; several that run share the work."""
    from nadi.search import run

    with errors_told():
        run(scope, stream, controller, trust_store=trust_store)


@search_app.command("past")
@connected
def index_past(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    processes: Annotated[int, typer.Option(help="That work at it, on this machine.", min=1, max=1_000)] = 1,
) -> None:
    """Index what is in a stream already, by several processes; run again, it goes on with what is left."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    from nadi.search import past_parts

    parts = past_parts(manager, scope, stream)
    total, done, told = sum(part.size_bytes for part in parts), 0, 0
    with ProcessPoolExecutor(min(processes, len(parts) or 1), multiprocessing.get_context("spawn")) as pool:
        try:
            running = {pool.submit(part.index): part.size_bytes for part in parts}
            for one in as_completed(running):
                one.result()
                done += running[one]
                if (percent := done * 10 // max(total, 1) * 10) > told:
                    told = percent
                    warn(f"{percent} % of {total:,} bytes")
        except BaseException:  # Ctrl-C, too: only what is begun is finished
            pool.shutdown(cancel_futures=True)
            raise
    say(f"indexed {total:,} bytes of {scope}/{stream} in {len(parts):,} parts")


@search_app.command("stop")
@connected
def stop(manager: StreamManager, scope: Scope, stream: Stream) -> None:
    """Have all indexers of a stream end; `nadi search start` goes on where they were."""
    from nadi.search import indexes

    indexes(manager, scope).stop(stream)
    say(f"stopped the search index of {scope}/{stream}")


@search_app.command("drop")
@connected
def drop(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    leave_shards: Annotated[
        bool, typer.Option("--leave-shards", help="Don't delete them, as where their store is gone for good.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a search index; the stream stays. Killed, it can be done again."""
    from nadi.errors import ProtocolError
    from nadi.search import indexes

    found = indexes(manager, scope)
    with suppress(ProtocolError):  # what can't be read can be dropped
        found.get(stream)
    if not yes:
        typer.confirm(f"Delete the search index of {scope}/{stream}? The stream stays.", abort=True)
    found.drop(stream, leave_shards=leave_shards)
    say(f"deleted the search index of {scope}/{stream}")


@search_app.command("clean")
@connected
def clean(
    manager: StreamManager,
    index: Annotated[str, typer.Option(help="The folder with shards, or the store: s3://, gs://, az://.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    yes: Yes = False,
    form: Form = Form.TABLE,
) -> None:
    """Delete shards whose index is gone, as after a program has deleted its scope. Others' stay."""
    from nadi import search

    found = search.leftovers(manager, index)
    rows = [
        {
            "scope": one.scope,
            "stream": one.stream,
            "shards": one.shards,
            "bytes": one.size_bytes,
            "folder": one.folder,
            "kept": one.kept,
        }
        for one in found
    ]
    columns = ["scope", "stream", "shards", "bytes", "folder", "kept"]
    show(rows, columns, form=form, empty=f"No index has left anything in {index}.")
    wanted = [one for one in found if not one.kept]
    if dry_run or not wanted:
        return
    if not yes:
        typer.confirm(f"Delete {sum(one.shards for one in wanted):,} shards that aren't kept?", abort=True)
    done = search.clean(manager, index)
    warn(f"deleted {sum(one.shards for one in done):,} shards, {sum(one.size_bytes for one in done):,} bytes")


@search_app.command("query")
@connected
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
    since: Annotated[str | None, typer.Option("--from", help=f"Only from there on: {_PLACE}.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Only up to there.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Only segments with this routing key, and others.")] = None,
    wait_for: Annotated[str | None, typer.Option(help="Wait until all up to there is indexed.")] = None,
    by: Annotated[str | None, typer.Option(help="Count by that field instead, or by _came.")] = None,
    interval_s: Annotated[float | None, typer.Option("--interval", help="Of a count by time: in seconds.")] = None,
    form: Form = Form.TABLE,
) -> None:
    """Find events, or count them."""
    from nadi.errors import InvalidArgumentError
    from nadi.search import indexes

    bounds: dict[str, Any] = {"since": since, "until": until, "keys": key or None, "wait_for": wait_for}
    with indexes(manager, scope).open(stream) as found:
        if by is not None or interval_s is not None:
            if after is not None or order != "newest":
                raise InvalidArgumentError("--after and --order are about hits, and --by counts them: choose one")
            counts = found.count(text, by=by, interval_s=interval_s, limit=limit, **bounds)
            rows = [{"value": str(value), "events": count} for value, count in counts.items()]
            show(rows, ["value", "events"], form=form, empty="Nothing found.")
            return
        page = found.query(text, order=order, limit=limit, after=after, **bounds)
    _show_page(page, form)
    if not page.hits:
        _explain_nothing(manager, scope, stream)


def _show_page(page: Page, form: Form) -> None:
    if form is not Form.TABLE:
        rows: list[dict[str, Any]] = [_hit(hit) for hit in page.hits]
        if form is Form.JSON:
            rows = [{"count": page.count, "next": page.next, "hits": rows}]
        show(rows, ["came", "segment", "offset", "score", "event"], form=form, empty="")
        return
    from rich.text import Text

    console = output()
    for hit in page.hits:
        excerpt = hit.excerpt
        text = Text(_one_line(hit.data.decode(errors="replace") if excerpt is None else excerpt.text))
        for start, end in () if excerpt is None else excerpt.found:
            text.stylize("bold", start, end)
        place = f"{hit.came:%Y-%m-%d %H:%M:%S} {hit.segment_id}@{hit.offset} "
        console.print(Text(place).append_text(text), soft_wrap=True)
    say(f"{len(page.hits):,} of {page.count:,} events" if page.hits else "Nothing found.")
    if page.next is not None:
        say(f"the next page: --after {page.next}")


def _explain_nothing(manager: StreamManager, scope: str, stream: str) -> None:
    from nadi.search import indexes

    status = indexes(manager, scope).status(stream)
    if status.indexed and (unseen := [name for name, events in status.having.items() if not events]):
        warn(f"none of the {status.indexed:,} events has {', '.join(unseen)}: is a field's name misspelt?")
    if status.behind_bytes and not status.indexers:
        warn(f"{status.behind_bytes:,} bytes aren't indexed, and no indexer runs: `nadi search start {scope} {stream}`")


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


def _hit(hit: Hit) -> dict[str, Any]:
    return {
        "came": hit.came.isoformat(),
        "segment": hit.segment_id,
        "offset": hit.offset,
        "score": hit.score,
        "event": hit.data.decode(errors="replace"),
    }


def _fields(one: Definition) -> str:
    return ",".join(f"{field.name}:{field.kind}" for field in one.fields)


def _row(status: Status) -> dict[str, Any]:
    one = status.definition
    row: dict[str, Any] = {
        "stream": one.stream,
        "fields": _fields(one),
        "format": one.format,
        "store": one.url,
        "stopped": one.is_stopped,
        "dead-letter stream": one.dead_letters or "",
        "indexed": status.indexed,
        "didn't parse": status.unfit,
        "events with each field": status.having,
        "gaps": status.gaps,
        "bytes behind": status.behind_bytes,
        "bytes of the past": status.past_bytes,
        "shards": status.shards,
        "bytes": status.size_bytes,
    }
    for number, told in enumerate(status.indexers, 1):
        error = f", last error: {told.last_error}" if told.last_error else ""
        row[f"indexer {number}"] = (
            f"{told.host}, process {told.pid}, {told.segments} segments, {told.events:,} events, "
            f"{told.events_per_s:,.0f} events/s{error}"
        )
    return row
