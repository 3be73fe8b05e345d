"""`nadi splits` plans who reads what of a stretch, a line for each reader, and `nadi read-split` reads such lines.

What is between them carries lines and nothing else: a pipe to `xargs` or `parallel`, a file on a shared disk, the
input of a MapReduce job whose mappers run `nadi read-split`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.bookmarks import PLACE, By, Clock, place
from nadi.cli.events.printer import AsObjects, Grep, KeyField, Layout, Limit
from nadi.cli.events.read import OnDamage
from nadi.cli.events.write import Quiet
from nadi.cli.printing import errors_told, say, warn
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.client.scan.split import Split


@connected
def splits(
    manager: StreamManager,
    scope: Annotated[str, typer.Argument(help="The scope.")],
    stream: Annotated[str, typer.Argument(help="The stream; with --slice, the slice's name.")],
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="At most so many; fewer than that for a few MiB.", min=1)
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(help="None larger than about so much, such as 64MiB: as many as that takes.", metavar="SIZE"),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help=f"Where to start: {PLACE}. [default: head]", show_default=False)
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help=f"Where to end: {PLACE}. [default: tail]", show_default=False)
    ] = None,
    by: By = Clock.ARRIVAL,
    is_slice: Annotated[bool, typer.Option("--slice", help="The named slice STREAM instead of a stream.")] = False,
    key: Annotated[
        list[str] | None,
        typer.Option(help="Only segments that can hold this routing key; may be given several times."),
    ] = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="All of a key's events in one split, in order.")] = False,
    with_credentials: Annotated[
        bool, typer.Option("--with-credentials", help="Write the credentials into each split, for anybody to see.")
    ] = False,
    on_damage: OnDamage = "raise",
    quiet: Quiet = False,
) -> None:
    """Divide a stretch among readers: print a line for each, which `nadi read-split` reads, wherever it runs.

    The lines have the address that is given here, so it must be one that the readers reach. They sign in with the
    credentials of their own environment, unless the lines have them.
    """
    import nadi
    from nadi.cli.amounts import size_bytes

    if count is None and max_bytes is None:
        raise InvalidArgumentError("say how many splits: -n 8, or --max-bytes 64MiB")
    if is_slice and (start is not None or end is not None):
        option = "--from" if start is not None else "--to"
        raise InvalidArgumentError(f"{option} has no effect with --slice, which has its own start and end")
    cuts = manager.cuts(scope, stream)
    found = nadi.scan(
        manager,
        scope,
        None if is_slice else stream,
        slice=stream if is_slice else None,
        start=place(cuts, start, by) if start is not None else None,
        end=place(cuts, end, by, end=True) if end is not None else None,
        routing_keys=key,
        columns=["event"],
        on_damage=on_damage,
    )
    most = size_bytes(max_bytes) if max_bytes is not None else None
    planned = found.splits(count or 1, max_bytes=most, ordered=ordered)
    for split in planned:
        say(split.as_text(with_credentials=with_credentials))
    if not quiet:
        warn(f"{len(planned):,} splits of {scope}/{stream}, {found.size_bytes:,} bytes")


def read_split(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SPLIT",
            help="Lines of `nadi splits`; without any, those of standard input. What stands before a tab is left out.",
            show_default=False,
        ),
    ] = None,
    layout: Layout = None,
    as_objects: AsObjects = False,
    key_field: KeyField = None,
    grep: Grep = None,
    limit: Limit = None,
) -> None:
    """Print the events of splits, one per line, one split after the other."""
    with errors_told():
        from nadi.cli.events.printer import Printer
        from nadi.client.scan.connection import client_of

        reading: list[Split] = []  # the one that is being printed

        def came_by(segment_id: int, offsets: Sequence[int]) -> Sequence[int | None]:
            (split,) = reading
            client, stream = client_of(split.connection), split.pieces[0].stream
            return client.run(client.manager.cuts(split.rows.scope, stream).came_by(segment_id, offsets))

        printer = Printer(
            layout=layout, as_objects=as_objects, key_field=key_field, grep=grep, limit=limit, came_by=came_by
        )
        for split in _splits_of(texts):
            reading[:] = [split]
            for segment_id, block in split.blocks():
                sys.stdout.buffer.write(printer.lines(segment_id, block))
                sys.stdout.buffer.flush()
                if printer.is_done:
                    return


def _splits_of(texts: Sequence[str] | None) -> Iterator[Split]:
    """Each once the one before it is read, for a mapper's input may be long in coming."""
    from nadi.client.scan.split import Split

    known: set[str] = set()
    for text in texts or sys.stdin:
        line = text.rpartition("\t")[2].strip()  # before it, a mapper of Hadoop has the place of the line
        if not line:
            if texts:
                raise InvalidArgumentError("a split is an empty text: use what `nadi splits` printed")
            continue
        split = Split.from_text(line)
        if split.connection.uri not in known:
            known.add(split.connection.uri)
        yield split
