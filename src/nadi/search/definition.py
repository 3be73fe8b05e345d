"""What an index is, and its records: in the table `_search` of the scope, which goes with the scope.

index/<stream>              its definition
manifest/<stream>/<id>      see `shards.manifest`; id: of the index, so that one made anew begins anew
indexer/<stream>/<id>       an indexer that runs, see `nadi.process.members`
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

REMADE = "the search index is the old one's. Delete it (`nadi search delete`), and create it again for the new one"


class IndexNotFoundError(NotFoundError):
    def __init__(
        self, scope: str, stream: str, why: str = "has no search index (any more): make one with `nadi search create`"
    ) -> None:
        super().__init__(f"stream {scope}/{stream} {why}")
        self.scope, self.stream = scope, stream


class IndexDefinition(msgspec.Struct, frozen=True):
    """The index of a stream. id: of this one, as others may have had its name; start: the text of the cut where it
    begins; dead_letters: the stream, as `scope/stream`, for events that don't parse; is_stopped: its indexers end;
    is_dropped: so do they, and what is left of it is being deleted."""

    stream: str
    id: IndexId
    format: Format
    fields: tuple[Field, ...]
    url: str
    start: str
    created_ms: int
    dead_letters: str | None = None
    is_stopped: bool = False
    is_dropped: bool = False


class IndexLocation(msgspec.Struct, frozen=True):
    """Of a definition, what says where the index's shards are."""

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
        """IndexNotFoundError if there is none, or only what is left of one."""
        found = await self.catalog.get(stream)
        if found.is_dropped:
            raise IndexNotFoundError(self.scope, stream, f"had a search index that {BEING_DROPPED}")
        return found

    async def cut(self, stream: str, given: StreamCut | str) -> StreamCut:
        """A stream's cut, from which to begin; or what `StreamCuts.named` makes one of."""
        cuts = self.manager.cuts(self.scope, check_name("stream", stream))
        cut = await cuts.named(given) if isinstance(given, str) else given
        await cuts.check(cut)
        return cut

    @asynccontextmanager
    async def named(self, stream: str) -> AsyncIterator[None]:
        """Raise ScopeNotFoundError or StreamNotFoundError instead of IndexNotFoundError where that is why."""
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
            if definition.is_dropped:
                raise IndexNotFoundError(self.scope, stream)
            return replace(definition, is_stopped=is_stopped)

        return await self.catalog.change(stream, stopped)

    def manifest(self, definition: IndexDefinition) -> CatalogRecord[ShardManifest]:
        """Of an index; whoever reads it gets IndexNotFoundError if the index was dropped."""
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

    async def place(self, stream: str) -> tuple[IndexLocation | None, int]:
        """Where the shards are of an index whose definition can't be read, if that much of it can; and its version."""
        held = await value_or_none(self.table, self.catalog.kind.key_of(stream))
        if held is None:
            raise IndexNotFoundError(self.scope, stream)
        try:
            found = msgspec.json.decode(held.value, type=IndexLocation)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None, held.version
        return found if found.stream == stream else None, held.version

    async def forget_all(self, prefix: str) -> None:
        await remove_all(self.stores, self.scope, self.table, prefix.encode())

    async def ranges(self, cut: StreamCut) -> list[SegmentRange]:
        return await segment_ranges(self.stores, self.scope, cut.stream, cut)


BEING_DROPPED = "is being deleted: finish that with `nadi search delete`"


def indexer_keys(definition: IndexDefinition) -> str:
    """How the keys of its indexers begin."""
    return f"indexer/{definition.stream}/{definition.id}/"


def full_name(scope: str, stream: str) -> str:
    """`stream` of that scope, or `scope/stream`, as the latter."""
    of, _, name = stream.rpartition("/")
    return f"{check_name('scope', of or scope)}/{check_name('stream', name)}"
