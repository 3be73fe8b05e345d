"""What commands share that run until they are stopped: Ctrl-C and SIGTERM end them cleanly, and a line says how far
they are."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import typer

_TERMINAL_S, _ELSEWHERE_S = 0.5, 30.0


def run_until_stopped(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it to its end, or until a signal cancels it."""
    import uvloop

    async def main() -> None:
        task = asyncio.ensure_future(work())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            if not task.cancelled():
                raise

    uvloop.run(main())


def end_calmly() -> None:
    """To be called where a task that was cancelled puts its things in order: in early versions of Python 3.11 no
    timeout in it ends as one otherwise, but as another cancellation."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


class Line:
    """`async with`: what `told` returns is printed on standard error, on one line of a terminal, or each half minute
    elsewhere, if it has changed; and at the end."""

    def __init__(self, told: Callable[[], str], *, quiet: bool) -> None:
        self._told, self._quiet = told, quiet
        self._on_terminal = sys.stderr.isatty()
        self._last = ""

    async def __aenter__(self) -> Line:
        self._task = asyncio.create_task(self._keep_telling())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._say(last=True)

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(_TERMINAL_S if self._on_terminal else _ELSEWHERE_S)
            self._say()

    def _say(self, *, last: bool = False) -> None:
        text = self._told()
        if self._quiet or (text == self._last and not (last and self._on_terminal)):
            return
        self._last = text
        typer.echo(f"\r{text}\x1b[K" if self._on_terminal else text, err=True, nl=last or not self._on_terminal)
