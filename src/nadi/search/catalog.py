"""The indexes of a scope: made, listed, looked at, stopped, dropped, opened for queries."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from nadi import errors
from nadi.client.aio import StreamManager, Unreadable
from nadi.client.control.arguments import checked
from nadi.display import Displayed
from nadi.limits import SEARCH_DROP_S
from nadi.model.streamcut import StreamCut
from nadi.naming import SEARCH_TABLE
from nadi.process.members import WorkerInfo, ended, live_members
from nadi.process.segment_follower import behind_bytes, check_same, reaches
from nadi.runtime import REAL
from nadi.search.definition import (
    BEING_DROPPED,
    REMADE,
    Definitions,
    IndexDefinition,
    IndexLocation,
    full_name,
    indexer_keys,
)
from nadi.search.fields import by_field, check_format, check_installed, fields_of
from nadi.search.objects import shards_of, url_of
from nadi.search.searching.index_search import Search
from nadi.search.shards.manifest import ShardManifest, new_index


@dataclass(frozen=True, slots=True)
class IndexStatus(Displayed):
    """How far an index is. indexed: events that can be found, those that retention has deleted since included; having:
    how many of these have each field, by its name; a name that none has may be misspelt. unfit: that didn't parse;
    gaps: places where data was gone or damaged; shards, size_bytes: in the store; reached: the cut before which all is
    indexed; behind_bytes: from there to the tail, None where that can't be told; past_bytes: of the past that is
    indexed by many; indexers: reports of the last ten seconds, by this machine's clock."""

    definition: IndexDefinition
    indexed: int
    unfit: int
    having: dict[str, int]
    gaps: int
    shards: int
    size_bytes: int
    reached: StreamCut
    behind_bytes: int | None
    past_bytes: int
    indexers: tuple[WorkerInfo, ...]


