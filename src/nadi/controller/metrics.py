"""Metrics of streams and reader groups, and each server's metrics of itself, in the formats that scrapers accept.

Metrics are gathered on request only, and all scrapes within a second share one text. Gathering is limited in the number
of streams and groups inspected, in the number reported by name (the rest is summed as `(others)`), and in time. Lag
comes first, since autoscaling may depend on it, then the retained size of the busiest streams. Whatever is not ready in
time is omitted and `nadi_metrics_complete` becomes 0. The text is encoded in a thread.
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
from nadi.controller.reports import GroupPosition, GroupReport, HotKeys
from nadi.controller.retention import cut_sizes
from nadi.controller.retention.rounds import RetentionRounds, TruncationCounts
from nadi.controller.scaling.rounds import ScalingCounts, ScalingRounds
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import ReaderGroupRecord
from nadi.controller.state.segments import together
from nadi.controller.stream_rates import Loads, Rates, StreamRate, event_size
from nadi.errors import NadiError, NotFoundError
from nadi.model.reports import GroupLagReport
from nadi.naming import INTERNAL_SCOPE
from nadi.observe import metrics
from nadi.observe.metrics import MetricDefinition, Sample, by_name, family
from nadi.runtime import Runtime
from nadi.throttled_log import ProblemLog

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)
OTHERS = "(others)"  # not a valid name of a stream or group
_OF_STREAMS = {
    attribute: MetricDefinition(name, text, ("scope", "stream"))
    for attribute, name, text in (  # the attribute of StreamRate
        ("segments", "nadi_stream_segments", "Current segments of a stream; 0 if it is sealed."),
        ("events_per_s", "nadi_stream_events_per_second", "Events written to a stream, mean of ten seconds."),
        ("bytes_per_s", "nadi_stream_bytes_per_second", "Bytes written to a stream, headers included, mean of 10 s."),
        ("hot_keys", "nadi_stream_hot_keys", "Segments of a stream that a single routing key overloads."),
        ("retained_bytes", "nadi_stream_retained_bytes", "Bytes of a stream from its head to its tail."),
    )
}
_OF_GROUPS = {
    attribute: MetricDefinition(f"nadi_reader_group_{name}", text, ("scope", "reader_group", "stream"))
    for attribute, name, text in (  # the attribute of GroupLagReport
        ("lag_bytes", "lag_bytes", "Bytes that a reader group has yet to read, event headers included."),
        ("lag_events", "lag_events", "Events yet to be read, estimated from the mean size in the last 20 minutes."),
        ("lag_seconds", "lag_seconds", "Age of the oldest unread event, accurate to about ten seconds."),
        ("segments", "segments", "Segments of a stream that a reader group is reading."),
        ("unassigned", "unassigned_segments", "Segments of a stream that no reader of the group has acquired."),
    )
}
MEANINGS = by_name(
    (
        MetricDefinition("nadi_streams", "Streams, without internal ones."),
        MetricDefinition("nadi_reader_groups", "Reader groups."),
        *_OF_STREAMS.values(),
        *_OF_GROUPS.values(),
        MetricDefinition(
            "nadi_reader_group_readers",
            "Readers of a group, including undetected dead ones.",
            ("scope", "reader_group"),
        ),
        MetricDefinition("nadi_scalings", "Segment splits and merges that were carried out.", ("kind",), "counter"),
        MetricDefinition("nadi_hot_keys_detected", "Hot keys detected.", (), "counter"),
        MetricDefinition(
            "nadi_retention_truncations", "Truncations by which retention moved a stream's head.", (), "counter"
        ),
        MetricDefinition("nadi_retention_released_bytes", "Bytes of streams released by retention.", (), "counter"),
        MetricDefinition("nadi_retention_age_seconds", "Time since the last truncation by retention."),
        MetricDefinition("nadi_unfinished_workflows", "Changes of streams, groups and tables in progress."),
        MetricDefinition("nadi_unfinished_transactions", "Transactions that are neither committed nor aborted."),
        MetricDefinition("nadi_metrics_complete", "1 if all metrics were gathered in time, else 0."),
        MetricDefinition("nadi_metrics_gathering_seconds", "Time taken to gather the metrics of streams and groups."),
    )
)
_problems = ProblemLog(log, "%s are incomplete")


@dataclass(slots=True)
class Figures:
    """Gathered values. streams: those reported by name. others: the sum of all remaining streams, None if there are
    none. lags: of each group in each stream. streams_count, groups_count: totals, None if not all were inspected.
    is_complete: False if anything was omitted."""

    streams: dict[StreamName, StreamRate] = field(default_factory=dict)
    others: StreamRate | None = None
    streams_count: int | None = None
    lags: list[GroupLagReport] = field(default_factory=list)
    groups_count: int | None = None
    is_complete: bool = True
    took_s: float = 0.0


async def gather(flow: Workflows, rates: Rates, hot_keys: HotKeys) -> Figures:
    """Gather current values; UnavailableError if the store can't report loads."""
    began_s, figures, loads = flow.clock.monotonic(), Figures(), await rates.loads()
    groups: dict[GroupName, ReaderGroupRecord] = {}
    parts: tuple[tuple[float, Callable[[], Awaitable[None]]], ...] = (
        (limits.METRICS_NAMES_S, lambda: _streams(figures, rates, hot_keys)),
        (limits.METRICS_NAMES_S, lambda: _groups(flow, figures, groups)),
        (limits.METRICS_LAGS_S, lambda: _lags(flow, figures, groups, loads)),
        (limits.METRICS_CACHE_S, lambda: _kept(flow, figures)),
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
    rates_by_name = {
        stream.name: replace(
            stream, segments=0 if stream.is_sealed else stream.segments, hot_keys=len(hot_keys(stream.name))
        )
        for stream in await rates.all()
    }
    if len(rates_by_name) < limits.METRICS_STREAMS_MEASURED:
        figures.streams_count = len(rates_by_name)
    else:
        figures.is_complete = False
    names = nlargest(
        limits.METRICS_STREAMS,
        rates_by_name,
        key=lambda name: (rates_by_name[name].bytes_per_s, rates_by_name[name].segments),
    )
    figures.streams = {name: rates_by_name.pop(name) for name in sorted(names)}
    if remaining := rates_by_name.values():
        segments, hot = sum(stream.segments for stream in remaining), sum(stream.hot_keys for stream in remaining)
        events_per_s, bytes_per_s = (
            sum(stream.events_per_s for stream in remaining),
            sum(stream.bytes_per_s for stream in remaining),
        )
        figures.others = StreamRate(StreamName("", OTHERS), segments, False, events_per_s, bytes_per_s, hot)


async def _groups(flow: Workflows, figures: Figures, groups: dict[GroupName, ReaderGroupRecord]) -> None:
    async for scope, _ in flow.metadata.scopes.scan():
        if scope == INTERNAL_SCOPE:
            continue
        async for name, record in flow.metadata.groups(scope).scan(page=limits.METRICS_PAGE):
            if len(groups) == limits.METRICS_GROUPS_MEASURED:
                figures.is_complete = False
                return
            groups[GroupName(scope, name)] = record.value
    figures.groups_count = len(groups)


async def _lags(flow: Workflows, figures: Figures, groups: Mapping[GroupName, ReaderGroupRecord], loads: Loads) -> None:
    """Measure the lag of each group in each of its streams. Each stream is measured once, after all groups."""
    group_reports: list[GroupReport] = []
    permits = asyncio.Semaphore(limits.METRICS_AT_ONCE)

    async def locate(name: GroupName, group: ReaderGroupRecord) -> None:
        group_reports.append(await reports.standing(flow, name, group))

    async def measure_all(name: StreamName) -> None:
        stream, mean = await cut_sizes.measure(flow, name), event_size(loads.get(name, {}).values())
        if name in figures.streams:
            figures.streams[name].retained_bytes = stream.retained_bytes
        for group, standing in by_stream[name]:
            figures.lags.append(await reports.measured(flow, group, standing, mean, stream))

    await together(_one(figures, permits, name.key, partial(locate, name, group)) for name, group in groups.items())
    by_stream: dict[StreamName, list[tuple[GroupReport, GroupPosition]]] = {}
    for group in group_reports:
        for standing in group.standings:
            by_stream.setdefault(standing.stream, []).append((group, standing))
    await together(_one(figures, permits, name.key, partial(measure_all, name)) for name in by_stream)


async def _kept(flow: Workflows, figures: Figures) -> None:
    permits = asyncio.Semaphore(limits.METRICS_AT_ONCE)

    async def measure(name: StreamName, stream_rate: StreamRate) -> None:
        stream_rate.retained_bytes = (await cut_sizes.measure(flow, name)).retained_bytes

    unknown = [
        (name, stream_rate) for name, stream_rate in figures.streams.items() if stream_rate.retained_bytes is None
    ]
    await together(
        _one(figures, permits, name.key, partial(measure, name, stream_rate)) for name, stream_rate in unknown
    )


async def _one(figures: Figures, permits: asyncio.Semaphore, subject: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`; if it fails, the metrics of the others are still reported. subject: the stream or group."""
    async with permits:
        try:
            await work()
        except NotFoundError:
            pass  # deleted meanwhile
        except NadiError as error:
            figures.is_complete = False
            _problems.report(f"metrics of {subject}", error)


def families(
    figures: Figures, counts: ScalingCounts, released: TruncationCounts, unfinished: dict[str, int], now_s: float
) -> Iterator[Metric]:
    """Yield all metrics with their samples. counts, released: totals since the controller started. now_s: monotonic."""
    streams: list[tuple[tuple[str, ...], StreamRate]] = [
        (tuple(name), stream_rate) for name, stream_rate in figures.streams.items()
    ]
    if figures.others is not None:
        streams.append((tuple(figures.others.name), figures.others))
    ordered = sorted(figures.lags, key=lambda lag: (-(lag.lag_bytes or 0), lag.scope, lag.group, lag.stream))
    named = [((lag.scope, lag.group, lag.stream), lag) for lag in ordered[: limits.METRICS_GROUPS]]
    groups: list[tuple[tuple[str, ...], GroupLagReport]] = sorted(named, key=itemgetter(0))
    if remaining := ordered[limits.METRICS_GROUPS :]:
        groups.append((("", OTHERS, OTHERS), _sum(remaining)))
    for meanings, labelled in ((_OF_STREAMS, streams), (_OF_GROUPS, groups)):
        for attribute, meaning in meanings.items():
            value = attrgetter(attribute)
            yield family(meaning, [(labels, value(stream_rate)) for labels, stream_rate in labelled])
    readers = {(lag.scope, lag.group): lag.readers for _, lag in groups if lag.group != OTHERS}
    yield family(MEANINGS["nadi_reader_group_readers"], readers.items())
    yield family(MEANINGS["nadi_scalings"], [(("split",), counts.splits), (("merge",), counts.merges)])
    plain = {
        "nadi_streams": figures.streams_count,
        "nadi_reader_groups": figures.groups_count,
        "nadi_hot_keys_detected": counts.hot_keys,
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

    seconds = max((lag.lag_seconds for lag in lags if lag.lag_seconds is not None), default=None)
    sums = total("lag_bytes"), total("lag_events"), seconds, None, total("segments"), total("unassigned")
    return GroupLagReport("", OTHERS, OTHERS, *sums, "", None, None, "")


CONTENT_TYPES = ("text/plain", "application/openmetrics-text")
_VERSIONS = ("0.0.1", "0.0.4", "1.0.0")
_version = re.compile("version=([^;]*)")
Encoder = tuple[Callable[[Any], bytes], str]  # of a registry, and its content type


class Metrics:
    """Metrics of streams and groups. unfinished: returns the number of operations in progress, by kind."""

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
        """Return all metrics as text, in the form that the Accept header asks for."""
        return await self._texts.get(encoder(accept)[1])

    async def _text(self, content_type: str) -> bytes:
        """Return the metrics as text, encoded in a thread since a line takes some 20 us."""
        figures, clock = await gather(self._flow, self._rates, self._scaling.hot_keys), self._flow.clock
        counts, released = replace(self._scaling.counts), replace(self._retention.released)
        samples = families(figures, counts, released, self._unfinished(), clock.monotonic())
        return await clock.in_thread(encoded, samples, content_type)


class OwnMetrics:
    """A server's metrics of itself and its process, whether or not it has the controller. samples: current values."""

    def __init__(self, samples: Callable[[], Iterable[Sample]], runtime: Runtime) -> None:
        self._samples, self._runtime = samples, runtime
        self._texts = Shared(runtime, self._text, age_s=limits.METRICS_CACHED_S, most=len(CONTENT_TYPES))

    async def after(self, text: bytes, accept: str) -> bytes:
        """Append these metrics to the text of a scrape, in the same format."""
        return text.removesuffix(b"# EOF\n") + await self._texts.get(encoder(accept)[1])

    async def _text(self, content_type: str) -> bytes:
        from prometheus_client import ProcessCollector

        samples = chain(metrics.families(list(self._samples())), ProcessCollector(registry=None).collect())
        return await self._runtime.in_thread(encoded, samples, content_type)


def incomplete(accept: str) -> bytes:
    """Return a stand-in for `Metrics.scrape` while that isn't possible."""
    return encoded([family(MEANINGS["nadi_metrics_complete"], [((), 0)])], accept)


def encoder(accept: str) -> Encoder:
    """Return the encoder for an Accept header, ignoring offers of versions that are unsupported or malformed."""
    from prometheus_client.exposition import choose_encoder

    offers = accept.split(",")
    spoken = (offer for offer in offers if all(version.strip() in _VERSIONS for version in _version.findall(offer)))
    return choose_encoder(",".join(spoken))


def encoded(collected: Iterable[Metric], accept: str) -> bytes:
    return encoder(accept)[0](SimpleNamespace(collect=lambda: collected))  # stands in for a registry
