"""`nadi read`: the events of a stream, or of a named slice, on standard output."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nadi.cli.bookmarks import PLACE
from nadi.cli.session import connected

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.model.event import EventBlock


@connected
def read(
    manager: StreamManager,
    scope: Annotated[str, typer.Argument(help="The scope.")],
    stream: Annotated[str, typer.Argument(help="The stream; with --slice, the slice's name.")],
    start: Annotated[str, typer.Option("--from", help=f"Where to start: {PLACE}.")] = "head",
    end: Annotated[str, typer.Option("--to", help=f"Where to end: {PLACE}.")] = "tail",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events, until Ctrl-C.")] = False,
    is_slice: Annotated[bool, typer.Option("--slice", help="Read the named slice STREAM instead of a stream.")] = False,
    key: Annotated[
        list[str] | None,
        typer.Option(help="Read only segments that can hold this routing key; may be given several times."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after this many events.", min=1)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line: segment, offset, and text or base64.")
    ] = False,
    on_damage: Annotated[
        Literal["raise", "skip"],
        typer.Option(help="At damaged data, `raise` stops; `skip` says so and continues after it."),
    ] = "raise",
) -> None:
    """Print events, one per line, by default from the stream's head to its current end."""
    if is_slice:
        reader = manager.open_slice(scope, stream, routing_keys=key, on_damage=on_damage)
    else:
        cuts = manager.cuts(scope, stream)
        last = None if follow else cuts.named(end)
        reader = manager.create_reader(
            scope, stream, start=cuts.named(start), end=last, routing_keys=key, on_damage=on_damage
        )
    with reader, suppress(KeyboardInterrupt):
        for segment_id, block in reader:
            lines = _json(segment_id, block) if as_json else block
            given = list(islice(lines, limit))
            sys.stdout.buffer.write(b"".join(line + b"\n" for line in given))
            sys.stdout.buffer.flush()
            if limit is not None:
                limit -= len(given)
                if limit == 0:
                    return


def _json(segment_id: int, block: EventBlock) -> Iterator[bytes]:
    import msgspec

    from nadi.client.reading.reader import events_of

    for event in events_of(segment_id, block):
        row: dict[str, int | str] = {"segment_id": segment_id, "offset": event.offset}
        try:
            row["text"] = event.data.decode()
        except UnicodeDecodeError:
            row["base64"] = base64.b64encode(event.data).decode()
        yield msgspec.json.encode(row)
