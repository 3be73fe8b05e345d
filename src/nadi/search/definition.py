"""What an index is, and its records: in the table `_search` of the scope, which goes with the scope.

index/<stream>              its definition
manifest/<stream>/<id>      see `shards.manifest`; id: of the index, so that one made anew begins anew
indexer/<stream>/<id>       an indexer that runs, see `sharing`
"""

from __future__ import annotations

import time
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec
from msgspec.structs import replace

from nadi.client.aio import StreamManager, Table
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import segment_ranges
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.catalog import Catalog, Kind, Record, entries_of, named
from nadi.client.tables.table import value_or_none
from nadi.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
    PermissionDeniedError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from nadi.limits import SEARCH_MANIFEST_BYTES, TABLE_VALUE_MAX_BYTES
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import SEARCH_TABLE, check_name
from nadi.process.following import Reach, reaches
from nadi.search.analysis import check_installed
from nadi.search.fields import Field, Format, check_format, fields_of
from nadi.search.missing import IndexNotFoundError
from nadi.search.shards.manifest import Manifest, started
from nadi.search.shards.names import IndexId, new_index
from nadi.search.shards.objects import open_shards, url_of
from nadi.wire.fields import TableEntry


class Definition(msgspec.Struct, frozen=True):
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


class Place(msgspec.Struct, frozen=True):
    """Of a definition, what says where the index's shards are."""

    stream: str
    id: IndexId
    url: str


