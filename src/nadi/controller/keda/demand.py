"""What a trigger's metric is now, and whether its stream is active: by polls, and watched.

A stream is active while events come into it: one came in the last ten seconds, or for the metric rate, more a second
than the trigger says. With a reader group it is active also while the group has not read all; for the metric lag that
alone counts. A watch of an idle stream looks at the ends of its segments too, where an event shows at once; in the
loads it does within a second.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from nadi.controller.engine.workflows import Workflows
from nadi.controller.keda.lag import unread
from nadi.controller.keda.rates import is_flowing, rate
from nadi.controller.keda.shared import Pace, Shared
from nadi.controller.keda.trigger import Metric, Trigger
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import Stream, StreamState
from nadi.controller.state.segments import together
from nadi.errors import SegmentNotFoundError
from nadi.limits import SCALER_ENDS_SEGMENTS, SCALER_KEPT, SCALER_LOOK_S
from nadi.model.load import SegmentLoad

_SHOWN_S = 2.0  # after which an event has come into the loads, at the latest
Ends = Mapping[int, int]  # of segments, by id


class Demand:
    def __init__(self, flow: Workflows, pace: Pace | None = None) -> None:
        self._flow = flow
        clock = flow.clock
        pace = pace or Pace(clock)
        self._loads = Shared(clock, pace, self._all_loads, age_s=SCALER_LOOK_S, most=1)
        self._lags = Shared(clock, pace, self._bytes_behind, age_s=SCALER_LOOK_S, most=SCALER_KEPT)
        self._ends = Shared(clock, pace, self._all_ends, age_s=SCALER_LOOK_S, most=SCALER_KEPT)

    async def value(self, trigger: Trigger) -> float:
        """The metric, in its unit: StreamNotFoundError, and for a lag what `unread` raises."""
        stream = await self._stream(trigger.stream)
        if trigger.metric is Metric.SEGMENTS:
            return 0.0 if stream.state is StreamState.SEALED else float(len(stream.segments))
        if trigger.metric is Metric.RATE:
            return rate(await self._loads_of(trigger.stream), events=trigger.unit == "events")
        assert trigger.group is not None
        return float(await self._lags.get((trigger.group, trigger.stream)))

    async def is_active(self, trigger: Trigger) -> bool:
        """Whether there is anything to do; raises what `value` does."""
        if trigger.metric is Metric.LAG:
            return await self.value(trigger) > trigger.activation
        await self._stream(trigger.stream)
        flowing = is_flowing(await self._loads_of(trigger.stream))
        if flowing and (trigger.metric is Metric.SEGMENTS or await self.value(trigger) > trigger.activation):
            return True
        return trigger.group is not None and await self._lags.get((trigger.group, trigger.stream)) > 0

    async def watch(self, trigger: Trigger) -> AsyncGenerator[bool, None]:
        """Whether it is active now, and then each change, without end; raises what `value` does."""
        was: bool | None = None
        async with aclosing(self._looks(trigger)) as looks:
            async for active in looks:
                if active is not was:
                    yield active
                was = active

    async def _looks(self, trigger: Trigger) -> AsyncGenerator[bool, None]:
        clock, grown_s = self._flow.clock, float("-inf")
        ends: Ends | None = None
        sees_growth = trigger.metric is not Metric.LAG and trigger.activation == 0
        while True:
            active = await self.is_active(trigger)
            if sees_growth:
                before, ends = ends, None if active else await self._ends.get(trigger.stream)
                if before is not None and ends is not None and _grew(before, ends):
                    grown_s = clock.monotonic()
            yield active or clock.monotonic() < grown_s + _SHOWN_S
            await clock.sleep(SCALER_LOOK_S)

    # --- questions, each asked for all who want to know --------------------------------------------

    async def _stream(self, name: StreamName) -> Stream:
        return (await self._flow.metadata.stream(name)).value

    async def _loads_of(self, name: StreamName) -> list[SegmentLoad]:
        return (await self._loads.get(None)).get(name.key, [])

    async def _all_loads(self, _: None) -> dict[str, list[SegmentLoad]]:
        found: dict[str, list[SegmentLoad]] = {}
        for load in await self._flow.segments.loads():
            found.setdefault(load.segment.rpartition("/")[0], []).append(load)
        return found

    async def _bytes_behind(self, asked: tuple[GroupName, StreamName]) -> int:
        return await unread(self._flow, *asked)

    async def _all_ends(self, name: StreamName) -> Ends | None:
        """Of the current segments; None if they are too many to ask."""
        segments = (await self._stream(name)).segments
        if len(segments) > SCALER_ENDS_SEGMENTS:
            return None
        ends: dict[int, int] = {}

        async def end(segment: int) -> None:
            try:
                ends[segment] = await self._flow.segments.length(name.segment(segment))
            except SegmentNotFoundError:  # the stream is being deleted
                ends[segment] = 0

        await together(end(segment.id) for segment in segments)
        return ends


def _grew(before: Ends, now: Ends) -> bool:
    return any(end > before.get(segment, 0) for segment, end in now.items())
