"""The standing queries of a scope's streams: create, add, list, remove, stop, delete."""

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
from nadi.process.segment_follower import measure_lag_bytes, progress_at
from nadi.runtime import REAL
from nadi.search.definition import Definitions, IndexNotFoundError, full_name
from nadi.search.fields import by_field, check_format, check_installed, fields_of
from nadi.search.percolate.records import (
    MatcherProgress,
    MatcherRecords,
    QuerySet,
    StandingQuery,
    add_group,
    delete_unreadable,
    sets_of,
    sweep,
)
from nadi.search.query.bound import bind
from nadi.search.query.parser import parse

_SWEEP_S = 2.0  # how long a removal waits for begun batches
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class StandingStatus(Displayed):
    """The progress of matching. catching_up: queries that aren't done with older events; events, hits, invalid: totals,
    `invalid` of those that don't parse; field_counts: number of events with each field, by name; gaps: number of gaps
    of truncated or damaged data; reached: the cut before which all hits are written; lag_bytes: from there to the tail,
    None if unknown; matchers: recent reports."""

    definition: QuerySet
    queries: int
    catching_up: int
    events: int
    hits: int
    invalid: int
    field_counts: dict[str, int]
    gaps: int
    reached: StreamCut
    lag_bytes: int | None
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
        """Create the set of a stream's standing queries, matched from a cut on; AlreadyExistsError if it has one.

        hits: the stream for hits, `stream` of the same scope or `scope/stream`. fields, format: as in `Indexes.create`;
        None uses the stream's index.
        """
        check_installed()
        if fields is None and format is not None:
            raise InvalidArgumentError("format needs fields: pass both, or neither to use the index's")
        if fields is None:
            try:
                index = await self._definitions.get(stream)
            except IndexNotFoundError:
                raise InvalidArgumentError(f"{self._scope}/{stream} doesn't have an index: pass fields") from None
            checked_fields, checked_format = index.fields, index.format
        else:
            checked_fields = fields_of(fields)
            checked_format = check_format(format or "json", checked_fields)
        full = full_name(self._scope, hits)
        if full == f"{self._scope}/{stream}":
            raise InvalidArgumentError("hits can't go to the matched stream: name another stream")
        cut = await self._definitions.cut(stream, start)
        await self._definitions.manager.stream_info(*full.split("/"))
        query_set = QuerySet(stream, uuid.uuid4().hex, checked_format, checked_fields, full, REAL.now_ms())
        progress = MatcherProgress.started(await progress_at(self._definitions.stores, self._scope, cut))
        await self._definitions.catalog.prepare()
        records = MatcherRecords(self._definitions, query_set)
        await records.progress().create(progress)
        try:
            await self._sets.create(stream, query_set)
        except AlreadyExistsError:
            await records.delete()
            raise
        return query_set

    async def get(self, stream: str) -> QuerySet:
        """Return the set of a stream's standing queries; NotFoundError if it doesn't exist."""
        return await self._sets.get(stream)

    async def add(
        self, stream: str, queries: Mapping[str, str], *, since: StreamCut | str | None = None
    ) -> builtins.list[StandingQuery]:
        """Add queries, by name, as one group: all or none. AlreadyExistsError if a name is taken; StreamRecreatedError
        if the stream isn't the set's.

        since: the cut, or an argument of `StreamCuts.named`, from which events count: older events are matched first,
        then new ones, each once. None: events after the call.
        """
        query_set = await self.get(stream)
        if not queries:
            return []
        records = MatcherRecords(self._definitions, query_set)
        changes = records.progress()
        await records.check_stream(await changes.get())
        cut = None if since is None else await self._definitions.cut(stream, since)
        group, text_of_cut, now_ms = uuid.uuid4().hex, "" if cut is None else cut.as_text(), REAL.now_ms()
        added = []
        for name, text in queries.items():
            check_name("standing query", name)
            parsed = parse(text)
            if parsed.since is not None or parsed.until is not None:
                raise InvalidArgumentError(
                    f"standing query {name}: _since and _until aren't allowed; pass `since` instead"
                )
            bind(parsed.node, query_set.fields)
            added.append(StandingQuery(name, uuid.uuid4().hex, text, group, text_of_cut, now_ms))
        if len(added) > SEARCH_STANDING_QUERIES:  # before any is stored
            raise InvalidArgumentError(
                f"the limit is {SEARCH_STANDING_QUERIES:,} standing queries per stream: add fewer"
            )
        past = (
            None
            if cut is None
            else MatcherProgress.started(await progress_at(self._definitions.stores, self._scope, cut))
        )
        await add_group(records, changes, added, past)
        return added

    async def list(self, stream: str) -> builtins.list[StandingQuery]:
        """Return a stream's standing queries, by name, without unreadable ones."""
        return (await self.list_with_unreadable(stream))[0]

    async def unreadable(self, stream: str) -> builtins.list[Unreadable]:
        """Return the queries of a stream that are damaged or of a newer nadi. Matchers wait until they are removed."""
        return (await self.list_with_unreadable(stream))[1]

    async def list_with_unreadable(self, stream: str) -> tuple[builtins.list[StandingQuery], builtins.list[Unreadable]]:
        """Return the results of `list` and `unreadable` from one pass over the table."""
        records = MatcherRecords(self._definitions, await self.get(stream))
        stored, unreadable = await records.queries_and_unreadable()
        bad = [Unreadable(item.name.partition("/")[0], item.problem) for item in unreadable]
        return _added(stored, await records.progress().get()), bad

    async def remove(self, stream: str, names: Iterable[str]) -> None:
        """Remove queries; NotFoundError if one doesn't exist. Their hits stay."""
        query_set = await self.get(stream)
        records = MatcherRecords(self._definitions, query_set)
        changes = records.progress()
        requested = dict.fromkeys([names] if isinstance(names, str) else names)
        stored, unreadable = await records.queries_and_unreadable()
        known = {item.name: item.id for item in _added(stored, await changes.get())}
        bad = [item.name for item in unreadable if item.name.partition("/")[0] in requested]
        missing = requested.keys() - known.keys() - {key.partition("/")[0] for key in bad}
        if missing:
            raise NotFoundError(f"{self._scope}/{stream} doesn't have a standing query {min(missing)!r}")
        await records.forget(bad)
        ids = [known[name] for name in requested if name in known]
        await changes.change(lambda newest: None if newest.removed.keys() >= set(ids) else newest.without(ids))
        until = time.monotonic() + _SWEEP_S
        await sweep(records, changes)
        while set(ids) & changes.newest.removed.keys() and time.monotonic() < until:
            await asyncio.sleep(_PAUSE_S)
            await changes.get()
            await sweep(records, changes)

    async def status(self, stream: str) -> StandingStatus:
        """Return the progress of matching; StreamRecreatedError if the stream isn't the set's."""
        query_set = await self.get(stream)
        records = MatcherRecords(self._definitions, query_set)
        stored, unreadable = await records.queries_and_unreadable()
        progress = await records.progress().get()
        await records.check_stream(progress)
        queries = _added(stored, progress)
        reached = StreamCut(self._scope, stream, progress.done_positions())
        return StandingStatus(
            query_set,
            len(queries) + len(unreadable),
            sum(1 for query in queries if query.group in progress.catching_up),
            progress.events,
            progress.hits,
            progress.invalid,
            by_field(query_set.fields, progress.field_counts),
            progress.gaps,
            reached,
            await measure_lag_bytes(self._definitions.manager, reached),
            tuple(await live_members(self._definitions.stores, self._scope, SEARCH_TABLE, records.matcher_keys)),
        )

    async def stop(self, stream: str, *, is_stopped: bool = True) -> None:
        """Stop a stream's matchers; `nadi.search.match` resumes at their positions."""
        await self._sets.change(stream, lambda query_set: replace(query_set, is_stopped=is_stopped))

    async def delete(self, stream: str) -> None:
        """Delete a stream's standing queries; their hits stay."""
        try:
            query_set = await self.get(stream)
        except ProtocolError:
            await delete_unreadable(self._definitions, stream)
            return
        await self._sets.delete(stream)
        await MatcherRecords(self._definitions, query_set).delete()


def _added(stored: Iterable[StandingQuery], progress: MatcherProgress) -> builtins.list[StandingQuery]:
    """Return the queries that count now or while they catch up."""
    return [query for query in stored if progress.has(query.group) and query.id not in progress.removed]
