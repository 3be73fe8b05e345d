"""`nadi scope` and `nadi stream`: list, create, change and delete scopes and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.bookmarks import PLACE, Scope, Stream
from nadi.cli.printing import say, show
from nadi.cli.segments import show_segments
from nadi.cli.session import AsJson, Yes, connected

if TYPE_CHECKING:
    from nadi.client import StreamManager

scope_app = typer.Typer(help="Scopes: the namespaces of streams.", no_args_is_help=True)
stream_app = typer.Typer(help="Streams: list, create, show, seal, truncate, delete.", no_args_is_help=True)


@scope_app.command("list")
@connected
def list_scopes(manager: StreamManager, as_json: AsJson = False) -> None:
    """List the scopes."""
    rows = [{"scope": scope} for scope in sorted(manager.list_scopes()) if not scope.startswith("_")]
    show(rows, ["scope"], as_json=as_json, empty="There are no scopes yet: create one with `nadi scope create NAME`.")


@scope_app.command("create")
@connected
def create_scope(manager: StreamManager, scope: Scope) -> None:
    """Create a scope."""
    made = manager.create_scope(scope)
    say(f"created scope {scope}" if made else f"scope {scope} already exists")


@scope_app.command("delete")
@connected
def delete_scope(
    manager: StreamManager,
    scope: Scope,
    recursive: Annotated[bool, typer.Option("--recursive", help="Including everything in it.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a scope, with its bookmarks and named slices."""
    if not yes:
        typer.confirm(f"Delete scope {scope}{' and all its streams' if recursive else ''}?", abort=True)
    gone = manager.delete_scope(scope, recursive=recursive)
    say(f"deleted scope {scope}" if gone else f"there was no scope {scope}")


@stream_app.command("list")
@connected
def list_streams(
    manager: StreamManager,
    scope: Scope,
    tag: Annotated[str | None, typer.Option(help="Only streams with this tag.")] = None,
    as_json: AsJson = False,
) -> None:
    """List a scope's streams."""
    rows = [_row(manager, scope, stream) for stream in sorted(manager.list_streams(scope, tag))]
    show(rows, ["stream", "segments", "sealed", "tags"], as_json=as_json, empty=f"Scope {scope} has no such stream.")


@stream_app.command("create")
@connected
def create_stream(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    segments: Annotated[int, typer.Option(help="Minimum number of segments.", min=1)] = 1,
    events_per_s: Annotated[
        int | None, typer.Option("--events-per-s", help="Split segments that receive more events per second.", min=1)
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be given several times.")] = None,
) -> None:
    """Create a stream; its scope must exist."""
    from nadi.client import ScalingPolicy

    scaling = ScalingPolicy.fixed(segments)
    if events_per_s is not None:
        scaling = ScalingPolicy.by_event_rate(events_per_s, min_segments=segments)
    made = manager.create_stream(scope, stream, scaling=scaling, tags=tag or ())
    say(f"created stream {scope}/{stream}" if made else f"stream {scope}/{stream} already exists")


@stream_app.command("show")
@connected
def show_stream(manager: StreamManager, scope: Scope, stream: Stream, as_json: AsJson = False) -> None:
    """Show a stream's segments and size."""
    row = _row(manager, scope, stream)
    info = manager.stream_info(scope, stream)
    row["bytes"] = manager.cuts(scope, stream).bytes_between(info.head, info.tail)
    row["head"], row["tail"] = info.head.as_text(), info.tail.as_text()
    columns = ["stream", "segments", "sealed", "tags", "bytes"]
    show([row], columns, as_json=as_json, empty="")


stream_app.command("segments")(show_segments)


@stream_app.command("seal")
@connected
def seal_stream(manager: StreamManager, scope: Scope, stream: Stream, yes: Yes = False) -> None:
    """Seal a stream: it accepts no more events, ever."""
    if not yes:
        typer.confirm(f"Seal stream {scope}/{stream}? It will accept no more events.", abort=True)
    manager.seal_stream(scope, stream)
    say(f"sealed stream {scope}/{stream}")


@stream_app.command("truncate")
@connected
def truncate_stream(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    at: Annotated[str, typer.Option(help=f"Where: {PLACE}; events before it are deleted.")],
    yes: Yes = False,
) -> None:
    """Delete the events before a cut, permanently."""
    if not yes:
        typer.confirm(f"Delete all events of {scope}/{stream} before {at}?", abort=True)
    manager.truncate_stream(manager.cuts(scope, stream).named(at))
    say(f"truncated stream {scope}/{stream}")


@stream_app.command("delete")
@connected
def delete_stream(manager: StreamManager, scope: Scope, stream: Stream, yes: Yes = False) -> None:
    """Delete a sealed stream."""
    if not yes:
        typer.confirm(f"Delete stream {scope}/{stream} and all its events?", abort=True)
    gone = manager.delete_stream(scope, stream)
    say(f"deleted stream {scope}/{stream}" if gone else f"there was no stream {scope}/{stream}")


def _row(manager: StreamManager, scope: str, stream: str) -> dict[str, Any]:
    segments = manager.current_segments(scope, stream)
    tags = sorted(manager.stream_configuration(scope, stream).tags)
    return {"stream": stream, "segments": len(segments), "sealed": not segments, "tags": tags}
