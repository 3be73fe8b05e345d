"""`nadi bookmark` and `nadi slice`: names for cuts and for what lies between two of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.printing import Form, say, say_gone, show, show_with
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import Bookmark, NamedSlice, StreamCuts, StreamManager
    from nadi.client.blocking.cuts import Bookmarks, NamedSlices
    from nadi.model.streamcut import StreamCut

bookmark_app = typer.Typer(help="Bookmarks: names for places in streams.", no_args_is_help=True)
slice_app = typer.Typer(help="Slices: names for the events between two places in a stream.", no_args_is_help=True)
Scope = Annotated[str, typer.Argument(help="The scope.")]
Stream = Annotated[str, typer.Argument(help="The stream.")]
Name = Annotated[str, typer.Argument(help="The name: letters, digits, '.' and '-'.")]
NewName = Annotated[str, typer.Argument(help="The new name.")]
Note = Annotated[str, typer.Option(help="A few words on what it is for.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be given several times.")]
Untags = Annotated[list[str] | None, typer.Option("--remove", help="A tag to remove; may be given several times.")]
OfStream = Annotated[str | None, typer.Option("--stream", help="Only those of this stream.")]
OfTag = Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")]
PLACE = "head, tail, a bookmark's name, a cut's text, a time (2026-11-14T00:00+01:00), or -5min: so long ago"
_COLUMNS = ["name", "stream", "made at", "tags", "note"]


class Clock(StrEnum):
    """By what a time in an option or argument is meant."""

    ARRIVAL = "arrival"
    EVENT_TIME = "event-time"


By = Annotated[Clock, typer.Option("--by", help="Whether times are when events came, or the events' own.")]


def place(cuts: StreamCuts, text: str, by: Clock = Clock.ARRIVAL, *, end: bool = False) -> StreamCut:
    """The cut that an option or argument names. end: something ends there."""
    from nadi.cli.amounts import age_s
    from nadi.client.places.moments import BY_EVENT_TIME, is_time

    if text.startswith("-"):
        text = datetime.fromtimestamp(max(0.0, time.time() - age_s(text[1:])), UTC).isoformat()
    if by is Clock.EVENT_TIME and is_time(text):
        text = BY_EVENT_TIME + text
    return cuts.named(text, end=end)


@bookmark_app.command("create")
@connected
def create_bookmark(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    name: Name,
    at: Annotated[str, typer.Option(help=f"Where: {PLACE}.")] = "tail",
    by: By = Clock.ARRIVAL,
    note: Note = "",
    tag: Tags = None,
) -> None:
    """Bookmark a place in a stream, by default its current end."""
    cut = place(manager.cuts(scope, stream), at, by)
    manager.bookmarks(scope).create(name, cut, note=note, tags=tag or ())
    say(f"created bookmark {name} of {scope}/{stream}")


@bookmark_app.command("list")
@connected
def list_bookmarks(
    manager: StreamManager, scope: Scope, stream: OfStream = None, tag: OfTag = None, form: Form = Form.TABLE
) -> None:
    """List a scope's bookmarks."""
    marks, unreadable = manager.bookmarks(scope).list_with_unreadable(stream=stream, tag=tag)
    rows = [_bookmark_row(found) for found in marks]
    show_with(unreadable, rows, _COLUMNS, form=form, empty=f"Scope {scope} has no such bookmark.")


@bookmark_app.command("show")
@connected
def show_bookmark(manager: StreamManager, scope: Scope, name: Name, form: Form = Form.TABLE) -> None:
    """Print the text of a bookmark's cut, which any Pravega client can read; as JSON or CSV, all of the bookmark."""
    found = manager.bookmarks(scope).get(name)
    if form is Form.TABLE:
        say(found.cut.as_text())
    else:
        show([_bookmark_row(found)], _COLUMNS, form=form, empty="")


