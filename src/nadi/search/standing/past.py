"""New queries that begin in the past: matched with what came before, and then joined to the live stream.

One matcher does it for all; where two do so for a moment, the record of a group's position is one's, and the other
lets it go. A group of queries is led by a reader of its own, in the stream's order, up to where the
live stream is; that has gone on meanwhile, so again, until it is near. Then the group joins and holds the live stream,
which begins nothing until the rest is done. The reader's position is stored now and then: after a kill the same hits
are made again, and left out by their numbers."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import closing, suppress

from nadi.client.aio import StreamManager
from nadi.client.tables.catalog import Record
from nadi.errors import DamagedDataError, NadiError, NotFoundError, TruncatedError
from nadi.limits import PROCESS_BEAT_S, PROCESS_GONE_S, SEARCH_NEAR_BYTES
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.process.following import OvertakenError
from nadi.process.members import Members
from nadi.runtime import REAL
from nadi.search.missing import NoStandingQueriesError
from nadi.search.standing.adding import Beats, give_up
from nadi.search.standing.hits import match
from nadi.search.standing.matching import Matcher
from nadi.search.standing.progress import Progress
from nadi.search.standing.records import Past, Records, sets_of
from nadi.search.standing.removing import sweep
from nadi.search.standing.versions import Versions

_KEPT_S = 1.0  # how often a position is stored
_ABANDONED_S = PROCESS_GONE_S * 12  # after which queries that are being added are given up
_ROUNDS = 50  # after which a group joins, however far it is behind


class Pasts:
    def __init__(
        self,
        manager: StreamManager,
        records: Records,
        changes: Record[Progress],
        members: Members,
        versions: Versions,
        logger: logging.Logger,
    ) -> None:
        self._manager, self._records, self._changes = manager, records, changes
        self._members, self._versions, self._log = members, versions, logger
        self._scope, self._stream = records.definitions.scope, records.found.stream
        self._beats = Beats()
        self._told: dict[str, str] = {}  # the last error of each group, which is a warning once

    async def is_stopped(self) -> bool:
        """Whether the set was stopped; NotFoundError if it was dropped."""
        found = await sets_of(self._records.definitions).find(self._stream)
        if found is None or found.id != self._records.found.id:
            raise NoStandingQueriesError(self._scope, self._stream)
        return found.is_stopped

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        while not stop.is_set():
            try:
                if self._members.is_first:
                    progress = await self._changes.get()
                    for group in progress.catching_up:
                        await self._lead(group)
                    for group in self._beats.silent_for(progress, _ABANDONED_S):
                        await give_up(self._records, self._changes, group)
                    await sweep(self._records, self._changes)
            except NotFoundError:
                raise
            except NadiError as error:
                self._log.warning("what is to be done for standing queries has to wait: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), PROCESS_BEAT_S / 4)

    async def _lead(self, group: str) -> None:
        """What one group meets with is not another's."""
        try:
            past = self._records.past(group)
            if await past.find() is not None:
                await _Lead(self, group, past).run()
            self._told.pop(group, None)
        except NotFoundError:
            raise
        except (NadiError, OvertakenError) as error:
            level = logging.DEBUG if self._told.get(group) == str(error) else logging.WARNING
            self._told[group] = str(error)
            self._log.log(level, "queries that begin in the past have to wait: %s", error)


class _Lead:
    """A group on its way, from where `past` says, which was read."""

    def __init__(self, pasts: Pasts, group: str, past: Record[Past]) -> None:
        self._manager, self._records, self._changes = pasts._manager, pasts._records, pasts._changes
        self._versions, self._log = pasts._versions, pasts._log
        self._scope, self._stream = pasts._scope, pasts._stream
        self._cuts = self._manager.cuts(self._scope, self._stream)
        self._outputs = self._records.outputs(group)
        self._group, self._past, self._reached = group, past, StreamCut.from_text(past.newest.reached)

    async def run(self) -> None:
        """Lead it on; to where all wait for it, it alone decides: once it isn't led or held, another was faster."""
        try:
            for turn in range(_ROUNDS + 1):
                progress = await self._changes.get()
                is_held = self._group in progress.held
                if not is_held and self._group not in progress.led:
                    await self._past.delete()
                    return
                matcher = await self._versions.group(progress, self._group)
                target = self._cut(progress)
                if target.positions:
                    start = await self._start(target, is_held=is_held)
                    if start is None:
                        return  # the live stream is to come there first
                    await self._match(matcher, start, target)
                if is_held:
                    await self._changes.change(lambda newest: newest.released(self._group))
                    await self._past.delete()
                    return
                if await self._is_near(self._cut(await self._changes.get())) or turn >= _ROUNDS - 1:
                    await self._changes.change(lambda newest: _joined(newest, self._group))
        finally:
            self._outputs.close()

    def _cut(self, progress: Progress) -> StreamCut:
        return StreamCut(self._scope, self._stream, progress.positions())

    async def _is_near(self, live: StreamCut) -> bool:
        try:
            return not live.positions or await self._cuts.bytes_between(self._reached, live) <= SEARCH_NEAR_BYTES
        except TruncatedError:
            return False  # the next turn passes it

    async def _start(self, target: StreamCut, *, is_held: bool) -> StreamCut | None:
        """Where to go on, with the target at or after it: where the group is, or, if that was truncated away so long
        ago that its segments are gone, at the head. None while the live stream hasn't come there."""
        try:
            is_there = (await self._cuts.compare(target, self._reached)).is_at_or_after
            return self._reached if is_there else None
        except TruncatedError as error:
            gap = error
        head = await self._cuts.head()
        try:
            if is_held:  # the live stream won't go on before the group has
                found = await self._cuts.earliest(head, target)
            elif (await self._cuts.compare(target, head)).is_at_or_after:
                found = head
            else:
                return None
        except TruncatedError:  # all before the target
            if not is_held:
                return None
            found = target
        await self._tell_gap(gap)
        return found

    async def _tell_gap(self, error: NadiError) -> None:
        self._log.warning("a gap in the past of new queries: %s", error)
        await self._changes.change(lambda newest: newest.stepped([], [], gaps=1))

    async def _match(self, matcher: Matcher, start: StreamCut, end: StreamCut) -> None:
        """Match what lies between two cuts."""
        if start == end:
            await self._keep(end)
            return
        kept = time.monotonic()
        with closing(await self._manager.create_reader(self._scope, self._stream, start=start, end=end)) as reader:
            while True:
                try:
                    given = await reader.next_block()
                except (TruncatedError, DamagedDataError) as error:
                    await self._tell_gap(error)
                    continue
                if given is None:
                    break
                segment, block = given
                name = segment_name(self._scope, self._stream, segment)
                form = self._records.found.format
                found = await REAL.in_thread(match, matcher, form, name, segment, [block])
                await self._records.write(self._outputs, [found])
                if time.monotonic() - kept > _KEPT_S:
                    kept = time.monotonic()
                    await self._keep(reader.position())
        await self._keep(end)

    async def _keep(self, reached: StreamCut) -> None:
        """OvertakenError if another leads the group."""
        if not await self._past.replace(Past(reached.as_text())):
            raise OvertakenError("another matcher leads these queries through the past")
        self._reached = reached


def _joined(progress: Progress, group: str) -> Progress | None:
    return progress.joined(group, is_held=True) if group in progress.led else None
