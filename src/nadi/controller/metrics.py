"""The answer to a scrape: what the controller knows of streams and groups, and what each server tells of itself.

Nothing is gathered unless somebody asks, and everybody who asks within a second gets the same text. Figures are
gathered within limits: of streams and groups looked at, of those with a name (the rest counts as `(others)`), and of
time. Lags come first, since somebody may scale by them, then what the busiest streams keep. What isn't there in time is
left out, and the figures say that they aren't complete. Text is made of them in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nlargest
from itertools import chain
from operator import attrgetter, itemgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nadi import limits
from nadi.controller import reports
from nadi.controller.engine.workflows import Shared, Workflows
from nadi.controller.reports import GroupReport, HotKeys, Standing
from nadi.controller.retention import cut_sizes
from nadi.controller.retention.rounds import Released, RetentionRounds
from nadi.controller.scaling.rounds import ScalingCounts, ScalingRounds
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import ReaderGroupRecord
from nadi.controller.state.segments import together
from nadi.controller.stream_rates import Loads, Rates, StreamRate, event_size
from nadi.errors import NadiError, NotFoundError
from nadi.model.reports import GroupLagReport
from nadi.naming import INTERNAL_SCOPE
from nadi.observe import metrics
from nadi.observe.metrics import Meaning, Sample, by_name, family
from nadi.runtime import Runtime
from nadi.throttled_log import Complaints

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)
OTHERS = "(others)"  # no name of a stream or group
_OF_STREAMS = {
    attribute: Meaning(name, text, ("scope", "stream"))
    for attribute, name, text in (  # the attribute of StreamRate
        ("segments", "nadi_stream_segments", "Current segments of a stream; 0 if it is sealed."),
        ("events_per_s", "nadi_stream_events_per_second", "Events written to a stream, mean of ten seconds."),
        ("bytes_per_s", "nadi_stream_bytes_per_second", "Bytes written to a stream, headers included, mean of 10 s."),
        ("hot_keys", "nadi_stream_hot_keys", "Segments of a stream with a routing key that alone is too much."),
        ("kept_bytes", "nadi_stream_kept_bytes", "Bytes of a stream from its head to its tail."),
    )
}
_OF_GROUPS = {
    attribute: Meaning(f"nadi_reader_group_{name}", text, ("scope", "reader_group", "stream"))
    for attribute, name, text in (  # the attribute of GroupLagReport
        ("bytes_behind", "lag_bytes", "Bytes that a reader group has not read, event headers included."),
        ("events_behind", "lag_events", "The same in events: an estimate from their mean size in the last 20 minutes."),
        ("seconds_behind", "lag_seconds", "How long the oldest unread event has waited, to about ten seconds."),
        ("segments", "segments", "Segments of a stream that a reader group reads now."),
        ("unassigned", "unassigned_segments", "Those of them that no reader has."),
    )
}
MEANINGS = by_name(
    (
        Meaning("nadi_streams", "Streams, without internal ones."),
        Meaning("nadi_reader_groups", "Reader groups."),
        *_OF_STREAMS.values(),
        *_OF_GROUPS.values(),
        Meaning(
            "nadi_reader_group_readers", "Readers of a group, unnoticed dead ones included.", ("scope", "reader_group")
        ),
        Meaning("nadi_scalings", "Decisions carried out to split or merge segments.", ("kind",), "counter"),
        Meaning("nadi_hot_keys_found", "Hot keys that were found.", (), "counter"),
        Meaning("nadi_retention_truncations", "Truncations by which retention moved a stream's head.", (), "counter"),
        Meaning("nadi_retention_released_bytes", "Bytes of streams that these released.", (), "counter"),
        Meaning("nadi_retention_age_seconds", "How long ago the last of them was."),
        Meaning("nadi_unfinished_workflows", "Changes of streams, groups and tables that are in progress."),
        Meaning("nadi_unfinished_transactions", "Transactions that are neither committed nor aborted."),
        Meaning("nadi_metrics_complete", "1 if all that is to be told was looked at in time, else 0."),
        Meaning("nadi_metrics_gathering_seconds", "How long it took to gather these figures."),
    )
)
_complaints = Complaints(log, "%s aren't complete")


@dataclass(slots=True)
class Figures:
    """streams: those told by name. others: all the rest together, None if there are no more. lags: of each group in
    each stream. streams_count, groups_count: of all there are, None if not all were looked at. is_complete: False if
    not everything was looked at."""

    streams: dict[StreamName, StreamRate] = field(default_factory=dict)
    others: StreamRate | None = None
    streams_count: int | None = None
    lags: list[GroupLagReport] = field(default_factory=list)
    groups_count: int | None = None
    is_complete: bool = True
    took_s: float = 0.0


async def gather(flow: Workflows, rates: Rates, hot_keys: HotKeys) -> Figures:
    """The figures as they are now; UnavailableError if the store can't be asked for loads."""
    began_s, figures, loads = flow.clock.monotonic(), Figures(), await rates.loads()
    groups: dict[GroupName, ReaderGroupRecord] = {}
    parts: tuple[tuple[float, Callable[[], Awaitable[None]]], ...] = (
        (limits.METRICS_NAMES_S, lambda: _streams(figures, rates, hot_keys)),
        (limits.METRICS_NAMES_S, lambda: _groups(flow, figures, groups)),
        (limits.METRICS_LAGS_S, lambda: _lags(flow, figures, groups, loads)),
        (limits.METRICS_KEPT_S, lambda: _kept(flow, figures)),
    )
    for limit_s, work in parts:
        try:
            async with asyncio.timeout(limit_s):
                await work()
        except TimeoutError:
            figures.is_complete = False
    figures.took_s = flow.clock.monotonic() - began_s
    return figures


