"""Gathering the figures, within limits: of streams and groups looked at, of those told by name, and of time.

Lags first, since somebody may scale by them, then what the busiest streams keep. Each is given a part of the time; what
isn't there by then is left out, and the figures say that they aren't complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from heapq import nlargest

from nadi.controller.engine.workflows import Workflows
from nadi.controller.keda.rates import rate
from nadi.controller.lag import lags, states
from nadi.controller.lag.behind import event_sizes
from nadi.controller.lag.states import Group, Standing
from nadi.controller.metrics.figures import Figures, StreamFigures
from nadi.controller.retention import past
from nadi.controller.scaling.cutting import HotKey
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import ReaderGroup, StreamState
from nadi.controller.state.segments import together
from nadi.errors import InvalidArgumentError, NadiError, NotFoundError
from nadi.limits import (
    METRICS_AT_ONCE,
    METRICS_GROUPS_LOOKED_AT,
    METRICS_KEPT_S,
    METRICS_LAGS_S,
    METRICS_NAMES_S,
    METRICS_PAGE,
    METRICS_STREAMS,
    METRICS_STREAMS_LOOKED_AT,
)
from nadi.model.load import SegmentLoad
from nadi.naming import INTERNAL_SCOPE, parse_segment_name
from nadi.throttled_log import Complaints

log = logging.getLogger(__name__)

HotKeys = Callable[[StreamName], Mapping[int, HotKey | None]]
_complaints = Complaints(log, "%s aren't complete")


async def gather(flow: Workflows, hot_keys: HotKeys) -> Figures:
    """The figures as they are now; UnavailableError if the store can't be asked for loads."""
    began = flow.clock.monotonic()
    figures = Figures()
    loads = await flow.segments.loads()
    segments: dict[StreamName, int] = {}
    groups: dict[GroupName, ReaderGroup] = {}
    await _within(METRICS_NAMES_S, _names(flow, figures, segments, groups), figures)
    _streams(figures, segments, loads, hot_keys)
    await _within(METRICS_LAGS_S, _lags(flow, figures, groups, event_sizes(loads)), figures)
    await _within(METRICS_KEPT_S, _kept(flow, figures), figures)
    figures.took_s = flow.clock.monotonic() - began
    return figures


async def _within(limit_s: float, work: Awaitable[None], figures: Figures) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        figures.is_complete = False


async def _names(
    flow: Workflows, figures: Figures, segments: dict[StreamName, int], groups: dict[GroupName, ReaderGroup]
) -> None:
    """People's streams with the number of their segments, and reader groups."""
    metadata = flow.metadata
    position = b""
    while True:
        scopes, position = await metadata.scopes.page(position, METRICS_PAGE)
        if not scopes:
            break
        for scope, _ in scopes:
            if scope == INTERNAL_SCOPE:
                continue
            await _names_of(flow, figures, scope, segments, groups)
    if len(segments) < METRICS_STREAMS_LOOKED_AT:
        figures.streams_count = len(segments)
    if len(groups) < METRICS_GROUPS_LOOKED_AT:
        figures.groups_count = len(groups)


async def _names_of(
    flow: Workflows,
    figures: Figures,
    scope: str,
    segments: dict[StreamName, int],
    groups: dict[GroupName, ReaderGroup],
) -> None:
    position, page = b"", None
    while page is None or page:
        if len(groups) >= METRICS_GROUPS_LOOKED_AT:
            figures.is_complete = False
            break
        page, position = await flow.metadata.groups(scope).page(position, METRICS_PAGE)
        groups.update((GroupName(scope, name), record.value) for name, record in page)
    position, found = b"", None
    while found is None or found:
        if len(segments) >= METRICS_STREAMS_LOOKED_AT:
            figures.is_complete = False
            break
        found, position = await flow.metadata.streams(scope).page(position, METRICS_PAGE)
        for name, stream in found:
            if not name.startswith("_"):
                is_open = stream.value.state is not StreamState.SEALED
                segments[StreamName(scope, name)] = len(stream.value.segments) if is_open else 0
        await asyncio.sleep(0)


def _streams(
    figures: Figures, segments: Mapping[StreamName, int], loads: Iterable[SegmentLoad], hot_keys: HotKeys
) -> None:
    """The busiest streams by name, the others together."""
    found = {name: StreamFigures(count) for name, count in segments.items()}
    of_streams: dict[StreamName, list[SegmentLoad]] = {}
    for load in loads:
        try:
            scope, stream, _ = parse_segment_name(load.segment)
        except InvalidArgumentError:
            continue  # a part of a transaction, say
        if (name := StreamName(scope, stream)) in found:
            of_streams.setdefault(name, []).append(load)
    for name, its in of_streams.items():
        found[name].events_per_s, found[name].bytes_per_s = rate(its, events=True), rate(its, events=False)
    names = nlargest(METRICS_STREAMS, found, key=lambda name: (found[name].bytes_per_s, found[name].segments))
    figures.streams = {name: found.pop(name) for name in sorted(names)}
    for name, one in figures.streams.items():
        one.hot_keys = len(hot_keys(name))
    if found:
        others = figures.others = StreamFigures()
    for name, one in found.items():
        others.segments += one.segments
        others.events_per_s += one.events_per_s
        others.bytes_per_s += one.bytes_per_s
        others.hot_keys += len(hot_keys(name))


async def _lags(
    flow: Workflows, figures: Figures, groups: Mapping[GroupName, ReaderGroup], sizes: Mapping[str, float]
) -> None:
    """The lag of each group in each of its streams. Streams are looked at after all groups, once each."""
    found: list[Group] = []
    permits = asyncio.Semaphore(METRICS_AT_ONCE)

    async def stand(name: GroupName, group: ReaderGroup) -> None:
        found.append(await states.standing(flow, name, group))

    async def measure_all(name: StreamName) -> None:
        stream = await past.look(flow, name)
        if name in figures.streams:
            figures.streams[name].kept_bytes = stream.kept_bytes
        for group, standing in by_stream[name]:
            figures.lags.append(await lags.measured(flow, group, standing, sizes, stream))

    await together(_one(figures, permits, name.key, stand(name, group)) for name, group in groups.items())
    by_stream: dict[StreamName, list[tuple[Group, Standing]]] = {}
    for group in found:
        for standing in group.standings:
            by_stream.setdefault(standing.stream, []).append((group, standing))
    await together(_one(figures, permits, name.key, measure_all(name)) for name in by_stream)


async def _kept(flow: Workflows, figures: Figures) -> None:
    permits = asyncio.Semaphore(METRICS_AT_ONCE)

    async def look(name: StreamName, one: StreamFigures) -> None:
        one.kept_bytes = (await past.look(flow, name)).kept_bytes

    unknown = [(name, one) for name, one in figures.streams.items() if one.kept_bytes is None]
    await together(_one(figures, permits, name.key, look(name, one)) for name, one in unknown)


async def _one(figures: Figures, permits: asyncio.Semaphore, what: str, work: Awaitable[None]) -> None:
    """What can't be known of one stream or group leaves the figures of the others."""
    async with permits:
        try:
            await work
        except NotFoundError:
            pass  # deleted meanwhile
        except NadiError as error:
            figures.is_complete = False
            _complaints.tell(f"metrics of {what}", error)