@checked()
class Indexes:
    """The search indexes of a scope's streams."""

    def __init__(self, manager: StreamManager, scope: str) -> None:
        self._definitions = Definitions(manager, scope)

    async def create(
        self,
        stream: str,
        fields: str | Iterable[str],
        *,
        where: str,
        format: str = "json",
        start: StreamCut | str = "head",
        dead_letters: str | None = None,
    ) -> IndexDefinition:
        """Define the index of a stream; AlreadyExistsError if it has one. Indexers fill it: `nadi.search.run`.

        fields: `name:kind,name:kind`; a name is a path, as `resource.service.name` or `resource."service.name"`, and
        kinds are text, keyword, long, double, date, timestamp_s, timestamp_ms, timestamp_us, timestamp_ns, bool, facet.
        where: a folder, or the URL of a store, for its shards. format: json or text, which has one field. start: the
        cut from which on events are indexed, or head, tail, a time, a bookmark. dead_letters: the stream for events
        that don't parse.
        """
        definitions, scope = self._definitions, self._definitions.scope
        check_installed()
        made = fields_of(fields)
        letters = None if dead_letters is None else full_name(scope, dead_letters)
        if letters == f"{scope}/{stream}":
            raise errors.InvalidArgumentError("the dead-letter stream is the index's own: it would never end")
        url, form = url_of(where), check_format(format, made)
        cut = await definitions.cut(stream, start)
        if letters is not None:
            await definitions.manager.stream_info(*letters.split("/"))
        found = IndexDefinition(stream, new_index(), form, made, url, cut.as_text(), REAL.now_ms(), letters)
        async with shards_of(scope, found) as shards:
            await shards.sizes()  # or its error: nothing would ever be indexed there
        manifest = definitions.manifest(found)
        await definitions.catalog.prepare()
        await manifest.create(ShardManifest.started(await reaches(definitions.stores, scope, cut)))
        try:
            await definitions.catalog.create(stream, found)
        except errors.AlreadyExistsError:
            await manifest.delete()
            if (await definitions.catalog.get(stream)).is_dropped:
                name = f"{scope}/{stream}"
                raise errors.ConflictError(
                    f"the index that {name} had {BEING_DROPPED}, and make this one then"
                ) from None
            raise
        return found

    async def get(self, stream: str) -> IndexDefinition:
        """Return the definition of a stream's index; IndexNotFoundError if it has none."""
        async with self._definitions.named(stream):
            return await self._definitions.catalog.get(stream)

    async def list(self) -> list[IndexDefinition]:
        """Return the definitions of all indexes of the scope, without those that `unreadable` tells."""
        return (await self.list_with_unreadable())[0]

    async def unreadable(self) -> builtins.list[Unreadable]:
        """Return the indexes whose definitions are damaged, or of a newer nadi, by their streams; they can be
        dropped."""
        return (await self._definitions.catalog.all())[1]

    async def list_with_unreadable(self) -> tuple[builtins.list[IndexDefinition], builtins.list[Unreadable]]:
        """Return both, what `list` returns and what `unreadable` does, by one walk through the table."""
        definitions, unreadable = await self._definitions.catalog.all()
        return [*definitions.values()], unreadable

    async def status(self, stream: str) -> IndexStatus:
        """Return how far a stream's index is. StreamRemadeError if it is that of an earlier stream of the name."""
        async with self._definitions.named(stream):
            definition = await self._definitions.get(stream)
        scope, stores = self._definitions.scope, self._definitions.stores
        manifest = await self._definitions.manifest(definition).get()
        with suppress(errors.StreamNotFoundError):
            await check_same(stores, scope, stream, manifest.segments, REMADE)
        reached = StreamCut(scope, stream, manifest.positions())
        return IndexStatus(
            definition,
            manifest.indexed,
            manifest.unfit,
            by_field(definition.fields, manifest.having),
            manifest.gaps,
            len(manifest.shards),
            manifest.size_bytes,
            reached,
            await behind_bytes(self._definitions.manager, reached),
            sum(end - start for _, start, end in manifest.past),
            tuple(await live_members(stores, scope, SEARCH_TABLE, indexer_keys(definition))),
        )

    async def stop(self, stream: str) -> IndexDefinition:
        """Have a stream's indexers end; `nadi.search.run` begins again where they were."""
        async with self._definitions.named(stream):
            return await self._definitions.stop(stream, is_stopped=True)

    async def drop(self, stream: str, *, leave_shards: bool = False) -> None:
        """Delete a stream's index; the stream stays. What was begun and killed can be done again.

        leave_shards: don't delete them, as where their store is gone for good. StoreError: they can't be deleted now,
        or nobody knows where they are, for the index's definition can't be read.
        """
        definitions = self._definitions
        async with definitions.named(stream):
            try:
                definition = await definitions.catalog.change(stream, lambda found: replace(found, is_dropped=True))
            except errors.ProtocolError as error:
                await self._drop_unreadable(stream, leave_shards=leave_shards, why=error)
                return
        await definitions.manifest(definition).delete()  # its indexers end, and nobody adds a shard any more
        await self._drop_content(None if leave_shards else definition, indexer_keys(definition))
        record = definitions.catalog.record(stream)
        if (kept := await record.find()) is not None and kept.id == definition.id:
            await record.delete_read()

    async def _drop_unreadable(self, stream: str, *, leave_shards: bool, why: errors.ProtocolError) -> None:
        place, version = await self._definitions.place(stream)
        if place is None and not leave_shards:
            raise errors.StoreError(
                f"{why}. Nor does it say where the shards are: delete the index and keep them, with `nadi search "
                f"delete {self._definitions.scope} {stream} --keep-objects`"
            ) from why
        await self._definitions.forget_all(f"manifest/{stream}/")  # its indexers end, and nobody adds a shard any more
        await self._drop_content(None if leave_shards else place, f"indexer/{stream}/")
        await self._definitions.table.remove(self._definitions.catalog.kind.key_of(stream), version)

    async def _drop_content(self, place: IndexDefinition | IndexLocation | None, keys: str) -> None:
        """Its shards, if they are to be deleted, and what its indexers say of themselves, with keys that begin so."""
        if place is not None:
            await self._delete_shards(place)  # also those of whoever is killed now
        await ended(self._definitions.stores, self._definitions.scope, SEARCH_TABLE, keys, SEARCH_DROP_S)
        if place is not None:
            await self._delete_shards(place)

    async def open(self, stream: str, *, cache: str | Path | None = None) -> Search:
        """Open a stream's index for queries. cache: the folder that keeps its shards on this machine, by default the
        user's cache, or NADI_SEARCH_CACHE."""
        async with self._definitions.named(stream):
            return Search(self._definitions, await self._definitions.get(stream), cache)

    async def _delete_shards(self, place: IndexDefinition | IndexLocation) -> None:
        try:
            async with shards_of(self._definitions.scope, place) as shards:
                await shards.delete_all()
        except (errors.InvalidArgumentError, errors.StoreError, errors.UnavailableError) as error:
            raise errors.StoreError(
                f"the shards in {place.url} can't be deleted ({error}). Nobody can use the index any more: delete "
                "it again once its store is there, or keep them there with `nadi search delete --keep-objects`"
            ) from error
