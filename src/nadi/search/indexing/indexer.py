"""An indexer: follows its segments, and adds what comes to the index, a shard at a time, until it is told to stop.

What came within a third of a second becomes a shard, and can be found once the manifest has it; while there is much to
read, shards are large. A shard is stored first, then the dead letters, and then the manifest is changed: what a kill
leaves before that is an object that nobody names, and the next indexer makes the same events into another.

One indexer of an index also does the upkeep for all (`Upkeep`): it merges shards, and deletes those that retention has
emptied and what kills and merges leave in the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from nadi.backoff import Backoff
from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.places.arrivals import UNKNOWN, came_by
from nadi.client.segments.info import following
from nadi.client.tables.catalog import Record
from nadi.errors import (
    ClosedError,
    EpochGoneError,
    NadiError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StoreError,
    StreamNotFoundError,
    StreamRemadeError,
    UnavailableError,
)
from nadi.limits import (
    SEARCH_BATCH_BYTES,
    SEARCH_BATCH_EVENTS,
    SEARCH_BEAT_S,
    SEARCH_COMMIT_S,
    SEARCH_GONE_S,
    SEARCH_LOOK_S,
    SEARCH_MERGE_DOCS,
    SEARCH_MERGE_SHARDS,
    SEARCH_ORPHAN_S,
    SEARCH_RETIRED_S,
    SEARCH_SCOPE_S,
    SEARCH_SHARDS,
    SEARCH_TIDY_S,
)
from nadi.model.event import EventBlock
from nadi.model.frontier import Bound
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.runtime import REAL
from nadi.search.definition import Definition, Definitions, indexer_keys
from nadi.search.following import Followed, Follower, gap_end
from nadi.search.indexing.letters import Letters, followed_since
from nadi.search.labelling import delete_if_gone, identity, why_kept
from nadi.search.missing import IndexNotFoundError
from nadi.search.remade import check_same, remade
from nadi.search.shards.building import Built, Stretch, build
from nadi.search.shards.manifest import Manifest, OvertakenError, Shard, Step, joined, to_merge
from nadi.search.shards.merging import merge
from nadi.search.shards.names import made_ms, new_name
from nadi.search.shards.objects import Shards
from nadi.search.shards.packing import check
from nadi.search.sharing import Sharing

_LEAST_MERGED = 8  # as tantivy has it


class Upkeep:
    """`news`: the manifest has another shard. `loose`: one that is stored, or about to be, and not in the manifest."""

    def __init__(
        self,
        manager: StreamManager,
        definitions: Definitions,
        definition: Definition,
        shards: Shards,
        changes: Record[Manifest],
        sharing: Sharing,
        logger: logging.Logger,
    ) -> None:
        self._manager, self._definitions, self._definition = manager, definitions, definition
        self._shards, self._changes, self._sharing, self._log = shards, changes, sharing, logger
        self._lost: set[str] = set()  # shards whose objects are missing or damaged: they stay as they are
        self._left: set[str] = set()  # that may be another's
        self.news = asyncio.Event()
        self.loose: str | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        tidied = -SEARCH_TIDY_S
        while not stop.is_set():
            self.news.clear()
            try:
                if self._sharing.is_first:
                    await self._merge(stop)
                    if REAL.monotonic() - tidied >= SEARCH_TIDY_S:
                        tidied = REAL.monotonic()
                        await self._tidy()
            except OvertakenError as error:
                self._log.info("%s", error)
            except (IndexNotFoundError, StoreError):
                raise
            except NadiError as error:
                self._log.warning("can't look after the shards: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), SEARCH_TIDY_S)

    async def _merge(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            shards = [shard for shard in self._changes.newest.shards if shard.id not in self._lost]
            groups = to_merge(shards, _LEAST_MERGED, SEARCH_MERGE_SHARDS, SEARCH_MERGE_DOCS)
            if not groups:
                return
            objects = [await self._object(shard.id) for shard in groups[-1]]
            if all(data is not None for data in objects):
                await self._merge_all(groups[-1], [data for data in objects if data is not None])

    async def _object(self, shard: str) -> memoryview | None:
        """None: it can't be merged. A query says so, too; what else there is goes on being merged."""
        data = await self._shards.get(shard)
        if data is None:
            if all(one.id != shard for one in (await self._changes.get()).shards):
                raise OvertakenError(f"another has merged or deleted shard {shard}")
            problem = f"the object {shard} of the index is missing in {self._definition.url}"
        else:
            try:
                await REAL.in_thread(check, data, shard)
                return data
            except StoreError as error:
                problem = str(error)
        self._lost.add(shard)
        self._log.error("a shard can't be merged, nor be found in: %s", problem)
        return None

    async def _merge_all(self, group: list[Shard], objects: list[memoryview]) -> None:
        names = [shard.id for shard in group]
        parts = await REAL.in_thread(merge, list(zip(names, objects, strict=True)), self._definition.fields)
        spans = joined(span for shard in group for span in shard.spans)
        made = Shard(new_name(), sum(shard.docs for shard in group), sum(map(len, parts)), spans)
        self.loose = made.id
        await self._shards.put(made.id, parts)
        await self._changes.change(
            lambda manifest: manifest.merged(names, made, REAL.now_ms()),
            lambda manifest: any(one.id == made.id for one in manifest.shards),
        )
        self.loose = None

    async def _tidy(self) -> None:
        await self._delete_truncated()
        before_ms = REAL.now_ms() - SEARCH_RETIRED_S * 1000
        if old := [shard for shard, at in self._changes.newest.retired.items() if at < before_ms]:
            await self._shards.delete(old)
            await self._changes.change(
                lambda manifest: manifest.without_retired(old), lambda manifest: not manifest.retired.keys() & set(old)
            )
        await self._delete_orphans()

    async def _delete_truncated(self) -> None:
        if not self._changes.newest.shards:
            return
        head = await self._manager.cuts(self._definitions.scope, self._definition.stream).head()
        limits = await limits_before(self._definitions, self._changes.newest, head)
        if self._changes.newest.truncated(limits, 0) is not None:
            await self._changes.change(lambda manifest: manifest.truncated(limits, REAL.now_ms()), lambda _: False)

    async def _delete_orphans(self) -> None:
        names = await self._shards.names()
        manifest = await self._changes.get()  # after: what is in neither is nobody's, or new
        known = {shard.id for shard in manifest.shards} | manifest.retired.keys()
        before_ms = REAL.now_ms() - SEARCH_ORPHAN_S * 1000
        orphans = [name for name in names if name not in known and (made_ms(name) or before_ms) < before_ms]
        if not orphans:
            return
        if why := why_kept(await self._shards.labelled(), await identity(self._manager)):
            if not self._left.issuperset(orphans):
                self._log.warning("%d shards that no manifest names stay in their folder, for %s", len(orphans), why)
            self._left.update(orphans)
            return
        await self._shards.delete(orphans)


