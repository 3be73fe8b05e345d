"""The standing queries of a stream: how they are stored, added and removed, and the progress of matching.

Keys in the table `_search` of the scope:

standing/<stream>                           the set: format and fields of the events, stream for hits
standing-progress/<stream>/<id>             see `MatcherProgress`; id: of the set
standing-query/<stream>/<id>/<name>/<group>  a query
standing-past/<stream>/<id>/<group>         the progress of new queries that start in the past
matcher/<stream>/<id>/<matcher>             a running matcher, see `nadi.process.members`

The progress is one value, changed by compare-and-set. A batch of a segment's events is matched in three steps. First it
is *begun*: the record gets its end and the *version* of the queries. Then its hits are written, numbered by their
events' offsets. Then it is *done*, in one change with the beginning of the next. A batch that a dead worker had begun
is matched again with the same version: it gives the same hits, and the hit stream skips those that it has. So a query
counts exactly from the positions where batches were begun with it.

A segment is followed once its predecessors are done, so the hits of each key are in order.

Queries that are added together join as a group: all or none. They are stored under a new group, and then the group is
added in one change of the progress, provided that nothing was added or removed since their names were checked; queries
count once `MatcherProgress.has` is true. Records that a crash leaves before that are deleted later, and so are removed
queries: the progress has the version in which they were removed, and their records are deleted when no begun batch
needs them.

Queries that start in the past are *led* through older events until the live stream is near. Then they are *held*: they
are in the version, but no batch begins until the remaining older events are matched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import field
from msgspec.structs import replace

from nadi import errors
from nadi.backoff import Tries
from nadi.client.tables.catalog import Catalog, CatalogRecord, RecordKind, Unreadable, named
from nadi.limits import SEARCH_RECORDS_AT_ONCE, SEARCH_STANDING_GROUPS, SEARCH_STANDING_QUERIES
from nadi.naming import SEARCH_TABLE
from nadi.process.outputs import OutputWriter
from nadi.process.segment_follower import PositionConflictError, SegmentPositions, SegmentProgress, check_same, cut_of
from nadi.search.definition import Definitions
from nadi.search.fields import Field, Format
from nadi.search.percolate.query_index import NO_COUNTS, MatchCounts, SegmentHits
from nadi.search.shards.manifest import sums


class StartedBatch(NamedTuple):
    """A batch that is begun up to its segment's `reached`: its start and the version of the queries."""

    start: int
    version: int


class SegmentSpan(NamedTuple):
    """A range of a segment's events."""

    segment_id: int
    start: int
    end: int


class NoStandingQueriesError(errors.NotFoundError):
    def __init__(self, scope: str, stream: str) -> None:
        super().__init__(
            f"stream {scope}/{stream} doesn't have standing queries: create a set with `nadi search standing create`"
        )
        self.scope, self.stream = scope, stream


class BackfillPendingError(Exception):
    """No batch may begin until held groups are done."""


