"""A matcher: follows its segments, and writes the hits of what comes, until it is told to stop. See `progress`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress

from nadi.backoff import Backoff
from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.segments.info import following, what_became_of
from nadi.errors import (
    ClosedError,
    DamagedDataError,
    NadiError,
    NotFoundError,
    SegmentNotFoundError,
    StreamRemadeError,
    TruncatedError,
    UnavailableError,
)
from nadi.limits import SEARCH_BATCH_EVENTS, SEARCH_BEAT_S, SEARCH_MATCH_BYTES, SEARCH_MATCH_S
from nadi.model.event import EventBlock
from nadi.naming import segment_name
from nadi.runtime import REAL
from nadi.search.following import Followed, Follower, gap_end
from nadi.search.missing import NoStandingQueriesError
from nadi.search.shards.manifest import OvertakenError, Reach
from nadi.search.sharing import Sharing
from nadi.search.standing.hits import HitWriters, Matched, match
from nadi.search.standing.past import Pasts
from nadi.search.standing.progress import NO_COUNTS, Batch, Counts, HeldError, Place, Progress
from nadi.search.standing.records import Records
from nadi.search.standing.versions import Versions

OnStep = Callable[[str], None]
_HELD_S = 0.02  # how often it is looked whether the past of new queries is done


class LiveMatcher:
    """on_step: called with the name of each step of a batch: "begun", "written", "done"."""

    def __init__(self, manager: StreamManager, records: Records, *, on_step: OnStep = lambda step: None) -> None:
        self._records, self._set = records, records.found
        self._stores, self._scope, self._stream = stores_of(manager), records.definitions.scope, records.found.stream
        self._log = logging.getLogger(f"nadi.search.standing.{self._scope}.{self._stream}")
        self._changes = records.progress()
        self._sharing = Sharing(records.definitions, records.matcher_keys)
        self._follower = Follower(self._stores, self._scope, self._stream)
        self._versions = Versions(records)
        own = (self._scope, self._stream, self._set.id, self._set.hits)
        self._writers = HitWriters(manager, *own, "live")
        self._pasts = Pasts(manager, records, self._changes, self._sharing, self._versions, self._log)
        self._on_step = on_step
        self._done: list[Batch] = []  # whose hits are written
        self._counts = NO_COUNTS
        self._events = 0
        self._since = time.monotonic()
        self._error = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, or the set was stopped or dropped; or until all of a sealed stream is matched.

        StreamRemadeError if the stream isn't the one that the set was made for; NotFoundError if that for hits is gone.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._start()
            tasks += map(asyncio.create_task, (self._work(stop), self._beat(stop), self._pasts.run(stop), _set(stop)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            for task in done:
                await task
            await tasks[0]  # the last batch
        except NoStandingQueriesError as error:
            self._log.info("its matcher ends: %s", error)
        except StreamRemadeError:
            await self._records.check_stream(self._changes.newest)  # says what to do
            raise
        finally:
            stop.set()
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._follower.close()
            self._writers.close()
            with suppress(NadiError, TimeoutError):  # the others find out
                async with asyncio.timeout(SEARCH_BEAT_S):
                    await self._sharing.leave()

    async def _start(self) -> None:
        await self._records.check_stream(await self._changes.get())
        await self._say()

    async def _work(self, stop: asyncio.Event) -> None:
        backoff = Backoff()
        is_old = False
        while not stop.is_set():
            try:
                if is_old:
                    await self._changes.get()
                    is_old = False
                if not any(not place.is_done for place in self._changes.newest.places.values()):
                    self._log.info("the stream is sealed, and all of it is matched: its matcher ends")
                    return
                await self._follow()
                await self._collect(stop)
                taken = self._follower.taken()
                if taken or self._done:
                    await self._step(taken, stop)
                    backoff = Backoff()
                await self._pass_ends()
            except ClosedError:
                raise
            except (OvertakenError, UnavailableError) as error:
                self._log.info("%s: looking again", error)
                self._done, self._counts = [], NO_COUNTS
                self._follower.follow(())
                is_old = True
                if isinstance(error, UnavailableError):
                    self._error = str(error)
                    await backoff.pause()
        with suppress(OvertakenError):  # another did it, too
            await self._finish()

    async def _follow(self) -> None:
        """Follow what is mine and may be matched; first what one who was killed had begun."""
        found = {place.segment_id: place for place in self._changes.newest.followed}
        own = {batch.segment_id for batch in self._done}
        mine = self._sharing.mine(found)
        for segment in mine:
            if found[segment].is_begun and segment not in own:
                await self._match_again(found[segment])
        newest = {place.segment_id: place for place in self._changes.newest.followed}
        places = [newest[segment] for segment in mine if segment in newest]
        self._follower.follow(Reach(one.segment_id, one.low, one.high, one.end, 0) for one in places)
        self._writers.leave(newest)

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
        await self._changes.change(lambda progress: progress.stepped([batch], [], counts, gaps=gaps))

    def _tell_gap(self, segment: int, at: int, error: NadiError) -> None:
        self._log.warning("a gap in segment %d at %d: %s", segment, at, error)
        self._error = str(error)

    async def _collect(self, stop: asyncio.Event) -> None:
        """Wait until something came, or ended, and a moment more for what comes with it."""
        follower = self._follower
        loop = asyncio.get_running_loop()
        look_at = loop.time() + (_HELD_S if self._done else SEARCH_BEAT_S / 4)
        size, until = 0, 0.0
        while not stop.is_set():
            follower.news.clear()
            size += follower.take(SEARCH_MATCH_BYTES - size, SEARCH_BATCH_EVENTS)
            now = loop.time()
            if size:
                until = until or now + SEARCH_MATCH_S
                if size >= SEARCH_MATCH_BYTES or now >= until:
                    return
            elif now >= look_at or any(True for _ in follower.over()):
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(follower.news.wait(), max((until if size else look_at) - now, 0.001))

    async def _step(self, taken: Sequence[tuple[Followed, list[EventBlock]]], stop: asyncio.Event) -> None:
        begun = [
            Batch(one.reach.segment_id, blocks[0].offset, blocks[-1].offset + blocks[-1].size_bytes)
            for one, blocks in taken
        ]
        done, counts = self._done, self._counts
        progress = await self._begin(begun, done, counts)
        while progress is None:  # held
            await self._finish()
            if stop.is_set():
                return
            await asyncio.sleep(_HELD_S)
            await self._changes.get()
            progress = await self._begin(begun, [], NO_COUNTS)
        self._done, self._counts = [], NO_COUNTS
        if done:
            self._on_step("done")
        if begun:
            self._on_step("begun")
            found = [(one.reach.segment_id, blocks) for one, blocks in taken]
            counts = await self._match(found, progress.version)
            self._on_step("written")
            self._done, self._counts = begun, counts

    async def _begin(self, begun: Sequence[Batch], done: Sequence[Batch], counts: Counts) -> Progress | None:
        """Say that some batches are done and others begun; None while nothing may be begun."""
        try:
            return await self._changes.change(lambda newest: newest.stepped(done, begun, counts))
        except HeldError:
            return None

    async def _finish(self) -> None:
        """Say of the last batch that it is done."""
        done, counts = self._done, self._counts
        self._done, self._counts = [], NO_COUNTS
        if done:
            await self._changes.change(lambda progress: progress.stepped(done, [], counts))

    async def _match(self, found: Sequence[tuple[int, list[EventBlock]]], version: int) -> Counts:
        matcher = await self._versions.matcher(self._changes.newest, version)

        def work() -> list[Matched]:
            made = []
            for segment, blocks in found:
                name = segment_name(self._scope, self._stream, segment)
                made.append(match(matcher, self._set.format, name, segment, blocks))
                self._versions.sample(matcher, blocks)
            return made

        matched = await REAL.in_thread(work)
        await self._writers.write(matched)
        counts = NO_COUNTS
        for one in matched:
            counts = counts.plus(one.counts)
        self._events += counts.events
        return counts

    async def _pass_ends(self) -> None:
        own = {batch.segment_id for batch in self._done}
        for one in self._follower.over():
            if one.reach.segment_id not in own:
                assert one.task is not None
                await one.task  # its error, if it is ours
                await self._pass_end(one, one.reach.segment_id, one.given)

    async def _pass_end(self, one: Followed, segment: int, given: int) -> None:
        to: int | None = None
        if one.error is not None:
            to = gap_end(one.error)
            self._tell_gap(segment, given, one.error)
        if to is None:
            found = await following(self._stores, self._scope, self._stream, segment)
            gaps = int(one.error is not None)
            await self._changes.change(lambda newest: newest.completed(segment, given, found, gaps=gaps))
            self._follower.leave(segment)
            return
        with suppress(HeldError):  # then a little later
            end = to
            await self._changes.change(lambda newest: newest.jumped(segment, given, end))
            self._follower.jump(one, end)

    async def _beat(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), SEARCH_BEAT_S)
            try:
                if await self._pasts.is_stopped():
                    self._log.info("the standing queries were stopped: their matcher ends")
                    return
                await self._say()
                await self._changes.get()
            except NotFoundError:
                raise
            except NadiError as error:
                self._error = str(error)
                self._log.warning("can't say that this matcher is there: %s", error)

    async def _say(self) -> None:
        rate = self._events / max(time.monotonic() - self._since, 1.0)
        mine = len(self._sharing.mine(place.segment_id for place in self._changes.newest.followed))
        await self._sharing.say(self._events, round(rate, 1), mine, self._error)
        await self._sharing.look()


async def _set(stop: asyncio.Event) -> None:
    await stop.wait()
