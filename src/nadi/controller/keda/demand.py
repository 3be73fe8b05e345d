"""What a trigger's metric is now, and whether its stream is active: by polls, and watched.

A stream is active while events come into it: one came in the last ten seconds, or for the metric rate, more a second
than the trigger says. With a reader group it is active also while the group has not read all; for the metric lag that
alone counts. A watch of an idle stream looks at the ends of its segments too, where an event shows at once; in the
loads it does within a second.

What passes into a stream, from the loads of its segments.

A segment's mean is weighted over its own age, so right after a scaling those of the old segments still have all of the
load and those of the new ones have it as well. Here each counts for as much of the window as it has been measured,
and the sum for as much as the oldest has: so a constant rate stays what it is while the stream is scaled.

>>> old = SegmentLoad("home/meters/0.#epoch.0", 100.0, (0.0, 50.0), (0.0, 0.0))
>>> rate([old], events=True)
50.0

The latest answers to questions that many ask at the same time: each is asked once, and again once it is too old.

A pace keeps all of them within a fifth of the time: they are put one after the other, each followed by a pause of
four times what it took. With more questions than that leaves room for, answers come later, and are older.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

from cachetools import LRUCache

from nadi.controller.engine.workflows import Workflows
from nadi.controller.keda.trigger import Metric, Trigger
from nadi.controller.lag import bytes_behind, standing
from nadi.controller.retention.past import look
from nadi.controller.state.metadata import GroupName, StreamName
from nadi.controller.state.records import GroupRetention, Stream, StreamState
from nadi.controller.state.segments import together
from nadi.errors import ConflictError, SegmentNotFoundError
from nadi.limits import SCALER_ENDS_SEGMENTS, SCALER_KEPT, SCALER_LOOK_S
from nadi.model.load import WINDOWS_S, SegmentLoad
from nadi.runtime import Runtime

_SHORT, _WINDOW = 0, 1  # of WINDOWS_S: 2 and 10 s
RATE_S = WINDOWS_S[_WINDOW]
# Of a load that was even, the mean over 2 s is this part of that over 10 s once it has been over for 10 s; of a single
# event once it has been over for 14 s, however much it was.
_LEFT = math.exp(-RATE_S / WINDOWS_S[_SHORT] + 1)


def rate(loads: Sequence[SegmentLoad], *, events: bool) -> float:
    """Events, or bytes, a second into the stream, over the last ten seconds, or since it has been measured."""
    rates = [(load.events_per_s if events else load.bytes_per_s)[_WINDOW] for load in loads]
    oldest = max((load.age_s for load in loads), default=0.0)
    if oldest <= 0:
        return 0.0
    return sum(one * _share(load.age_s) for one, load in zip(rates, loads, strict=True)) / _share(oldest)


def _share(age_s: float) -> float:
    """Of the window, how much was measured."""
    return -math.expm1(-max(age_s, 0.0) / RATE_S)


def is_flowing(loads: Iterable[SegmentLoad]) -> bool:
    """Whether an event came in the last ten seconds, or a little before."""
    return any(load.events_per_s[_SHORT] > _LEFT * load.events_per_s[_WINDOW] for load in loads)


K = TypeVar("K")
V = TypeVar("V")
_LONGEST_S = 1.0  # for which the others wait for a question: a store that is slow may answer some and not others


class Pace:
    """pause: after a question, as a multiple of what it took."""

    def __init__(self, clock: Runtime, pause: float = 4.0) -> None:
        self._clock, self._pause = clock, pause
        self._turn = asyncio.Lock()

    async def put(self, ask: Callable[[], Awaitable[V]]) -> V:
        """The answer, once it was this question's turn."""
        await self._turn.acquire()
        began_s = self._clock.monotonic()
        task = asyncio.ensure_future(ask())
        try:
            await asyncio.wait([task], timeout=_LONGEST_S)
        finally:
            took_s = min(self._clock.monotonic() - began_s, _LONGEST_S)
            asyncio.get_running_loop().call_later(self._pause * took_s, self._turn.release)
        return await task


class Shared(Generic[K, V]):
    """most: answers kept, each for `age_s` after it came. An error is for those who waited for it."""

    def __init__(
        self, clock: Runtime, pace: Pace, ask: Callable[[K], Awaitable[V]], *, age_s: float, most: int
    ) -> None:
        self._clock, self._pace, self._ask, self._age_s = clock, pace, ask, age_s
        self._answers: LRUCache[K, _Answer[V]] = LRUCache(most)

    async def get(self, key: K) -> V:
        answer = self._answers.get(key)
        if answer is None or answer.until_s <= self._clock.monotonic():
            asking = self._pace.put(lambda: self._ask(key))
            answer = self._answers[key] = _Answer(self._clock, asking, self._age_s)
        return await asyncio.shield(answer.task)


class _Answer(Generic[V]):
    """until_s: when it is too old; never before it came."""

    def __init__(self, clock: Runtime, asking: Awaitable[V], age_s: float) -> None:
        self.until_s = float("inf")

        def came(task: asyncio.Future[V]) -> None:
            failed = task.cancelled() or task.exception() is not None
            self.until_s = clock.monotonic() + (0.0 if failed else age_s)

        self.task = asyncio.ensure_future(asking)
        self.task.add_done_callback(came)


async def unread(flow: Workflows, name: GroupName, stream: StreamName) -> int:
    """Bytes of the stream's events that the group hasn't read; ReaderGroupNotFoundError, StreamNotFoundError, and
    ConflictError with the reason where that isn't known.

    A group that holds retention back and has published nothing yet stands where it starts.
    """
    group = (await flow.metadata.group(name)).value
    await flow.metadata.stream(stream)
    if stream.key not in group.config.starts:
        raise ConflictError(f"the reader group {name} doesn't read {stream}: name a group that does")
    standings = (await standing(flow, name, group)).standings
    mine = next((one for one in standings if one.stream == stream), None)
    cut, end = (mine.cut, mine.end) if mine is not None else (None, None)
    if cut is None and group.config.retention_type is not GroupRetention.NONE:
        cut = group.config.starts[stream.key]
    why = mine.why if mine is not None else "it has no position in this stream"
    if cut is not None:
        behind = await bytes_behind(flow, await look(flow, stream), cut, end)
        if behind.size is not None:
            return behind.size
        why = behind.why
    raise ConflictError(
        f"how much of {stream} the reader group {name} has not read isn't known: {why}; make it one that holds "
        "retention back, or choose another metric"
    )


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
