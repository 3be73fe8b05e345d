"""`nadi bookmark` and `nadi slice`: named cuts and named ranges of streams."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.options import POSITION, SEVERAL, By, Name, Note, OfStream, OfTag, Scope, Stream, Tags, TimeBasis, cut_at
from nadi.cli.printing import Form, say, show, utc
from nadi.cli.session import Resource, Row
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import Bookmark, NamedSlice, StreamManager
    from nadi.client.blocking.classes import Bookmarks, NamedSlices

_CLOCK_SKEW = timedelta(minutes=1)  # of this machine's clock and the servers'
NewName = Annotated[str, typer.Argument(help="New name.")]
Untags = Annotated[list[str] | None, typer.Option("--remove", help=f"Tag to remove; {SEVERAL}.")]


def _row(named: Bookmark | NamedSlice) -> Row:
    created_at = utc(named.created_at)
    row = {"name": named.name, "stream": named.stream, "created_at": created_at, "tags": named.tags, "note": named.note}
    cuts = {name: getattr(named, name, None) for name in ("cut", "start", "end")}
    return row | {name: cut.as_text() for name, cut in cuts.items() if cut is not None}


def _app(
    noun: str,
    catalog: Callable[[StreamManager, str], Bookmarks | NamedSlices],
    show_one: Callable[..., Row] | None = None,
) -> typer.Typer:
    """Build the commands common to bookmarks and slices."""

    def rows(manager: StreamManager, scope: str, **filters: Any) -> Any:
        records, unreadable = catalog(manager, scope).list_with_unreadable(**filters)
        return map(_row, records), unreadable

    app = Resource(
        noun=noun,
        names={"scope": Scope, "name": Name},
        columns=["name", "stream", "created_at", "tags", "note"],
        rows=rows,
        filters={"stream": OfStream, "tag": OfTag},
        show=show_one,
        delete=lambda manager, scope, name: catalog(manager, scope).delete(name),
        stays="; the events stay",
    ).app()

    @app.command("tag", help=f"Add or remove tags of a {noun}.")
    def tag(manager: StreamManager, scope: Scope, name: Name, add: Tags = None, remove: Untags = None) -> None:
        tags = catalog(manager, scope).tag(name, add or (), remove or ()).tags
        say(f"{noun} {name} has tags {', '.join(tags)}" if tags else f"{noun} {name} is untagged")

    @app.command("rename", help=f"Rename a {noun}.")
    def rename(manager: StreamManager, scope: Scope, name: Name, new_name: NewName) -> None:
        catalog(manager, scope).rename(name, new_name)
        say(f"renamed {noun} {name} to {new_name}")

    return app


bookmark_app = _app("bookmark", lambda manager, scope: manager.bookmarks(scope))


@bookmark_app.command("create")
def create_bookmark(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    name: Name,
    at: Annotated[str, typer.Option(help=f"Position: {POSITION}.")] = "tail",
    by: By = TimeBasis.ARRIVAL,
    note: Note = "",
    tag: Tags = None,
) -> None:
    """Bookmark a position of a stream, by default its tail."""
    from nadi.client.stream_cuts.timestamps import BY_EVENT_TIME, is_moment, moment_of

    is_arrival = is_moment(at) and by is TimeBasis.ARRIVAL and not at.startswith(BY_EVENT_TIME)
    if is_arrival and moment_of(at) > datetime.now(UTC) + _CLOCK_SKEW:
        raise InvalidArgumentError(f"--at {at} is in the future: leave it out to bookmark the tail")
    cut = cut_at(manager.cuts(scope, stream), at, by)
    manager.bookmarks(scope).create(name, cut, note=note, tags=tag or ())
    say(f"created bookmark {name} of {scope}/{stream}")


@bookmark_app.command("show")
def show_bookmark(manager: StreamManager, scope: Scope, name: Name, form: Form = Form.TABLE) -> None:
    """Print a bookmark's cut as text, which any Pravega client can read; with -o json or csv, the whole bookmark."""
    row = _row(manager.bookmarks(scope).get(name))
    if form is Form.TABLE:
        say(row["cut"])
    else:
        show([row], form=form)


def _slice(manager: StreamManager, scope: str, name: str) -> Row:
    """Return a slice's row with its size, which requires reading the slice."""
    named = manager.slices(scope).get(name)
    cuts = manager.cuts(scope, named.stream)
    size = {"bytes": cuts.bytes_between(named.start, named.end), "events": cuts.events_between(named.start, named.end)}
    return _row(named) | size


slice_app = _app("slice", lambda manager, scope: manager.slices(scope), _slice)


@slice_app.command("create")
def create_slice(
    manager: StreamManager,
    scope: Scope,
    words: Annotated[
        list[str],
        typer.Argument(metavar="[STREAM] NAME", help="Stream, unless implied by a bookmark, and name of the slice."),
    ],
    start: Annotated[str, typer.Option("--from", help=f"Start: {POSITION}.")] = "head",
    end: Annotated[str, typer.Option("--to", help=f"End: {POSITION}.")] = "tail",
    by: By = TimeBasis.ARRIVAL,
    note: Note = "",
    tag: Tags = None,
) -> None:
    """Create a named slice between two positions of a stream."""
    if len(words) > 2:
        raise InvalidArgumentError(f"'{' '.join(words)}' has more than a stream and a name: quote names with spaces")
    stream, name = words[0], words[-1]
    if len(words) == 1:
        bookmarks = manager.bookmarks(scope).list()
        streams = sorted({bookmark.stream for bookmark in bookmarks if bookmark.name in (start, end)})
        if len(streams) != 1:
            why = f"they have bookmarks of {' and '.join(streams)}" if streams else "neither is a bookmark"
            raise InvalidArgumentError(
                f"--from and --to don't imply a stream ({why}): name the stream before the slice"
            )
        (stream,) = streams
    cuts = manager.cuts(scope, stream)
    first, last = cut_at(cuts, start, by), cut_at(cuts, end, by, end=True)
    manager.slices(scope).create(name, first, last, note=note, tags=tag or ())
    say(f"created slice {name} of {scope}/{stream}: {cuts.bytes_between(first, last):,} bytes")