async def _streams(figures: Figures, rates: Rates, hot_keys: HotKeys) -> None:
    found = {
        one.name: replace(one, segments=0 if one.is_sealed else one.segments, hot_keys=len(hot_keys(one.name)))
        for one in await rates.all()
    }
    if len(found) < limits.METRICS_STREAMS_LOOKED_AT:
        figures.streams_count = len(found)
    else:
        figures.is_complete = False
    names = nlargest(limits.METRICS_STREAMS, found, key=lambda name: (found[name].bytes_per_s, found[name].segments))
    figures.streams = {name: found.pop(name) for name in sorted(names)}
    if others := found.values():
        segments, hot = sum(one.segments for one in others), sum(one.hot_keys for one in others)
        events_per_s, bytes_per_s = sum(one.events_per_s for one in others), sum(one.bytes_per_s for one in others)
        figures.others = StreamRate(StreamName("", OTHERS), segments, False, events_per_s, bytes_per_s, hot)


async def _groups(flow: Workflows, figures: Figures, groups: dict[GroupName, ReaderGroupRecord]) -> None:
    async for scope, _ in flow.metadata.scopes.scan():
        if scope == INTERNAL_SCOPE:
            continue
        async for name, record in flow.metadata.groups(scope).scan(page=limits.METRICS_PAGE):
            if len(groups) == limits.METRICS_GROUPS_LOOKED_AT:
                figures.is_complete = False
                return
            groups[GroupName(scope, name)] = record.value
    figures.groups_count = len(groups)


async def _lags(flow: Workflows, figures: Figures, groups: Mapping[GroupName, ReaderGroupRecord], loads: Loads) -> None:
    """The lag of each group in each of its streams. Streams are looked at after all groups, once each."""
    found: list[GroupReport] = []
    permits = asyncio.Semaphore(limits.METRICS_AT_ONCE)

    async def stand(name: GroupName, group: ReaderGroupRecord) -> None:
        found.append(await reports.standing(flow, name, group))

    async def measure_all(name: StreamName) -> None:
        stream, mean = await cut_sizes.look(flow, name), event_size(loads.get(name, {}).values())
        if name in figures.streams:
            figures.streams[name].kept_bytes = stream.kept_bytes
        for group, standing in by_stream[name]:
            figures.lags.append(await reports.measured(flow, group, standing, mean, stream))

    await together(_one(figures, permits, name.key, partial(stand, name, group)) for name, group in groups.items())
    by_stream: dict[StreamName, list[tuple[GroupReport, Standing]]] = {}
    for group in found:
        for standing in group.standings:
            by_stream.setdefault(standing.stream, []).append((group, standing))
    await together(_one(figures, permits, name.key, partial(measure_all, name)) for name in by_stream)


async def _kept(flow: Workflows, figures: Figures) -> None:
    permits = asyncio.Semaphore(limits.METRICS_AT_ONCE)

    async def look(name: StreamName, one: StreamRate) -> None:
        one.kept_bytes = (await cut_sizes.look(flow, name)).kept_bytes

    unknown = [(name, one) for name, one in figures.streams.items() if one.kept_bytes is None]
    await together(_one(figures, permits, name.key, partial(look, name, one)) for name, one in unknown)


async def _one(figures: Figures, permits: asyncio.Semaphore, what: str, work: Callable[[], Awaitable[None]]) -> None:
    """What can't be known of one stream or group leaves the figures of the others."""
    async with permits:
        try:
            await work()
        except NotFoundError:
            pass  # deleted meanwhile
        except NadiError as error:
            figures.is_complete = False
            _complaints.tell(f"metrics of {what}", error)


