"""A matcher: follows its segments and writes the hits of their events until it is stopped. See `records`. `match` and
`serve_matcher` run one.

Queries that start in the past are first matched with older events by the same code, as a group with a separate progress
record. All workers catch the group up to the live stream's position; the live stream has advanced meanwhile, so this is
repeated until it is near. Then the group joins and holds the live stream, which begins no batch until the group is
done.
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
from nadi.client.segments.info import resolve_missing
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
from nadi.process.worker import BatchLimits, SegmentBatch, StreamWorker
from nadi.runtime import REAL
from nadi.search.definition import Definitions
from nadi.search.fields import InvalidEventError, check_installed
from nadi.search.percolate.query_index import NO_COUNTS, Anchor, MatchCounts, Matcher, Query, SegmentHits, counted
from nadi.search.percolate.records import (
    REMADE,
    BackfillPendingError,
    MatcherProgress,
    MatcherRecords,
    NoStandingQueriesError,
    QuerySet,
    SegmentSpan,
    StandingQuery,
    StartedBatch,
    abandon_old,
    sets_of,
    sweep,
)
from nadi.search.query.bound import bind
from nadi.search.query.parser import parse

_KEPT = 3  # number of versions in memory
_SAMPLED = 2_000  # number of events that are sampled for rare anchors


class Versions:
    def __init__(self, records: MatcherRecords) -> None:
        self._records = records
        self._set: QuerySet = records.query_set
        self._matchers: dict[int, Matcher] = {}
        self._queries: dict[str, Query] = {}  # by id
        self._seen: Counter[Anchor] = Counter()
        self._sampled = 0

    async def matcher(self, progress: MatcherProgress, version: int) -> Matcher:
        """Return the matcher of the version that a batch was begun with, or of the newest."""
        if version not in self._matchers:
            selected = [
                query for query in await self._records.queries() if progress.counts_in(query.id, query.group, version)
            ]
            matcher = await REAL.in_thread(self._matcher, selected)
            self._matchers = {stored: self._matchers[stored] for stored in sorted(self._matchers)[1 - _KEPT :]} | {
                version: matcher
            }
        return self._matchers[version]

    async def group(self, progress: MatcherProgress, group: str) -> Matcher:
        queries = await self._records.queries()
        queries = [query for query in queries if query.group == group and query.id not in progress.removed]
        return await REAL.in_thread(self._matcher, queries)

    def sample(self, matcher: Matcher, blocks: Sequence[EventBlock]) -> None:
        """Count the values of the first events: later matchers choose anchors that are rare among them."""
        if self._sampled >= _SAMPLED:
            return
        for block in blocks:
            for data in block.events()[: _SAMPLED - self._sampled]:
                self._sampled += 1
                try:
                    self._seen += counted([matcher.subject(data)])
                except InvalidEventError:
                    continue
        if self._sampled >= _SAMPLED:
            self._matchers.clear()

    def _matcher(self, queries: Sequence[StandingQuery]) -> Matcher:
        prepared = {query.name: self._query(query) for query in queries}
        if len(self._queries) > 2 * len(queries) + 1_000:
            self._queries = {query.id: self._queries[query.id] for query in queries}
        return Matcher(prepared, self._set.format, self._set.fields, self._seen)

    def _query(self, query: StandingQuery) -> Query:
        if query.id not in self._queries:
            try:
                self._queries[query.id] = Query(bind(parse(query.text).node, self._set.fields))
            except errors.InvalidArgumentError as error:
                raise errors.InvalidArgumentError(f"standing query {query.name}: {error}") from error
        return self._queries[query.id]


_ABANDON_INTERVAL_S = 60.0  # how often abandoned groups are deleted
_ROUNDS = 50  # after which a group joins, whatever its lag
_HELD_S = 0.02  # how often to check whether held groups are done
OnStep = Callable[[str], None]


class Matching(StreamWorker[MatcherProgress]):
    """Matches new events with the queries of a version and writes the hits to `outputs`. on_step: called with the name
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
        self._records, self._set, self._outputs, self._on_step = records, records.query_set, outputs, on_step
        scope, stream = records.definitions.scope, records.query_set.stream
        most = BatchLimits(limits.SEARCH_MATCH_BYTES, limits.SEARCH_BATCH_EVENTS, limits.SEARCH_MATCH_S)
        logger = logging.getLogger(f"nadi.search.percolate.{scope}.{stream}")
        super().__init__(records.definitions.manager, scope, stream, positions, members, most, logger)
        self._versions = Versions(records)
        self._done: list[SegmentSpan] = []  # batches whose hits are written
        self._counts = NO_COUNTS

    async def _matcher(self, version: int) -> Matcher:
        return await self._versions.matcher(self._positions.newest, version)

    def _close(self) -> None:
        self._outputs.close()

    def _unrecorded(self) -> Collection[int]:
        return {batch.segment_id for batch in self._done}

    def _poll_interval_s(self) -> float:
        return _HELD_S if self._done else super()._poll_interval_s()

    async def _discard(self) -> None:
        self._done, self._counts = [], NO_COUNTS

    async def _follow(self) -> None:
        """Follow this worker's segments; first match the unfinished batches of dead workers again."""
        begun, own = self._positions.newest.begun, self._unrecorded()
        for segment in self._members.own_segments(begun):
            if segment not in own:
                await self._match_again(segment, begun[segment])
        await super()._follow()
        self._outputs.keep({reach.segment_id for reach in self._positions.newest.followed})

    async def _pass_gap(self, followed: Followed, error: errors.NadiError) -> None:
        try:
            await super()._pass_gap(followed, error)
        except BackfillPendingError:
            await asyncio.sleep(_HELD_S)  # the caller tries again

    async def _match_again(self, segment: int, begun: StartedBatch) -> None:
        """Match a batch again; count data that is gone meanwhile as a gap."""
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
            except (errors.SegmentNotFoundError, errors.TruncatedError, errors.DamagedDataError) as failure:
                is_gone = isinstance(failure, errors.SegmentNotFoundError)
                error = await resolve_missing(self._stores, name) if is_gone else failure
                to = gap_end(error)
                self._report_gap(segment, at, error)
                at, gaps = batch.end if to is None else to, gaps + 1
        counts = await self._match([(segment, blocks)], begun.version)
        await self._positions.change(lambda progress: progress.stepped([batch], [], counts, gaps=gaps))

    async def _handle(self, batch: Sequence[SegmentBatch], stop: asyncio.Event) -> None:
        begun = [
            SegmentSpan(followed.reach.segment_id, blocks[0].offset, blocks[-1].offset + blocks[-1].size_bytes)
            for followed, blocks in batch
        ]
        while True:
            try:
                progress = await self._step(begun)
                break
            except BackfillPendingError:
                await self._finish()
            if stop.is_set():
                return
            await asyncio.sleep(_HELD_S)
            await self._positions.get()
        if begun:
            self._on_step("begun")
            counts = await self._match(
                [(followed.reach.segment_id, blocks) for followed, blocks in batch], progress.version
            )
            self._on_step("written")
            self._done, self._counts = begun, counts

    async def _step(self, begun: Sequence[SegmentSpan]) -> MatcherProgress:
        """Record that the last batch is done and this one begun. BackfillPendingError while no batch may begin."""
        done, counts = self._done, self._counts
        progress = await self._positions.change(lambda newest: newest.stepped(done, begun, counts))
        await self._discard()
        if done:
            self._on_step("done")
        return progress

    async def _finish(self) -> None:
        if self._done:
            await self._step([])

    async def _match(self, batches: Sequence[tuple[int, Sequence[EventBlock]]], version: int) -> MatchCounts:
        matcher = await self._matcher(version)

        def work() -> list[SegmentHits]:
            matched = []
            for segment, blocks in batches:
                matched.append(matcher.match(segment_name(self._scope, self._stream, segment), segment, blocks))
                self._versions.sample(matcher, blocks)
            return matched

        matched = await REAL.in_thread(work)
        await self._records.write(self._outputs, matched)
        counts = NO_COUNTS
        for result in matched:
            counts = counts.plus(result.counts)
        self._count(counts.events)
        return counts


