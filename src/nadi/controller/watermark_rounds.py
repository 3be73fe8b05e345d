"""The rounds in which watermarks are made: every few seconds, for the streams whose writers note times.

Which these are is kept in a table, so a restart goes on with them; a stream is struck off when none of its writers is
heeded any more, until one notes a time again. What a round decides (`watermarks`) is carried out by changes that are
conditional on what was read: a writer that notes a time meanwhile is not dropped, and no watermark is stored twice.
So a round that ends half-way, with its controller or for want of the store, leaves the rest to the next one.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

from msgspec.structs import replace

from nadi.controller import truncate
from nadi.controller.history import History
from nadi.controller.mark_stream import Extent, MarkStream
from nadi.controller.metadata import StreamName
from nadi.controller.records import Stream, TimedStream, WriterMark
from nadi.controller.store import ANY_VERSION, Versioned
from nadi.controller.watermarks import judge
from nadi.controller.workflows import Workflows
from nadi.errors import ConditionFailedError, InvalidArgumentError, NadiError, StreamNotFoundError, UnavailableError
from nadi.limits import WATERMARK_PERIOD_S, WATERMARK_STREAMS_A_ROUND, WATERMARK_WRITERS_MAX

log = logging.getLogger(__name__)

_ALL = "any stream"
_TOLD = 1_000  # streams of which it is remembered what is wrong


class WatermarkRounds:
    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self._table = flow.metadata.timed
        self._token = b""  # where the next round goes on
        self._told: dict[str, str] = {}  # what is wrong with a stream, so that it isn't said each round

    async def run(self) -> None:
        """A round every WATERMARK_PERIOD_S, for ever."""
        while True:
            await self._flow.clock.sleep(WATERMARK_PERIOD_S)
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
        now_ms = self._flow.clock.now_ms()
        verdict = judge(
            {writer: mark.value for writer, mark in marks.items()},
            extent.newest.watermark if extent.newest is not None else None,
            history,
            timeout_ms=stream.config.timestamp_aggregation_timeout_ms,
            now_ms=now_ms,
        )
        for writer in verdict.idle:
            await self._set_idle(name, writer, marks[writer], now_ms)
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

    async def _set_idle(self, name: StreamName, writer: str, mark: Versioned[WriterMark], now_ms: int) -> None:
        try:
            idle = replace(mark.value, idle_since_ms=now_ms)
            await self._flow.metadata.marks(name).put(writer, idle, mark.version)
        except ConditionFailedError:
            pass  # it has noted a time meanwhile, or was removed

    async def _strike_off(self, name: StreamName) -> None:
        """No more rounds for the stream, unless a mark was stored before it was struck off."""
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