def families(
    figures: Figures, counts: ScalingCounts, released: Released, unfinished: dict[str, int], now_s: float
) -> Iterator[Metric]:
    """All metrics with their samples. counts, released: of scalings and of retention, since the controller began.
    now_s: by its monotonic clock."""
    streams: list[tuple[tuple[str, ...], StreamRate]] = [(tuple(name), one) for name, one in figures.streams.items()]
    if figures.others is not None:
        streams.append((tuple(figures.others.name), figures.others))
    ordered = sorted(figures.lags, key=lambda lag: (-(lag.bytes_behind or 0), lag.scope, lag.group, lag.stream))
    named = [((lag.scope, lag.group, lag.stream), lag) for lag in ordered[: limits.METRICS_GROUPS]]
    groups: list[tuple[tuple[str, ...], GroupLagReport]] = sorted(named, key=itemgetter(0))
    if others := ordered[limits.METRICS_GROUPS :]:
        groups.append((("", OTHERS, OTHERS), _sum(others)))
    for meanings, labelled in ((_OF_STREAMS, streams), (_OF_GROUPS, groups)):
        for attribute, meaning in meanings.items():
            value = attrgetter(attribute)
            yield family(meaning, [(labels, value(one)) for labels, one in labelled])
    readers = {(lag.scope, lag.group): lag.readers for _, lag in groups if lag.group != OTHERS}
    yield family(MEANINGS["nadi_reader_group_readers"], readers.items())
    yield family(MEANINGS["nadi_scalings"], [(("split",), counts.splits), (("merge",), counts.merges)])
    plain = {
        "nadi_streams": figures.streams_count,
        "nadi_reader_groups": figures.groups_count,
        "nadi_hot_keys_found": counts.hot_keys,
        "nadi_retention_truncations": released.truncations,
        "nadi_retention_released_bytes": released.size_bytes,
        "nadi_retention_age_seconds": None if released.at_s is None else now_s - released.at_s,
        "nadi_unfinished_workflows": unfinished["workflows"],
        "nadi_unfinished_transactions": unfinished["transactions"],
        "nadi_metrics_complete": int(figures.is_complete),
        "nadi_metrics_gathering_seconds": figures.took_s,
    }
    for name, number in plain.items():
        yield family(MEANINGS[name], [((), number)])


def _sum(lags: list[GroupLagReport]) -> GroupLagReport:
    def total(attribute: str) -> int | None:
        known = [value for value in map(attrgetter(attribute), lags) if value is not None]
        return sum(known) if known else None

    seconds = max((lag.seconds_behind for lag in lags if lag.seconds_behind is not None), default=None)
    sums = total("bytes_behind"), total("events_behind"), seconds, None, total("segments"), total("unassigned")
    return GroupLagReport("", OTHERS, OTHERS, *sums, "", None, None, "")


CONTENT_TYPES = ("text/plain", "application/openmetrics-text")
_VERSIONS = ("0.0.1", "0.0.4", "1.0.0")
_version = re.compile("version=([^;]*)")
Encoder = tuple[Callable[[Any], bytes], str]  # of a registry, and its content type


class Metrics:
    """unfinished: how much is in progress."""

    def __init__(
        self,
        flow: Workflows,
        rates: Rates,
        scaling: ScalingRounds,
        retention: RetentionRounds,
        unfinished: Callable[[], dict[str, int]],
    ) -> None:
        self._flow, self._rates, self._unfinished = flow, rates, unfinished
        self._scaling, self._retention = scaling, retention
        self._texts = Shared(flow.clock, self._text, age_s=limits.METRICS_CACHED_S, most=len(CONTENT_TYPES))

    async def scrape(self, accept: str) -> bytes:
        """All metrics as text, in the form that the Accept header asks for."""
        return await self._texts.get(encoder(accept)[1])

    async def _text(self, content_type: str) -> bytes:
        """In a thread: it takes some 20 us a line."""
        figures, clock = await gather(self._flow, self._rates, self._scaling.hot_keys), self._flow.clock
        counts, released = replace(self._scaling.counts), replace(self._retention.released)
        found = families(figures, counts, released, self._unfinished(), clock.monotonic())
        return await clock.in_thread(written, found, content_type)


class OwnMetrics:
    """What a server tells of itself and its process, whichever server has the controller. samples: as they are now."""

    def __init__(self, samples: Callable[[], Iterable[Sample]], runtime: Runtime) -> None:
        self._samples, self._runtime = samples, runtime
        self._texts = Shared(runtime, self._text, age_s=limits.METRICS_CACHED_S, most=len(CONTENT_TYPES))

    async def after(self, text: bytes, accept: str) -> bytes:
        """The text of a scrape with these metrics after it, in the same form."""
        return text.removesuffix(b"# EOF\n") + await self._texts.get(encoder(accept)[1])

    async def _text(self, content_type: str) -> bytes:
        from prometheus_client import ProcessCollector

        found = chain(metrics.families(list(self._samples())), ProcessCollector(registry=None).collect())
        return await self._runtime.in_thread(written, found, content_type)


def incomplete(accept: str) -> bytes:
    """What stands for `Metrics.scrape` where that isn't possible now."""
    return written([family(MEANINGS["nadi_metrics_complete"], [((), 0)])], accept)


def encoder(accept: str) -> Encoder:
    """The encoder for an Accept header, without its offers of versions that aren't spoken here, or are none."""
    from prometheus_client.exposition import choose_encoder

    offers = accept.split(",")
    spoken = (offer for offer in offers if all(one.strip() in _VERSIONS for one in _version.findall(offer)))
    return choose_encoder(",".join(spoken))


def written(found: Iterable[Metric], accept: str) -> bytes:
    return encoder(accept)[0](SimpleNamespace(collect=lambda: found))  # a registry, as far as it is asked
