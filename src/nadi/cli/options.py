"""Arguments and options that several commands have, each defined once, and what the texts of positions mean."""

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

POSITION = "head, tail, a bookmark's name, a cut's text, a time (2026-11-14T00:00+01:00), or -5min: so long ago"
SEVERAL = "may be given several times"

# --- the server, and what is printed

Controller = Annotated[
    str, typer.Option(envvar="NADI_CONTROLLER", help="The controller, as tcp://host:port or tls://host:port.")
]
TrustStore = Annotated[
    str | None, typer.Option(envvar="NADI_TRUST_STORE", help="PEM file of certificates to trust, with tls://.")
]
Patience = Annotated[
    float | None,
    typer.Option(
        envvar="NADI_PATIENCE",
        help="Seconds to wait for each of the server's answers. [default: 30, and 130 for changes]",
        min=0.1,
    ),
]
Rest = Annotated[
    str, typer.Option(envvar="NADI_REST", help="The REST address of a server, as http://host:port or https://…")
]
Output = Annotated[Form | None, typer.Option("--output", "-o", help="Print so. [default: table]")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json: a single document.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

# --- things by name

Scope = Annotated[str, typer.Argument(help="The scope.")]
Stream = Annotated[str, typer.Argument(help="The stream.")]
Name = Annotated[str, typer.Argument(help="The name: letters, digits, '.' and '-'.")]
Note = Annotated[str, typer.Option(help="A few words on what it is for.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help=f"A tag; {SEVERAL}.")]
OfStream = Annotated[str | None, typer.Option("--stream", help="Only those of this stream.")]
OfTag = Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
OfIndex = Annotated[
    str, typer.Option("--index", help="The folder with an index's shards, or a store: s3://, gs://, az://.")
]

# --- events, and a range of them

From = Annotated[str | None, typer.Option("--from", help=f"Where to start: {POSITION}. [default: head]")]
To = Annotated[str | None, typer.Option("--to", help=f"Where to end: {POSITION}. [default: tail]")]
RoutingKeys = Annotated[
    list[str] | None, typer.Option("--key", help=f"Only segments that can hold this routing key; {SEVERAL}.")
]
Limit = Annotated[int | None, typer.Option("--limit", "-c", help="Stop after this many.", min=1)]
KeyField = Annotated[
    str | None, typer.Option("--key-field", help="Field of JSON events that has the routing key.", metavar="NAME")
]
OnDamage = Annotated[
    Literal["raise", "skip"],
    typer.Option(help="At damaged data, `raise` stops; `skip` reports it and continues after it."),
]
Create = Annotated[
    int | None, typer.Option(help="Create scope and stream if they are missing, with N segments.", min=1, metavar="N")
]
InTransaction = Annotated[bool, typer.Option("--transaction", help="Write all events or none: in one transaction.")]
DeadLetters = Annotated[
    str | None, typer.Option("--dead-letter", help="Stream for events that fail for good. [default: none]")
]


class TimeBasis(StrEnum):
    """By what a time in an option or argument is meant."""

    ARRIVAL = "arrival"
    EVENT_TIME = "event-time"


By = Annotated[TimeBasis, typer.Option("--by", help="Whether times are when events came, or the events' own.")]


def cut_at(cuts: StreamCuts, text: str, by: TimeBasis = TimeBasis.ARRIVAL, *, end: bool = False) -> StreamCut:
    """The cut that an option or argument names. end: something ends there."""
    from nadi.cli.amounts import age_s
    from nadi.client.stream_cuts.timestamps import BY_EVENT_TIME, is_time

    if text.startswith("-"):
        text = datetime.fromtimestamp(max(0.0, time.time() - age_s(text[1:])), UTC).isoformat()
    if by is TimeBasis.EVENT_TIME and is_time(text):
        text = BY_EVENT_TIME + text
    return cuts.named(text, end=end)
