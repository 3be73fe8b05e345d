"""An indexer: follows its segments, and adds what comes to the index, a shard at a time, until it is told to stop.

What came within a third of a second becomes a shard, and can be found once the manifest has it; while there is much to
read, shards are large. A shard is stored first, then the dead letters, and then the manifest is changed: what a kill
leaves before that is an object that nobody names, and the next indexer makes the same events into another.

One indexer of an index also looks after the shards for all: it merges shards, and deletes those that retention has
emptied and what kills and merges leave in the store.

Dead letters: events that don't parse, as JSON in a stream, each once: its place in its stream is its number
there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress

import numpy as np

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.places.arrivals import UNKNOWN, came_by
from nadi.errors import (
    NadiError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StoreError,
    StreamNotFoundError,
)
from nadi.limits import (
    PROCESS_GONE_S,
    SEARCH_BATCH_BYTES,
    SEARCH_BATCH_EVENTS,
    SEARCH_COMMIT_S,
    SEARCH_LOOK_S,
    SEARCH_MERGE_DOCS,
    SEARCH_MERGE_SHARDS,
    SEARCH_ORPHAN_S,
    SEARCH_RETIRED_S,
    SEARCH_SCOPE_S,
    SEARCH_SHARDS,
    SEARCH_TIDY_S,
)
from nadi.model.frontier import Bound
from nadi.naming import SEARCH_TABLE, segment_name
from nadi.process.dead_letters import DeadLetter
from nadi.process.following import OvertakenError, check_same
from nadi.process.members import Members
from nadi.process.outputs import Outputs
from nadi.process.worker import BatchLimits, Taken, Worker, ended
from nadi.runtime import REAL
from nadi.search.definition import REMADE, Definition, Definitions, IndexNotFoundError, indexer_keys
from nadi.search.labelling import delete_if_gone, identity, why_kept
from nadi.search.shards.building import Built, Stretch, Unfit, build, merge
from nadi.search.shards.manifest import Manifest, Shard, joined, made_ms, new_name, to_merge
from nadi.search.shards.objects import Shards
from nadi.search.shards.packing import check


def followed_since(origin: int) -> str:
    """The run of letters of a segment that is followed since then."""
    return f"since {origin}" if origin else ""


def part_from(start: int) -> str:
    """That of a part of the past, whose offsets ascend for themselves."""
    return f"from {start}"


def letters_to(manager: StreamManager, scope: str, definition: Definition) -> Outputs | None:
    """What writes events that don't parse to the index's dead-letter stream, if it has one."""
    to = definition.dead_letters
    return None if to is None else Outputs(manager, scope, definition.stream, to, definition.id)


def letters_of(unfit: Iterable[Unfit], scope: str, stream: str) -> list[DeadLetter]:
    return [
        DeadLetter(
            by=f"index {scope}/{stream}",
            segment=segment_name(scope, stream, one.segment_id),
            offset=one.offset,
            reason=one.reason,
            data=one.data,
        )
        for one in unfit
    ]


async def stored(shards: Shards, built: Built, name: str) -> Shard | None:
    """The shard of that name, stored; None if there is nothing to be found in it."""
    shard = built.shard(name)
    if shard is not None:
        assert built.parts is not None
        await shards.put(name, built.parts)
    return shard


_LEAST_MERGED = 8  # as tantivy has it
OnStep = Callable[[str], None]


class Indexer(Worker[Manifest]):
    """on_step: called with the name of each step of a batch: "built", "stored", "lettered", "added"."""

    remedy = REMADE

    def __init__(
        self,
        manager: StreamManager,
        definitions: Definitions,
        definition: Definition,
        shards: Shards,
        *,
        on_step: OnStep = lambda step: None,
    ) -> None:
        scope, stream = definitions.scope, definition.stream
        super().__init__(
            manager,
            scope,
            stream,
            definitions.manifest(definition),
            Members(stores_of(manager), scope, SEARCH_TABLE, indexer_keys(definition)),
            BatchLimits(SEARCH_BATCH_BYTES, SEARCH_BATCH_EVENTS, SEARCH_COMMIT_S),
            logging.getLogger(f"nadi.search.{scope}.{stream}"),
        )
        self._definitions, self._definition, self._shards = definitions, definition, shards
        self._letters = letters_to(manager, scope, definition)
        self._added = asyncio.Event()  # the manifest has another shard
        self._lost: set[str] = set()  # shards whose objects are missing or damaged: they stay as they are
        self._left: set[str] = set()  # that may be another's
        self._on_step = on_step
        self._adding: asyncio.Task[None] | None = None
        self._batch: Sequence[Taken] = ()  # that is being added
        self._loose: set[str] = set()  # shards that are stored, or about to be, and not in the manifest yet

    def _beside(self, stop: asyncio.Event) -> Sequence[Coroutine[None, None, None]]:
        return (self._look_after_shards(stop),)

    async def _failed(self, error: NadiError, tasks: Sequence[asyncio.Task[None]]) -> None:
        if not isinstance(error, IndexNotFoundError | StreamNotFoundError | ScopeNotFoundError):
            await super()._failed(error, tasks)
        self._added.set()
        adding = [self._adding] if self._adding is not None else []
        await asyncio.wait([*tasks, *adding], timeout=PROCESS_GONE_S)  # as far as they can't be cancelled
        if not isinstance(error, IndexNotFoundError):
            await self._delete_left(SEARCH_SCOPE_S)
            raise error
        self._log.info("the index was dropped: its indexer ends")
        try:  # shards that no manifest has: whoever drops the index may have looked before
            await self._shards.delete(list(self._loose))
        except NadiError as failure:
            self._log.warning("can't delete shards %s: %s", ", ".join(self._loose), failure)
        await self._delete_left(0.0)

    def _close(self) -> None:
        if self._letters is not None:
            self._letters.close()

    async def _delete_left(self, within_s: float) -> None:
        """All shards, if the index went with its scope: nobody drops it then."""
        try:
            if await delete_if_gone(self._manager, self._shards, within_s):
                self._log.info("the index went with its scope: its shards are deleted")
        except NadiError as error:
            self._log.warning("shards may be left behind, which `nadi search clean` deletes: %s", error)

    async def _check(self) -> bool:
        definition = await self._definitions.get(self._stream)
        if definition.id != self._definition.id:
            raise IndexNotFoundError(self._scope, self._stream)
        return not definition.is_stopped

    async def _is_complete(self) -> bool:
        if self._positions.newest.followed:
            return False
        manifest = await self._positions.get()
        if manifest.followed or manifest.past:
            return False
        await check_same(self._stores, self._scope, self._stream, manifest.segments, REMADE)
        return True

    # --- a batch ------------------------------------------------------------------------------

    def _look_s(self) -> float:
        return SEARCH_LOOK_S

    def _is_free(self) -> bool:
        return self._adding is None or self._adding.done()

    def _in_hand(self) -> Collection[int]:
        return {one.followed.reach.segment_id for one in self._batch}

    async def _handle(self, batch: Sequence[Taken], stop: asyncio.Event) -> None:
        """Add a batch while the next one comes."""
        await self._finish()
        if not batch:
            return
        self._batch = batch
        self._adding = asyncio.create_task(self._add(await self._stretches(batch), batch))
        self._adding.add_done_callback(lambda _: self._follower.news.set())

    async def _finish(self) -> None:
        """Wait for the batch before; its error."""
        if self._adding is not None:
            await self._adding
        self._adding, self._batch = None, ()
        while len(self._positions.newest.shards) >= SEARCH_SHARDS:  # merging can't keep up
            await asyncio.sleep(SEARCH_LOOK_S)
            await self._positions.get()

    async def _forget(self) -> None:
        adding, self._adding, self._batch = self._adding, None, ()
        if adding is not None:
            await ended([adding])

    async def _stretches(self, batch: Sequence[Taken]) -> list[Stretch]:
        async def of(one: Taken) -> Stretch:
            reach = one.followed.reach
            offsets = np.concatenate([block.offsets() for block in one.blocks])
            name = segment_name(self._scope, self._stream, reach.segment_id)
            try:
                came = await came_by(self._stores, name, offsets, one.blocks[-1].offset + one.blocks[-1].size_bytes)
            except SegmentNotFoundError:  # truncated away since it was read: nobody finds these, and their shard goes
                came = np.full(len(offsets), UNKNOWN, np.int64)
            return Stretch(reach.segment_id, one.blocks, came, one.followed.order)

        return list(await asyncio.gather(*map(of, batch)))

    async def _add(self, stretches: Sequence[Stretch], batch: Sequence[Taken]) -> None:
        built = await REAL.in_thread(build, stretches, self._definition.format, self._definition.fields)
        self._on_step("built")
        name = new_name()
        self._loose.add(name)
        shard = await stored(self._shards, built, name)
        self._on_step("stored")
        await self._write_letters(built)
        self._on_step("lettered")

        def is_added(manifest: Manifest) -> bool:
            if shard is not None:
                return any(one.id == shard.id for one in manifest.shards)
            reached = {reach.segment_id: reach.reached for reach in manifest.followed}
            return all(reached.get(step.segment_id) == step.end for step in built.steps)

        def added(manifest: Manifest) -> Manifest:
            unfit = len(built.unfit)
            return manifest.advanced(built.steps, shard, indexed=built.docs, unfit=unfit, having=built.having)

        await self._positions.change(added, is_added)
        self._loose.discard(name)
        self._on_step("added")
        for one, step in zip(batch, built.steps, strict=True):
            one.followed.order = step.order
        self._count(built.docs + len(built.unfit))
        self._added.set()

    async def _write_letters(self, built: Built) -> None:
        if not built.unfit or self._letters is None:
            return
        segments = {one.segment_id for one in built.unfit}
        steps = [step for step in built.steps if step.segment_id in segments]
        said = await self._positions.change(lambda manifest: manifest.lettered(steps))
        runs = {segment: followed_since(said.segments[segment].origin) for segment in segments}
        await self._letters.set_aside(letters_of(built.unfit, self._scope, self._stream), runs)

    # --- the shards -----------------------------------------------------------------------------

    async def _look_after_shards(self, stop: asyncio.Event) -> None:
        """Until `stop` is set: merge some, and delete what is needed no more."""
        tidied = -SEARCH_TIDY_S
        while not stop.is_set():
            self._added.clear()
            try:
                if self._members.is_first:
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
                await asyncio.wait_for(self._added.wait(), SEARCH_TIDY_S)

    async def _merge(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            shards = [shard for shard in self._positions.newest.shards if shard.id not in self._lost]
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
            if all(one.id != shard for one in (await self._positions.get()).shards):
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
        self._loose.add(made.id)
        await self._shards.put(made.id, parts)
        await self._positions.change(
            lambda manifest: manifest.merged(names, made, REAL.now_ms()),
            lambda manifest: any(one.id == made.id for one in manifest.shards),
        )
        self._loose.discard(made.id)

    async def _tidy(self) -> None:
        await self._delete_truncated()
        before_ms = REAL.now_ms() - SEARCH_RETIRED_S * 1000
        if old := [shard for shard, at in self._positions.newest.retired.items() if at < before_ms]:
            await self._shards.delete(old)
            await self._positions.change(
                lambda manifest: manifest.without_retired(old), lambda manifest: not manifest.retired.keys() & set(old)
            )
        await self._delete_orphans()

    async def _delete_truncated(self) -> None:
        if not self._positions.newest.shards:
            return
        head = await self._manager.cuts(self._definitions.scope, self._definition.stream).head()
        bound = Bound(head.positions, await self._definitions.ranges(head))
        limits = {reach.segment_id: bound.limit(reach.range) for reach in self._positions.newest.segments.values()}
        if self._positions.newest.truncated(limits, 0) is not None:
            await self._positions.change(lambda manifest: manifest.truncated(limits, REAL.now_ms()), lambda _: False)

    async def _delete_orphans(self) -> None:
        names = await self._shards.names()
        manifest = await self._positions.get()  # after: what is in neither is nobody's, or new
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