class BackfillMatcher(Matching):
    """Matches a group with older events, from its `past` record (already read) to the live stream."""

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
        self._target = live.newest  # the live progress that this turn catches up with
        self._group_matcher: Matcher | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, or this or another worker has reached the live stream."""
        try:
            await self._work(stop)
        finally:
            self._follower.close()
            self._close()

    async def _matcher(self, version: int) -> Matcher:
        if self._group_matcher is None:
            self._group_matcher = await self._versions.group(self._target, self._group)
        return self._group_matcher

    def _end(self, reach: SegmentProgress) -> float:
        """Return the live stream's position in a segment: infinity if it is done there, -1 if it hasn't
        started."""
        live = self._target.segments.get(reach.segment_id)
        if live is not None:
            return math.inf if live.is_done else live.reached
        open_ = [segment for segment in self._target.segments.values() if not segment.is_done]
        is_to_come = any(segment.segment_id < reach.segment_id and share_keys(segment, reach) for segment in open_)
        return -1 if is_to_come else math.inf

    def _ends(self) -> dict[int, int]:
        ends = {reach.segment_id: self._end(reach) for reach in self._positions.newest.followed}
        return {segment: int(end) for segment, end in ends.items() if end < math.inf}

    def _poll_interval_s(self) -> float:
        return _HELD_S if self._group in self._target.held else super()._poll_interval_s()

    async def _complete(self, followed: Followed, gaps: int = 0) -> None:
        if followed.source.end is None or gaps:
            await super()._complete(followed, gaps)
        else:  # the target's position, which advances
            self._follower.leave(followed.reach.segment_id)

    async def _is_complete(self) -> bool:
        """Return whether the group has joined. Near the live stream it is held, and matchers wait for it."""
        newest = await self._positions.get()
        if newest.begun or any(reach.reached < self._end(reach) for reach in newest.followed):
            return False
        if self._group in self._target.held:
            await self._live.change(lambda live: live.released(self._group, newest.gaps))
        self._target, self._group_matcher, self._turns = await self._live.get(), None, self._turns + 1
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
            between = await cuts.bytes_between(
                *(StreamCut(self._scope, self._stream, positions) for positions in (own, live))
            )
        except errors.TruncatedError:
            return False  # the next turn skips the gap
        return between <= limits.SEARCH_NEAR_BYTES


class LiveMatcher(Matching):
    """Matches new events, catches new queries up with the past, and deletes records no longer needed."""

    def __init__(self, records: MatcherRecords, *, on_step: OnStep = lambda step: None) -> None:
        definitions = records.definitions
        members = Members(definitions.stores, definitions.scope, SEARCH_TABLE, records.matcher_keys)
        super().__init__(records, records.progress(), members, records.outputs("live"), on_step)
        self._logged_errors: dict[str, str] = {}  # the last error of each group, logged as a warning once

    async def run(self, stop: asyncio.Event) -> None:
        """Work like any worker. StreamRecreatedError if the stream isn't the set's; NotFoundError if the hit stream was
        deleted."""
        try:
            await self._records.check_stream(await self._positions.get())
            await super().run(stop)
        except NoStandingQueriesError as error:
            self._log.info("the matcher ends: %s", error)

    async def _is_complete(self) -> bool:
        return await super()._is_complete() and not self._positions.newest.catching_up

    async def _check(self) -> bool:
        current = await sets_of(self._records.definitions).find(self._stream)
        if current is None or current.id != self._set.id:
            raise NoStandingQueriesError(self._scope, self._stream)
        return not current.is_stopped

    def _background_tasks(self, stop: asyncio.Event) -> Sequence[Coroutine[None, None, None]]:
        return (self._look_after_groups(stop),)

    async def _look_after_groups(self, stop: asyncio.Event) -> None:
        checked = -_ABANDON_INTERVAL_S
        while not stop.is_set():
            try:
                progress = await self._positions.get()
                for group in progress.catching_up:
                    await self._catch_up(group, stop)
                if self._members.is_first:
                    if REAL.monotonic() - checked >= _ABANDON_INTERVAL_S:
                        checked = REAL.monotonic()
                        await abandon_old(self._records, self._positions)
                    await sweep(self._records, self._positions)
            except errors.NotFoundError:
                raise
            except errors.NadiError as error:
                self._log.warning("can't catch up or clean up standing queries; retrying: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), limits.PROCESS_BEAT_S / 4)

    async def _catch_up(self, group: str, stop: asyncio.Event) -> None:
        """Catch a group up; its errors don't affect other groups."""
        try:
            past = self._records.past(group)
            if await past.find() is not None:
                await BackfillMatcher(self._records, group, past, self._positions, self._members).run(stop)
            self._logged_errors.pop(group, None)
        except errors.NotFoundError:
            if group in (await self._positions.get()).catching_up:  # else another worker has finished it
                raise
        except (errors.NadiError, PositionConflictError) as error:
            level = logging.DEBUG if self._logged_errors.get(group) == str(error) else logging.WARNING
            self._logged_errors[group] = str(error)
            self._log.log(level, "can't catch up queries that start in the past; retrying: %s", error)


def match(
    scope: str,
    stream: str,
    controller_uri: str = DEFAULT_URI,
    *,
    credentials: Credentials | None = None,
    trust_store: str | os.PathLike[str] | None = None,
) -> None:
    """Match a stream's events with its standing queries until Ctrl-C, SIGTERM, `stop` or the end of a sealed stream.
    Any number of these may run and share the segments.
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
    """Match with a client of `nadi.client.aio` until `stop` is set; see `match`.

    on_step: called after each step of a batch, see `LiveMatcher`.
    """
    check_installed()
    await until(stop, partial(_serve, manager, scope, stream, on_step))


async def _serve(manager: StreamManager, scope: str, stream: str, on_step: OnStep, stop: asyncio.Event) -> None:
    definitions = Definitions(manager, scope)
    query_set = await sets_of(definitions).change(
        stream, lambda query_set: replace(query_set, is_stopped=False) if query_set.is_stopped else None
    )
    await LiveMatcher(MatcherRecords(definitions, query_set), on_step=on_step).run(stop)
