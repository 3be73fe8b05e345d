"""`nadi bench`: what this machine gives, or what a server gives to a client on this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from nadi.cli.options import TrustStore
from nadi.cli.printing import INTERRUPTED, Form, errors_told, show, warn
from nadi.errors import AccessDeniedError, InvalidArgumentError, NadiError, StorageFullError

if TYPE_CHECKING:
    from nadi.client import StreamManager

_LEAST_FREE_BYTES = 4 << 30  # not in MIB: `main` looks at NADI_LIMITS before anything imports the limits
_LOOK_S = 0.1


def bench(
    data: Annotated[
        Path | None,
        typer.Option(help="A folder on the disk to be measured. [default: this one]", show_default=False),
    ] = None,
    controller: Annotated[
        str | None,
        typer.Option(help="Measure this server instead, as tcp://host:port: it gets a scope, which is removed then."),
    ] = None,
    trust_store: TrustStore = None,
    seconds: Annotated[float, typer.Option(help="How long each measure takes.", min=0.1, max=600)] = 5.0,
    form: Form = Form.TABLE,
) -> None:
    """Measure for half a minute how fast events are written, stored, seen and read: by a server with a temporary folder
    on this machine, or by one that runs.

    It writes up to some two gigabytes.
    """
    from nadi.cli.machine.measures import measures_of

    with errors_told(OSError):
        if controller is not None and data is not None:
            raise InvalidArgumentError("--data has no effect with --controller, whose server has a folder of its own")
        try:
            with _served(controller, trust_store, data or Path(), form) as (manager, scope, folder):
                rows = []
                for measure in measures_of(manager, scope, folder):
                    with _bar(measure.name, seconds):
                        rows.append({"measure": measure.name} | measure.run(seconds))
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    show(rows, ["measure", "events/s", "MB/s", "p50 ms", "p99 ms"], form=form, empty="")


@contextmanager
def _served(
    controller: str | None, trust_store: str | None, data: Path, form: Form
) -> Iterator[tuple[StreamManager, str, Path | None]]:
    """A client, a scope of its own, and a folder on the server's disk, if that is here."""
    import nadi
    from nadi.cli.machine.disk import is_memory
    from nadi.client import StreamManager

    scope = f"bench-{uuid4().hex[:8]}"
    if controller is not None:
        with StreamManager(controller, trust_store=trust_store) as manager, ExitStack() as stack:
            stack.callback(_remove, manager, scope)  # a stop may come as the server has just made it
            try:
                manager.create_scope(scope)
            except AccessDeniedError:
                stack.pop_all()  # there is none
                raise
            yield manager, scope, None
        return
    if not data.is_dir():
        raise InvalidArgumentError(f"there is no folder {data}: give one on the disk to be measured")
    free = shutil.disk_usage(data).free
    if free < _LEAST_FREE_BYTES:
        raise StorageFullError(
            f"{data.resolve()} has {free >> 20:,} MiB free, and 4,096 are needed: give another --data"
        )
    if form is Form.TABLE:
        warn(f"a server with a temporary folder in {data.resolve()}")
    if is_memory(data):
        warn(f"{data.resolve()} is memory: this measures no disk; give a folder on one with --data")
    with (
        TemporaryDirectory(dir=data, prefix="nadi-bench-") as folder,
        nadi.embedded(Path(folder) / "data") as server,
        StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope(scope)
        yield manager, scope, Path(folder)


def _remove(manager: StreamManager, scope: str) -> None:
    try:
        manager.delete_scope(scope, recursive=True)
    except NadiError as error:
        warn(f"scope {scope} couldn't be removed: {error}; do it with `nadi scope delete {scope} --recursive`")


@contextmanager
def _bar(name: str, seconds: float) -> Iterator[None]:
    """A bar that follows the clock, on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (TextColumn("{task.description:<20}"), BarColumn())
    ended = Event()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as drawn:
        task, began = drawn.add_task(name, total=seconds), time.monotonic()

        def follow() -> None:
            while not ended.wait(_LOOK_S):
                drawn.update(task, completed=min(seconds, time.monotonic() - began))

        thread = Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
