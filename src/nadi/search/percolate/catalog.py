"""The standing queries of a scope's streams: made, added, listed, removed, stopped, dropped."""

from __future__ import annotations

import asyncio
import builtins
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from nadi.client.aio import StreamManager, Unreadable
from nadi.client.control.arguments import checked
from nadi.display import Displayed
from nadi.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, ProtocolError
from nadi.limits import SEARCH_STANDING_QUERIES
from nadi.model.streamcut import StreamCut
from nadi.naming import SEARCH_TABLE, check_name
from nadi.process.members import WorkerInfo, live_members
from nadi.process.segment_follower import behind_bytes, reaches
from nadi.runtime import REAL
from nadi.search.definition import Definitions, IndexNotFoundError, full_name
from nadi.search.fields import by_field, check_format, check_installed, fields_of
from nadi.search.percolate.records import (
    MatcherProgress,
    MatcherRecords,
    QuerySet,
    StandingQuery,
    add_group,
    drop_unreadable,
    sets_of,
    sweep,
)
from nadi.search.query.bound import bind
from nadi.search.query.parser import parse

_SWEEP_S = 2.0  # how long a removal waits for batches that are begun
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class StandingStatus(Displayed):
    """How far a stream is matched. catching_up: queries that are still in the past; events, hits, unfit: so far, the
    last those that didn't parse; having: how many events have each field, by its name; gaps: places where data was gone
    or damaged; reached: all before it is matched, and its hits are written; behind_bytes: from there to the tail, None
    where that can't be told; matchers: recent reports."""

    definition: QuerySet
    queries: int
    catching_up: int
    events: int
    hits: int
    unfit: int
    having: dict[str, int]
    gaps: int
    reached: StreamCut
    behind_bytes: int | None
    matchers: tuple[WorkerInfo, ...]


