"""`nadi write`: events from standard input or files into a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.bookmarks import Scope, Stream
from nadi.cli.events.progress import Told, progress
from nadi.cli.printing import warn
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError, ScopeNotFoundError

if TYPE_CHECKING:
    from nadi.cli.events.keys import Split
    from nadi.cli.events.lines import Lines
    from nadi.cli.events.sink import Sink
    from nadi.client import StreamManager

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Create = Annotated[
    int | None, typer.Option(help="Create scope and stream if they are missing, with N segments.", min=1, metavar="N")
]
INTERRUPTED = 130  # as shells have it


@connected
def write(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files with events; `-`, or none, is standard input.", metavar="[FILE...]"),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The routing key of all events.")] = None,
    key_field: Annotated[
        str | None, typer.Option(help="Field of JSON events that has the routing key.", metavar="NAME")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(help=r"Each line is a key, this (`:` or `\t`, say), and the event.", metavar="TEXT")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Each event must be JSON: at one that isn't, writing stops.")
    ] = False,
    delimiter: Annotated[
        str | None, typer.Option(help=r"What ends an event instead of a newline, `\0`, say.", metavar="TEXT")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Each FILE is one event, a picture, say.")] = False,
    create: Create = None,
    transaction: Annotated[
        bool, typer.Option("--transaction", help="Write all events or none: in one transaction.")
    ] = False,
    into: Annotated[
        str | None,
        typer.Option(help="Write into this transaction, which `nadi txn commit` commits.", metavar="ID"),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            help="How long that transaction then lasts without a `nadi txn ping`. [default: 10min]", show_default=False
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write events from standard input or files, one a line; empty lines are events too.

    What comes slowly through a pipe is sent as it comes. At the end, or at an error, it says how many events are
    stored.
    """
    from nadi.cli.amounts import age_s
    from nadi.cli.events.escapes import unescaped
    from nadi.cli.events.keys import split_of
    from nadi.cli.events.lines import lines_of, opened, size_of, wholes_of
    from nadi.cli.events.sink import sink

    split = split_of(key, key_field, unescaped(key_separator) if key_separator is not None else None, is_json=as_json)
    if whole and (delimiter is not None or key_separator is not None):
        option = "--delimiter" if delimiter is not None else "--key-separator"
        raise InvalidArgumentError(f"{option} has no effect with --whole, for files are not cut into lines")
    if into is not None and (transaction or create is not None):
        option = "--transaction" if transaction else "--create"
        raise InvalidArgumentError(f"{option} has no effect with --into, for that transaction is there already")
    if into is None and lease is not None:
        raise InvalidArgumentError("--lease has no effect without --into, which names a transaction")
    lease_ms = round(age_s(lease or "10min") * 1000)
    between = unescaped(delimiter) if delimiter is not None else b"\n"
    with ExitStack() as within:
        inputs = opened(files or [], within)
        if create is not None:
            create_missing(manager, scope, stream, create)
        if not files and sys.stdin.isatty() and not quiet:
            warn("each line is an event; Ctrl-D ends")
        found = wholes_of(inputs) if whole else lines_of(inputs, between)
        told = within.enter_context(progress("writing", size_of(files or []), quiet=quiet))
        try:
            with sink(manager, scope, stream, is_transaction=transaction, into=into, lease_ms=lease_ms) as to:
                _copy(found, split, to, told)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if not quiet:
        warn(f"wrote {to.told}")


def _copy(found: Iterator[Lines], split: Split, to: Sink, told: Told) -> None:
    for block in found:
        keyed = split(block.lines)
        to.write(keyed.events, keyed.keys)
        told(block.read_bytes)
        if keyed.fault:
            line = block.first + len(keyed.events)
            raise InvalidArgumentError(f"line {line:,} of {block.input_name} is not an event: {keyed.fault}")


def create_missing(manager: StreamManager, scope: str, stream: str, segments: int) -> None:
    try:
        manager.create_stream(scope, stream, segments)
    except ScopeNotFoundError:
        manager.create_scope(scope)
        manager.create_stream(scope, stream, segments)