class MatcherProgress(SegmentPositions, frozen=True):
    """The progress of a set. segments: with the positions up to which batches are begun. begun: unfinished batches, by
    segment. version: of the queries, grows. led: groups that are matched with older events. groups: joined groups, and
    the first version with each. held: joined groups whose older events aren't done. removed: queries and abandoned
    groups, and the first version without each. events, hits, invalid: totals, `invalid` of those that don't parse;
    field_counts: number of events with each field."""

    begun: dict[int, StartedBatch] = field(default_factory=dict)
    version: int = 0
    led: list[str] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)
    removed: dict[str, int] = field(default_factory=dict)
    events: int = 0
    hits: int = 0
    invalid: int = 0
    field_counts: list[int] = field(default_factory=list)

    def done_positions(self) -> dict[int, int]:
        """Return the stream cut before which all hits are written; up to `positions` batches are only begun."""
        begun = {segment: replace(self.segments[segment], reached=batch.start) for segment, batch in self.begun.items()}
        return cut_of((self.segments | begun).values())

    def has(self, group: str) -> bool:
        return group in self.groups or group in self.led

    def counts_in(self, query: str, group: str, version: int) -> bool:
        """Return whether a query of that group counts in a version."""
        joined = self.groups.get(group)
        return joined is not None and joined <= version and self.removed.get(query, version + 1) > version

    @property
    def catching_up(self) -> list[str]:
        """The groups whose older events aren't matched: first the held ones, on which matchers wait."""
        return [*self.held, *self.led]

    def stepped(
        self,
        done: Iterable[SegmentSpan],
        begun: Iterable[SegmentSpan],
        counts: MatchCounts = NO_COUNTS,
        *,
        gaps: int = 0,
    ) -> MatcherProgress:
        """Return a copy with some batches done and others begun. PositionConflictError, BackfillPendingError."""
        segments, unfinished = dict(self.segments), dict(self.begun)
        for span in done:
            batch = unfinished.pop(span.segment_id, None)
            if batch is None or (batch.start, segments[span.segment_id].reached) != (span.start, span.end):
                raise PositionConflictError(f"another worker has matched segment {span.segment_id} at {span.start}")
        for span in begun:
            if span.segment_id in unfinished:
                raise PositionConflictError(f"another worker has begun a batch of segment {span.segment_id}")
            segments[span.segment_id] = replace(
                SegmentPositions.at(self, span.segment_id, span.start), reached=span.end
            )
            if self.held:
                raise BackfillPendingError
            unfinished[span.segment_id] = StartedBatch(span.start, self.version)
        return replace(
            self,
            segments=segments,
            begun=unfinished,
            events=self.events + counts.events,
            hits=self.hits + counts.hits,
            invalid=self.invalid + counts.invalid,
            gaps=self.gaps + gaps,
            field_counts=sums(self.field_counts, counts.field_counts),
        )

    def at(self, segment_id: int, offset: int) -> SegmentProgress:
        if segment_id in self.begun:
            raise PositionConflictError(f"another worker has begun a batch of segment {segment_id}")
        return super().at(segment_id, offset)

    def passed(self, segment_id: int, start: int, to: int) -> MatcherProgress:
        progress = super().passed(segment_id, start, to)
        if self.held:
            raise BackfillPendingError
        return progress

    def added(self, group: str, *, is_led: bool) -> MatcherProgress:
        """Return a copy with a group whose queries are all stored: led through the past, or joined."""
        return replace(self, led=[*self.led, group]) if is_led else self.joined(group, is_held=False)

    def joined(self, group: str, *, is_held: bool) -> MatcherProgress:
        version = self.version + 1
        held = [*self.held, group] if is_held else self.held
        led = [other for other in self.led if other != group]
        return replace(self, version=version, groups=self.groups | {group: version}, held=held, led=led)

    def joined_from_past(self, group: str) -> MatcherProgress | None:
        """Return a copy with a led group held; None if it isn't led."""
        return self.joined(group, is_held=True) if group in self.led else None

    def released(self, group: str, gaps: int = 0) -> MatcherProgress | None:
        if group not in self.held:
            return None
        return replace(self, held=[other for other in self.held if other != group], gaps=self.gaps + gaps)

    def without(self, queries: Iterable[str]) -> MatcherProgress:
        version = self.version + 1
        return replace(self, version=version, removed=self.removed | dict.fromkeys(queries, version))

    def forgotten(self, queries: Iterable[str], groups: Iterable[str]) -> MatcherProgress:
        return replace(
            self,
            removed={name: at for name, at in self.removed.items() if name not in set(queries)},
            groups={name: at for name, at in self.groups.items() if name not in set(groups)},
        )


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
    """name: the key of its hits; text: the query; since: the cut, as text, from which events count, or "" for events
    after the query was added."""

    name: str
    id: str
    text: str
    group: str
    since: str
    created_ms: int

    @property
    def key(self) -> str:
        """The storage key: another query of the name, not yet added or already removed, may also be stored."""
        return f"{self.name}/{self.group}"