@slice_app.command("create")
@connected
def create_slice(
    manager: StreamManager,
    scope: Scope,
    words: Annotated[
        list[str],
        typer.Argument(metavar="[STREAM] NAME", help="The stream, unless a bookmark says which, and the slice's name."),
    ],
    start: Annotated[str, typer.Option("--from", help=f"Where it starts: {PLACE}.")] = "head",
    end: Annotated[str, typer.Option("--to", help=f"Where it ends: {PLACE}.")] = "tail",
    by: By = Clock.ARRIVAL,
    note: Note = "",
    tag: Tags = None,
) -> None:
    """Name the slice between two places in a stream."""
    if len(words) > 2:
        raise InvalidArgumentError(f"'{' '.join(words)}' is more than a stream and a name: quote each")
    name = words[-1]
    stream = words[0] if len(words) == 2 else _stream_of(manager.bookmarks(scope), start, end)
    cuts = manager.cuts(scope, stream)
    first, last = place(cuts, start, by), place(cuts, end, by, end=True)
    manager.slices(scope).create(name, first, last, note=note, tags=tag or ())
    size_bytes = cuts.bytes_between(first, last)
    say(f"created slice {name} of {scope}/{stream}: {size_bytes:,} bytes")


def _stream_of(bookmarks: Bookmarks, *places: str) -> str:
    """The stream of the bookmarks among these."""
    streams = sorted({one.stream for one in bookmarks.list() if one.name in places})
    if len(streams) != 1:
        found = f"they have bookmarks of {' and '.join(streams)}" if streams else "neither is a bookmark"
        raise InvalidArgumentError(
            f"--from and --to don't say which stream is meant ({found}): name it before the slice"
        )
    return streams[0]


@slice_app.command("list")
@connected
def list_slices(
    manager: StreamManager, scope: Scope, stream: OfStream = None, tag: OfTag = None, form: Form = Form.TABLE
) -> None:
    """List a scope's named slices."""
    slices, unreadable = manager.slices(scope).list_with_unreadable(stream=stream, tag=tag)
    rows = [_slice_row(found) for found in slices]
    show_with(unreadable, rows, _COLUMNS, form=form, empty=f"Scope {scope} has no such slice.")


@slice_app.command("show")
@connected
def show_slice(manager: StreamManager, scope: Scope, name: Name, form: Form = Form.TABLE) -> None:
    """Show a slice and its size in bytes and events; this reads the slice."""
    found = manager.slices(scope).get(name)
    cuts = manager.cuts(scope, found.stream)
    row = _slice_row(found) | {
        "bytes": cuts.bytes_between(found.start, found.end),
        "events": cuts.events_between(found.start, found.end),
    }
    show([row], ["name", "stream", "bytes", "events", "tags", "note"], form=form, empty="")


def _add_changes(app: typer.Typer, what: str, of: Callable[[StreamManager, str], Bookmarks | NamedSlices]) -> None:
    """The commands that change what has a name, and are the same for both kinds."""

    @app.command(help=f"Add tags to a {what}, or remove some.")
    @connected
    def tag(manager: StreamManager, scope: Scope, name: Name, add: Tags = None, remove: Untags = None) -> None:
        tags = of(manager, scope).tag(name, add or (), remove or ()).tags
        say(f"{what} {name} has the tags: {', '.join(tags)}" if tags else f"{what} {name} has no tags")

    @app.command(help=f"Rename a {what}.")
    @connected
    def rename(manager: StreamManager, scope: Scope, name: Name, new_name: NewName) -> None:
        of(manager, scope).rename(name, new_name)
        say(f"renamed {what} {name} to {new_name}")

    @app.command(help=f"Delete a {what}; the events stay.")
    @connected
    def delete(manager: StreamManager, scope: Scope, name: Name) -> None:
        gone = of(manager, scope).delete(name)
        say_gone(gone, f"deleted {what} {name}", f"{what} {name}")


_add_changes(bookmark_app, "bookmark", lambda manager, scope: manager.bookmarks(scope))
_add_changes(slice_app, "slice", lambda manager, scope: manager.slices(scope))


def _common(found: Bookmark | NamedSlice) -> dict[str, Any]:
    made_at = found.made_at.strftime("%Y-%m-%d %H:%M:%SZ")
    return {"name": found.name, "stream": found.stream, "made at": made_at, "tags": found.tags, "note": found.note}


def _bookmark_row(found: Bookmark) -> dict[str, Any]:
    return _common(found) | {"cut": found.cut.as_text()}


def _slice_row(found: NamedSlice) -> dict[str, Any]:
    return _common(found) | {"start": found.start.as_text(), "end": found.end.as_text()}
