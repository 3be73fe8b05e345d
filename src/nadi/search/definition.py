"""The definition of an index and its records in the table `_search` of the scope, which is deleted with the scope.

index/<stream>              its definition
manifest/<stream>/<id>      see `shards.manifest`; id: of the index, so that a recreated one starts empty
indexer/<stream>/<id>       a running indexer, see `nadi.process.members`
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec
from msgspec.structs import replace

from nadi.client.aio import SegmentRange, StreamManager, Table
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import segment_ranges
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.catalog import Catalog, CatalogRecord, RecordKind, named, remove_all
from nadi.client.tables.table import value_or_none
from nadi.errors import NotFoundError, PermissionDeniedError, ScopeNotFoundError, StreamNotFoundError
from nadi.model.streamcut import StreamCut
from nadi.naming import SEARCH_TABLE, check_name
from nadi.search.fields import Field, Format
from nadi.search.shards.manifest import IndexId, ShardManifest

REMADE = "the search index is of the old stream. Delete it (`nadi search delete`) and create it again"


class IndexNotFoundError(NotFoundError):
    def __init__(
        self, scope: str, stream: str, why: str = "doesn't have a search index: create one with `nadi search create`"
    ) -> None:
        super().__init__(f"stream {scope}/{stream} {why}")
        self.scope, self.stream = scope, stream


class IndexDefinition(msgspec.Struct, frozen=True):
    """The index of a stream. id: unique, also among earlier indexes of the stream; start: the cut where it starts, as
    text; dead_letters: the stream, as `scope/stream`, for invalid events; is_stopped: its indexers end; is_deleted:
    its deletion has begun, and indexers end."""

    stream: str
    id: IndexId
    format: Format
    fields: tuple[Field, ...]
    url: str
    start: str
    created_ms: int
    dead_letters: str | None = None
    is_stopped: bool = False
    is_deleted: bool = False


class IndexLocation(msgspec.Struct, frozen=True):
    """The part of a definition that locates the index's shards."""

    stream: str
    id: IndexId
    url: str


class Definitions:
    """The indexes of a scope."""

    def __init__(self, manager: StreamManager, scope: str) -> None:
        self.manager, self.scope = manager, check_name("scope", scope)
        self.stores: SegmentStores = stores_of(manager)
        self.table: Table = manager.table(scope, SEARCH_TABLE)
        kind = RecordKind(
            "the search index of",
            scope,
            f"delete the index: `nadi search delete {scope} {{}}`".format,
            partial(IndexNotFoundError, scope),
            lambda name, value: named(msgspec.json.decode(value, type=IndexDefinition), "stream", name),
            prefix="index/",
        )
        self.catalog: Catalog[IndexDefinition] = Catalog(self.stores, scope, SEARCH_TABLE, kind)

    async def get(self, stream: str) -> IndexDefinition:
        """Return the definition of a stream's index; IndexNotFoundError if there is none or it is being deleted."""
        definition = await self.catalog.get(stream)
        if definition.is_deleted:
            raise IndexNotFoundError(self.scope, stream, f"had a search index that {BEING_DROPPED}")
        return definition

    async def cut(self, stream: str, cut_or_name: StreamCut | str) -> StreamCut:
        """Return a stream's cut, checked; text is resolved by `StreamCuts.named`."""
        cuts = self.manager.cuts(self.scope, check_name("stream", stream))
        cut = await cuts.named(cut_or_name) if isinstance(cut_or_name, str) else cut_or_name
        await cuts.check(cut)
        return cut

    @asynccontextmanager
    async def named(self, stream: str) -> AsyncIterator[None]:
        """Replace IndexNotFoundError by ScopeNotFoundError or StreamNotFoundError if that is the cause."""
        try:
            yield
        except IndexNotFoundError as error:
            with suppress(PermissionDeniedError):
                if not await self.stores.controller.scope_exists(self.scope):
                    raise ScopeNotFoundError(self.scope) from error
                if not await self.stores.controller.stream_exists(self.scope, stream):
                    raise StreamNotFoundError(self.scope, stream) from error
            raise

    async def stop(self, stream: str, *, is_stopped: bool) -> IndexDefinition:
        def stopped(definition: IndexDefinition) -> IndexDefinition:
            if definition.is_deleted:
                raise IndexNotFoundError(self.scope, stream)
            return replace(definition, is_stopped=is_stopped)

        return await self.catalog.change(stream, stopped)

    def manifest(self, definition: IndexDefinition) -> CatalogRecord[ShardManifest]:
        """Return the record of an index's manifest; reading it raises IndexNotFoundError if the index was deleted."""
        remedy = f"delete the index, and create it again: `nadi search delete {self.scope} {definition.stream}`"
        kind = RecordKind(
            "the manifest of the search index of",
            self.scope,
            lambda name: remedy,
            lambda name: IndexNotFoundError(self.scope, definition.stream),
            lambda name, value: ShardManifest.decode(value),
            ShardManifest.encode,
            prefix="manifest/",
        )
        return CatalogRecord(self.table, kind, f"{definition.stream}/{definition.id}", waits=True)

    async def location(self, stream: str) -> tuple[IndexLocation | None, int]:
        """Return where the shards of an index with an unreadable definition are, if that part can be read; and its
        version."""
        entry = await value_or_none(self.table, self.catalog.kind.key_of(stream))
        if entry is None:
            raise IndexNotFoundError(self.scope, stream)
        try:
            location = msgspec.json.decode(entry.value, type=IndexLocation)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None, entry.version
        return location if location.stream == stream else None, entry.version

    async def delete_all_with(self, prefix: str) -> None:
        await remove_all(self.stores, self.scope, self.table, prefix.encode())

    async def ranges(self, cut: StreamCut) -> list[SegmentRange]:
        return await segment_ranges(self.stores, self.scope, cut.stream, cut)


BEING_DROPPED = "is partly deleted: repeat `nadi search delete`"


def indexer_keys(definition: IndexDefinition) -> str:
    """Return the key prefix of its indexers' reports."""
    return f"indexer/{definition.stream}/{definition.id}/"


def full_name(scope: str, stream: str) -> str:
    """Return `scope/stream`, given that or a stream of the scope."""
    of, _, name = stream.rpartition("/")
    return f"{check_name('scope', of or scope)}/{check_name('stream', name)}"
