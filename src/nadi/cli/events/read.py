"""`nadi read`: the events of a stream, or of a named slice, on standard output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nadi.cli.bookmarks import PLACE, By, Clock, place
from nadi.cli.events.printer import AsObjects, Grep, Idle, KeyField, Layout, Limit
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager

OnDamage = Annotated[
    Literal["raise", "skip"],
    typer.Option(help="At damaged data, `raise` stops; `skip` says so and continues after it."),
]


@connected
def read(
    manager: StreamManager,
    scope: Annotated[str, typer.Argument(help="The scope.")],
    stream: Annotated[str, typer.Argument(help="The stream; with --slice, the slice's name.")],
    start: Annotated[
        str | None, typer.Option("--from", help=f"Where to start: {PLACE}. [default: head]", show_default=False)
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help=f"Where to end: {PLACE}. [default: tail]", show_default=False)
    ] = None,
    by: By = Clock.ARRIVAL,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events, until Ctrl-C.")] = False,
    is_slice: Annotated[bool, typer.Option("--slice", help="Read the named slice STREAM instead of a stream.")] = False,
    key: Annotated[
        list[str] | None,
        typer.Option(help="Read only segments that can hold this routing key; may be given several times."),
    ] = None,
    limit: Limit = None,
    idle: Idle = None,
    layout: Layout = None,
    as_objects: AsObjects = False,
    key_field: KeyField = None,
    grep: Grep = None,
    on_damage: OnDamage = "raise",
) -> None:
    """Print events, one per line, by default from the stream's head to its current end."""
    from nadi.cli.events.printer import Printer
    from nadi.cli.events.printing import print_events

    places = {"--from": start is not None, "--to": end is not None, "--follow": follow}
    if useless := [option for option, is_given in places.items() if is_given and is_slice]:
        raise InvalidArgumentError(f"{useless[0]} has no effect with --slice, which has its own start and end")
    if idle is not None and not follow:
        raise InvalidArgumentError("--idle has no effect without --follow: the end is reached")
    if follow and end is not None:
        raise InvalidArgumentError("--to has no effect with --follow, which doesn't end")
    cuts = manager.cuts(scope, manager.slices(scope).get(stream).stream if is_slice else stream)
    printer = Printer(
        layout=layout, as_objects=as_objects, key_field=key_field, grep=grep, limit=limit, came_by=cuts.came_by
    )
    if is_slice:
        reader = manager.open_slice(scope, stream, routing_keys=key, on_damage=on_damage)
    else:
        first, last = place(cuts, start or "head", by), None if follow else place(cuts, end or "tail", by, end=True)
        reader = manager.create_reader(scope, stream, start=first, end=last, routing_keys=key, on_damage=on_damage)
    print_events(reader, printer, follow=follow, idle_s=idle)
