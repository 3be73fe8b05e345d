"""Running an indexer (`run`) or a matcher of standing queries (`match`) in a program of its own; `serve` and
`serve_matcher` do so beside other things in an event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Protocol

from nadi.client.aio import StreamManager
from nadi.client.control.security import Credentials
from nadi.defaults import DEFAULT_URI
from nadi.errors import NadiError
from nadi.limits import SEARCH_END_S
from nadi.runtime import REAL
from nadi.search.analysis import check_installed
from nadi.search.definition import Definitions
from nadi.search.indexing.indexer import Indexer, OnStep
from nadi.search.labelling import open_labelled
from nadi.search.shards.building import clean_work_folders
from nadi.search.standing.catalog import StandingQueries
from nadi.search.standing.matcher import LiveMatcher
from nadi.search.standing.records import Records


class Serving(Protocol):
    """What runs with a client until `stop` is set."""

    async def __call__(
        self, manager: StreamManager, scope: str, stream: str, /, *, stop: asyncio.Event | None
    ) -> None: ...


log = logging.getLogger("nadi.search")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run(
    scope: str,
    stream: str,
    controller_uri: str = DEFAULT_URI,
    *,
    credentials: Credentials | None = None,
    trust_store: str | os.PathLike[str] | None = None,
) -> None:
    """Run an indexer of a stream's index until Ctrl-C or SIGTERM, or until the index is stopped, or all of a sealed
    stream is indexed. Any number of them may run: they share the segments.
    """
    _run(serve, scope, stream, controller_uri, credentials, trust_store)


def match(
    scope: str,
    stream: str,
    controller_uri: str = DEFAULT_URI,
    *,
    credentials: Credentials | None = None,
    trust_store: str | os.PathLike[str] | None = None,
) -> None:
    """Match a stream's events with its standing queries until Ctrl-C or SIGTERM, or until they are stopped, or all of a
    sealed stream is matched. Any number of these may run: they share the segments.
    """
    _run(serve_matcher, scope, stream, controller_uri, credentials, trust_store)


def _run(
    work: Serving,
    scope: str,
    stream: str,
    controller_uri: str,
    credentials: Credentials | None,
    trust_store: str | os.PathLike[str] | None,
) -> None:
    logging.basicConfig(level=logging.INFO, format=_FORMAT)

    async def serving() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with StreamManager(controller_uri, credentials=credentials, trust_store=trust_store) as manager:
            await work(manager, scope, stream, stop=stop)

    asyncio.run(serving())


async def serve(
    manager: StreamManager,
    scope: str,
    stream: str,
    *,
    stop: asyncio.Event | None = None,
    on_step: OnStep = lambda step: None,
) -> None:
    """Run an indexer with a client of `nadi.client.aio`, until `stop` is set; see `run`.

    on_step: called after each step of a batch, see `Indexer`.
    """
    check_installed()
    stop = stop if stop is not None else asyncio.Event()
    await _until(stop, _index(manager, scope, stream, stop, on_step))


async def _index(manager: StreamManager, scope: str, stream: str, stop: asyncio.Event, on_step: OnStep) -> None:
    definitions = Definitions(manager, scope)
    async with definitions.named(stream):
        definition = await definitions.get(stream)
    if definition.is_stopped:
        definition = await definitions.stop(stream, is_stopped=False)
    await REAL.in_thread(clean_work_folders)
    shards = await open_labelled(manager, scope, definition)
    try:
        indexer = Indexer(manager, definitions, definition, shards, on_step=on_step)
        await indexer.run(stop)
    finally:
        await shards.close()


async def serve_matcher(
    manager: StreamManager,
    scope: str,
    stream: str,
    *,
    stop: asyncio.Event | None = None,
    on_step: OnStep = lambda step: None,
) -> None:
    """Match with a client of `nadi.client.aio`, until `stop` is set; see `match`.

    on_step: called after each step of a batch, see `LiveMatcher`.
    """
    check_installed()
    stop = stop if stop is not None else asyncio.Event()
    await _until(stop, _match(manager, scope, stream, stop, on_step))


async def _match(manager: StreamManager, scope: str, stream: str, stop: asyncio.Event, on_step: OnStep) -> None:
    queries = StandingQueries(manager, scope)
    found = await queries.get(stream)
    if found.is_stopped:
        await queries.stop(stream, is_stopped=False)
    matcher = LiveMatcher(manager, Records(Definitions(manager, scope), found, manager), on_step=on_step)
    await matcher.run(stop)


async def _until(stop: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Do the work, which ends by itself a little after `stop` is set; or, if it waits for a server or a store that is
    away, is ended then."""
    task, waiting = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait([task], timeout=SEARCH_END_S)
        if not task.done():
            log.warning("it can't finish what it was at, and ends: whoever goes on does it again")
            return
        await task
    finally:
        waiting.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError, NadiError):  # its error was raised already, or it was on its way to end
            await task
