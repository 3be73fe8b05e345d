"""What passes into streams now, for autoscalers, metrics and the page: one sampler for all who ask.

A segment's mean is weighted over its own age, so right after a scaling those of the old segments still have all of the
load and those of the new ones have it as well. Here each counts for as much of the window as it has been measured,
and the sum for as much as the oldest has: so a constant rate stays what it is while the stream is scaled.

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
from nadi.limits import METRICS_PAGE, METRICS_STREAMS_LOOKED_AT, PAGE_RATES_S, SCALER_LOOK_S
from nadi.model.load import WINDOWS_S, SegmentLoad
from nadi.naming import parse_segment_name

_SHORT, _WINDOW = 0, 1  # of WINDOWS_S: 2 and 10 s
RATE_S = WINDOWS_S[_WINDOW]
# Of a load that was even, the mean over 2 s is this part of that over 10 s once it has been over for 10 s; of a single
# event once it has been over for 14 s, however much it was.
_LEFT = math.exp(-RATE_S / WINDOWS_S[_SHORT] + 1)
Loads = Mapping[StreamName, Mapping[int, SegmentLoad]]  # by stream and segment


def by_stream(loads: Iterable[SegmentLoad]) -> dict[StreamName, dict[int, SegmentLoad]]:
    found: dict[StreamName, dict[int, SegmentLoad]] = {}
    for load in loads:
        try:
            scope, stream, segment = parse_segment_name(load.segment)
        except InvalidArgumentError:
            continue  # a part of a transaction, say
        found.setdefault(StreamName(scope, stream), {})[segment] = load
    return found


def rate(loads: Iterable[SegmentLoad], *, events: bool) -> float:
    """Events, or bytes, a second into the stream, over the last ten seconds, or since it has been measured."""
    total = oldest_s = 0.0
    for load in loads:
        total += (load.events_per_s if events else load.bytes_per_s)[_WINDOW] * _share(load.age_s)
        oldest_s = max(oldest_s, load.age_s)
    return total / _share(oldest_s) if oldest_s > 0 else 0.0


def _share(age_s: float) -> float:
    """Of the window, how much was measured."""
    return -math.expm1(-max(age_s, 0.0) / RATE_S)


def is_flowing(loads: Iterable[SegmentLoad]) -> bool:
    return any(load.events_per_s[_SHORT] > _LEFT * load.events_per_s[_WINDOW] for load in loads)


def event_size(loads: Iterable[SegmentLoad]) -> float | None:
    """The mean size of a stream's events in the last 20 minutes, headers included; None if there were none."""
    events = size = 0.0
    for load in loads:
        events += load.events_per_s[-1]
        size += load.bytes_per_s[-1]
    return size / events if events > 0 and size > 0 else None


async def loads_of(flow: Workflows, name: StreamName) -> Mapping[int, SegmentLoad]:
    return by_stream(await flow.segments.loads(f"{name.key}/")).get(name, {})


@dataclass(slots=True)
class StreamRate:
    """segments: how many it has now; those that it ended with, if it is sealed. hot_keys, kept_bytes: of `metrics`,
    which fills them in; None if that isn't known."""

    name: StreamName
    segments: int
    is_sealed: bool
    events_per_s: float
    bytes_per_s: float
    hot_keys: int = 0
    kept_bytes: int | None = None


class Rates:
    """loads: of all segments that are measured, at most a quarter of a second old."""

    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self._loads = Shared(flow.clock, self._all_loads, age_s=SCALER_LOOK_S, rest=4.0)
        self._streams = Shared(flow.clock, self._all_streams, age_s=PAGE_RATES_S)

    async def loads(self) -> Loads:
        return await self._loads.get(None)

    async def all(self) -> list[StreamRate]:
        """The first METRICS_STREAMS_LOOKED_AT of people's streams, by name, as they are now or were a second ago."""
        return await self._streams.get(None)

    async def _all_loads(self, _: None) -> Loads:
        return by_stream(await self._flow.segments.loads())

    async def _all_streams(self, _: None) -> list[StreamRate]:
        loads, found = await self.loads(), list[StreamRate]()
        async for name, stream in self._flow.metadata.people_streams(METRICS_PAGE):
            is_sealed = stream.state is StreamState.SEALED
            its = [] if is_sealed else loads.get(name, {}).values()
            rates = rate(its, events=True), rate(its, events=False)
            found.append(StreamRate(name, len(stream.segments), is_sealed, *rates))
            if len(found) == METRICS_STREAMS_LOOKED_AT:
                break
        return sorted(found, key=lambda one: one.name)
