"""The standing queries of a stream, as they are kept in the table `_search` of its scope.

standing/<stream>                           the set: how events are read, and where hits go
standing-progress/<stream>/<id>             see `progress`; id: of the set
standing-query/<stream>/<id>/<name>         a query
standing-past/<stream>/<id>/<group>         how far new queries are that begin in the past
matcher/<stream>/<id>/<matcher>             a matcher that runs, see `sharing`
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.tables.table import ABSENT, value_or_none
from nadi.errors import AlreadyExistsError, ConditionFailedError, NotFoundError, ProtocolError
from nadi.limits import SEARCH_RECORDS_AT_ONCE
from nadi.search.changes import Changes
from nadi.search.definition import Definitions
from nadi.search.fields import Field, Format
from nadi.search.standing.progress import Progress
from nadi.wire import commands as wire
from nadi.wire.fields import TableEntry

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


class Records:
    """Of one set."""

    def __init__(self, definitions: Definitions, found: QuerySet, manager: StreamManager) -> None:
        self.definitions, self.found = definitions, found
        self._stores = stores_of(manager)
        self._own = f"{found.stream}/{found.id}"

    @property
    def matcher_keys(self) -> str:
        """How the keys of its matchers begin."""
        return f"matcher/{self._own}/"

    def changes(self) -> Changes[Progress]:
        """Of its progress."""

        async def load() -> tuple[Progress, int]:
            held = await value_or_none(self.definitions.table, self._progress)
            if held is None:
                raise NotFoundError(f"the standing queries of {self.found.stream} were dropped")
            return _decoded(held.value, Progress), held.version

        async def store(progress: Progress, version: int) -> int:
            return await self.definitions.table.put(self._progress, msgspec.msgpack.encode(progress), version)

        return Changes(Progress(), load, store, f"the progress of the standing queries of {self.found.stream}")

    async def begin(self, progress: Progress) -> None:
        """Store the first progress."""
        await self.definitions.table.put(self._progress, msgspec.msgpack.encode(progress), ABSENT)

    async def queries(self) -> list[StandingQuery]:
        """All that are kept, in order of their names."""
        prefix = f"standing-query/{self._own}/".encode()
        return [_decoded(value, StandingQuery) async for _, value in self.definitions.entries(prefix)]

    async def add(self, queries: Sequence[StandingQuery]) -> None:
        """AlreadyExistsError if one of the names is taken; then none of some hundreds is stored, but others may be."""
        for first in range(0, len(queries), SEARCH_RECORDS_AT_ONCE):
            some = queries[first : first + SEARCH_RECORDS_AT_ONCE]
            entries = tuple(TableEntry(self._key(one.name), ABSENT, msgspec.msgpack.encode(one)) for one in some)
            asked = wire.UpdateTableEntries(0, self.definitions.table.segment, "", entries)
            try:
                await self._stores.ask(asked, wire.TableEntriesUpdated, repeat=False)
            except ConditionFailedError:
                known = {one.name for one in await self.queries()}
                name = next((one.name for one in some if one.name in known), some[0].name)
                raise AlreadyExistsError("a standing query", name) from None

    async def forget(self, names: Iterable[str]) -> None:
        for name in names:
            await self.definitions.table.remove(self._key(name))

    async def past(self) -> dict[str, Past]:
        """The groups that are on their way through the past."""
        prefix = f"standing-past/{self._own}/".encode()
        return {key.decode(): _decoded(value, Past) async for key, value in self.definitions.entries(prefix)}

    async def set_past(self, group: str, past: Past | None) -> None:
        key = f"standing-past/{self._own}/{group}".encode()
        if past is None:
            await self.definitions.table.remove(key)
        else:
            await self.definitions.table.put(key, msgspec.msgpack.encode(past))

    async def drop(self) -> None:
        """Remove all but the set itself."""
        await self.forget([one.name for one in await self.queries()])
        for group in await self.past():
            await self.set_past(group, None)
        await self.definitions.table.remove(self._progress)

    @property
    def _progress(self) -> bytes:
        return f"standing-progress/{self._own}".encode()

    def _key(self, name: str) -> bytes:
        return f"standing-query/{self._own}/{name}".encode()


async def set_of(definitions: Definitions, stream: str) -> QuerySet | None:
    """The set of a stream, if it has one."""
    held = await value_or_none(definitions.table, set_key(stream))
    return None if held is None else _decoded(held.value, QuerySet)


async def sets_of(definitions: Definitions) -> list[QuerySet]:
    """The sets of all streams of the scope."""
    return [_decoded(value, QuerySet) async for _, value in definitions.entries(b"standing/")]


def set_key(stream: str) -> bytes:
    return f"standing/{stream}".encode()


def _decoded(value: bytes, kind: type[_Record]) -> _Record:
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a record can't be read ({error}): use the nadi that wrote it") from error
