"""`nadi read`, `nadi tail` and `nadi splits`: the events of a stream, a named slice or splits on standard output.

`splits` plans who reads which part of a range, a line for each reader, and `read --split` reads such lines. A pipe to
`xargs` or `parallel`, a file on a shared disk, or the input of a MapReduce job carries them.

`tail` starts at the cut so many events before the tail, `StreamCuts.before`: it goes back by bytes in each segment,
counts events by their sizes alone, and takes those that came last (`nadi.client.stream_cuts.cuts`). From that cut on,
one reader prints old and new events, so none is missed or printed twice in between. Each segment's events are in order;
between segments there is no order, as for every reader.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.events.printer import PRINTING, Printer, print_events
from nadi.cli.options import By, From, OnDamage, Quiet, RoutingKeys, Scope, Stream, TimeBasis, To, cut_at
from nadi.cli.printing import say, warn
from nadi.cli.session import check_absent, choose_one, taking
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager

_MOST = 1_000_000
IsSlice = Annotated[bool, typer.Option("--slice", help="Read the named slice STREAM instead of a stream.")]


@taking(PRINTING)
def read(
    manager: StreamManager,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCOPE STREAM", help="The stream; with --slice, the slice's name; with --split, lines."),
    ] = None,
    start: From = None,
    end: To = None,
    by: By = TimeBasis.ARRIVAL,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events, until Ctrl-C.")] = False,
    is_slice: IsSlice = False,
    is_split: Annotated[
        bool,
        typer.Option(
            "--split",
            help="Read these lines of `nadi splits`, one after the other; without any, those of standard input. Text "
            "before a tab is left out.",
        ),
    ] = False,
    key: RoutingKeys = None,
    on_damage: OnDamage = "raise",
    **how: Any,
) -> None:
    """Print events, one per line, by default from the stream's head to its current end."""
    if is_slice or is_split:
        given = {"from": start is not None, "to": end is not None, "follow": follow}
        given |= {"key": bool(key), "on-damage": on_damage != "raise"} if is_split else {}
        which = "slice" if is_slice else "split"
        check_absent(f"has no effect with --{which}, which has its own start and end", **given)
    choose_one(is_slice=is_slice, is_split=is_split)
    idle_s = how.pop("idle")
    check_absent("has no effect without --follow: the end is reached", idle=idle_s is not None and not follow)
    check_absent("has no effect with --follow, which doesn't end", to=follow and end is not None)
    if is_split:
        _read_splits(words, how)
        return
    if words is None or len(words) != 2:
        raise InvalidArgumentError(f"say what to read, SCOPE STREAM, not {' '.join(words or ['nothing'])!r:.100}")
    scope, stream = words
    cuts = manager.cuts(scope, manager.slices(scope).get(stream).stream if is_slice else stream)
    printer = Printer(cuts.came_by, **how)
    if is_slice:
        reader = manager.open_slice(scope, stream, routing_keys=key, on_damage=on_damage)
    else:
        first = cut_at(cuts, start or "head", by)
        last = None if follow else cut_at(cuts, end or "tail", by, end=True)
        reader = manager.create_reader(scope, stream, start=first, end=last, routing_keys=key, on_damage=on_damage)
    print_events(reader, printer, follow=follow, idle_s=idle_s)


@taking(PRINTING)
def tail(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    events: Annotated[int, typer.Option("-n", "--events", help="Number of last events.", min=0, max=_MOST)] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Print new ones, until Ctrl-C.")] = True,
    on_damage: OnDamage = "raise",
    **how: Any,
) -> None:
    """Print the last events of a stream, and then new ones. `--grep` searches them all."""
    idle_s = how.pop("idle")
    check_absent("has no effect with --no-follow: the end is reached", idle=idle_s is not None and not follow)
    cuts = manager.cuts(scope, stream)
    printer, end = Printer(cuts.came_by, **how), cuts.tail()
    start = cuts.before(end, events)
    reader = manager.create_reader(scope, stream, start=start, end=None if follow else end, on_damage=on_damage)
    print_events(reader, printer, follow=follow, idle_s=idle_s)


# --- splits ----------------------------------------------------------------------------------------------


def splits(
    manager: StreamManager,
    scope: Scope,
    stream: Annotated[str, typer.Argument(help="The stream; with --slice, the slice's name.")],
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="At most so many; fewer than that for a few MiB.", min=1)
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(help="None larger than about so much, such as 64MiB: as many as that takes.", metavar="SIZE"),
    ] = None,
    start: From = None,
    end: To = None,
    by: By = TimeBasis.ARRIVAL,
    is_slice: IsSlice = False,
    key: RoutingKeys = None,
    ordered: Annotated[bool, typer.Option("--ordered", help="All of a key's events in one split, in order.")] = False,
    with_credentials: Annotated[
        bool, typer.Option("--with-credentials", help="Write the credentials into each split, for anybody to see.")
    ] = False,
    on_damage: OnDamage = "raise",
    quiet: Quiet = False,
) -> None:
    """Divide a range among readers: print a line for each, which `nadi read --split` reads, wherever it runs.

    The lines have the address that is given here, so it must be one that the readers reach. They sign in with the
    credentials of their own environment, unless the lines have them.
    """
    import nadi
    from nadi.cli.amounts import size_bytes

    if count is None and max_bytes is None:
        raise InvalidArgumentError("say how many splits: -n 8, or --max-bytes 64MiB")
    if is_slice:
        given = {"from": start is not None, "to": end is not None}
        check_absent("has no effect with --slice, which has its own start and end", **given)
    cuts = manager.cuts(scope, stream)
    scan = nadi.scan(
        manager,
        scope,
        None if is_slice else stream,
        slice=stream if is_slice else None,
        start=cut_at(cuts, start, by) if start is not None else None,
        end=cut_at(cuts, end, by, end=True) if end is not None else None,
        routing_keys=key,
        columns=["event"],
        on_damage=on_damage,
    )
    most = size_bytes(max_bytes) if max_bytes is not None else None
    planned = scan.splits(count or 1, max_bytes=most, ordered=ordered)
    for split in planned:
        say(split.as_text(with_credentials=with_credentials))
    if not quiet:
        warn(f"{len(planned):,} splits of {scope}/{stream}, {scan.size_bytes:,} bytes")


def _read_splits(texts: Sequence[str] | None, how: Mapping[str, Any]) -> None:
    """Read each once the one before it is printed, for a mapper's input may be long in coming."""
    from nadi.client.scan.connection import client_of
    from nadi.client.scan.split import Split

    reading: list[Split] = []  # the one that is being printed

    def came_by(segment_id: int, offsets: Sequence[int]) -> Sequence[int | None]:
        (split,) = reading
        client, stream = client_of(split.connection), split.pieces[0].stream
        return client.run(client.manager.cuts(split.rows.scope, stream).came_by(segment_id, offsets))

    printer = Printer(came_by, **how)
    for text in texts or sys.stdin:
        line = text.rpartition("\t")[2].strip()  # before it, a mapper of Hadoop has the offset of the line
        if not line and texts:
            raise InvalidArgumentError("a split is an empty text: use what `nadi splits` printed")
        if not line:
            continue
        split = Split.from_text(line)
        reading[:] = [split]
        for segment_id, block in split.blocks():
            sys.stdout.buffer.write(printer.lines(segment_id, block))
            sys.stdout.buffer.flush()
            if printer.is_done:
                return
