"""What passes into each stream now, for those who watch all: gathered for everybody at once, at most so often."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nadi.controller.engine.workflows import Workflows
from nadi.controller.keda.rates import rate
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import StreamState
from nadi.errors import InvalidArgumentError
from nadi.limits import METRICS_PAGE, METRICS_STREAMS_LOOKED_AT, PAGE_RATES_S
from nadi.model.load import SegmentLoad
from nadi.naming import INTERNAL_SCOPE, parse_segment_name


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
