"""The rounds in which watermarks are made: every few seconds, for the streams whose writers note times.

Which these are is kept in a table, so a restart goes on with them; a stream is struck off when none of its writers is
heeded any more, until one notes a time again. What a round decides (`watermarks`) is carried out by changes that are
conditional on what was read: a writer that notes a time meanwhile is not dropped, and no watermark is stored twice.
So a round that ends half-way, with its controller or for want of the store, leaves the rest to the next one.

Since when a writer that stands still is waited for is kept in memory, by the monotonic clock: the wall clock may be
set, and a start gives it the stream's whole timeout again.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Stream, TimedStream, WriterMark
from nadi.controller.state.store import ANY_VERSION, Versioned
from nadi.controller.time.mark_stream import Extent, MarkStream
from nadi.controller.time.watermarks import judge
from nadi.controller.workflows import truncate
from nadi.errors import InvalidArgumentError, NadiError, StreamNotFoundError, UnavailableError
from nadi.limits import WATERMARK_PERIOD_S, WATERMARK_STREAMS_A_ROUND, WATERMARK_WRITERS_MAX

log = logging.getLogger(__name__)

_ALL = "any stream"
_TOLD = 1_000  # streams of which it is remembered what is wrong


class WatermarkRounds:
    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self._table = flow.metadata.timed
        self._token = b""  # where the next round goes on
        self._waiting: dict[str, dict[str, tuple[int, int]]] = {}  # stream: writer: its mark's version, since when
        self._told: dict[str, str] = {}  # what is wrong with a stream, so that it isn't said each round

    async def run(self) -> None:
        """Start a round every WATERMARK_PERIOD_S, however long each takes, for ever: of a round that lasts longer
        than that the next follows at once, and the ones missed are not made up for."""
        clock, period_ms = self._flow.clock, int(WATERMARK_PERIOD_S * 1000)
        due_ms = clock.monotonic_ms()
        while True:
            due_ms = max(due_ms + period_ms, clock.monotonic_ms())
            await clock.sleep((due_ms - clock.monotonic_ms()) / 1000)
            try:
                await self.round()
                self._told.pop(_ALL, None)
            except Exception as error:
                self._tell(_ALL, error)

    async def round(self) -> None:
        """Look at the next streams, at most WATERMARK_STREAMS_A_ROUND of them."""
        left = WATERMARK_STREAMS_A_ROUND
        while left > 0:
            found, self._token = await self._table.page(self._token, left)
            if not found:
                self._token = b""
                return
            left -= len(found)
            for key, _ in found:
                scope, stream = key.split("/")
                name = StreamName(scope, stream)
                try:
                    await self._look_at(name)
                    self._told.pop(key, None)
                except UnavailableError:
                    raise  # the store is away, for all streams
                except Exception as error:
                    if await self._flow.metadata.find_stream(name) is not None:  # else it was deleted meanwhile
                        self._tell(key, error)

    def _tell(self, what: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._told.get(what) == text:
            return
        if len(self._told) >= _TOLD:
            self._told.clear()
        self._told[what] = text
        unforeseen = error if not isinstance(error, NadiError) else None
        log.warning("no watermarks are made for %s: %s", what, text, exc_info=unforeseen)

    async def _look_at(self, name: StreamName) -> None:
        metadata = self._flow.metadata
        found = await metadata.find_stream(name)
        table = metadata.marks(name)
        marks = await self._marks(name) if found is not None else {}
        if found is None or not marks:
            await self._strike_off(name)
            return
        stream, history = found.value, await metadata.history(name)
        mark_segment = (await metadata.stream(name.mark)).value.segments[0].id
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
        if verdict.watermark is not None and await mark_stream.add(verdict.watermark, extent) and stream.head:
            await self._trim(name, stream, history, mark_stream, extent, mark_segment)
        for writer in verdict.dropped:
            await table.remove_if(writer, marks[writer].version)
        if len(verdict.dropped) == len(marks):
            await self._strike_off(name)

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
        """No more rounds for the stream, unless a mark was stored before it was struck off."""
        self._waiting.pop(name.key, None)
        await self._table.remove([name.key])
        first, _ = await self._flow.metadata.marks(name).page(count=1)
        if first and await self._flow.metadata.find_stream(name) is not None:
            await self._table.put(name.key, TimedStream(), ANY_VERSION)

    async def _trim(
        self,
        name: StreamName,
        stream: Stream,
        history: History,
        mark_stream: MarkStream,
        extent: Extent,
        mark_segment: int,
    ) -> None:
        """Drop the watermarks that no reader of what the stream still holds can need: all but the last of those
        whose cut lies before the stream's head."""
        last = extent.newest.start if extent.newest is not None else extent.start  # the attribute stands there
        keep = extent.start
        async with aclosing(mark_stream.entries(extent.start, last)) as entries:
            async for entry in entries:
                if not history.is_at_or_after(stream.head, entry.watermark.positions()):
                    break
                keep = entry.start
        if keep > extent.start:
            try:
                await self._flow.run(name.mark, lambda: truncate.begin(self._flow, name.mark, {mark_segment: keep}))
            except StreamNotFoundError:
                pass  # deleted with its stream
