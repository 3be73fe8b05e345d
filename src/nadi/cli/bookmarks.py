"""`nadi bookmark` and `nadi slice`: names for cuts and for what lies between two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.printing import say, show
from nadi.cli.session import AsJson, Controller, TrustStore, client
from nadi.defaults import DEFAULT_URI

if TYPE_CHECKING:
    from nadi.client import Bookmark, NamedSlice

bookmark_app = typer.Typer(help="Bookmarks: names for places in streams.", no_args_is_help=True)
slice_app = typer.Typer(help="Slices: names for what lies between two places of a stream.", no_args_is_help=True)
Scope = Annotated[str, typer.Argument(help="The scope.")]
Stream = Annotated[str, typer.Argument(help="The stream.")]
Name = Annotated[str, typer.Argument(help="The name: letters, digits, '.' and '-'.")]
NewName = Annotated[str, typer.Argument(help="The name that it gets.")]
Note = Annotated[str, typer.Option(help="A few words on what it is for.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be given several times.")]
Untags = Annotated[list[str] | None, typer.Option("--remove", help="A tag to take away; may be given several times.")]
OfStream = Annotated[str | None, typer.Option("--stream", help="Only those of this stream.")]
OfTag = Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")]
PLACE = "head, tail, a bookmark's name, a cut's text or a time (2026-11-14T00:00+01:00)"
_COLUMNS = ["name", "stream", "made at", "tags", "note"]


@bookmark_app.command("create")
def create_bookmark(
    scope: Scope,
    stream: Stream,
    name: Name,
    at: Annotated[str, typer.Option(help=f"Where: {PLACE}.")] = "tail",
    note: Note = "",
    tag: Tags = None,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Bookmark a stream's place, its end of now unless told otherwise."""
    with client(controller, trust_store) as manager:
        cut = manager.cuts(scope, stream).named(at)
        manager.bookmarks(scope).create(name, cut, note=note, tags=tag or ())
    say(f"created bookmark {name} of {scope}/{stream}")


@bookmark_app.command("list")
def list_bookmarks(
    scope: Scope,
    stream: OfStream = None,
    tag: OfTag = None,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
    as_json: AsJson = False,
) -> None:
    """List a scope's bookmarks."""
    with client(controller, trust_store) as manager:
        rows = [_bookmark_row(found) for found in manager.bookmarks(scope).list(stream=stream, tag=tag)]
    show(rows, _COLUMNS, as_json=as_json, empty=f"Scope {scope} has no such bookmark.")


@bookmark_app.command("show")
def show_bookmark(
    scope: Scope, name: Name, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Print the text of a bookmark's cut, which any Pravega client reads."""
    with client(controller, trust_store) as manager:
        typer.echo(manager.bookmarks(scope).get(name).cut.as_text())


@bookmark_app.command("tag")
def tag_bookmark(
    scope: Scope,
    name: Name,
    add: Tags = None,
    remove: Untags = None,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Give a bookmark tags, or take some away."""
    with client(controller, trust_store) as manager:
        tags = manager.bookmarks(scope).tag(name, add or (), remove or ()).tags
    say(f"bookmark {name} has the tags: {', '.join(tags)}" if tags else f"bookmark {name} has no tags")


@bookmark_app.command("rename")
def rename_bookmark(
    scope: Scope, name: Name, new_name: NewName, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Give a bookmark another name."""
    with client(controller, trust_store) as manager:
        manager.bookmarks(scope).rename(name, new_name)
    say(f"bookmark {name} is {new_name} now")


@bookmark_app.command("delete")
def delete_bookmark(
    scope: Scope, name: Name, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Delete a bookmark; the events stay."""
    with client(controller, trust_store) as manager:
        gone = manager.bookmarks(scope).delete(name)
    say(f"deleted bookmark {name}" if gone else f"there was no bookmark {name}")


@slice_app.command("create")
def create_slice(
    scope: Scope,
    stream: Stream,
    name: Name,
    start: Annotated[str, typer.Option("--from", help=f"Where it begins: {PLACE}.")] = "head",
    end: Annotated[str, typer.Option("--to", help=f"Where it ends: {PLACE}.")] = "tail",
    note: Note = "",
    tag: Tags = None,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Name what lies between two places of a stream."""
    with client(controller, trust_store) as manager:
        cuts = manager.cuts(scope, stream)
        first, last = cuts.named(start), cuts.named(end)
        manager.slices(scope).create(name, first, last, note=note, tags=tag or ())
        size_bytes = cuts.bytes_between(first, last)
    say(f"created slice {name} of {scope}/{stream}: {size_bytes:,} bytes")


@slice_app.command("list")
def list_slices(
    scope: Scope,
    stream: OfStream = None,
    tag: OfTag = None,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
    as_json: AsJson = False,
) -> None:
    """List a scope's named slices."""
    with client(controller, trust_store) as manager:
        rows = [_slice_row(found) for found in manager.slices(scope).list(stream=stream, tag=tag)]
    show(rows, _COLUMNS, as_json=as_json, empty=f"Scope {scope} has no such slice.")


@slice_app.command("show")
def show_slice(
    scope: Scope,
    name: Name,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
    as_json: AsJson = False,
) -> None:
    """Show a slice, with its size in bytes and events; it is read for that."""
    with client(controller, trust_store) as manager:
        found = manager.slices(scope).get(name)
        cuts = manager.cuts(scope, found.stream)
        row = _slice_row(found) | {
            "bytes": cuts.bytes_between(found.start, found.end),
            "events": cuts.events_between(found.start, found.end),
        }
    show([row], ["name", "stream", "bytes", "events", "tags", "note"], as_json=as_json, empty="")


@slice_app.command("tag")
def tag_slice(
    scope: Scope,
    name: Name,
    add: Tags = None,
    remove: Untags = None,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Give a slice tags, or take some away."""
    with client(controller, trust_store) as manager:
        tags = manager.slices(scope).tag(name, add or (), remove or ()).tags
    say(f"slice {name} has the tags: {', '.join(tags)}" if tags else f"slice {name} has no tags")


@slice_app.command("rename")
def rename_slice(
    scope: Scope, name: Name, new_name: NewName, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Give a slice another name."""
    with client(controller, trust_store) as manager:
        manager.slices(scope).rename(name, new_name)
    say(f"slice {name} is {new_name} now")


@slice_app.command("delete")
def delete_slice(
    scope: Scope, name: Name, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Delete a slice's name; the events stay."""
    with client(controller, trust_store) as manager:
        gone = manager.slices(scope).delete(name)
    say(f"deleted slice {name}" if gone else f"there was no slice {name}")


def _common(found: Bookmark | NamedSlice) -> dict[str, Any]:
    made_at = found.made_at.strftime("%Y-%m-%d %H:%M:%SZ")
    return {"name": found.name, "stream": found.stream, "made at": made_at, "tags": found.tags, "note": found.note}


def _bookmark_row(found: Bookmark) -> dict[str, Any]:
    return _common(found) | {"cut": found.cut.as_text()}


def _slice_row(found: NamedSlice) -> dict[str, Any]:
    return _common(found) | {"start": found.start.as_text(), "end": found.end.as_text()}