class MatcherRecords:
    """The records of one set."""

    def __init__(self, definitions: Definitions, query_set: QuerySet) -> None:
        self.definitions, self.query_set = definitions, query_set
        self._own = f"{query_set.stream}/{query_set.id}"
        scope, stream = definitions.scope, query_set.stream
        kind: RecordKind[StandingQuery] = RecordKind(
            "the standing query",
            f"{scope}/{stream}",
            lambda key: f"remove it: `nadi search standing remove {scope} {stream} {key.partition('/')[0]}`",
            lambda name: errors.NotFoundError(f"{scope}/{stream} doesn't have a standing query {name!r}"),
            lambda name, value: named(msgspec.msgpack.decode(value, type=StandingQuery), "key", name),
            msgspec.msgpack.encode,
            f"standing-query/{self._own}/",
        )
        self._catalog = Catalog(self.definitions.stores, scope, SEARCH_TABLE, kind)

    @property
    def matcher_keys(self) -> str:
        return f"matcher/{self._own}/"

    def progress(self) -> CatalogRecord[MatcherProgress]:
        return self._progress("standing-progress/", self._own)

    def past(self, group: str) -> CatalogRecord[MatcherProgress]:
        """Return the progress record of a group that is led; it exists only while the group catches up."""
        return self._progress(f"standing-past/{self._own}/", group)

    def _progress(self, prefix: str, name: str) -> CatalogRecord[MatcherProgress]:
        scope, stream = self.definitions.scope, self.query_set.stream
        kind = RecordKind(
            "the progress of the standing queries of",
            scope,
            lambda name: "delete them, and create them again: `nadi search standing delete`",
            lambda name: NoStandingQueriesError(scope, stream),
            lambda name, value: msgspec.msgpack.decode(value, type=MatcherProgress),
            msgspec.msgpack.encode,
            prefix,
        )
        return CatalogRecord(self.definitions.table, kind, name, waits=True)

    async def queries(self) -> list[StandingQuery]:
        """Return all stored queries, by name, including those not yet added, abandoned or removed. ProtocolError if one
        can't be read, because matching without it would lose hits."""
        queries, unreadable = await self.queries_and_unreadable()
        if unreadable:
            raise errors.ProtocolError(unreadable[0].problem)
        return queries

    async def queries_and_unreadable(self) -> tuple[list[StandingQuery], list[Unreadable]]:
        """Return all stored queries and the unreadable ones."""
        queries, unreadable = await self._catalog.all()
        return [*queries.values()], unreadable

    async def put(self, queries: Sequence[StandingQuery]) -> None:
        """Store at most `SEARCH_RECORDS_AT_ONCE` queries."""
        await self._catalog.put_all({query.key: query for query in queries})

    async def forget(self, keys: Iterable[str]) -> None:
        await self._catalog.delete_all(keys)

    async def delete(self) -> None:
        """Delete all records except the set."""
        await self.progress().delete()
        for kind in ("standing-query", "standing-past"):
            await self.definitions.delete_all_with(f"{kind}/{self._own}/")

    def outputs(self, part: str) -> OutputWriter:
        """Return the writer of hits. part: "live", or a group that catches up; each has a separate series of
        numbers."""
        scope, stream = self.definitions.scope, self.query_set.stream
        return OutputWriter(self.definitions.manager, scope, stream, self.query_set.hits, f"{self.query_set.id}/{part}")

    async def write(self, outputs: OutputWriter, matched: Sequence[SegmentHits]) -> None:
        """Store hits; NotFoundError if the hit stream was deleted."""
        try:
            await outputs.write({result.segment_id: result.hits for result in matched})
        except errors.StreamNotFoundError as error:
            raise errors.NotFoundError(
                f"the hit stream {self.query_set.hits} was deleted: create it and restart the matcher"
            ) from error

    async def check_stream(self, progress: MatcherProgress) -> None:
        """Raise StreamRecreatedError if the stream was recreated since the set was created."""
        with suppress(errors.StreamNotFoundError):
            await check_same(
                self.definitions.stores, self.definitions.scope, self.query_set.stream, progress.segments, REMADE
            )


REMADE = (
    "the standing queries are of the old stream. Delete them (`nadi search standing delete`; hits stay) and create "
    "a set for the new one"
)


def sets_of(definitions: Definitions) -> Catalog[QuerySet]:
    """Return the catalog of a scope's sets, by stream."""
    scope = definitions.scope
    kind = RecordKind(
        "the set of standing queries of",
        scope,
        f"delete it: `nadi search standing delete {scope} {{}}`".format,
        partial(NoStandingQueriesError, scope),
        lambda name, value: named(msgspec.msgpack.decode(value, type=QuerySet), "stream", name),
        msgspec.msgpack.encode,
        "standing/",
    )
    return Catalog(definitions.stores, scope, SEARCH_TABLE, kind)


async def delete_unreadable(definitions: Definitions, stream: str) -> None:
    """Delete a set that can't be read, and the records of all sets of the stream."""
    for kind in ("standing-progress", "standing-query", "standing-past", "matcher"):
        await definitions.delete_all_with(f"{kind}/{stream}/")
    await sets_of(definitions).delete(stream)