class Definitions:
    """The indexes of a scope."""

    def __init__(self, manager: StreamManager, scope: str) -> None:
        self._manager, self.scope = manager, check_name("scope", scope)
        self.stores: SegmentStores = stores_of(manager)
        self.table: Table = manager.table(scope, SEARCH_TABLE)
        kind = Kind(
            "the search index of",
            scope,
            f"delete the index: `nadi search delete {scope} {{}}`".format,
            partial(IndexNotFoundError, scope),
            lambda name, value: named(msgspec.json.decode(value, type=Definition), "stream", name),
            prefix="index/",
        )
        self.catalog: Catalog[Definition] = Catalog(self.stores, scope, SEARCH_TABLE, kind)

    async def create(
        self,
        stream: str,
        fields: str | Iterable[str],
        *,
        where: str,
        form: str = "json",
        start: StreamCut | str = "head",
        dead_letters: str | None = None,
    ) -> Definition:
        """Define the index of a stream, from a cut on, or from what `StreamCuts.named` makes one of."""
        check_installed()
        made = fields_of(fields)
        letters = None if dead_letters is None else full_name(self.scope, dead_letters)
        if letters == f"{self.scope}/{stream}":
            raise InvalidArgumentError("the dead-letter stream is the index's own: it would never end")
        url, checked = url_of(where), check_format(form, made)
        cuts = self._manager.cuts(self.scope, check_name("stream", stream))
        cut = await cuts.named(start) if isinstance(start, str) else start
        await cuts.check(cut)
        if letters is not None:
            await self._manager.stream_info(*letters.split("/"))
        now_ms = time.time_ns() // 1_000_000
        found = Definition(stream, new_index(), checked, made, url, cut.as_text(), now_ms, letters)
        shards = await open_shards(found.url, self.scope, stream, found.id)
        try:
            await shards.names()  # or its error: nothing would ever be indexed there
        finally:
            await shards.close()
        manifest = self.manifest(found)
        await self.catalog.prepare()
        await manifest.create(started(await self.reaches(cut)))
        try:
            await self.catalog.create(stream, found)
        except AlreadyExistsError:
            await manifest.delete()
            if (await self.catalog.get(stream)).is_dropped:
                name = f"{self.scope}/{stream}"
                raise ConflictError(f"the index that {name} had {_BEING_DROPPED}, and make this one then") from None
            raise
        return found

    async def get(self, stream: str) -> Definition:
        """IndexNotFoundError if there is none, or only what is left of one."""
        found = await self.catalog.get(stream)
        if found.is_dropped:
            raise IndexNotFoundError(self.scope, stream, f"had a search index that {_BEING_DROPPED}")
        return found

    @asynccontextmanager
    async def named(self, stream: str) -> AsyncIterator[None]:
        """Around what asks for a stream's index: of a stream or a scope that doesn't exist, that is what is to be
        said."""
        try:
            yield
        except IndexNotFoundError as error:
            with suppress(PermissionDeniedError):
                if not await self.stores.controller.scope_exists(self.scope):
                    raise ScopeNotFoundError(self.scope) from error
                if not await self.stores.controller.stream_exists(self.scope, stream):
                    raise StreamNotFoundError(self.scope, stream) from error
            raise

    async def stop(self, stream: str, *, is_stopped: bool) -> Definition:
        """Have its indexers end, or let them run again."""

        def stopped(definition: Definition) -> Definition:
            if definition.is_dropped:
                raise IndexNotFoundError(self.scope, stream)
            return replace(definition, is_stopped=is_stopped)

        return await self.catalog.change(stream, stopped)

    async def mark_dropped(self, stream: str) -> Definition:
        """Have its indexers end, and nobody add a shard any more: what is left of it can be deleted."""

        definition = await self.catalog.change(stream, lambda definition: replace(definition, is_dropped=True))
        await self.manifest(definition).delete()
        return definition

    async def remove(self, definition: Definition) -> None:
        """Forget one that is marked, if it isn't another by now."""
        record = self.catalog.record(definition.stream)
        kept = await record.find()
        if kept is not None and kept.id == definition.id:
            await record.delete_read()

    def manifest(self, definition: Definition) -> Record[Manifest]:
        """Of an index; whoever reads it gets IndexNotFoundError if the index was dropped."""
        kind = Kind(
            "the manifest of the search index of",
            self.scope,
            f"delete the index, and create it again: `nadi search delete {self.scope} {definition.stream}`".format,
            lambda name: IndexNotFoundError(self.scope, definition.stream),
            _manifest_of,
            _packed,
            prefix="manifest/",
        )
        return Record(self.table, kind, f"{definition.stream}/{definition.id}", waits=True)

    async def place(self, stream: str) -> tuple[Place | None, int]:
        """Where the shards are of an index whose definition can't be read, if that much of it can; and its version."""
        held = await value_or_none(self.table, self.catalog.kind.key_of(stream))
        if held is None:
            raise IndexNotFoundError(self.scope, stream)
        try:
            found = msgspec.json.decode(held.value, type=Place)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None, held.version
        return found if found.stream == stream else None, held.version

    async def remove_unreadable(self, stream: str, version: int) -> None:
        """Forget a definition that can't be read; ConditionFailedError if it was changed meanwhile."""
        await self.table.remove(self.catalog.kind.key_of(stream), version)

    async def forget_all(self, prefix: str) -> None:
        """Remove all entries whose keys begin so."""
        for key in [key async for key, _ in self.entries(prefix.encode())]:
            await self.table.remove(prefix.encode() + key)

    async def entries(self, prefix: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """The table's keys that begin so, without that, and their values."""
        async for entry in self.versions(prefix):
            yield entry.key, entry.value

    def versions(self, prefix: bytes) -> AsyncIterator[TableEntry]:
        """The table's entries whose keys begin so, their keys without that."""
        return entries_of(self.stores, self.scope, self.table, prefix)

    async def ranges(self, cut: StreamCut) -> list[SegmentRange]:
        """The key ranges of a cut's segments."""
        return await segment_ranges(self.stores, self.scope, cut.stream, cut)

    async def reaches(self, cut: StreamCut) -> list[Reach]:
        """The segments of a cut, as they are while all before it is indexed."""
        return await reaches(self.stores, self.scope, cut)


_BEING_DROPPED = "is being deleted: finish that with `nadi search delete`"


def indexer_keys(definition: Definition) -> str:
    """How the keys of its indexers begin."""
    return f"indexer/{definition.stream}/{definition.id}/"


def _manifest_of(name: str, value: bytes) -> Manifest:
    try:
        manifest = msgspec.msgpack.decode(zlib.decompressobj().decompress(value, SEARCH_MANIFEST_BYTES), type=Manifest)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not manifest.is_whole:
        raise ValueError("it names segments that it doesn't know: who wrote that?")
    return manifest


def _packed(manifest: Manifest) -> bytes:
    """Spans of many segments in many shards: numbers that are much alike."""
    value = zlib.compress(msgspec.msgpack.encode(manifest), 1)
    if len(value) > TABLE_VALUE_MAX_BYTES:
        raise InvalidArgumentError(
            f"the manifest of the index has {len(value):,} bytes, which is too much: a stream of so many "
            "segments can be indexed only if it keeps fewer"
        )
    return value


def full_name(scope: str, stream: str) -> str:
    """`stream` of that scope, or `scope/stream`, as the latter."""
    of, _, name = stream.rpartition("/")
    return f"{check_name('scope', of or scope)}/{check_name('stream', name)}"
