"""A matcher: follows its segments, and writes the hits of what comes, until it is told to stop. See `records`. `match`
and `serve_matcher` run one.

Queries that begin in the past are matched with what came before by the same code, as a group with a record of progress
of its own. All workers lead it up to where the live stream was; that has gone on meanwhile, so again, until it is near.
Then the group joins and holds the live stream, which begins nothing until the rest is done.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import partial

from msgspec.structs import replace

from nadi import errors, limits
from nadi.client.aio import StreamManager
from nadi.client.control.security import Credentials
from nadi.client.reading.segment_range import read_segment_range
from nadi.client.segments.info import what_became_of
from nadi.client.tables.catalog import CatalogRecord
from nadi.defaults import DEFAULT_URI
from nadi.model.event import EventBlock
from nadi.model.segments import share_keys
from nadi.model.streamcut import StreamCut
from nadi.naming import SEARCH_TABLE, segment_name
from nadi.process.members import Members
from nadi.process.outputs import OutputWriter
from nadi.process.runner import run_program, until
from nadi.process.segment_follower import Followed, PositionConflictError, SegmentProgress, gap_end
from nadi.process.worker import BatchLimits, StreamWorker, Taken
from nadi.runtime import REAL
from nadi.search.definition import Definitions
from nadi.search.fields import UnfitError, check_installed
from nadi.search.percolate.query_index import NO_COUNTS, Anchor, MatchCounts, Matched, Matcher, Query, counted
from nadi.search.percolate.records import (
    REMADE,
    BegunBatch,
    HeldError,
    MatcherProgress,
    MatcherRecords,
    NoStandingQueriesError,
    QuerySet,
    SegmentSpan,
    StandingQuery,
    abandon_old,
    sets_of,
    sweep,
)
from nadi.search.query.bound import bind
from nadi.search.query.parser import parse

_KEPT = 3  # versions
_SAMPLED = 2_000  # events, by which it is known what is rare


class Versions:
    def __init__(self, records: MatcherRecords) -> None:
        self._records = records
        self._set: QuerySet = records.found
        self._made: dict[int, Matcher] = {}
        self._queries: dict[str, Query] = {}  # by id
        self._seen: Counter[Anchor] = Counter()
        self._sampled = 0

    async def matcher(self, progress: MatcherProgress, version: int) -> Matcher:
        """That of a version that a batch was begun with, or of the newest."""
        if version not in self._made:
            wanted = [one for one in await self._records.queries() if progress.has_in(one.id, one.group, version)]
            made = await REAL.in_thread(self._matcher, wanted)
            self._made = {kept: self._made[kept] for kept in sorted(self._made)[1 - _KEPT :]} | {version: made}
        return self._made[version]

    async def group(self, progress: MatcherProgress, group: str) -> Matcher:
        queries = await self._records.queries()
        wanted = [one for one in queries if one.group == group and one.id not in progress.removed]
        return await REAL.in_thread(self._matcher, wanted)

    def sample(self, matcher: Matcher, blocks: Sequence[EventBlock]) -> None:
        """Note what is in some of the first events: the next matchers have anchors that are rare in these."""
        if self._sampled >= _SAMPLED:
            return
        for block in blocks:
            for data in block.events()[: _SAMPLED - self._sampled]:
                self._sampled += 1
                try:
                    self._seen += counted([matcher.subject(data)])
                except UnfitError:
                    continue
        if self._sampled >= _SAMPLED:
            self._made.clear()

    def _matcher(self, wanted: Sequence[StandingQuery]) -> Matcher:
        found = {one.name: self._query(one) for one in wanted}
        if len(self._queries) > 2 * len(wanted) + 1_000:
            self._queries = {one.id: self._queries[one.id] for one in wanted}
        return Matcher(found, self._set.format, self._set.fields, self._seen)

    def _query(self, one: StandingQuery) -> Query:
        if one.id not in self._queries:
            try:
                self._queries[one.id] = Query(bind(parse(one.text).node, self._set.fields))
            except errors.InvalidArgumentError as error:
                raise errors.InvalidArgumentError(f"the standing query {one.name}: {error}") from error
        return self._queries[one.id]


_ABANDONED_LOOK_S = 60.0  # how often it is looked for what others have left
_ROUNDS = 50  # after which a group joins, however far it is behind
_HELD_S = 0.02  # how often it is looked whether the past of new queries is done
OnStep = Callable[[str], None]


class Matching(StreamWorker[MatcherProgress]):
    """Matches what comes with the queries of a version, and writes the hits to `outputs`. on_step: called with the name
    of each step of a batch: "begun", "written", "done"."""

    remedy = REMADE

    def __init__(
        self,
        records: MatcherRecords,
        positions: CatalogRecord[MatcherProgress],
        members: Members,
        outputs: OutputWriter,
        on_step: OnStep = lambda step: None,
    ) -> None:
        self._records, self._set, self._outputs, self._on_step = records, records.found, outputs, on_step
        scope, stream = records.definitions.scope, records.found.stream
        most = BatchLimits(limits.SEARCH_MATCH_BYTES, limits.SEARCH_BATCH_EVENTS, limits.SEARCH_MATCH_S)
        logger = logging.getLogger(f"nadi.search.percolate.{scope}.{stream}")
        super().__init__(records.definitions.manager, scope, stream, positions, members, most, logger)
        self._versions = Versions(records)
        self._done: list[SegmentSpan] = []  # whose hits are written
        self._counts = NO_COUNTS

    async def _matcher(self, version: int) -> Matcher:
        return await self._versions.matcher(self._positions.newest, version)

    def _close(self) -> None:
        self._outputs.close()

    def _in_hand(self) -> Collection[int]:
        return {batch.segment_id for batch in self._done}

    def _look_s(self) -> float:
        return _HELD_S if self._done else super()._look_s()

    async def _forget(self) -> None:
        self._done, self._counts = [], NO_COUNTS

    async def _follow(self) -> None:
        """First match what a worker that was killed had begun."""
        begun, own = self._positions.newest.begun, self._in_hand()
        for segment in self._members.mine(begun):
            if segment not in own:
                await self._match_again(segment, begun[segment])
        await super()._follow()
        self._outputs.keep({reach.segment_id for reach in self._positions.newest.followed})

    async def _pass_gap(self, one: Followed, error: errors.NadiError) -> None:
        try:
            await super()._pass_gap(one, error)
        except HeldError:
            await asyncio.sleep(_HELD_S)  # then a little later

    async def _match_again(self, segment: int, begun: BegunBatch) -> None:
        """What is gone of a batch meanwhile is a gap."""
        name = segment_name(self._scope, self._stream, segment)
        batch = SegmentSpan(segment, begun.start, self._positions.newest.segments[segment].reached)
        blocks: list[EventBlock] = []
        at, gaps = batch.start, 0
        while at < batch.end:
            try:
                async with aclosing(read_segment_range(self._stores, name, at, batch.end)) as reading:
                    async for block in reading:
                        blocks.append(block)
                        at = block.offset + block.size_bytes
                break
            except (errors.SegmentNotFoundError, errors.TruncatedError, errors.DamagedDataError) as found:
                is_gone = isinstance(found, errors.SegmentNotFoundError)
                error = await what_became_of(self._stores, name) if is_gone else found
                to = gap_end(error)
                self._tell_gap(segment, at, error)
                at, gaps = batch.end if to is None else to, gaps + 1
        counts = await self._match([(segment, blocks)], begun.version)
        await self._positions.change(lambda progress: progress.stepped([batch], [], counts, gaps=gaps))

    async def _handle(self, batch: Sequence[Taken], stop: asyncio.Event) -> None:
        begun = [
            SegmentSpan(one.reach.segment_id, blocks[0].offset, blocks[-1].offset + blocks[-1].size_bytes)
            for one, blocks in batch
        ]
        while True:
            try:
                progress = await self._step(begun)
                break
            except HeldError:
                await self._finish()
            if stop.is_set():
                return
            await asyncio.sleep(_HELD_S)
            await self._positions.get()
        if begun:
            self._on_step("begun")
            counts = await self._match([(one.reach.segment_id, blocks) for one, blocks in batch], progress.version)
            self._on_step("written")
            self._done, self._counts = begun, counts

    async def _step(self, begun: Sequence[SegmentSpan]) -> MatcherProgress:
        """Say that the batch before is done and this one begun. HeldError while nothing may be begun."""
        done, counts = self._done, self._counts
        progress = await self._positions.change(lambda newest: newest.stepped(done, begun, counts))
        await self._forget()
        if done:
            self._on_step("done")
        return progress

    async def _finish(self) -> None:
        if self._done:
            await self._step([])

    async def _match(self, found: Sequence[tuple[int, Sequence[EventBlock]]], version: int) -> MatchCounts:
        matcher = await self._matcher(version)

        def work() -> list[Matched]:
            made = []
            for segment, blocks in found:
                made.append(matcher.match(segment_name(self._scope, self._stream, segment), segment, blocks))
                self._versions.sample(matcher, blocks)
            return made

        matched = await REAL.in_thread(work)
        await self._records.write(self._outputs, matched)
        counts = NO_COUNTS
        for one in matched:
            counts = counts.plus(one.counts)
        self._count(counts.events)
        return counts


class PastMatcher(Matching):
    """Leads a group from where `past` says, which was read, to the live stream."""

    def __init__(
        self,
        records: MatcherRecords,
        group: str,
        past: CatalogRecord[MatcherProgress],
        live: CatalogRecord[MatcherProgress],
        members: Members,
    ) -> None:
        super().__init__(records, past, members, records.outputs(group))
        self._group, self._live, self._turns = group, live, 0
        self._target = live.newest  # up to where it goes in this turn
        self._made: Matcher | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, or this or another worker has led it there."""
        try:
            await self._work(stop)
        finally:
            self._follower.close()
            self._close()

    async def _matcher(self, version: int) -> Matcher:
        if self._made is None:
            self._made = await self._versions.group(self._target, self._group)
        return self._made

    def _end(self, reach: SegmentProgress) -> float:
        """Where the live stream is in a segment: infinity if it has left it behind, -1 if it hasn't come to it."""
        there = self._target.segments.get(reach.segment_id)
        if there is not None:
            return math.inf if there.is_done else there.reached
        open_ = [one for one in self._target.segments.values() if not one.is_done]
        is_to_come = any(one.segment_id < reach.segment_id and share_keys(one, reach) for one in open_)
        return -1 if is_to_come else math.inf

    def _ends(self) -> dict[int, int]:
        ends = {reach.segment_id: self._end(reach) for reach in self._positions.newest.followed}
        return {segment: int(end) for segment, end in ends.items() if end < math.inf}

    def _look_s(self) -> float:
        return _HELD_S if self._group in self._target.held else super()._look_s()

    async def _complete(self, one: Followed, gaps: int = 0) -> None:
        if one.source.end is None or gaps:
            await super()._complete(one, gaps)
        else:  # the target, which moves
            self._follower.leave(one.reach.segment_id)

    async def _is_complete(self) -> bool:
        """Once it has come to the target, the live stream may be near: then all wait for the rest."""
        newest = await self._positions.get()
        if newest.begun or any(reach.reached < self._end(reach) for reach in newest.followed):
            return False
        if self._group in self._target.held:
            await self._live.change(lambda live: live.released(self._group, newest.gaps))
        self._target, self._made, self._turns = await self._live.get(), None, self._turns + 1
        if self._group not in self._target.catching_up:
            await self._records.past(self._group).delete()
            return True
        open_ = [reach for reach in newest.segments.values() if not reach.is_done]
        if all(reach.reached <= self._end(reach) for reach in open_) and await self._is_near(newest):
            self._target = await self._live.change(lambda live: live.joined_from_past(self._group))
        return False

    async def _is_near(self, newest: MatcherProgress) -> bool:
        own, live = newest.positions(), self._target.positions()
        if own == live or not live or self._turns >= _ROUNDS:
            return True
        cuts = self._manager.cuts(self._scope, self._stream)
        try:
            between = await cuts.bytes_between(*(StreamCut(self._scope, self._stream, one) for one in (own, live)))
        except errors.TruncatedError:
            return False  # the next turn passes it
        return between <= limits.SEARCH_NEAR_BYTES


