"""Arguments and options shared by several commands, and the parsing of positions."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nadi.cli.printing import Form

if TYPE_CHECKING:
    from nadi.client import StreamCuts
    from nadi.model.streamcut import StreamCut

POSITION = "head, tail, a bookmark's name, a cut's text, a time (2026-11-14T00:00+01:00), or an age (-5min)"
SEVERAL = "may be repeated"

# --- server and output

Controller = Annotated[
    str, typer.Option(envvar="NADI_CONTROLLER", help="Address of the controller, tcp://host:port or tls://host:port.")
]
TrustStore = Annotated[
    str | None, typer.Option(envvar="NADI_TRUST_STORE", help="PEM file with certificates to trust for tls://.")
]
Patience = Annotated[
    float | None,
    typer.Option(
        envvar="NADI_PATIENCE",
        help="Timeout of each request in seconds. (default: 30, and 130 for changes)",
        min=0.1,
    ),
]
Rest = Annotated[
    str, typer.Option(envvar="NADI_REST", help="REST address of a server, http://host:port or https://host:port.")
]
Output = Annotated[Form | None, typer.Option("--output", "-o", help="Output format. (default: table)")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; same as -o json.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]

# --- names

Scope = Annotated[str, typer.Argument(help="Name of the scope.")]
Stream = Annotated[str, typer.Argument(help="Name of the stream.")]
Name = Annotated[str, typer.Argument(help="Name: letters, digits, '.' and '-'.")]
Note = Annotated[str, typer.Option(help="Description.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help=f"Tag; {SEVERAL}.")]
OfStream = Annotated[str | None, typer.Option("--stream", help="List only those of this stream.")]
OfTag = Annotated[str | None, typer.Option("--tag", help="List only those with this tag.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without doing it.")]
OfIndex = Annotated[
    str, typer.Option("--index", help="Folder or object store (s3://, gs://, az://) of the index's shards.")
]

# --- events and ranges

From = Annotated[str | None, typer.Option("--from", help=f"Start: {POSITION}. (default: head)")]
To = Annotated[str | None, typer.Option("--to", help=f"End: {POSITION}. (default: tail)")]
RoutingKeys = Annotated[
    list[str] | None, typer.Option("--key", help=f"Read only segments that may contain this routing key; {SEVERAL}.")
]
Limit = Annotated[int | None, typer.Option("--limit", "-c", help="Stop after this many events.", min=1)]
KeyField = Annotated[
    str | None, typer.Option("--key-field", help="Field of JSON events that contains the routing key.", metavar="NAME")
]
OnDamage = Annotated[
    Literal["raise", "skip"],
    typer.Option(help="On damaged data, fail (`raise`), or report it and continue (`skip`)."),
]
Create = Annotated[
    int | None,
    typer.Option(help="Create the scope and a stream with N segments if they don't exist.", min=1, metavar="N"),
]
InTransaction = Annotated[bool, typer.Option("--transaction", help="Write all events in one transaction, or none.")]
DeadLetters = Annotated[
    str | None, typer.Option("--dead-letter", help="Dead-letter stream, for events that keep failing. (default: none)")
]


class TimeBasis(StrEnum):
    """The clock that times in options and arguments refer to."""

    ARRIVAL = "arrival"
    EVENT_TIME = "event-time"


By = Annotated[TimeBasis, typer.Option("--by", help="Clock of times: arrival, or the events' own time.")]


def cut_at(cuts: StreamCuts, text: str, by: TimeBasis = TimeBasis.ARRIVAL, *, end: bool = False) -> StreamCut:
    """Parse a position. end: a time names the end of a range."""
    from nadi.cli.amounts import age_s
    from nadi.client.stream_cuts.timestamps import BY_EVENT_TIME, is_time

    if text.startswith("-"):
        text = datetime.fromtimestamp(max(0.0, time.time() - age_s(text[1:])), UTC).isoformat()
    if by is TimeBasis.EVENT_TIME and is_time(text):
        text = BY_EVENT_TIME + text
    return cuts.named(text, end=end)
