"""The start and end of an example: its options, its server and scope, its exit code.

An example starts its own server in a temporary folder, unless `--controller` names one; there it uses a scope with an
unused name, and leaves it for inspection.
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

INTERRUPTED = 130  # a shell's exit code for Ctrl-C


class ExampleError(Exception):
    """The example can't continue; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Place:
    """The working place of an example: a server, a scope, and a folder for checkpoints. page: the address of its live
    page, if it is served."""

    manager: nadi.StreamManager
    controller: str
    scope: str
    folder: Path
    page: str = ""

    def tail(self, stream: str) -> nadi.StreamCut:
        return self.manager.stream_info(self.scope, stream).tail

    def events(self, stream: str) -> list[bytes]:
        """Return the events currently in a stream."""
        return [event.data for event in self.manager.read_events(self.scope, stream, end=self.tail(stream))]


# --- start and end ------------------------------------------------------------------------


def parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every example."""
    parser_ = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser_.add_argument("--controller", metavar="URI", help="use this server (default: the example's own)")
    parser_.add_argument("--page", type=int, metavar="PORT", help="serve its own server's live page on this port")
    parser_.add_argument("--data", type=Path, help="a new folder for its data (default: a temporary one, removed)")
    return parser_


def ended(body: Callable[[], bool], console: Console) -> int:
    """Run an example; return the exit code. 0: the expected results; 1: other results, or a failure; 130: Ctrl-C.

    SIGTERM works like Ctrl-C: no process of the example survives.
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
    """Provide the server, with a scope for the example: `name`, or a numbered name if that is taken."""
    if options.data is not None and options.data.exists() and any(options.data.iterdir()):
        raise ExampleError(f"{options.data} is not empty: choose a new folder for --data")
    if options.controller is not None and options.page is not None:
        raise ExampleError("--page needs the example's own server: yours has its page at its --rest-port")
    folder = options.data or Path(tempfile.mkdtemp(prefix=f"nadi-{name}-"))
    try:
        if options.controller is not None:
            with _scope(options.controller, name, folder, console) as working_place:
                yield working_place
        else:
            environment = {"NADI_REST_SEARCH": str(folder)}  # lets the page search the example's indexes
            with (
                nadi.embedded(folder / "server", rest_port=options.page, environment=environment) as server,
                _scope(server.controller_uri, name, folder, console, server.rest_uri) as working_place,
            ):
                yield working_place
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
