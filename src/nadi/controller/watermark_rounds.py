"""The rounds in which watermarks are made: every few seconds, for the streams whose writers note times.

Those streams are kept in a table, so a restart continues with them; a stream is struck off once none of its writers
counts any more. What a round decides is carried out by changes that are conditional on what was read: a writer that
notes a time meanwhile is not dropped, and no watermark is stored twice. A store that doesn't answer, of several, holds
up those streams whose marks it has, and costs a round one wait. How long a stalled writer has been waited for is kept
in memory; a restart gives it the stream's full timeout again.
"""

from __future__ import annotations

import logging
from contextlib import aclosing, suppress

from msgspec.structs import replace

from nadi.controller.engine.workflows import Workflows
from nadi.controller.event_time import Extent, MarkStream, judge
from nadi.controller.state.history import History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Listed, Stream, WriterMark
from nadi.controller.state.store import ANY_VERSION, RecordTable, Versioned
from nadi.controller.workflows import truncate
from nadi.errors import ConditionFailedError, InvalidArgumentError, StreamNotFoundError, UnavailableError
from nadi.limits import WATERMARK_STREAMS_A_ROUND, WATERMARK_WRITERS_MAX
from nadi.throttled_log import Complaints

log = logging.getLogger(__name__)

_PASSED_STEPS = 8  # of a writer, that stay for the time being


class WatermarkRounds:
    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self._table = flow.metadata.timed
        self._token = b""  # where the next round continues
        self._waiting: dict[str, dict[str, tuple[int, int]]] = {}  # stream: writer: its mark's version, since when
        self._complaints = Complaints(log, "no watermarks are made for %s")

    async def round(self) -> None:
        left = WATERMARK_STREAMS_A_ROUND
        away: dict[str, UnavailableError] = {}  # by store: what came of asking it in this round
        while left > 0:
            found, self._token = await self._table.page(self._token, left)
            if not found:
                self._token = b""
                break
            left -= len(found)
            for key, _ in found:
                name = StreamName.of(key)
                try:
                    await self.look_at(name, away)
                    self._complaints.settled(key)
                except UnavailableError:
                    raise  # what has the records is away, for all streams
                except Exception as error:
                    if await self._flow.metadata.find_stream(name) is not None:  # else it was deleted meanwhile
                        self._complaints.tell(key, error)
        if away:
            raise next(iter(away.values()))

    async def look_at(self, name: StreamName, away: dict[str, UnavailableError] | None = None) -> None:
        """Make the watermarks of a stream that are due. away: the stores that don't answer, by place."""
        away = {} if away is None else away
        metadata = self._flow.metadata
        found = await metadata.find_stream(name)
        marks = await self._marks(name) if found is not None else {}
        if found is None or not marks:
            await self._strike_off(name)
            return
        history = await metadata.history(name)
        mark_segment = (await metadata.stream(name.mark)).value.segments[0].id
        place = self._flow.segments.place_of(name.mark.segment(mark_segment))
        if place in away:
            return
        try:
            await self._judge(name, found.value, history, marks, mark_segment)
        except UnavailableError as error:
            away[place] = error

    async def _judge(
        self,
        name: StreamName,
        stream: Stream,
        history: History,
        marks: dict[str, Versioned[WriterMark]],
        mark_segment: int,
    ) -> None:
        table = self._flow.metadata.marks(name)
        mark_stream = MarkStream(self._flow.segments, name.mark.segment(mark_segment))
        extent = await mark_stream.extent()
        now_ms, before = self._flow.clock.monotonic_ms(), self._waiting.get(name.key, {})
        since_ms = {w: since for w, (version, since) in before.items() if w in marks and marks[w].version == version}
        verdict = judge(
            {writer: mark.value for writer, mark in marks.items()},
            extent.newest.watermark if extent.newest is not None else None,
            history,
            timeout_ms=stream.config.timestamp_aggregation_timeout_ms,
            waited_ms={writer: now_ms - since for writer, since in since_ms.items()},
        )
        self._waiting.pop(name.key, None)
        if verdict.waited_for:
            self._waiting[name.key] = {w: (marks[w].version, since_ms.get(w, now_ms)) for w in verdict.waited_for}
        later: Extent | None = extent
        for watermark in verdict.watermarks:
            if later is None:  # one was stored meanwhile, by a try without answer
                break
            later = await mark_stream.add(watermark, later)
        if verdict.watermarks and later is not None:
            staying = {writer: mark for writer, mark in marks.items() if writer not in verdict.dropped}
            await self._forget_steps(table, staying, verdict.watermarks[-1].lower)
            if stream.head:
                await self._trim(name, stream, history, mark_stream, later, mark_segment)
        for writer in verdict.dropped:
            await table.remove_if((writer, marks[writer].version))
        if len(verdict.dropped) == len(marks):
            await self._strike_off(name)

    async def _forget_steps(
        self, table: RecordTable[WriterMark], marks: dict[str, Versioned[WriterMark]], lower: int
    ) -> None:
        """Those that no later watermark needs: of each writer, all before its last up to that time."""
        for writer, (mark, version) in marks.items():
            passed = sum(time <= lower for time, _ in mark.steps)
            if passed > _PASSED_STEPS:
                with suppress(ConditionFailedError):  # it noted a time meanwhile: the next round does it
                    await table.put(writer, replace(mark, steps=mark.steps[passed - 1 :]), version)

    async def _marks(self, name: StreamName) -> dict[str, Versioned[WriterMark]]:
        marks: dict[str, Versioned[WriterMark]] = {}
        async for writer, mark in self._flow.metadata.marks(name).scan():
            if len(marks) == WATERMARK_WRITERS_MAX:
                raise InvalidArgumentError(
                    f"more than {WATERMARK_WRITERS_MAX:,} writers note times in {name}: give them ids that they keep"
                )
            marks[writer] = mark
        return marks

    async def _strike_off(self, name: StreamName) -> None:
        """Stop the stream's rounds, unless a mark was stored before it was struck off."""
        self._waiting.pop(name.key, None)
        await self._table.remove([name.key])
        first, _ = await self._flow.metadata.marks(name).page(count=1)
        if first and await self._flow.metadata.find_stream(name) is not None:
            await self._table.put(name.key, Listed(), ANY_VERSION)

    async def _trim(
        self,
        name: StreamName,
        stream: Stream,
        history: History,
        mark_stream: MarkStream,
        extent: Extent,
        mark_segment: int,
    ) -> None:
        """Drop the watermarks that no reader of the stream's remaining data can need: of those whose cut lies before
        the stream's head, all but the last."""
        keep = extent.start
        async with aclosing(mark_stream.entries(extent.start, extent.mark)) as entries:
            async for entry in entries:
                if not history.is_at_or_after(stream.head, entry.watermark.positions()):
                    break
                keep = entry.start
        if keep > extent.start:
            try:
                await self._flow.run(name.mark, lambda: truncate.begin(self._flow, name.mark, {mark_segment: keep}))
            except StreamNotFoundError:
                pass  # deleted with its stream
