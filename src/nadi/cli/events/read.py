"""`nadi read`, `nadi tail` and `nadi splits`: the events of a stream, a named slice or splits on standard output.

`splits` divides a range into parts, one line each, and `read --split` reads such lines. They travel through a pipe to
`xargs` or `parallel`, a file on a shared disk, or the input of a MapReduce job.

`tail` starts at the cut N events before the tail (`StreamCuts.before`), which it finds by event sizes and arrival times
alone. From there one reader prints old and new events, so none is missed or repeated. Events are ordered within a
segment, but not between segments.
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
IsSlice = Annotated[bool, typer.Option("--slice", help="STREAM is the name of a slice.")]


@taking(PRINTING)
def read(
    manager: StreamManager,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCOPE STREAM", help="Scope and stream; with --slice, scope and slice; with --split, lines."
        ),
    ] = None,
    start: From = None,
    end: To = None,
    by: By = TimeBasis.ARRIVAL,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events until Ctrl-C.")] = False,
    is_slice: IsSlice = False,
    is_split: Annotated[
        bool,
        typer.Option(
            "--split",
            help="Read splits, which are lines of `nadi splits`, one after the other; by default from standard input. "
            "Text before a tab is ignored.",
        ),
    ] = False,
    key: RoutingKeys = None,
    on_damage: OnDamage = "raise",
    **how: Any,
) -> None:
    """Print events, one per line, by default from the head of a stream to its current tail."""
    if is_slice or is_split:
        given = {"from": start is not None, "to": end is not None, "follow": follow}
        given |= {"key": bool(key), "on-damage": on_damage != "raise"} if is_split else {}
        kind = "slice" if is_slice else "split"
        check_absent(f"can't be used with --{kind}, which has its own start and end", **given)
    choose_one(is_slice=is_slice, is_split=is_split)
    idle_s = how.pop("idle")
    check_absent("can't be used without --follow: reading stops at the end", idle=idle_s is not None and not follow)
    check_absent("can't be combined with --follow, which doesn't end", to=follow and end is not None)
    if is_split:
        _read_splits(words, how)
        return
    if words is None or len(words) != 2:
        raise InvalidArgumentError(f"expected SCOPE STREAM, but got {' '.join(words or ['nothing'])!r:.100}")
    scope, stream = words
    cuts = manager.cuts(scope, manager.slices(scope).get(stream).stream if is_slice else stream)
    printer = Printer(cuts.arrival_times, **how)
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
    events: Annotated[int, typer.Option("-n", "--events", help="Number of events.", min=0, max=_MOST)] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Print new events until Ctrl-C.")] = True,
    on_damage: OnDamage = "raise",
    **how: Any,
) -> None:
    """Print the last events of a stream, and then new ones.

    `--grep` filters old and new events.
    """
    idle_s = how.pop("idle")
    check_absent("can't be used with --no-follow: reading stops at the end", idle=idle_s is not None and not follow)
    cuts = manager.cuts(scope, stream)
    printer, end = Printer(cuts.arrival_times, **how), cuts.tail()
    start = cuts.before(end, events)
    reader = manager.create_reader(scope, stream, start=start, end=None if follow else end, on_damage=on_damage)
    print_events(reader, printer, follow=follow, idle_s=idle_s)


# --- splits ----------------------------------------------------------------------------------------------


def splits(
    manager: StreamManager,
    scope: Scope,
    stream: Annotated[str, typer.Argument(help="Name of the stream, or of the slice with --slice.")],
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="Maximum number of splits; fewer for a few MiB.", min=1)
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(help="Approximate maximum size of a split, such as 64MiB.", metavar="SIZE"),
    ] = None,
    start: From = None,
    end: To = None,
    by: By = TimeBasis.ARRIVAL,
    is_slice: IsSlice = False,
    key: RoutingKeys = None,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Keep all events of a key in one split, in order.")
    ] = False,
    with_credentials: Annotated[
        bool, typer.Option("--with-credentials", help="Include the credentials in each split, in plain text.")
    ] = False,
    on_damage: OnDamage = "raise",
    quiet: Quiet = False,
) -> None:
    """Divide a range into splits and print one per line, for `nadi read --split` on any machine.

    Splits contain the controller's address as given here, which must be reachable from the readers. Readers use the
    credentials of their environment unless the splits include them.
    """
    import nadi
    from nadi.cli.amounts import size_bytes

    if count is None and max_bytes is None:
        raise InvalidArgumentError("no number of splits given: use -n or --max-bytes")
    if is_slice:
        given = {"from": start is not None, "to": end is not None}
        check_absent("can't be used with --slice, which has its own start and end", **given)
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
    max_split_bytes = size_bytes(max_bytes) if max_bytes is not None else None
    planned = scan.splits(count or 1, max_bytes=max_split_bytes, ordered=ordered)
    for split in planned:
        say(split.as_text(with_credentials=with_credentials))
    if not quiet:
        warn(f"{len(planned):,} splits of {scope}/{stream}, {scan.size_bytes:,} bytes")


def _read_splits(texts: Sequence[str] | None, how: Mapping[str, Any]) -> None:
    """Read and print one split after the other, as they may arrive slowly on a mapper's standard input."""
    from nadi.client.scan.connection import client_of
    from nadi.client.scan.split import Split

    reading: list[Split] = []  # the split being printed

    def arrival_times(segment_id: int, offsets: Sequence[int]) -> Sequence[int | None]:
        (split,) = reading
        client, stream = client_of(split.connection), split.pieces[0].stream
        return client.run(client.manager.cuts(split.rows.scope, stream).arrival_times(segment_id, offsets))

    printer = Printer(arrival_times, **how)
    for text in texts or sys.stdin:
        line = text.rpartition("\t")[2].strip()  # Hadoop puts the line's offset and a tab before it
        if not line and texts:
            raise InvalidArgumentError("a split is empty: use lines printed by `nadi splits`")
        if not line:
            continue
        split = Split.from_text(line)
        reading[:] = [split]
        for segment_id, block in split.blocks():
            sys.stdout.buffer.write(printer.lines(segment_id, block))
            sys.stdout.buffer.flush()
            if printer.is_done:
                return
