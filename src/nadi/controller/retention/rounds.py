"""The rounds in which retention moves the heads of streams: every few seconds, for those that have a policy.

Those streams are kept in a table, so a restart continues with them; a stream whose policy has ended is struck off. What
is kept and why is for `verdict`; it is carried out by the truncation that anybody can ask for, if stream and policy
still are what they were then. Streams are looked at a few at a time, each for a limited time: what holds one up is
waited for by nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from nadi import limits
from nadi.controller.engine.tasks import Schedule, Shared
from nadi.controller.engine.workflows import Workflows
from nadi.controller.retention.past import look
from nadi.controller.retention.verdict import Ages, Judge, Named, Names, Policy
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import AnyWork, RetentionType, StreamState
from nadi.controller.workflows import truncate
from nadi.errors import NotFoundError, StreamSealedError
from nadi.model.reports import RetentionReport
from nadi.throttled_log import Complaints

log = logging.getLogger(__name__)

IndexTimes = Callable[[StreamName, str, Iterable[int]], Awaitable[None]]  # of those segments, of that event time
NamesOfScope = dict[str, list[Named]]  # by stream


@dataclass(slots=True)
class Released:
    """What retention has truncated since this controller began; at_s: when last, by the monotonic clock."""

    truncations: int = 0
    size_bytes: int = 0
    at_s: float | None = None


class RetentionRounds:
    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self.released = Released()
        self._table = flow.metadata.limited
        self._ages = Ages(flow.clock)
        self._judge = Judge(flow, self._ages)
        self._names = Names(flow.segments)
        self.index_times: IndexTimes | None = None  # set by a server that can
        self._token = b""  # where the next round continues
        self._going_on: dict[str, asyncio.Task[None]] = {}  # streams that are being looked at
        self._complaints = Complaints(log, "retention of %s waits for the next round")

    def start(self, schedule: Schedule) -> None:
        schedule.start("retention", limits.RETENTION_PERIOD_S, self.round)
        schedule.start("the clocks", limits.RETENTION_CLOCK_S, self._note_clocks)

    async def _note_clocks(self) -> None:
        self._ages.note()

    async def describe(self, name: StreamName) -> RetentionReport:
        """What the stream keeps now, and why; StreamNotFoundError if there is none."""
        stream = (await self._flow.metadata.stream(name)).value
        names = await self._names.of_scope(name.scope) if Policy.of(stream.config) is not None else {}
        return await self._judge.report(name, names.get(name.stream, ()))

    async def report(self, _: Workflows, name: StreamName, token: str) -> tuple[list[RetentionReport], str]:
        return [await self.describe(name)], ""

    async def round(self) -> None:
        # of scopes, each read once a round
        names = Shared(self._flow.clock, self._names.of_scope, age_s=math.inf, most=limits.RETENTION_STREAMS_A_ROUND)
        permits = asyncio.Semaphore(limits.RETENTION_AT_ONCE)

        async def one(name: StreamName) -> None:
            async with permits:
                await self._attend(name, names)

        left = limits.RETENTION_STREAMS_A_ROUND
        while left > 0:
            found, self._token = await self._table.page(self._token, left)
            if not found:
                self._token = b""
                return
            left -= len(found)
            await asyncio.gather(*(one(StreamName.of(key)) for key, _ in found))

    async def _attend(self, name: StreamName, names: Shared[str, NamesOfScope]) -> None:
        """Look at a stream, for no longer than RETENTION_WAIT_S; what takes longer goes on by itself."""
        if name.key in self._going_on:
            return
        task = self._going_on[name.key] = self._flow.tasks.spawn(self._look_at(name, names))
        task.add_done_callback(lambda _: self._going_on.pop(name.key, None))
        await asyncio.wait([task], timeout=limits.RETENTION_WAIT_S)

    async def _look_at(self, name: StreamName, names: Shared[str, NamesOfScope]) -> None:
        try:
            found = await self._flow.metadata.find_stream(name)
            if found is None or found.value.config.retention_type is RetentionType.NONE:
                await self._strike_off(name)
                return
            if found.value.state is StreamState.ACTIVE and not self._is_too_early(found.value.config.retention_type):
                named = (await names.get(name.scope)).get(name.stream, ())
                if found.value.config.retention_by_event_time and self.index_times is not None:
                    segments = (await look(self._flow, name)).ends
                    await self.index_times(name, found.value.config.event_time, segments)
                await self._truncate(name, named)
            self._complaints.settled(name.key)
        except (StreamSealedError, NotFoundError) as error:
            if await self._flow.metadata.find_stream(name) is not None and not isinstance(error, StreamSealedError):
                self._complaints.tell(name.key, error)
        except Exception as error:
            self._complaints.tell(name.key, error)

    def _is_too_early(self, kind: RetentionType) -> bool:
        return kind is RetentionType.TIME and self._ages.known_ms < limits.RETENTION_SETTLE_S * 1000

    async def _truncate(self, name: StreamName, named: Sequence[Named]) -> None:
        verdict = await self._judge.judge(name, named)
        cut = verdict.cut
        if cut is None:
            return

        async def begin() -> AnyWork | None:
            stream = (await self._flow.metadata.stream(name)).value
            if stream.config != verdict.stream.config or stream.head != verdict.stream.head:
                return None  # another policy, another head: the next round looks again
            return await truncate.begin(self._flow, name, cut)

        if await self._flow.run(name, begin) is not None:
            self.released.truncations += 1
            self.released.size_bytes += verdict.past.kept_bytes - verdict.past.bytes_after(cut)
            self.released.at_s = self._flow.clock.monotonic()

    # --- which streams there are -----------------------------------------------------------------

    async def _strike_off(self, name: StreamName) -> None:
        """End the stream's rounds, unless it has got a policy before it was struck off."""
        await self._table.remove([name.key])
        found = await self._flow.metadata.find_stream(name)
        if found is not None:
            await self._flow.metadata.keep_limited(name, found.value.config)