class LiveMatcher(Matching):
    """Matches what comes, leads new queries through the past, and removes what nobody needs any more."""

    def __init__(self, records: MatcherRecords, *, on_step: OnStep = lambda step: None) -> None:
        definitions = records.definitions
        members = Members(definitions.stores, definitions.scope, SEARCH_TABLE, records.matcher_keys)
        super().__init__(records, records.progress(), members, records.outputs("live"), on_step)
        self._told: dict[str, str] = {}  # the last error of each group, which is a warning once

    async def run(self, stop: asyncio.Event) -> None:
        """As any worker. StreamRemadeError if the stream isn't the one that the set was made for; NotFoundError if that
        for hits is gone."""
        try:
            await self._records.check_stream(await self._positions.get())
            await super().run(stop)
        except NoStandingQueriesError as error:
            self._log.info("its matcher ends: %s", error)

    async def _is_complete(self) -> bool:
        return await super()._is_complete() and not self._positions.newest.catching_up

    async def _check(self) -> bool:
        found = await sets_of(self._records.definitions).find(self._stream)
        if found is None or found.id != self._set.id:
            raise NoStandingQueriesError(self._scope, self._stream)
        return not found.is_stopped

    def _beside(self, stop: asyncio.Event) -> Sequence[Coroutine[None, None, None]]:
        return (self._look_after_groups(stop),)

    async def _look_after_groups(self, stop: asyncio.Event) -> None:
        looked = -_ABANDONED_LOOK_S
        while not stop.is_set():
            try:
                progress = await self._positions.get()
                for group in progress.catching_up:
                    await self._lead(group, stop)
                if self._members.is_first:
                    if REAL.monotonic() - looked >= _ABANDONED_LOOK_S:
                        looked = REAL.monotonic()
                        await abandon_old(self._records, self._positions)
                    await sweep(self._records, self._positions)
            except errors.NotFoundError:
                raise
            except errors.NadiError as error:
                self._log.warning("what is to be done for standing queries has to wait: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), limits.PROCESS_BEAT_S / 4)

    async def _lead(self, group: str, stop: asyncio.Event) -> None:
        """What one group meets with is not another's."""
        try:
            past = self._records.past(group)
            if await past.find() is not None:
                await PastMatcher(self._records, group, past, self._positions, self._members).run(stop)
            self._told.pop(group, None)
        except errors.NotFoundError:
            if group in (await self._positions.get()).catching_up:  # else another has led it, and removed its record
                raise
        except (errors.NadiError, PositionConflictError) as error:
            level = logging.DEBUG if self._told.get(group) == str(error) else logging.WARNING
            self._told[group] = str(error)
            self._log.log(level, "queries that begin in the past have to wait: %s", error)


def match(
    scope: str,
    stream: str,
    controller_uri: str = DEFAULT_URI,
    *,
    credentials: Credentials | None = None,
    trust_store: str | os.PathLike[str] | None = None,
) -> None:
    """Match a stream's events with its standing queries until Ctrl-C or SIGTERM, or until they are stopped, or all of a
    sealed stream is matched. Any number of these may run: they share the segments.
    """
    run_program(
        lambda manager, stop: serve_matcher(manager, scope, stream, stop=stop), controller_uri, credentials, trust_store
    )


async def serve_matcher(
    manager: StreamManager,
    scope: str,
    stream: str,
    *,
    stop: asyncio.Event | None = None,
    on_step: OnStep = lambda step: None,
) -> None:
    """Match with a client of `nadi.client.aio`, until `stop` is set; see `match`.

    on_step: called after each step of a batch, see `LiveMatcher`.
    """
    check_installed()
    await until(stop, partial(_serve, manager, scope, stream, on_step))


async def _serve(manager: StreamManager, scope: str, stream: str, on_step: OnStep, stop: asyncio.Event) -> None:
    definitions = Definitions(manager, scope)
    found = await sets_of(definitions).change(
        stream, lambda one: replace(one, is_stopped=False) if one.is_stopped else None
    )
    await LiveMatcher(MatcherRecords(definitions, found), on_step=on_step).run(stop)
