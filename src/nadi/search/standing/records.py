"""The standing queries of a stream, as they are kept in the table `_search` of its scope.

standing/<stream>                           the set: how events are read, and where hits go
standing-progress/<stream>/<id>             see `progress`; id: of the set
standing-query/<stream>/<id>/<name>         a query
standing-past/<stream>/<id>/<group>         how far new queries are that begin in the past
matcher/<stream>/<id>/<matcher>             a matcher that runs, see `sharing`
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.segments.info import what_became_of
from nadi.client.tables.catalog import Catalog, Kind, Record, Unreadable, named, sorted_out
from nadi.client.tables.table import ABSENT, ANY_VERSION
from nadi.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    NotFoundError,
    ProtocolError,
    StreamNotFoundError,
    StreamRemadeError,
)
from nadi.limits import SEARCH_RECORDS_AT_ONCE
from nadi.naming import SEARCH_TABLE, segment_name
from nadi.process.outputs import Outputs
from nadi.search.definition import Definitions
from nadi.search.fields import Field, Format
from nadi.search.missing import NoStandingQueriesError
from nadi.search.standing.hits import Matched
from nadi.search.standing.progress import Progress
from nadi.wire import commands as wire
from nadi.wire.fields import TableEntry, TableKey

_Record = TypeVar("_Record", bound=msgspec.Struct)


class QuerySet(msgspec.Struct, frozen=True):
    """The standing queries of a stream. id: of this set; hits: the stream for them, as `scope/stream`."""

    stream: str
    id: str
    format: Format
    fields: tuple[Field, ...]
    hits: str
    created_ms: int
    is_stopped: bool = False


class StandingQuery(msgspec.Struct, frozen=True):
    """name: the key of its hits; text: what is asked; group: with which it joined; since: the cut, as text, from which
    on events count, or "" for those that come after it was added."""

    name: str
    id: str
    text: str
    group: str
    since: str
    created_ms: int


class Past(msgspec.Struct, frozen=True):
    """How far a group of new queries is: a cut, as text."""

    reached: str


class Kept(NamedTuple):
    """A query, and the version of its record."""

    query: StandingQuery
    version: int


class Records:
    """Of one set."""

    def __init__(self, definitions: Definitions, found: QuerySet, manager: StreamManager) -> None:
        self.definitions, self.found = definitions, found
        self._manager, self._stores = manager, stores_of(manager)
        self._own = f"{found.stream}/{found.id}"
        scope, stream = definitions.scope, found.stream
        self._kind: Kind[StandingQuery] = Kind(
            "the standing query",
            f"{scope}/{stream}",
            f"remove it: `nadi search standing remove {scope} {stream} {{}}`".format,
            lambda name: NotFoundError(f"{scope}/{stream} has no standing query {name!r}"),
            lambda name, value: named(msgspec.msgpack.decode(value, type=StandingQuery), "name", name),
            msgspec.msgpack.encode,
            f"standing-query/{self._own}/",
        )

    @property
    def matcher_keys(self) -> str:
        """How the keys of its matchers begin."""
        return f"matcher/{self._own}/"

    def progress(self) -> Record[Progress]:
        return Record(self.definitions.table, self._kind_of(Progress, "standing-progress/"), self._own, waits=True)

    def past(self, group: str) -> Record[Past]:
        """How far a group is that is led through the past; there is none if it isn't, or no more."""
        return Record(self.definitions.table, self._kind_of(Past, f"standing-past/{self._own}/"), group)

    def _kind_of(self, kind: type[_Record], prefix: str) -> Kind[_Record]:
        scope, stream = self.definitions.scope, self.found.stream
        return Kind(
            "the progress of the standing queries of",
            scope,
            lambda name: "delete them, and create them again: `nadi search standing delete`",
            lambda name: NoStandingQueriesError(scope, stream),
            lambda name, value: msgspec.msgpack.decode(value, type=kind),
            msgspec.msgpack.encode,
            prefix,
        )

    async def queries(self) -> list[StandingQuery]:
        """All that are kept, in order of their names; also such as aren't added yet, or won't be, or are removed."""
        return [one.query for one in await self.kept()]

    async def kept(self) -> list[Kept]:
        """As `queries`; ProtocolError if one can't be read, for nobody matches without it."""
        found, unreadable = await self.sorted_out()
        for one in unreadable:
            raise ProtocolError(one.problem)
        return found

    async def sorted_out(self) -> tuple[list[Kept], list[Unreadable]]:
        """As `queries`, and those that can't be read."""
        versions: dict[str, int] = {}

        async def entries() -> AsyncIterator[tuple[str, bytes]]:
            async for one in self.definitions.versions(self._kind.prefix.encode()):
                name = one.key.decode(errors="replace")
                versions[name] = one.version
                yield name, one.value

        found, unreadable = await sorted_out(entries(), self._kind)
        return [Kept(query, versions[name]) for name, query in found.items()], unreadable

    async def remove_unreadable(self, names: Iterable[str]) -> None:
        """Remove those that can't be read and have one of these names."""
        unreadable = {one.name for one in (await self.sorted_out())[1]}
        for name in unreadable.intersection(names):
            await self.definitions.table.remove(self._kind.key_of(name))

    async def put(self, queries: Sequence[StandingQuery]) -> None:
        """Store some, `SEARCH_RECORDS_AT_ONCE` at most: all or none. AlreadyExistsError if a name is taken."""
        entries = tuple(TableEntry(self._kind.key_of(one.name), ABSENT, msgspec.msgpack.encode(one)) for one in queries)
        asked = wire.UpdateTableEntries(0, self.definitions.table.segment, "", entries)
        try:
            await self._stores.ask(asked, wire.TableEntriesUpdated, repeat=False)
        except ConditionFailedError:
            known = {one.name for one in await self.queries()}
            name = next((one.name for one in queries if one.name in known), queries[0].name)
            raise AlreadyExistsError("a standing query", name) from None

    async def forget(self, kept: Sequence[Kept]) -> None:
        """Remove records, but none that another has put there instead."""
        for first in range(0, len(kept), SEARCH_RECORDS_AT_ONCE):
            some = kept[first : first + SEARCH_RECORDS_AT_ONCE]
            try:
                await self._remove([TableKey(self._kind.key_of(one.query.name), one.version) for one in some])
            except ConditionFailedError:  # one is gone, or another's
                for one in some:
                    with suppress(ConditionFailedError):
                        await self._remove([TableKey(self._kind.key_of(one.query.name), one.version)])

    async def _remove(self, keys: Sequence[TableKey]) -> None:
        asked = wire.RemoveTableKeys(0, self.definitions.table.segment, "", tuple(keys))
        repeat = all(key.version == ANY_VERSION for key in keys)
        await self._stores.ask(asked, wire.TableKeysRemoved, repeat=repeat)

    async def drop(self) -> None:
        """Remove all but the set itself."""
        await self.progress().delete()
        for prefix in (f"standing-query/{self._own}/".encode(), f"standing-past/{self._own}/".encode()):
            keys = [TableKey(prefix + one.key, ANY_VERSION) async for one in self.definitions.versions(prefix)]
            for first in range(0, len(keys), SEARCH_RECORDS_AT_ONCE):
                await self._remove(keys[first : first + SEARCH_RECORDS_AT_ONCE])

    def outputs(self, part: str) -> Outputs:
        """For hits. part: "live" for the live stream, or a group that catches up: each counts its own."""
        scope, stream = self.definitions.scope, self.found.stream
        return Outputs(self._manager, scope, stream, self.found.hits, f"{self.found.id}/{part}")

    async def write(self, outputs: Outputs, matched: Sequence[Matched]) -> None:
        """Store hits; NotFoundError if there is no stream for them."""
        try:
            await outputs.write({one.segment_id: one.hits for one in matched})
        except StreamNotFoundError as error:
            raise NotFoundError(
                f"the stream for hits, {self.found.hits}, is gone: make it again, and start the matcher again"
            ) from error

    async def check_stream(self, progress: Progress) -> None:
        """StreamRemadeError if the stream was deleted, and made anew under its name, since the set was made."""
        scope, stream = self.definitions.scope, self.found.stream
        error = await what_became_of(self._stores, segment_name(scope, stream, max(progress.places)))
        if isinstance(error, StreamRemadeError):
            raise StreamRemadeError(
                scope,
                stream,
                f"its standing queries are the old one's. Delete them (`nadi search standing delete {scope} {stream}`; "
                "their hits stay), and make a set for the new one",
            )


def sets_of(definitions: Definitions) -> Catalog[QuerySet]:
    """The sets of a scope, by their streams."""
    scope = definitions.scope
    kind = Kind(
        "the set of standing queries of",
        scope,
        f"delete it: `nadi search standing delete {scope} {{}}`".format,
        partial(NoStandingQueriesError, scope),
        lambda name, value: named(msgspec.msgpack.decode(value, type=QuerySet), "stream", name),
        msgspec.msgpack.encode,
        "standing/",
    )
    return Catalog(definitions.stores, scope, SEARCH_TABLE, kind)


async def drop_unreadable(definitions: Definitions, stream: str) -> None:
    """Remove a set that can't be read, with all that belongs to the stream's sets."""
    for kind in ("standing-progress", "standing-query", "standing-past", "matcher"):
        await definitions.forget_all(f"{kind}/{stream}/")
    await sets_of(definitions).delete(stream)
