"""What one indexer of an index does for all: merges shards, deletes those that retention has emptied, and what kills
and merges leave in the store."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from nadi.client.aio import StreamManager
from nadi.errors import NadiError, StoreError
from nadi.limits import (
    SEARCH_MERGE_DOCS,
    SEARCH_MERGE_SHARDS,
    SEARCH_ORPHAN_S,
    SEARCH_RETIRED_S,
    SEARCH_TIDY_S,
)
from nadi.model.frontier import Bound
from nadi.model.streamcut import StreamCut
from nadi.runtime import REAL
from nadi.search.changes import Changes
from nadi.search.definition import Definition, Definitions
from nadi.search.labelling import identity, why_kept
from nadi.search.missing import IndexNotFoundError
from nadi.search.shards.manifest import Manifest, OvertakenError, Shard, joined, to_merge
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
        changes: Changes[Manifest],
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
            if all(one.id != shard for one in (await self._changes.look()).shards):
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
        manifest = await self._changes.look()  # after: what is in neither is nobody's, or new
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
