"""The search indexes of a scope: create, list, status, stop, delete, open for queries."""

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
from nadi.limits import SEARCH_DELETE_S
from nadi.model.streamcut import StreamCut
from nadi.naming import SEARCH_TABLE
from nadi.process.members import WorkerInfo, live_members, wait_until_ended
from nadi.process.segment_follower import check_same, measure_lag_bytes, progress_at
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
from nadi.search.objects import encrypt_store, shards_of, url_of
from nadi.search.searching.index_search import Search
from nadi.search.shards.manifest import ShardManifest, new_index


@dataclass(frozen=True, slots=True)
class IndexStatus(Displayed):
    """The progress of an index. indexed: events indexed, including those that retention has deleted since;
    field_counts: number of these with each field, by name; a field in no event may be misspelt. invalid: events that
    don't parse; gaps: number of gaps of truncated or damaged data; shards, size_bytes: in the store; reached: the cut
    before which all is indexed; lag_bytes: from there to the tail, None if unknown; backfill_bytes: left for backfill;
    indexers: reports of the last ten seconds, by this machine's clock."""

    definition: IndexDefinition
    indexed: int
    invalid: int
    field_counts: dict[str, int]
    gaps: int
    shards: int
    size_bytes: int
    reached: StreamCut
    lag_bytes: int | None
    backfill_bytes: int
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
        encrypt: bool = False,
    ) -> IndexDefinition:
        """Define the index of a stream; AlreadyExistsError if it has one. Indexers fill it: `nadi.search.run`.

        fields: `name:kind,name:kind`; a name is a path such as `resource.service.name` or `resource."service.name"`;
        kinds are text, keyword, long, double, date, timestamp_s, timestamp_ms, timestamp_us, timestamp_ns, bool, facet.
        where: a folder, or the URL of a store, for the shards. format: json or text, which has one field. start: the
        cut from which events are indexed, or head, tail, a time, a bookmark. dead_letters: the stream for invalid
        events. encrypt: encrypt the shards with the master key named by NADI_ENCRYPTION_KEY, which indexers and
        searches need, too (docs/encryption.md); `where` must be new, or encrypted.
        """
        definitions, scope = self._definitions, self._definitions.scope
        check_installed()
        parsed_fields = fields_of(fields)
        letters = None if dead_letters is None else full_name(scope, dead_letters)
        if letters == f"{scope}/{stream}":
            raise errors.InvalidArgumentError("the dead-letter stream can't be the indexed stream: name another stream")
        url, form = url_of(where), check_format(format, parsed_fields)
        cut = await definitions.cut(stream, start)
        if letters is not None:
            await definitions.manager.stream_info(*letters.split("/"))
        if encrypt:
            await encrypt_store(url)
        definition = IndexDefinition(
            stream, new_index(), form, parsed_fields, url, cut.as_text(), REAL.now_ms(), letters
        )
        async with shards_of(scope, definition) as shards:
            await shards.sizes()  # fail now if the store can't be used
        manifest = definitions.manifest(definition)
        await definitions.catalog.prepare()
        await manifest.create(ShardManifest.started(await progress_at(definitions.stores, scope, cut)))
        try:
            await definitions.catalog.create(stream, definition)
        except errors.AlreadyExistsError:
            await manifest.delete()
            if (await definitions.catalog.get(stream)).is_deleted:
                name = f"{scope}/{stream}"
                raise errors.ConflictError(f"the old index of {name} {BEING_DROPPED}, then create this one") from None
            raise
        return definition

    async def get(self, stream: str) -> IndexDefinition:
        """Return the definition of a stream's index; IndexNotFoundError if it doesn't exist."""
        async with self._definitions.named(stream):
            return await self._definitions.catalog.get(stream)

    async def list(self) -> list[IndexDefinition]:
        """Return the definitions of the scope's indexes, without unreadable ones."""
        return (await self.list_with_unreadable())[0]

    async def unreadable(self) -> builtins.list[Unreadable]:
        """Return the indexes whose definitions are damaged or of a newer nadi, by stream; they can be deleted."""
        return (await self._definitions.catalog.all())[1]

    async def list_with_unreadable(self) -> tuple[builtins.list[IndexDefinition], builtins.list[Unreadable]]:
        """Return the results of `list` and `unreadable` from one pass over the table."""
        definitions, unreadable = await self._definitions.catalog.all()
        return [*definitions.values()], unreadable

    async def status(self, stream: str) -> IndexStatus:
        """Return the progress of a stream's index. StreamRecreatedError if the stream was recreated since."""
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
            manifest.invalid,
            by_field(definition.fields, manifest.field_counts),
            manifest.gaps,
            len(manifest.shards),
            manifest.size_bytes,
            reached,
            await measure_lag_bytes(self._definitions.manager, reached),
            sum(end - start for _, start, end in manifest.past),
            tuple(await live_members(stores, scope, SEARCH_TABLE, indexer_keys(definition))),
        )

    async def stop(self, stream: str) -> IndexDefinition:
        """Stop a stream's indexers; `nadi.search.run` resumes at their positions."""
        async with self._definitions.named(stream):
            return await self._definitions.stop(stream, is_stopped=True)

    async def delete(self, stream: str, *, keep_objects: bool = False) -> None:
        """Delete a stream's index; the stream stays. Repeat an interrupted call.

        keep_objects: don't delete them, as when their store is lost. StoreError: they can't be deleted now, or their
        location is unknown because the index's definition can't be read.
        """
        definitions = self._definitions
        async with definitions.named(stream):
            try:
                definition = await definitions.catalog.change(stream, lambda current: replace(current, is_deleted=True))
            except errors.ProtocolError as error:
                await self._delete_unreadable(stream, keep_objects=keep_objects, why=error)
                return
        await definitions.manifest(definition).delete()  # its indexers end, and no shard is added after this
        await self._delete_content(None if keep_objects else definition, indexer_keys(definition))
        record = definitions.catalog.record(stream)
        if (current := await record.find()) is not None and current.id == definition.id:
            await record.delete_read()

    async def _delete_unreadable(self, stream: str, *, keep_objects: bool, why: errors.ProtocolError) -> None:
        location, version = await self._definitions.location(stream)
        if location is None and not keep_objects:
            raise errors.StoreError(
                f"{why}. The shards' location is unknown: delete the index but keep its shards with `nadi search "
                f"delete {self._definitions.scope} {stream} --keep-objects`"
            ) from why
        await self._definitions.delete_all_with(f"manifest/{stream}/")  # its indexers end
        await self._delete_content(None if keep_objects else location, f"indexer/{stream}/")
        await self._definitions.table.remove(self._definitions.catalog.kind.key_of(stream), version)

    async def _delete_content(self, location: IndexDefinition | IndexLocation | None, keys: str) -> None:
        """Delete shards unless `place` is None, and the indexers' reports, whose keys begin with `keys`."""
        if location is not None:
            await self._delete_shards(location)  # once before the wait, in case this process is killed
        await wait_until_ended(self._definitions.stores, self._definitions.scope, SEARCH_TABLE, keys, SEARCH_DELETE_S)
        if location is not None:
            await self._delete_shards(location)

    async def open(self, stream: str, *, cache: str | Path | None = None) -> Search:
        """Open a stream's index for queries. cache: a folder for copies of shards on this machine, by default
        NADI_SEARCH_CACHE or the user's cache folder."""
        async with self._definitions.named(stream):
            return Search(self._definitions, await self._definitions.get(stream), cache)

    async def _delete_shards(self, location: IndexDefinition | IndexLocation) -> None:
        try:
            async with shards_of(self._definitions.scope, location) as shards:
                await shards.delete_all()
        except (errors.InvalidArgumentError, errors.StoreError, errors.UnavailableError) as error:
            raise errors.StoreError(
                f"can't delete the shards in {location.url} ({error}). The index can't be used any more: repeat the "
                "deletion when the store is available, or keep the shards with `nadi search delete --keep-objects`"
            ) from error
