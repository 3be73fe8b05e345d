"""A bar for what has a known length, where somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Told: TypeAlias = Callable[[int], object]


@contextmanager
def progress(what: str, total: int | None, *, quiet: bool) -> Iterator[Told]:
    """Give what is called with the number of bytes done; on a terminal it draws a bar of them on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    is_shown = not quiet and total is not None and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as drawn:
        task = drawn.add_task(what, total=total)

        def told(done_bytes: int) -> None:
            drawn.update(task, completed=done_bytes)

        yield told
