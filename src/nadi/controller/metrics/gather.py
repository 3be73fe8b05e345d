"""Gathers the figures, within limits: of streams and groups looked at, of those told by name, and of time.

Lags first, since somebody may scale by them, then what the busiest streams keep. Each is given a part of the time; what
isn't there by then is left out, and the figures say that they aren't complete. What passes into each stream is gathered
for everybody at once, at most so often (`Rates`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest

from nadi.controller import lag
from nadi.controller.engine.workflows import Workflows
from nadi.controller.keda import rate
from nadi.controller.lag import Group, Standing, event_sizes
from nadi.controller.retention import past
from nadi.controller.scaling.judge import HotKey
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
    PAGE_RATES_S,
)
from nadi.model.load import SegmentLoad
from nadi.model.reports import GroupLagReport
from nadi.naming import INTERNAL_SCOPE, parse_segment_name
from nadi.throttled_log import Complaints

OTHERS = "(others)"  # no name of a stream or group


@dataclass(slots=True)
class StreamFigures:
    """segments: the current ones. kept_bytes: None if that isn't known."""

    segments: int = 0
    events_per_s: float = 0.0
    bytes_per_s: float = 0.0
    hot_keys: int = 0
    kept_bytes: int | None = None


@dataclass(slots=True)
class Figures:
    """streams: those told by name. others: all the rest together, None if there are no more. lags: of each group in
    each stream. streams_count, groups_count: of all there are, None if not all were looked at. is_complete: False if
    not everything was looked at."""

    streams: dict[StreamName, StreamFigures] = field(default_factory=dict)
    others: StreamFigures | None = None
    streams_count: int | None = None
    lags: list[GroupLagReport] = field(default_factory=list)
    groups_count: int | None = None
    is_complete: bool = True
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamRate:
    """segments: how many it has now; those that it ended with, if it is sealed."""

    name: StreamName
    segments: int
    is_sealed: bool
    events_per_s: float
    bytes_per_s: float


class Rates:
    """The rates of people's streams, in order of their names: `await rates.all()`."""

    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self._gathering = asyncio.Lock()
        self._gathered_s = 0.0
        self._found: list[StreamRate] | None = None

    async def all(self) -> list[StreamRate]:
        """As they are now, or were a second ago; of the first 100,000 streams that there are."""
        async with self._gathering:
            clock = self._flow.clock
            if self._found is None or clock.monotonic() - self._gathered_s > PAGE_RATES_S:
                self._found = await self._gather()
                self._gathered_s = clock.monotonic()
            return self._found

    async def _gather(self) -> list[StreamRate]:
        loads: dict[StreamName, list[SegmentLoad]] = {}
        for load in await self._flow.segments.loads():
            try:
                scope, stream, _ = parse_segment_name(load.segment)
            except InvalidArgumentError:
                continue  # a part of a transaction, say
            loads.setdefault(StreamName(scope, stream), []).append(load)
        found: list[StreamRate] = []
        position = b""
        while True:
            scopes, position = await self._flow.metadata.scopes.page(position, METRICS_PAGE)
            if not scopes:
                return sorted(found, key=lambda one: one.name)
            for scope, _ in scopes:
                if scope != INTERNAL_SCOPE:
                    await self._of_scope(scope, loads, found)

    async def _of_scope(self, scope: str, loads: dict[StreamName, list[SegmentLoad]], found: list[StreamRate]) -> None:
        position = b""
        while len(found) < METRICS_STREAMS_LOOKED_AT:
            page, position = await self._flow.metadata.streams(scope).page(position, METRICS_PAGE)
            if not page:
                return
            for stream, record in page:
                if stream.startswith("_"):
                    continue
                name, is_sealed = StreamName(scope, stream), record.value.state is StreamState.SEALED
                its = loads.get(name, [])
                events, sizes = (0.0, 0.0) if is_sealed else (rate(its, events=True), rate(its, events=False))
                found.append(StreamRate(name, len(record.value.segments), is_sealed, events, sizes))
            await asyncio.sleep(0)


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
        found.append(await lag.standing(flow, name, group))

    async def measure_all(name: StreamName) -> None:
        stream = await past.look(flow, name)
        if name in figures.streams:
            figures.streams[name].kept_bytes = stream.kept_bytes
        for group, standing in by_stream[name]:
            figures.lags.append(await lag.measured(flow, group, standing, sizes, stream))

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
