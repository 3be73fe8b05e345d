"""Running an indexer (`run`) or a matcher of standing queries (`match`) in a program of its own; `serve` and
`serve_matcher` do so beside other things in an event loop."""

from __future__ import annotations

import asyncio
import os
from functools import partial

from nadi.client.aio import StreamManager
from nadi.client.control.security import Credentials
from nadi.defaults import DEFAULT_URI
from nadi.process.running import run_program, until
from nadi.runtime import REAL
from nadi.search.analysis import check_installed
from nadi.search.definition import Definitions
from nadi.search.indexing.indexer import Indexer, OnStep
from nadi.search.labelling import open_labelled
from nadi.search.shards.building import clean_work_folders
from nadi.search.standing.catalog import StandingQueries
from nadi.search.standing.matcher import LiveMatcher
from nadi.search.standing.records import Records


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
    run_program(
        lambda manager, stop: serve(manager, scope, stream, stop=stop), controller_uri, credentials, trust_store
    )


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
    run_program(
        lambda manager, stop: serve_matcher(manager, scope, stream, stop=stop), controller_uri, credentials, trust_store
    )


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
    await until(stop, partial(_index, manager, scope, stream, on_step))


async def _index(manager: StreamManager, scope: str, stream: str, on_step: OnStep, stop: asyncio.Event) -> None:
    definitions = Definitions(manager, scope)
    async with definitions.named(stream):
        definition = await definitions.get(stream)
    if definition.is_stopped:
        definition = await definitions.stop(stream, is_stopped=False)
    await REAL.in_thread(clean_work_folders)
    shards = await open_labelled(manager, scope, definition)
    try:
        await Indexer(manager, definitions, definition, shards, on_step=on_step).run(stop)
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
    await until(stop, partial(_match, manager, scope, stream, on_step))


async def _match(manager: StreamManager, scope: str, stream: str, on_step: OnStep, stop: asyncio.Event) -> None:
    queries = StandingQueries(manager, scope)
    found = await queries.get(stream)
    if found.is_stopped:
        await queries.stop(stream, is_stopped=False)
    await LiveMatcher(manager, Records(Definitions(manager, scope), found, manager), on_step=on_step).run(stop)
