"""`nadi tail`: the last events of a stream, and then what comes.

Where they begin is the cut so many events before the tail, `StreamCuts.before`: it goes back by bytes in each segment,
counts events by their sizes alone, and takes those that came last (`nadi.client.places.cuts`). From that cut on,
one reader prints what was and what comes, so nothing is missed or printed twice in between. Each segment's events are
in order; between segments there is no order, as for every reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.bookmarks import Scope, Stream
from nadi.cli.events.printer import AsObjects, Grep, Idle, KeyField, Layout, Limit
from nadi.cli.events.read import OnDamage
from nadi.cli.session import connected
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.client import StreamManager

_MOST = 1_000_000


@connected
def tail(
    manager: StreamManager,
    scope: Scope,
    stream: Stream,
    events: Annotated[int, typer.Option("-n", "--events", help="So many of the last events.", min=0, max=_MOST)] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on with what comes, until Ctrl-C.")] = True,
    limit: Limit = None,
    idle: Idle = None,
    layout: Layout = None,
    as_objects: AsObjects = False,
    key_field: KeyField = None,
    grep: Grep = None,
    on_damage: OnDamage = "raise",
) -> None:
    """Print the last events of a stream, and then those that come. `--grep` looks among them."""
    from nadi.cli.events.printer import Printer
    from nadi.cli.events.printing import print_events

    if idle is not None and not follow:
        raise InvalidArgumentError("--idle has no effect with --no-follow: the end is reached")
    cuts = manager.cuts(scope, stream)
    printer = Printer(
        layout=layout, as_objects=as_objects, key_field=key_field, grep=grep, limit=limit, came_by=cuts.came_by
    )
    end = cuts.tail()
    start = cuts.before(end, events)
    reader = manager.create_reader(scope, stream, start=start, end=None if follow else end, on_damage=on_damage)
    print_events(reader, printer, follow=follow, idle_s=idle)
