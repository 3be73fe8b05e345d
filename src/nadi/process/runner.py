"""Runs a worker as a program until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

from nadi.client.aio import StreamManager
from nadi.client.control.security import Credentials
from nadi.errors import NadiError
from nadi.limits import PROCESS_BEAT_S, PROCESS_END_S

log = logging.getLogger(__name__)
T = TypeVar("T")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run_program(
    work: Callable[[StreamManager, asyncio.Event], Awaitable[None]],
    controller_uri: str,
    credentials: Credentials | None,
    trust_store: str | os.PathLike[str] | None,
) -> None:
    """Call `work` with a client of that controller and an event that Ctrl-C and SIGTERM set. Logs go to standard error
    unless logging is configured."""
    logging.basicConfig(level=logging.INFO, format=FORMAT)

    async def working() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with StreamManager(controller_uri, credentials=credentials, trust_store=trust_store) as manager:
            await work(manager, stop)

    asyncio.run(working())


async def in_daemon_thread(call: Callable[[], T]) -> T:
    """Return the call's result. Unlike an executor's thread, this one ends with the process even if the call hangs."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if not result.done():
            result.set_exception(error) if error is not None else result.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value, failure = None, None
        try:
            value = call()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, name="handler", daemon=True).start()
    return await result


async def each_beat(report: Callable[[], Awaitable[object]]) -> None:
    """Call `report` every second until cancelled. Its errors are logged."""
    while True:
        try:
            await report()
        except NadiError as error:
            log.warning("can't report this worker as live; retrying: %s", error)
        await asyncio.sleep(PROCESS_BEAT_S)


async def until(stop: asyncio.Event | None, work: Callable[[asyncio.Event], Coroutine[None, None, None]]) -> None:
    """Run `work`, which ends soon after its event is set; cancel it if it hasn't ended by PROCESS_END_S, as when it
    waits for a server or a store."""
    stop = stop if stop is not None else asyncio.Event()
    task, waiting = asyncio.create_task(work(stop)), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait([task], timeout=PROCESS_END_S)
        if not task.done():
            log.warning("the worker didn't finish in time and is cancelled: another worker repeats its last batch")
            return
        await task
    finally:
        waiting.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError, NadiError):  # its error was raised already
            await task
