"""`nadi scope` and `nadi stream`: what exists, and its making and ending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.bookmarks import PLACE
from nadi.cli.printing import say, show
from nadi.cli.session import AsJson, Controller, TrustStore, Yes, client
from nadi.defaults import DEFAULT_URI

if TYPE_CHECKING:
    from nadi.client import StreamManager

scope_app = typer.Typer(help="Scopes: the namespaces of streams.", no_args_is_help=True)
stream_app = typer.Typer(help="Streams: list, create, look at, seal, truncate, delete.", no_args_is_help=True)
Scope = Annotated[str, typer.Argument(help="The scope.")]
Stream = Annotated[str, typer.Argument(help="The stream.")]


@scope_app.command("list")
def list_scopes(controller: Controller = DEFAULT_URI, trust_store: TrustStore = None, as_json: AsJson = False) -> None:
    """List the scopes."""
    with client(controller, trust_store) as manager:
        rows = [{"scope": scope} for scope in sorted(manager.list_scopes()) if not scope.startswith("_")]
    show(rows, ["scope"], as_json=as_json, empty="There is no scope yet: make one with `nadi scope create NAME`.")


@scope_app.command("create")
def create_scope(scope: Scope, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None) -> None:
    """Create a scope."""
    with client(controller, trust_store) as manager:
        made = manager.create_scope(scope)
    say(f"created scope {scope}" if made else f"scope {scope} existed already")


@scope_app.command("delete")
def delete_scope(
    scope: Scope,
    recursive: Annotated[bool, typer.Option("--recursive", help="With all that is in it.")] = False,
    yes: Yes = False,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Delete a scope, with its bookmarks and named slices."""
    if not yes:
        typer.confirm(f"Delete scope {scope}{' and all its streams' if recursive else ''}?", abort=True)
    with client(controller, trust_store) as manager:
        gone = manager.delete_scope(scope, recursive=recursive)
    say(f"deleted scope {scope}" if gone else f"there was no scope {scope}")


@stream_app.command("list")
def list_streams(
    scope: Scope,
    tag: Annotated[str | None, typer.Option(help="Only streams with this tag.")] = None,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
    as_json: AsJson = False,
) -> None:
    """List a scope's streams."""
    with client(controller, trust_store) as manager:
        rows = [_row(manager, scope, stream) for stream in sorted(manager.list_streams(scope, tag))]
    show(rows, ["stream", "segments", "sealed", "tags"], as_json=as_json, empty=f"Scope {scope} has no such stream.")


@stream_app.command("create")
def create_stream(
    scope: Scope,
    stream: Stream,
    segments: Annotated[int, typer.Option(help="Segments, at least.", min=1)] = 1,
    events_per_s: Annotated[
        int | None, typer.Option("--events-per-s", help="Split a segment that takes more events a second.", min=1)
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be given several times.")] = None,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Create a stream; its scope must exist."""
    from nadi.client import ScalingPolicy

    scaling = ScalingPolicy.fixed(segments)
    if events_per_s is not None:
        scaling = ScalingPolicy.by_event_rate(events_per_s, min_segments=segments)
    with client(controller, trust_store) as manager:
        made = manager.create_stream(scope, stream, scaling=scaling, tags=tag or ())
    say(f"created stream {scope}/{stream}" if made else f"stream {scope}/{stream} existed already")


@stream_app.command("show")
def show_stream(
    scope: Scope,
    stream: Stream,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
    as_json: AsJson = False,
) -> None:
    """Show a stream: its segments, and how much it holds."""
    with client(controller, trust_store) as manager:
        row = _row(manager, scope, stream)
        info = manager.stream_info(scope, stream)
        row["bytes"] = manager.cuts(scope, stream).bytes_between(info.head, info.tail)
        row["head"], row["tail"] = info.head.as_text(), info.tail.as_text()
    columns = ["stream", "segments", "sealed", "tags", "bytes"]
    show([row], columns, as_json=as_json, empty="")


@stream_app.command("seal")
def seal_stream(
    scope: Scope, stream: Stream, yes: Yes = False, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Let a stream take no more events, for ever."""
    if not yes:
        typer.confirm(f"Seal stream {scope}/{stream}? It takes no more events then.", abort=True)
    with client(controller, trust_store) as manager:
        manager.seal_stream(scope, stream)
    say(f"sealed stream {scope}/{stream}")


@stream_app.command("truncate")
def truncate_stream(
    scope: Scope,
    stream: Stream,
    at: Annotated[str, typer.Option(help=f"Where: {PLACE}; what is before it goes.")],
    yes: Yes = False,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Forget the events before a cut, for ever."""
    if not yes:
        typer.confirm(f"Forget all events of {scope}/{stream} before {at}?", abort=True)
    with client(controller, trust_store) as manager:
        manager.truncate_stream(manager.cuts(scope, stream).named(at))
    say(f"truncated stream {scope}/{stream}")


@stream_app.command("delete")
def delete_stream(
    scope: Scope, stream: Stream, yes: Yes = False, controller: Controller = DEFAULT_URI, trust_store: TrustStore = None
) -> None:
    """Delete a sealed stream."""
    if not yes:
        typer.confirm(f"Delete stream {scope}/{stream} and all its events?", abort=True)
    with client(controller, trust_store) as manager:
        gone = manager.delete_stream(scope, stream)
    say(f"deleted stream {scope}/{stream}" if gone else f"there was no stream {scope}/{stream}")


def _row(manager: StreamManager, scope: str, stream: str) -> dict[str, Any]:
    segments = manager.current_segments(scope, stream)
    tags = sorted(manager.stream_configuration(scope, stream).tags)
    return {"stream": stream, "segments": len(segments), "sealed": not segments, "tags": tags}