_ABANDONED_S = 600.0  # after which stored queries that weren't added are abandoned: their call must be repeated


async def add_group(
    records: MatcherRecords,
    changes: CatalogRecord[MatcherProgress],
    queries: Sequence[StandingQuery],
    past: MatcherProgress | None,
) -> None:
    """Add queries as a group. past: where it starts in the past. AlreadyExistsError if a name is taken."""
    group = queries[0].group
    await _check(records, await changes.get(), queries, are_stored=False)
    try:
        for first in range(0, len(queries), SEARCH_RECORDS_AT_ONCE):
            await records.put(queries[first : first + SEARCH_RECORDS_AT_ONCE])
        if past is not None:
            await records.past(group).create(past)
        tries = Tries(f"the standing queries of {records.query_set.stream}")
        while True:
            known = await changes.get()
            await _check(records, known, queries, are_stored=True)
            try:
                await changes.change(partial(_added, known, group, past))
                return
            except PositionConflictError:
                await tries.lost()
    except errors.NadiError:
        with suppress(errors.NadiError):  # other matchers abandon it later
            await _abandon(records, changes, group)
        raise


async def _check(
    records: MatcherRecords, progress: MatcherProgress, queries: Sequence[StandingQuery], *, are_stored: bool
) -> None:
    """Raise AlreadyExistsError if a name is taken; ConflictError if another worker has abandoned the group."""
    stored = await records.queries()
    names = {query.name for query in queries}
    others = [query for query in stored if progress.has(query.group) and query.id not in progress.removed]
    if len(others) + len(queries) > SEARCH_STANDING_QUERIES:
        raise errors.InvalidArgumentError(
            f"the limit of {SEARCH_STANDING_QUERIES:,} standing queries per stream is reached: remove some"
        )
    if taken := next((query.name for query in others if query.name in names), None):
        raise errors.AlreadyExistsError("a standing query", taken)
    is_removed = queries[0].group in progress.removed or not {query.id for query in queries} <= {
        query.id for query in stored
    }
    if are_stored and is_removed:
        raise errors.ConflictError("adding the queries took too long and was abandoned: add them again")


def _added(
    known: MatcherProgress, group: str, past: MatcherProgress | None, newest: MatcherProgress
) -> MatcherProgress | None:
    if newest.has(group):
        return None
    if (newest.version, newest.led) != (known.version, known.led):
        raise PositionConflictError("another call has added or removed queries")
    if len(newest.groups) + len(newest.led) >= SEARCH_STANDING_GROUPS:
        raise errors.InvalidArgumentError(
            f"the limit of {SEARCH_STANDING_GROUPS:,} groups is reached: add several queries per call"
        )
    return newest.added(group, is_led=past is not None)


async def _abandon(records: MatcherRecords, changes: CatalogRecord[MatcherProgress], group: str) -> None:
    """Delete the records of a group that wasn't added, and prevent that it is."""
    progress = await changes.change(
        lambda newest: None if newest.has(group) or group in newest.removed else newest.without([group])
    )
    if group in progress.removed:
        await records.past(group).delete()
        await sweep(records, changes)


async def abandon_old(records: MatcherRecords, changes: CatalogRecord[MatcherProgress]) -> None:
    """Delete the groups that a dead caller has stored long ago and not added."""
    before_ms = (time.time() - _ABANDONED_S) * 1000
    stored, _ = await records.queries_and_unreadable()
    progress = await changes.get()
    for group in {query.group for query in stored if query.created_ms < before_ms and not progress.has(query.group)}:
        await _abandon(records, changes, group)


async def sweep(records: MatcherRecords, changes: CatalogRecord[MatcherProgress]) -> None:
    """Delete the records of removed queries that no batch needs."""
    progress = changes.newest
    needed = min((batch.version for batch in progress.begun.values()), default=progress.version)
    removed = {name for name, version in progress.removed.items() if version <= needed}
    if not removed:
        return
    stored, unreadable = await records.queries_and_unreadable()
    used = {query.group for query in stored if query.id not in removed}
    await records.forget(query.key for query in stored if query.id in removed or query.group in removed)
    used |= progress.groups.keys() if unreadable else set()  # an unreadable query may be of any group
    empty = [group for group in progress.groups if group not in used and group not in progress.held]
    await changes.change(lambda newest: newest.forgotten(removed, empty))
