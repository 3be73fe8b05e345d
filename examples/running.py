"""How an example begins and ends: its options, the server and the scope that it uses, its exit code.

An example starts a server of its own, in a temporary folder, unless `--controller` names one; there it takes a scope
whose name nobody has yet, and leaves it for you to look at.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import nadi

INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


class ExampleError(Exception):
    """The example can't go on; its message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an example works: a server, a scope of its own there, and a folder for checkpoints. page: the
    address of its live page, if the example serves that."""

    manager: nadi.StreamManager
    controller: str
    scope: str
    folder: Path
    page: str = ""

    def tail(self, stream: str) -> nadi.StreamCut:
        return self.manager.stream_info(self.scope, stream).tail

    def events(self, stream: str) -> list[bytes]:
        """All events of a stream so far."""
        return [event.data for event in self.manager.read_events(self.scope, stream, end=self.tail(stream))]


# --- How an example begins and ends ------------------------------------------------------------------------


def parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The options that every example has."""
    made = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--controller", metavar="URI", help="use this server (default: one of the example's own)")
    made.add_argument("--page", type=int, metavar="PORT", help="serve the live page of its own server at this port")
    made.add_argument("--data", type=Path, help="a new folder for its data (default: a temporary one, removed)")
    return made


def ended(body: Callable[[], bool], console: Console) -> int:
    """Run an example: the program's exit code. 0: it found what it should; 1: it did not, or failed; 130: Ctrl-C.

    SIGTERM is taken as Ctrl-C is: nothing that the example started is left behind.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return 0 if body() else 1
    except KeyboardInterrupt:
        console.print("[yellow]interrupted[/yellow]")
        return INTERRUPTED
    except (ExampleError, nadi.NadiError) as error:
        console.print("[red]error:[/red] ", end="")
        console.print(str(error), markup=False)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def place(options: argparse.Namespace, name: str, console: Console) -> Iterator[Place]:
    """The server, and in it a scope of the example's own: `name`, or with a number if that is taken."""
    if options.data is not None and options.data.exists() and any(options.data.iterdir()):
        raise ExampleError(f"{options.data} is not empty: give --data a new folder")
    if options.controller is not None and options.page is not None:
        raise ExampleError("--page is for a server of the example's own: yours has its page at its --rest-port")
    folder = options.data or Path(tempfile.mkdtemp(prefix=f"nadi-{name}-"))
    try:
        if options.controller is not None:
            with _scope(options.controller, name, folder, console) as made:
                yield made
        else:
            environment = {"NADI_REST_SEARCH": str(folder)}  # that the page may search what the example indexes
            with (
                nadi.embedded(folder / "server", rest_port=options.page, environment=environment) as server,
                _scope(server.controller_uri, name, folder, console, server.rest_uri) as made,
            ):
                yield made
    finally:
        if options.data is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _scope(controller: str, name: str, folder: Path, console: Console, page: str = "") -> Iterator[Place]:
    with nadi.StreamManager(controller) as manager:
        scope, number = name, 1
        while not manager.create_scope(scope):
            number += 1
            scope = f"{name}-{number}"
        console.print(f"nadi serves {controller}; scope [bold]{scope}[/bold]")
        if page:
            console.print(f"the live page is at {page}")
        yield Place(manager, controller, scope, folder, page)


def bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description:36}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)
