"""New queries that begin in the past: matched with what came before, and then joined to the live stream.

One matcher does it for all. A group of queries is led by a reader of its own, in the stream's order, up to where the
live stream is; that has gone on meanwhile, so again, until it is near. Then the group joins and holds the live stream,
which begins nothing until the rest is done. The reader's position is stored now and then: after a kill the same hits
are made again, and left out by their numbers."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import closing, suppress

from nadi.client.aio import StreamManager
from nadi.errors import DamagedDataError, NadiError, NotFoundError, TruncatedError
from nadi.limits import SEARCH_BEAT_S, SEARCH_NEAR_BYTES
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.runtime import REAL
from nadi.search.changes import Changes
from nadi.search.sharing import Sharing
from nadi.search.standing.hits import HitWriters, match
from nadi.search.standing.matching import Matcher
from nadi.search.standing.progress import Progress
from nadi.search.standing.records import Past, Records, set_of
from nadi.search.standing.versions import Versions

_KEPT_S = 1.0  # how often a position is stored
_ROUNDS = 50  # after which a group joins, however far it is behind


class Pasts:
    def __init__(
        self,
        manager: StreamManager,
        records: Records,
        changes: Changes[Progress],
        sharing: Sharing,
        versions: Versions,
        logger: logging.Logger,
    ) -> None:
        self._manager, self._records, self._changes = manager, records, changes
        self._sharing, self._versions, self._log = sharing, versions, logger
        self._scope, self._stream = records.definitions.scope, records.found.stream

    async def is_stopped(self) -> bool:
        """Whether the set was stopped; NotFoundError if it was dropped."""
        found = await set_of(self._records.definitions, self._stream)
        if found is None or found.id != self._records.found.id:
            raise NotFoundError(f"the standing queries of {self._scope}/{self._stream} were dropped")
        return found.is_stopped

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        while not stop.is_set():
            try:
                if self._sharing.is_first:
                    for group, past in (await self._records.past()).items():
                        await self._catch_up(group, past)
                    await sweep(self._records, self._changes)
            except NotFoundError:
                raise
            except NadiError as error:
                self._log.warning("queries that begin in the past have to wait: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), SEARCH_BEAT_S / 4)

    async def _catch_up(self, group: str, past: Past) -> None:
        found = self._records.found
        writers = HitWriters(self._manager, self._scope, self._stream, found.id, found.hits, group)
        reached = StreamCut.from_text(past.reached)
        cuts = self._manager.cuts(self._scope, self._stream)
        try:
            for turn in range(_ROUNDS + 1):
                progress = await self._changes.look()
                is_last = group in progress.groups
                matcher = await self._versions.group(progress, group)
                target = self._cut(progress)
                if target.positions:
                    if not (await cuts.compare(target, reached)).is_at_or_after:
                        return  # the live stream is to come there first
                    reached = await self._match(group, matcher, reached, target, writers)
                if is_last:
                    await self._changes.change(lambda newest: newest.released(group))
                    await self._records.set_past(group, None)
                    return
                live = self._cut(await self._changes.look())
                is_near = not live.positions or await cuts.bytes_between(reached, live) <= SEARCH_NEAR_BYTES
                if is_near or turn == _ROUNDS - 1:
                    await self._changes.change(lambda newest: _joined(newest, group))
        finally:
            writers.close()

    def _cut(self, progress: Progress) -> StreamCut:
        return StreamCut(self._scope, self._stream, progress.positions())

    async def _match(
        self, group: str, matcher: Matcher, start: StreamCut, end: StreamCut, writers: HitWriters
    ) -> StreamCut:
        """Match what lies between two cuts; where that ends."""
        kept = time.monotonic()
        with closing(await self._manager.create_reader(self._scope, self._stream, start=start, end=end)) as reader:
            while True:
                try:
                    given = await reader.next_block()
                except (TruncatedError, DamagedDataError) as error:
                    self._log.warning("a gap in the past of new queries: %s", error)
                    continue
                if given is None:
                    break
                segment, block = given
                name = segment_name(self._scope, self._stream, segment)
                form = self._records.found.format
                found = await REAL.in_thread(match, matcher, form, name, segment, [block])
                await writers.write([found])
                if time.monotonic() - kept > _KEPT_S:
                    kept = time.monotonic()
                    await self._records.set_past(group, Past(reader.position().as_text()))
        await self._records.set_past(group, Past(end.as_text()))
        return end


def _joined(progress: Progress, group: str) -> Progress | None:
    return None if group in progress.groups else progress.joined(group, is_held=True)


async def sweep(records: Records, changes: Changes[Progress]) -> None:
    """Delete the records of queries that were removed, once no batch needs them."""
    progress = changes.newest
    gone = {one for one, version in progress.removed.items() if version <= progress.least_version}
    if not gone:
        return
    queries = await records.queries()
    left = {one.group for one in queries if one.id not in gone}
    await records.forget([one.name for one in queries if one.id in gone])
    empty = [group for group in progress.groups if group not in left and group not in progress.held]
    await changes.change(lambda newest: newest.forgotten(gone, empty))
