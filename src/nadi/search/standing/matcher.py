"""A matcher: follows its segments, and writes the hits of what comes, until it is told to stop. See `progress`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import aclosing, suppress

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.segments.info import what_became_of
from nadi.errors import (
    DamagedDataError,
    NadiError,
    SegmentNotFoundError,
    StreamRemadeError,
    TruncatedError,
)
from nadi.limits import SEARCH_BATCH_EVENTS, SEARCH_MATCH_BYTES, SEARCH_MATCH_S
from nadi.model.event import EventBlock
from nadi.naming import SEARCH_TABLE, segment_name
from nadi.process.following import Followed, gap_end
from nadi.process.members import Members
from nadi.process.worker import BatchLimits, Taken, Worker
from nadi.runtime import REAL
from nadi.search.missing import NoStandingQueriesError
from nadi.search.standing.hits import Matched, match
from nadi.search.standing.past import Pasts
from nadi.search.standing.progress import NO_COUNTS, Batch, Counts, HeldError, Place, Progress
from nadi.search.standing.records import Records
from nadi.search.standing.versions import Versions

OnStep = Callable[[str], None]
_HELD_S = 0.02  # how often it is looked whether the past of new queries is done


class LiveMatcher(Worker[Progress]):
    """on_step: called with the name of each step of a batch: "begun", "written", "done"."""

    def __init__(self, manager: StreamManager, records: Records, *, on_step: OnStep = lambda step: None) -> None:
        self._records, self._set = records, records.found
        scope, stream = records.definitions.scope, records.found.stream
        super().__init__(
            manager,
            scope,
            stream,
            records.progress(),
            Members(stores_of(manager), scope, SEARCH_TABLE, records.matcher_keys),
            BatchLimits(SEARCH_MATCH_BYTES, SEARCH_BATCH_EVENTS, SEARCH_MATCH_S),
            logging.getLogger(f"nadi.search.standing.{scope}.{stream}"),
        )
        self._versions = Versions(records)
        self._outputs = records.outputs("live")
        self._pasts = Pasts(manager, records, self._positions, self._members, self._versions, self._log)
        self._on_step = on_step
        self._done: list[Batch] = []  # whose hits are written
        self._counts = NO_COUNTS

    async def run(self, stop: asyncio.Event) -> None:
        """As any worker. StreamRemadeError if the stream isn't the one that the set was made for; NotFoundError if that
        for hits is gone."""
        try:
            await self._records.check_stream(await self._positions.get())
            await super().run(stop)
        except NoStandingQueriesError as error:
            self._log.info("its matcher ends: %s", error)

    def _beside(self, stop: asyncio.Event) -> Sequence[Coroutine[None, None, None]]:
        return (self._pasts.run(stop),)

    async def _failed(self, error: NadiError, tasks: Sequence[asyncio.Task[None]]) -> None:
        if isinstance(error, StreamRemadeError):
            await self._records.check_stream(self._positions.newest)  # says what to do
        raise error

    def _close(self) -> None:
        self._outputs.close()

    async def _check(self) -> bool:
        return not await self._pasts.is_stopped()

    async def _is_complete(self) -> bool:
        return all(place.is_done for place in self._positions.newest.places.values())

    def _in_hand(self) -> Collection[int]:
        return {batch.segment_id for batch in self._done}

    def _look_s(self) -> float:
        return _HELD_S if self._done else super()._look_s()

    async def _forget(self) -> None:
        self._done, self._counts = [], NO_COUNTS

    async def _follow(self) -> None:
        """First match what a worker that was killed had begun."""
        places = {place.segment_id: place for place in self._positions.newest.free}
        own = self._in_hand()
        for segment in self._members.mine(places):
            if places[segment].is_begun and segment not in own:
                await self._match_again(places[segment])
        await super()._follow()
        self._outputs.keep({place.segment_id for place in self._positions.newest.free})

    async def _pass_gap(self, one: Followed, error: NadiError) -> None:
        with suppress(HeldError):  # then a little later
            await super()._pass_gap(one, error)

    async def _match_again(self, place: Place) -> None:
        """What is gone of a batch meanwhile is a gap."""
        name = segment_name(self._scope, self._stream, place.segment_id)
        blocks: list[EventBlock] = []
        at, gaps = place.reached, 0
        while at < place.end:
            try:
                async with aclosing(read_segment_range(self._stores, name, at, place.end)) as reading:
                    async for block in reading:
                        blocks.append(block)
                        at = block.offset + block.size_bytes
                break
            except (SegmentNotFoundError, TruncatedError, DamagedDataError) as found:
                is_gone = isinstance(found, SegmentNotFoundError)
                error = await what_became_of(self._stores, name) if is_gone else found
                to = gap_end(error)
                self._tell_gap(place.segment_id, at, error)
                at, gaps = place.end if to is None else to, gaps + 1
        counts = await self._match([(place.segment_id, blocks)], place.version)
        batch = Batch(place.segment_id, place.reached, place.end)
        await self._positions.change(lambda progress: progress.stepped([batch], [], counts, gaps=gaps))

    async def _handle(self, batch: Sequence[Taken], stop: asyncio.Event) -> None:
        begun = [
            Batch(one.reach.segment_id, blocks[0].offset, blocks[-1].offset + blocks[-1].size_bytes)
            for one, blocks in batch
        ]
        done, counts = self._done, self._counts
        progress = await self._begin(begun, done, counts)
        while progress is None:  # held
            await self._finish()
            if stop.is_set():
                return
            await asyncio.sleep(_HELD_S)
            await self._positions.get()
            progress = await self._begin(begun, [], NO_COUNTS)
        self._done, self._counts = [], NO_COUNTS
        if done:
            self._on_step("done")
        if begun:
            self._on_step("begun")
            found = [(one.reach.segment_id, blocks) for one, blocks in batch]
            counts = await self._match(found, progress.version)
            self._on_step("written")
            self._done, self._counts = begun, counts

    async def _begin(self, begun: Sequence[Batch], done: Sequence[Batch], counts: Counts) -> Progress | None:
        """Say that some batches are done and others begun; None while nothing may be begun."""
        try:
            return await self._positions.change(lambda newest: newest.stepped(done, begun, counts))
        except HeldError:
            return None

    async def _finish(self) -> None:
        """Say of the last batch that it is done."""
        done, counts = self._done, self._counts
        self._done, self._counts = [], NO_COUNTS
        if done:
            await self._positions.change(lambda progress: progress.stepped(done, [], counts))

    async def _match(self, found: Sequence[tuple[int, Sequence[EventBlock]]], version: int) -> Counts:
        matcher = await self._versions.matcher(self._positions.newest, version)

        def work() -> list[Matched]:
            made = []
            for segment, blocks in found:
                name = segment_name(self._scope, self._stream, segment)
                made.append(match(matcher, self._set.format, name, segment, blocks))
                self._versions.sample(matcher, blocks)
            return made

        matched = await REAL.in_thread(work)
        await self._records.write(self._outputs, matched)
        counts = NO_COUNTS
        for one in matched:
            counts = counts.plus(one.counts)
        self._count(counts.events)
        return counts
