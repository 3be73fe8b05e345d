"""`nadi ingest`: log files into a stream, through rotation, each line once."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated

import typer

from nadi.cli.options import Controller, TrustStore
from nadi.cli.printing import errors_told
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nadi.ingest.files.follower import Follower
    from nadi.ingest.files.tail import Reading


def ingest(
    scope: Annotated[str, typer.Argument(help="The scope.")],
    stream: Annotated[str, typer.Argument(help="The stream that the lines go to.")],
    files: Annotated[
        list[str], typer.Argument(help="Files, folders, or quoted patterns such as '/var/log/app/*.log'.")
    ],
    key_pattern: Annotated[
        str | None,
        typer.Option(
            help="A regular expression whose group `key`, or first group, is a line's key. [default: its file]"
        ),
    ] = None,
    key_field: Annotated[
        str | None, typer.Option(help="The field of a JSON line that is its key, such as device.id.")
    ] = None,
    event_start: Annotated[
        str | None,
        typer.Option(help="A regular expression that the first line of an event matches; others belong to it."),
    ] = None,
    event_wait: Annotated[
        float, typer.Option(help="Seconds that an event of several lines waits for its next line.", min=0.1)
    ] = 2.0,
    from_end: Annotated[
        bool,
        typer.Option(
            "--from-end/--from-beginning", help="Where files begin that are there the first time this is started."
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Whose positions to go on from. [default: this machine's name]")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all that is there now is written.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing while it works.")] = False,
    controller: Controller = DEFAULT_URI,
    trust_store: TrustStore = None,
) -> None:
    """Follow log files through rotation, and write each line to a stream once and in order, whatever is killed."""
    from nadi.cli.ingest.running import run_until_stopped

    with errors_told():
        reading = _reading(key_pattern, key_field, event_start, event_wait, once)
        run_until_stopped(
            lambda: _follow(controller, trust_store, (scope, stream), files, name, reading, from_end, quiet)
        )


def _reading(
    key_pattern: str | None, key_field: str | None, event_start: str | None, event_wait: float, once: bool
) -> Reading:
    from nadi.ingest.files.keys import FieldKey, by_pattern, compiled
    from nadi.ingest.files.tail import Reading

    if key_pattern is not None and key_field is not None:
        raise InvalidArgumentError("--key-pattern and --key-field both say what the key is: give one of them")
    if event_start is None and event_wait != 2.0:
        raise InvalidArgumentError("--event-wait has no effect without --event-start")
    key_of = by_pattern(key_pattern) if key_pattern is not None else None
    if key_field is not None:
        key_of = FieldKey(key_field)
    starts = compiled(event_start, "start of an event") if event_start is not None else None
    return Reading(key_of, starts, event_wait, once)


async def _follow(
    controller: str,
    trust_store: str | None,
    stream: tuple[str, str],
    files: list[str],
    name: str | None,
    reading: Reading,
    from_end: bool,
    quiet: bool,
) -> None:
    from nadi.access.listener import raise_file_limit
    from nadi.cli.ingest.running import Line
    from nadi.client.aio import StreamManager
    from nadi.ingest.files.follower import Follower
    from nadi.ingest.files.keys import FieldKey
    from nadi.ingest.files.places import Places, alone

    raise_file_limit()
    name = name or socket.gethostname()
    key_of = reading.key_of
    with alone(controller, *stream, name):
        async with StreamManager(controller, trust_store=trust_store) as manager:
            places = await Places.open(manager, *stream, name)
            follower = Follower(manager, *stream, files, places, reading, from_end=from_end)
            async with Line(lambda: _told(follower), quiet=quiet):
                await follower.run()
    if isinstance(key_of, FieldKey) and key_of.refused:
        raise InvalidArgumentError(
            f"{key_of.refused:,} of the events have the keys of their files, for {key_of.problem}: all are written"
        )


def _told(follower: Follower) -> str:
    progress = follower.progress
    text = f"{progress.files:,} files, {progress.lines:,} events, {progress.size:,} bytes"
    if unread := sum(progress.unread.values()):
        text += f", {unread:,} bytes behind"
    if progress.split_lines:
        text += f", {progress.split_lines:,} cuts in lines that are too long"
    if follower.waiting_files:
        text += f", {follower.waiting_files:,} more files wait"
    return text
