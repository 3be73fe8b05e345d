"""Current rates of events and bytes into streams, for autoscalers, metrics and the web page: one shared sampler.

A segment's mean is weighted over its own age, so right after a scaling both the old segments and the new ones report
the full load. Here each segment's share is weighted by how much of the window it was measured for, and the sum is
scaled by the oldest segment's share, so a constant rate stays constant while the stream is scaled.

>>> old = SegmentLoad("home/meters/0.#epoch.0", 100.0, (0.0, 50.0), (0.0, 0.0))
>>> rate([old], events=True)
50.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nadi.controller.engine.workflows import Shared, Workflows
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamState
from nadi.errors import InvalidArgumentError
from nadi.limits import METRICS_PAGE, METRICS_STREAMS_MEASURED, PAGE_RATES_S, SCALER_POLL_S
from nadi.model.load import WINDOWS_S, SegmentLoad
from nadi.naming import parse_segment_name

_SHORT, _WINDOW = 0, 1  # of WINDOWS_S: 2 and 10 s
RATE_S = WINDOWS_S[_WINDOW]
# The 2 s mean falls below this fraction of the 10 s mean once an even load has ceased for 10 s, or 14 s after a single
# event, however large it was.
_LEFT = math.exp(-RATE_S / WINDOWS_S[_SHORT] + 1)
Loads = Mapping[StreamName, Mapping[int, SegmentLoad]]  # by stream and segment


def by_stream(loads: Iterable[SegmentLoad]) -> dict[StreamName, dict[int, SegmentLoad]]:
    by_name: dict[StreamName, dict[int, SegmentLoad]] = {}
    for load in loads:
        try:
            scope, stream, segment = parse_segment_name(load.segment)
        except InvalidArgumentError:
            continue  # such as a transaction's segment
        by_name.setdefault(StreamName(scope, stream), {})[segment] = load
    return by_name


def rate(loads: Iterable[SegmentLoad], *, events: bool) -> float:
    """Return events (or bytes) per second into the stream over the last ten seconds, or since measuring began."""
    total = oldest_s = 0.0
    for load in loads:
        total += (load.events_per_s if events else load.bytes_per_s)[_WINDOW] * _share(load.age_s)
        oldest_s = max(oldest_s, load.age_s)
    return total / _share(oldest_s) if oldest_s > 0 else 0.0


def _share(age_s: float) -> float:
    """Return the fraction of the window that was measured."""
    return -math.expm1(-max(age_s, 0.0) / RATE_S)


def is_flowing(loads: Iterable[SegmentLoad]) -> bool:
    return any(load.events_per_s[_SHORT] > _LEFT * load.events_per_s[_WINDOW] for load in loads)


def event_size(loads: Iterable[SegmentLoad]) -> float | None:
    """Return the mean size of a stream's events in the last 20 minutes, headers included; None if there were none."""
    events = size = 0.0
    for load in loads:
        events += load.events_per_s[-1]
        size += load.bytes_per_s[-1]
    return size / events if events > 0 and size > 0 else None


async def loads_of(flow: Workflows, name: StreamName) -> Mapping[int, SegmentLoad]:
    return by_stream(await flow.segments.loads(f"{name.key}/")).get(name, {})


@dataclass(slots=True)
class StreamRate:
    """A stream's size and rates. segments: current number; if the stream is sealed, its final number. hot_keys,
    retained_bytes: filled in by `metrics`; None if unknown."""

    name: StreamName
    segments: int
    is_sealed: bool
    events_per_s: float
    bytes_per_s: float
    hot_keys: int = 0
    retained_bytes: int | None = None


class Rates:
    """Sampler of stream rates. loads: of all measured segments, at most a quarter of a second old."""

    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self._loads = Shared(flow.clock, self._all_loads, age_s=SCALER_POLL_S, rest=4.0)
        self._streams = Shared(flow.clock, self._all_streams, age_s=PAGE_RATES_S)

    async def loads(self) -> Loads:
        return await self._loads.get(None)

    async def all(self) -> list[StreamRate]:
        """Return the first METRICS_STREAMS_MEASURED of users' streams, by name, at most a second old."""
        return await self._streams.get(None)

    async def _all_loads(self, _: None) -> Loads:
        return by_stream(await self._flow.segments.loads())

    async def _all_streams(self, _: None) -> list[StreamRate]:
        loads, stream_rates = await self.loads(), list[StreamRate]()
        async for name, stream in self._flow.metadata.user_streams(METRICS_PAGE):
            is_sealed = stream.state is StreamState.SEALED
            segment_loads = [] if is_sealed else loads.get(name, {}).values()
            rates = rate(segment_loads, events=True), rate(segment_loads, events=False)
            stream_rates.append(StreamRate(name, len(stream.segments), is_sealed, *rates))
            if len(stream_rates) == METRICS_STREAMS_MEASURED:
                break
        return sorted(stream_rates, key=lambda stream_rate: stream_rate.name)
