"""The standing queries of a stream, as they are kept in the table `_search` of its scope.

standing/<stream>                           the set: how events are read, and where hits go
standing-progress/<stream>/<id>             see `progress`; id: of the set
standing-query/<stream>/<id>/<name>/<group>  a query
standing-past/<stream>/<id>/<group>         how far new queries are that begin in the past
matcher/<stream>/<id>/<matcher>             a matcher that runs, see `nadi.process.members`
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.tables.catalog import Catalog, Kind, Record, Unreadable, named
from nadi.errors import (
    NotFoundError,
    ProtocolError,
    StreamNotFoundError,
)
from nadi.naming import SEARCH_TABLE
from nadi.process.following import check_same
from nadi.process.outputs import Outputs
from nadi.search.definition import Definitions, NoStandingQueriesError
from nadi.search.fields import Field, Format
from nadi.search.standing.matching import Matched
from nadi.search.standing.progress import Progress


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

    @property
    def key(self) -> str:
        """Under which it is kept: another of that name may be there, which isn't added, or is removed."""
        return f"{self.name}/{self.group}"


class Records:
    """Of one set."""

    def __init__(self, definitions: Definitions, found: QuerySet, manager: StreamManager) -> None:
        self.definitions, self.found = definitions, found
        self._manager, self._stores = manager, stores_of(manager)
        self._own = f"{found.stream}/{found.id}"
        scope, stream = definitions.scope, found.stream
        kind: Kind[StandingQuery] = Kind(
            "the standing query",
            f"{scope}/{stream}",
            lambda key: f"remove it: `nadi search standing remove {scope} {stream} {key.partition('/')[0]}`",
            lambda name: NotFoundError(f"{scope}/{stream} has no standing query {name!r}"),
            lambda name, value: named(msgspec.msgpack.decode(value, type=StandingQuery), "key", name),
            msgspec.msgpack.encode,
            f"standing-query/{self._own}/",
        )
        self._catalog = Catalog(self._stores, scope, SEARCH_TABLE, kind)

    @property
    def matcher_keys(self) -> str:
        """How the keys of its matchers begin."""
        return f"matcher/{self._own}/"

    def progress(self) -> Record[Progress]:
        return self._progress("standing-progress/", self._own)

    def past(self, group: str) -> Record[Progress]:
        """How far a group is that is led through the past; there is none if it isn't, or no more."""
        return self._progress(f"standing-past/{self._own}/", group)

    def _progress(self, prefix: str, name: str) -> Record[Progress]:
        scope, stream = self.definitions.scope, self.found.stream
        kind = Kind(
            "the progress of the standing queries of",
            scope,
            lambda name: "delete them, and create them again: `nadi search standing delete`",
            lambda name: NoStandingQueriesError(scope, stream),
            lambda name, value: msgspec.msgpack.decode(value, type=Progress),
            msgspec.msgpack.encode,
            prefix,
        )
        return Record(self.definitions.table, kind, name, waits=True)

    async def queries(self) -> list[StandingQuery]:
        """All that are kept, in order of their names; also such as aren't added yet, or won't be, or are removed.
        ProtocolError if one can't be read, for nobody matches without it."""
        found, unreadable = await self.sorted_out()
        for one in unreadable:
            raise ProtocolError(one.problem)
        return found

    async def sorted_out(self) -> tuple[list[StandingQuery], list[Unreadable]]:
        """As `queries`, and those that can't be read."""
        found, unreadable = await self._catalog.all()
        return [*found.values()], unreadable

    async def put(self, queries: Sequence[StandingQuery]) -> None:
        """Store some, `SEARCH_RECORDS_AT_ONCE` at most."""
        await self._catalog.put_all({one.key: one for one in queries})

    async def forget(self, keys: Iterable[str]) -> None:
        """Remove the records of queries."""
        await self._catalog.delete_all(keys)

    async def drop(self) -> None:
        """Remove all but the set itself."""
        await self.progress().delete()
        for kind in ("standing-query", "standing-past"):
            await self.definitions.forget_all(f"{kind}/{self._own}/")

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
        with suppress(StreamNotFoundError):
            await check_same(self._stores, self.definitions.scope, self.found.stream, progress.segments, REMADE)


REMADE = (
    "its standing queries are the old one's. Delete them (`nadi search standing delete`; their hits stay), and make a "
    "set for the new one"
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
