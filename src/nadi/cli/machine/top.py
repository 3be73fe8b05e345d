"""`nadi top`: streams by what they take in, reader groups by how far they are behind, and how the server is, live."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadi.cli.options import Controller, TrustStore
from nadi.cli.printing import Form, errors_told, output, say, show, warn
from nadi.defaults import DEFAULT_HOST, DEFAULT_STORE_PORT, DEFAULT_URI
from nadi.errors import InvalidArgumentError, NadiError, UnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nadi.cli.machine.picture import Picture


Rest = Annotated[
    str | None,
    typer.Option(
        envvar="NADI_REST",
        help="The server's REST address. [default: what the controller says, else port 9091 of its host]",
        show_default=False,
    ),
]


def doctor(
    data: Annotated[
        Path | None,
        typer.Option(help="The data folder, or where it is to be. [default: nadi-data]", show_default=False),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(
            envvar="NADI_CONTROLLER",
            help=f"The server that should be there. [default: see whether one is at {DEFAULT_URI}]",
            show_default=False,
        ),
    ] = None,
    rest: Rest = None,
    trust_store: TrustStore = None,
    form: Form = Form.TABLE,
) -> None:
    """Check this machine, the data folder's disk and the server, and say what to do; exits with code 1 if something is
    wrong.

    It writes to the disk for two seconds, to a file of its own.
    """
    from nadi.cli.machine import disk, programs, serving
    from nadi.cli.machine.finding import State

    with errors_told():
        where = serving.Addresses(
            controller or DEFAULT_URI,
            rest or serving.rest_beside(controller or DEFAULT_URI, trust_store),
            f"{DEFAULT_HOST}:{DEFAULT_STORE_PORT}",
            controller is not None,
            trust_store,
        )
        found = [*programs.looked_at(), *disk.looked_at(data or Path("nadi-data")), *serving.looked_at(where)]
    show([one.row() for one in found], ["check", "state", "found", "advice"], form=form, empty="")
    if any(one.state is State.WRONG for one in found):
        raise typer.Exit(1)


_SERVERS = ["server", "state", "containers", "bytes/s", "controller"]
_STREAMS = ["stream", "segments", "events/s", "bytes/s", "kept bytes", "hot keys"]
_GROUPS = ["group", "stream", "bytes", "events", "seconds", "readers", "segments", "unassigned"]
_FEWEST_ROWS = 3
_OTHER_LINES = 10  # headings and lines between tables


def top(
    controller: Controller = DEFAULT_URI,
    rest: Rest = None,
    trust_store: TrustStore = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2, max=3600)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and end.")] = False,
    form: Form = Form.TABLE,
) -> None:
    """Watch a server, or a cluster: streams by rate, reader groups by lag, until Ctrl-C.

    Figures come from the server's REST port; if nobody answers there, from the controller, which sees less.
    """
    console = output()
    with errors_told():
        if form is Form.CSV:
            raise InvalidArgumentError("a picture has several tables: use -o json")
        if form is Form.JSON and not once:
            raise InvalidArgumentError("-o json is for one picture: add --once")
        if not once and (not console.is_terminal or console.is_dumb_terminal):
            raise InvalidArgumentError("this is not a terminal that can be drawn on: add --once for one picture")
        with _looking(controller, rest, trust_store) as look:
            if not once:
                _watch(console, look, every)
                return
            picture = look()
    if form is Form.JSON:
        import msgspec

        say(msgspec.json.format(msgspec.json.encode(picture)).decode())
    else:
        console.print(drawn(picture, None))


@contextmanager
def _looking(controller: str, rest: str | None, trust_store: str | None) -> Iterator[Callable[[], Picture]]:
    """What looks: at the REST port if somebody answers there, or if it was given, else by a client."""
    from nadi.cli.cluster.asking import RestClient
    from nadi.cli.machine.picture import by_client, by_rest
    from nadi.cli.machine.serving import rest_beside
    from nadi.client import StreamManager

    client = RestClient(rest or rest_beside(controller, trust_store), trust_store)
    try:
        client.text(f"{client.first}/ping")
    except UnavailableError:
        if rest is not None:
            raise
    else:
        yield lambda: by_rest(client)
        return
    with StreamManager(controller, trust_store=trust_store) as manager:
        yield lambda: by_client(manager, controller)


def _watch(console: Any, look: Callable[[], Picture], every: float) -> None:
    """Draw again and again; while the server gives no answer, the last picture stays, and says so."""
    from rich.console import Group
    from rich.live import Live

    picture, before = look(), None
    try:
        with Live(drawn(picture, before, console.height), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(every)
                try:
                    picture, before = look(), picture
                    live.update(drawn(picture, before, console.height), refresh=True)
                except UnavailableError as error:
                    live.update(Group(f"no answer: {error}", drawn(picture, before, console.height - 2)), refresh=True)
    except KeyboardInterrupt:
        return
    except NadiError:
        warn("the last look failed:")
        raise


def drawn(picture: Picture, before: Picture | None, height: int | None = None) -> RenderableType:
    """The picture, as high as that at most; `before` tells how much of a core is used."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _heading(picture, before)]
    tables: list[tuple[Sequence[dict[str, Any]], list[str], str]] = [
        (picture.servers, _SERVERS, ""),
        (picture.streams, _STREAMS, "There are no streams."),
        (picture.groups, _GROUPS, "There are no reader groups."),
    ]
    tables = [one for one in tables if one[0] or one[2]]
    rows = None if height is None else max(_FEWEST_ROWS, (height - _OTHER_LINES) // len(tables))
    for found, columns, empty in tables:
        parts += [Text(""), _table(found, columns, rows) if found else Text(empty)]
    return Group(*parts)


def _heading(picture: Picture, before: Picture | None) -> list[str]:
    server, at = picture.server, datetime.fromtimestamp(picture.at_ms / 1000)
    version = f", nadi {server['version']}" if "version" in server else ""
    lines = [f"{picture.source}{version}, {picture.status}, {at:%H:%M:%S}"]
    if picture.ill:
        lines.append(f"not up: {', '.join(picture.ill[:10])}")
    told = [
        f"{server[name]:,} {name}"
        for name in ("streams", "reader groups", "transactions", "workflows")
        if name in server
    ]
    if before is not None and picture.cpu_s is not None and before.cpu_s is not None:
        seconds = max(0.001, (picture.at_ms - before.at_ms) / 1000)
        told.append(f"{(picture.cpu_s - before.cpu_s) / seconds:.0%} of a core")
    if "memory bytes" in server:
        told.append(f"{server['memory bytes'] / (1 << 20):,.0f} MiB")
    if "open files" in server:
        told.append(f"{server['open files']:,} open files")
    taken = sum(row["bytes/s"] or 0 for row in picture.streams)
    lines.append(", ".join([*told, f"{taken:,.0f} bytes/s written"]))
    return [*lines, *([picture.note] if picture.note else [])]


def _table(found: Sequence[dict[str, Any]], columns: list[str], rows: int | None) -> RenderableType:
    from nadi.cli.printing import table_of

    shown = found if rows is None else found[:rows]
    table = table_of(shown, columns)
    if len(shown) < len(found):
        table.add_row(f"and {len(found) - len(shown):,} more")
    return table