async def limits_before(definitions: Definitions, manifest: Manifest, cut: StreamCut) -> dict[int, int | None]:
    """By segment of a manifest, the offset before which events lie before a cut; None where all do."""
    bound = Bound(cut.positions, await definitions.ranges(cut))
    return {reach.segment_id: bound.limit(reach.range) for reach in manifest.segments.values()}


_RATE_S = 10.0
OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Taken:
    """What was taken of a segment, in one batch."""

    followed: Followed
    blocks: Sequence[EventBlock]


class Indexer:
    """on_step: called with the name of each step of a batch: "built", "stored", "lettered", "added"."""

    def __init__(
        self,
        manager: StreamManager,
        definitions: Definitions,
        definition: Definition,
        shards: Shards,
        *,
        on_step: OnStep = lambda step: None,
    ) -> None:
        scope = definitions.scope
        self._definitions, self._definition, self._shards = definitions, definition, shards
        self._manager, self._stores, self._scope = manager, stores_of(manager), scope
        self._log = logging.getLogger(f"nadi.search.{scope}.{definition.stream}")
        self._changes = definitions.manifest(definition)
        self._sharing = Sharing(definitions, indexer_keys(definition))
        self._follower = Follower(self._stores, scope, definition.stream)
        self._letters = Letters(manager, scope, definition)
        self._upkeep = Upkeep(manager, definitions, definition, shards, self._changes, self._sharing, self._log)
        self._on_step = on_step
        self._adding: asyncio.Task[None] | None = None
        self._recent: deque[tuple[float, int]] = deque()
        self._events = 0
        self._error = ""
        self._loose: str | None = None  # a shard that is stored, or about to be, and not added yet
        self._is_old = False  # what is known of the manifest

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, or the index was stopped or dropped; or until all of a sealed stream is indexed.
        StreamRemadeError: the stream was deleted, and made anew."""
        await self._changes.get()
        await self._say()
        work = asyncio.create_task(self._work(stop))
        beside = [asyncio.create_task(self._beat(stop)), asyncio.create_task(self._upkeep.run(stop))]
        waiting = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([work, waiting, *beside], return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            for task in done:
                await task
            await work
        except IndexNotFoundError:
            self._log.info("the index was dropped: its indexer ends")
            await self._wait_for([work, *beside])
            await self._delete_loose()
            await self._delete_left(0.0)
        except (StreamNotFoundError, ScopeNotFoundError):
            await self._wait_for([work, *beside])
            await self._delete_left(SEARCH_SCOPE_S)
            raise
        except StreamRemadeError as error:
            raise remade(self._scope, self._definition.stream) from error
        finally:
            stop.set()
            await _ended([work, waiting, *beside])
            self._follower.close()
            self._letters.close()
            await self._sharing.leave()

    async def _wait_for(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        self._upkeep.news.set()
        await asyncio.wait(tasks, timeout=SEARCH_GONE_S)  # as far as they can't be cancelled

    async def _work(self, stop: asyncio.Event) -> None:
        backoff = Backoff()
        try:
            while not stop.is_set():
                try:
                    if await self._is_complete():
                        return
                    self._follow()
                    batch = await self._collect(stop)
                    await self._added()
                    await self._pass_ends({one.followed.reach.segment_id for one in batch})
                    if batch:
                        self._adding = asyncio.create_task(self._add(await self._stretches(batch), batch))
                        self._adding.add_done_callback(lambda _: self._follower.news.set())
                        backoff = Backoff()
                except OvertakenError as error:
                    self._log.info("%s: looking again", error)
                    await self._begin_again()
                except ClosedError:
                    raise
                except UnavailableError as error:
                    self._error = str(error)
                    self._log.warning("the server is away, or slow: %s", error)
                    await backoff.pause()
                    await self._begin_again()
            await self._added()
        except OvertakenError:
            pass  # another has it
        except IndexNotFoundError:
            if self._adding is not None:
                await asyncio.wait([self._adding], timeout=SEARCH_GONE_S)
            raise
        finally:
            await _ended([self._adding] if self._adding is not None else [])

    async def _delete_loose(self) -> None:
        """Shards that were stored, and that no manifest has: whoever drops the index may have looked before."""
        names = [name for name in (self._loose, self._upkeep.loose) if name is not None]
        try:
            await self._shards.delete(names)
        except NadiError as error:
            self._log.warning("can't delete shards %s: %s", ", ".join(names), error)

    async def _delete_left(self, within_s: float) -> None:
        """All shards, if the index went with its scope: nobody drops it then."""
        try:
            if await delete_if_gone(self._manager, self._shards, within_s):
                self._log.info("the index went with its scope: its shards are deleted")
        except NadiError as error:
            self._log.warning("shards may be left behind, which `nadi search clean` deletes: %s", error)

    async def _is_complete(self) -> bool:
        if self._is_old:
            await self._changes.get()
            self._is_old = False
        if self._changes.newest.open:
            return False
        manifest = await self._changes.get()
        if manifest.open or manifest.past:
            return False
        await check_same(self._stores, self._scope, self._definition.stream, manifest.segments)
        return True

    def _follow(self) -> None:
        known = {reach.segment_id: reach for reach in self._changes.newest.open}
        self._follower.follow(known[segment] for segment in self._sharing.mine(known))

    async def _begin_again(self) -> None:
        """Go on where the manifest is, which is looked at before the next segment is followed."""
        adding, self._adding = self._adding, None
        if adding is not None:
            adding.cancel()
            await asyncio.gather(adding, return_exceptions=True)
        self._follower.follow(())
        self._is_old = True

    # --- a batch ------------------------------------------------------------------------------

    async def _collect(self, stop: asyncio.Event) -> list[_Taken]:
        """What came: once some did, a little later; nothing if something ended, or others may be there."""
        loop = asyncio.get_running_loop()
        look_at = loop.time() + SEARCH_LOOK_S
        until: float | None = None
        size = events = 0
        follower = self._follower
        while not stop.is_set():
            follower.news.clear()
            if size < SEARCH_BATCH_BYTES:
                size += follower.take(SEARCH_BATCH_BYTES - size, SEARCH_BATCH_EVENTS)
                until = until if until is not None or not size else loop.time() + SEARCH_COMMIT_S
                events = sum(map(len, (block for one in follower.all() for block in one.taken)))
            is_full = size >= SEARCH_BATCH_BYTES or events >= SEARCH_BATCH_EVENTS
            is_free = self._adding is None or self._adding.done()
            if size and is_free and (is_full or loop.time() >= (until or 0.0)):
                break
            if not size and (loop.time() >= look_at or any(True for _ in follower.over())):
                break
            limit = min(look_at if not size else loop.time() + 1.0, until if until and is_free else loop.time() + 1.0)
            with suppress(TimeoutError):
                await asyncio.wait_for(follower.news.wait(), max(limit - loop.time(), 0.001))
        return [_Taken(*one) for one in follower.taken()]

    async def _stretches(self, batch: Sequence[_Taken]) -> list[Stretch]:
        async def of(one: _Taken) -> Stretch:
            reach = one.followed.reach
            offsets = np.concatenate([block.offsets() for block in one.blocks])
            name = segment_name(self._scope, self._definition.stream, reach.segment_id)
            try:
                came = await came_by(self._stores, name, offsets, one.blocks[-1].offset + one.blocks[-1].size_bytes)
            except SegmentNotFoundError:  # truncated away since it was read: nobody finds these, and their shard goes
                came = np.full(len(offsets), UNKNOWN, np.int64)
            return Stretch(reach.segment_id, one.blocks, came, one.followed.order)

        return list(await asyncio.gather(*map(of, batch)))

    async def _add(self, stretches: Sequence[Stretch], batch: Sequence[_Taken]) -> None:
        built = await REAL.in_thread(build, stretches, self._definition.format, self._definition.fields)
        self._on_step("built")
        shard = await self._stored(built)
        self._on_step("stored")
        await self._write_letters(built)
        self._on_step("lettered")

        def is_added(manifest: Manifest) -> bool:
            if shard is not None:
                return any(one.id == shard.id for one in manifest.shards)
            reached = {reach.segment_id: reach.reached for reach in manifest.open}
            return all(reached.get(step.segment_id) == step.end for step in built.steps)

        def added(manifest: Manifest) -> Manifest:
            unfit = len(built.unfit)
            return manifest.advanced(built.steps, shard, indexed=built.docs, unfit=unfit, having=built.having)

        await self._changes.change(added, is_added)
        self._loose = None
        self._on_step("added")
        for one, step in zip(batch, built.steps, strict=True):
            one.followed.order = step.order
        self._count(built.docs + len(built.unfit))
        self._upkeep.news.set()

    async def _write_letters(self, built: Built) -> None:
        if not built.unfit or not self._letters.are_wanted:
            return
        segments = {one.segment_id for one in built.unfit}
        steps = [step for step in built.steps if step.segment_id in segments]
        said = await self._changes.change(lambda manifest: manifest.lettered(steps))
        origins = {segment: said.segments[segment].origin for segment in segments}
        await self._letters.write(built.unfit, lambda segment: followed_since(origins[segment]))

    async def _stored(self, built: Built) -> Shard | None:
        shard = built.shard(new_name())
        if shard is not None:
            assert built.parts is not None
            self._loose = shard.id
            await self._shards.put(shard.id, built.parts)
        return shard

    async def _added(self) -> None:
        """Wait for the batch before; its error."""
        adding, self._adding = self._adding, None
        if adding is not None:
            await adding
        while len(self._changes.newest.shards) >= SEARCH_SHARDS:  # merging can't keep up
            await asyncio.sleep(SEARCH_LOOK_S)
            await self._changes.get()

    def _count(self, events: int) -> None:
        self._events += events
        now = time.monotonic()
        self._recent.append((now, events))
        while self._recent[0][0] < now - _RATE_S:
            self._recent.popleft()

    # --- ends and gaps ------------------------------------------------------------------------

    async def _pass_ends(self, taken: set[int]) -> None:
        """Of all segments but those of which something was just taken, and isn't added yet."""
        for one in self._follower.over():
            if one.reach.segment_id in taken:
                continue
            assert one.task is not None
            await one.task  # its error, if it is ours
            if one.error is None:
                await self._complete(one)
            else:
                await self._pass_gap(one, one.error)

    async def _complete(self, one: Followed, gaps: int = 0) -> None:
        segment = one.reach.segment_id
        try:
            found = await following(self._stores, self._scope, self._definition.stream, segment)
        except EpochGoneError:
            await self._find_head()
            return
        await self._changes.change(lambda manifest: manifest.completed(segment, one.given, found, gaps=gaps))
        self._follower.leave(segment)

    async def _pass_gap(self, one: Followed, error: NadiError) -> None:
        segment, given = one.reach.segment_id, one.given
        try:
            to = gap_end(error)
        except EpochGoneError:
            await self._find_head()
            return
        self._log.warning("a gap in segment %d at %d: %s", segment, given, error)
        self._error = str(error)
        if to is None:
            await self._complete(one, gaps=1)
            return
        steps = [Step(segment, given, to, one.order)]
        await self._changes.change(lambda manifest: manifest.advanced(steps, None, gaps=1))
        self._follower.jump(one, to)

    async def _find_head(self) -> None:
        """What leads from here to the stream's head is forgotten: go on there."""
        head = await self._manager.cuts(self._scope, self._definition.stream).head()
        found = await self._definitions.reaches(head)
        first = min(head.positions)
        self._log.warning("what follows segments before the stream's head is forgotten: going on there")
        await self._changes.change(
            lambda manifest: manifest.with_found(
                found, [reach.segment_id for reach in manifest.open if reach.segment_id < first]
            )
        )

    # --- beside -------------------------------------------------------------------------------

    async def _beat(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), SEARCH_BEAT_S)
            try:
                definition = await self._definitions.get(self._definition.stream)
                if definition.id != self._definition.id:
                    raise IndexNotFoundError(self._scope, self._definition.stream)
                if definition.is_stopped:
                    self._log.info("the index was stopped: its indexer ends")
                    return
                await self._say()
                await self._changes.get()
            except IndexNotFoundError:
                raise
            except NadiError as error:
                self._error = str(error)
                self._log.warning("can't say that this indexer is there: %s", error)

    async def _say(self) -> None:
        now = time.monotonic()
        lately = [(at, events) for at, events in self._recent if at >= now - _RATE_S]
        rate = sum(events for _, events in lately) / max(now - lately[0][0], 1.0) if lately else 0.0
        mine = len(self._sharing.mine(reach.segment_id for reach in self._changes.newest.open))
        await self._sharing.say(self._events, round(rate, 1), mine, self._error)
        await self._sharing.look()


async def _ended(tasks: Sequence[asyncio.Task[None] | asyncio.Task[bool]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task