@checked()
class StandingQueries:
    """The standing queries of a scope's streams."""

    def __init__(self, manager: StreamManager, scope: str) -> None:
        self._definitions, self._scope = Definitions(manager, scope), scope
        self._sets = sets_of(self._definitions)

    async def create(
        self,
        stream: str,
        hits: str,
        *,
        fields: str | Iterable[str] | None = None,
        format: str | None = None,
        start: StreamCut | str = "tail",
    ) -> QuerySet:
        """Have a stream's events matched with standing queries, from a cut on; AlreadyExistsError if they are.

        hits: the stream for hits, `stream` of the same scope or `scope/stream`. fields, format: as for an index, see
        `Indexes.create`; None takes those of the stream's index.
        """
        check_installed()
        if fields is None and format is not None:
            raise InvalidArgumentError("the format is about fields: give them, too, or neither, for those of the index")
        if fields is None:
            try:
                index = await self._definitions.get(stream)
            except IndexNotFoundError:
                raise InvalidArgumentError(f"{self._scope}/{stream} has no index: say which fields there are") from None
            made, checked_format = index.fields, index.format
        else:
            made = fields_of(fields)
            checked_format = check_format(format or "json", made)
        full = full_name(self._scope, hits)
        if full == f"{self._scope}/{stream}":
            raise InvalidArgumentError("hits would go to the stream itself: it would never end")
        cut = await self._definitions.cut(stream, start)
        await self._definitions.manager.stream_info(*full.split("/"))
        found = QuerySet(stream, uuid.uuid4().hex, checked_format, made, full, REAL.now_ms())
        progress = MatcherProgress.started(await reaches(self._definitions.stores, self._scope, cut))
        await self._definitions.catalog.prepare()
        records = MatcherRecords(self._definitions, found)
        await records.progress().create(progress)
        try:
            await self._sets.create(stream, found)
        except AlreadyExistsError:
            await records.drop()
            raise
        return found

    async def get(self, stream: str) -> QuerySet:
        """Return the set of a stream's standing queries; NotFoundError if it has none."""
        return await self._sets.get(stream)

    async def add(
        self, stream: str, queries: Mapping[str, str], *, since: StreamCut | str | None = None
    ) -> builtins.list[StandingQuery]:
        """Add queries, by name, as one group: all or none. AlreadyExistsError if a name is taken; StreamRemadeError if
        the stream isn't the one that the set was made for.

        since: the cut, or what `StreamCuts.named` makes one of, from which on events count: they are matched with what
        came before, and then go on with what comes, each event once. None: what comes after they are added.
        """
        found = await self.get(stream)
        if not queries:
            return []
        records = MatcherRecords(self._definitions, found)
        changes = records.progress()
        await records.check_stream(await changes.get())
        cut = None if since is None else await self._definitions.cut(stream, since)
        group, text_of_cut, now_ms = uuid.uuid4().hex, "" if cut is None else cut.as_text(), REAL.now_ms()
        made = []
        for name, text in queries.items():
            check_name("standing query", name)
            parsed = parse(text)
            if parsed.since is not None or parsed.until is not None:
                raise InvalidArgumentError(f"standing query {name}: say with `since` where it begins; it has no end")
            bind(parsed.node, found.fields)
            made.append(StandingQuery(name, uuid.uuid4().hex, text, group, text_of_cut, now_ms))
        if len(made) > SEARCH_STANDING_QUERIES:  # before any is stored
            raise InvalidArgumentError(f"a stream has at most {SEARCH_STANDING_QUERIES:,} standing queries")
        past = (
            None if cut is None else MatcherProgress.started(await reaches(self._definitions.stores, self._scope, cut))
        )
        await add_group(records, changes, made, past)
        return made

    async def list(self, stream: str) -> builtins.list[StandingQuery]:
        """Return a stream's standing queries, by name; without those that `unreadable` tells."""
        return (await self.list_with_unreadable(stream))[0]

    async def unreadable(self, stream: str) -> builtins.list[Unreadable]:
        """Return the queries of a stream that are damaged, or of a newer nadi. Matchers don't go on without them; they
        can be removed."""
        return (await self.list_with_unreadable(stream))[1]

    async def list_with_unreadable(self, stream: str) -> tuple[builtins.list[StandingQuery], builtins.list[Unreadable]]:
        """Return both, what `list` returns and what `unreadable` does, by one walk through the table."""
        records = MatcherRecords(self._definitions, await self.get(stream))
        kept, unreadable = await records.sorted_out()
        bad = [Unreadable(one.name.partition("/")[0], one.problem) for one in unreadable]
        return _added(kept, await records.progress().get()), bad

    async def remove(self, stream: str, names: Iterable[str]) -> None:
        """Remove some queries; NotFoundError if one isn't there. Their hits stay."""
        found = await self.get(stream)
        records = MatcherRecords(self._definitions, found)
        changes = records.progress()
        wanted = dict.fromkeys([names] if isinstance(names, str) else names)
        kept, unreadable = await records.sorted_out()
        known = {one.name: one.id for one in _added(kept, await changes.get())}
        bad = [one.name for one in unreadable if one.name.partition("/")[0] in wanted]
        missing = wanted.keys() - known.keys() - {key.partition("/")[0] for key in bad}
        if missing:
            raise NotFoundError(f"{self._scope}/{stream} has no standing query {min(missing)!r}")
        await records.forget(bad)
        ids = [known[name] for name in wanted if name in known]
        await changes.change(lambda newest: None if newest.removed.keys() >= set(ids) else newest.without(ids))
        until = time.monotonic() + _SWEEP_S
        await sweep(records, changes)
        while set(ids) & changes.newest.removed.keys() and time.monotonic() < until:
            await asyncio.sleep(_PAUSE_S)
            await changes.get()
            await sweep(records, changes)

    async def status(self, stream: str) -> StandingStatus:
        """Return how far a stream is matched; StreamRemadeError if it isn't the one that the set was made for."""
        found = await self.get(stream)
        records = MatcherRecords(self._definitions, found)
        all_kept, unreadable = await records.sorted_out()
        progress = await records.progress().get()
        await records.check_stream(progress)
        queries = _added(all_kept, progress)
        reached = StreamCut(self._scope, stream, progress.done_positions())
        return StandingStatus(
            found,
            len(queries) + len(unreadable),
            sum(1 for one in queries if one.group in progress.catching_up),
            progress.events,
            progress.hits,
            progress.unfit,
            by_field(found.fields, progress.having),
            progress.gaps,
            reached,
            await behind_bytes(self._definitions.manager, reached),
            tuple(await live_members(self._definitions.stores, self._scope, SEARCH_TABLE, records.matcher_keys)),
        )

    async def stop(self, stream: str, *, is_stopped: bool = True) -> None:
        """Have a stream's matchers end; `nadi.search.match` goes on where they were."""
        await self._sets.change(stream, lambda found: replace(found, is_stopped=is_stopped))

    async def drop(self, stream: str) -> None:
        """Delete a stream's standing queries; their hits stay."""
        try:
            found = await self.get(stream)
        except ProtocolError:
            await drop_unreadable(self._definitions, stream)
            return
        await self._sets.delete(stream)
        await MatcherRecords(self._definitions, found).drop()


def _added(kept: Iterable[StandingQuery], progress: MatcherProgress) -> builtins.list[StandingQuery]:
    """Those that count, or will."""
    return [one for one in kept if progress.has(one.group) and one.id not in progress.removed]
