"""The standing queries of a stream: how they are kept, added and removed, and how far the stream is matched with which.

They are in the table `_search` of the scope:

standing/<stream>                           the set: how events are read, and where hits go
standing-progress/<stream>/<id>             see `MatcherProgress`; id: of the set
standing-query/<stream>/<id>/<name>/<group>  a query
standing-past/<stream>/<id>/<group>         how far new queries are that begin in the past
matcher/<stream>/<id>/<matcher>             a matcher that runs, see `nadi.process.members`

The progress is one value, changed by compare-and-set. A batch of a segment's events is matched in three steps. First
it is *begun*: the record says up to where, and with which *version* of the queries. Then its hits are written, each
with a number that is its event's place. Then it is *done*, in one change with the beginning of the next. Whoever finds
a batch begun by one who was killed matches it again, with the same version: the same hits, of which the stream of hits
leaves out those it has. So a query counts from exactly those places on where batches were begun with it.

A segment is followed once what is older under its keys is done, so each key's hits come in order.

Queries that are added together join as a group: all of them, or none. They are stored under a new group, and then the
group is added, in one change of the progress, if nothing was added or removed since their names were looked for;
`MatcherProgress.has` is what makes queries count. What a kill leaves before that is removed later, as queries are that
were removed: the progress says since which version, and their own records go when no batch that was begun needs them.

Those that begin in the past are *led* through what came before until the live stream is near; then they are *held*:
they are in the version, nothing is begun until the last bit of their past is done, and then all go on.
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
from nadi.search.percolate.query_index import NO_COUNTS, MatchCounts, Matched
from nadi.search.shards.manifest import sums


class BegunBatch(NamedTuple):
    """A batch that is begun up to where its segment's reach is: from where, and with which version."""

    start: int
    version: int


class SegmentSpan(NamedTuple):
    """Events of a segment."""

    segment_id: int
    start: int
    end: int


class NoStandingQueriesError(errors.NotFoundError):
    def __init__(self, scope: str, stream: str) -> None:
        super().__init__(
            f"stream {scope}/{stream} has no standing queries (any more): make a set with `nadi search standing create`"
        )
        self.scope, self.stream = scope, stream


class HeldError(Exception):
    """Nothing is begun until the past of some queries is done."""


class MatcherProgress(SegmentPositions, frozen=True):
    """segments: up to where batches are begun. begun: those that aren't done, by segment. version: of the queries, it
    grows. led: groups of queries that are in the past. groups: those that joined, and the first version with them.
    held: those of them whose past isn't done. removed: queries, and groups that won't be added, and the first version
    without them. events, hits, unfit: so far, the last those that didn't parse; having: how many events have each
    field."""

    begun: dict[int, BegunBatch] = field(default_factory=dict)
    version: int = 0
    led: list[str] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)
    removed: dict[str, int] = field(default_factory=dict)
    events: int = 0
    hits: int = 0
    unfit: int = 0
    having: list[int] = field(default_factory=list)

    def done_positions(self) -> dict[int, int]:
        """The stream cut before which all is matched, and its hits are written; before `positions` it is begun."""
        begun = {one: replace(self.segments[one], reached=batch.start) for one, batch in self.begun.items()}
        return cut_of((self.segments | begun).values())

    def has(self, group: str) -> bool:
        return group in self.groups or group in self.led

    def has_in(self, query: str, group: str, version: int) -> bool:
        """Whether a query of that group counts in a version."""
        joined = self.groups.get(group)
        return joined is not None and joined <= version and self.removed.get(query, version + 1) > version

    @property
    def catching_up(self) -> list[str]:
        """The groups whose past isn't done; first those that all wait for."""
        return [*self.held, *self.led]

    def stepped(
        self,
        done: Iterable[SegmentSpan],
        begun: Iterable[SegmentSpan],
        counts: MatchCounts = NO_COUNTS,
        *,
        gaps: int = 0,
    ) -> MatcherProgress:
        """With some batches done and others begun. OvertakenError if others did that; HeldError."""
        segments, left = dict(self.segments), dict(self.begun)
        for one in done:
            batch = left.pop(one.segment_id, None)
            if batch is None or (batch.start, segments[one.segment_id].reached) != (one.start, one.end):
                raise PositionConflictError(f"another has matched segment {one.segment_id} at {one.start}")
        for one in begun:
            if one.segment_id in left:
                raise PositionConflictError(f"another has begun segment {one.segment_id}")
            segments[one.segment_id] = replace(SegmentPositions.at(self, one.segment_id, one.start), reached=one.end)
            if self.held:
                raise HeldError
            left[one.segment_id] = BegunBatch(one.start, self.version)
        return replace(
            self,
            segments=segments,
            begun=left,
            events=self.events + counts.events,
            hits=self.hits + counts.hits,
            unfit=self.unfit + counts.unfit,
            gaps=self.gaps + gaps,
            having=sums(self.having, counts.having),
        )

    def at(self, segment_id: int, offset: int) -> SegmentProgress:
        if segment_id in self.begun:
            raise PositionConflictError(f"another has begun segment {segment_id}")
        return super().at(segment_id, offset)

    def passed(self, segment_id: int, start: int, to: int) -> MatcherProgress:
        made = super().passed(segment_id, start, to)
        if self.held:
            raise HeldError
        return made

    def added(self, group: str, *, is_led: bool) -> MatcherProgress:
        """With a group of queries, all of which are stored: led through the past, or joined."""
        return replace(self, led=[*self.led, group]) if is_led else self.joined(group, is_held=False)

    def joined(self, group: str, *, is_held: bool) -> MatcherProgress:
        version = self.version + 1
        held = [*self.held, group] if is_held else self.held
        led = [one for one in self.led if one != group]
        return replace(self, version=version, groups=self.groups | {group: version}, held=held, led=led)

    def joined_from_past(self, group: str) -> MatcherProgress | None:
        """With a group that is led held; None where it isn't, any more."""
        return self.joined(group, is_held=True) if group in self.led else None

    def released(self, group: str, gaps: int = 0) -> MatcherProgress | None:
        if group not in self.held:
            return None
        return replace(self, held=[one for one in self.held if one != group], gaps=self.gaps + gaps)

    def without(self, queries: Iterable[str]) -> MatcherProgress:
        version = self.version + 1
        return replace(self, version=version, removed=self.removed | dict.fromkeys(queries, version))

    def forgotten(self, queries: Iterable[str], groups: Iterable[str]) -> MatcherProgress:
        return replace(
            self,
            removed={one: at for one, at in self.removed.items() if one not in set(queries)},
            groups={one: at for one, at in self.groups.items() if one not in set(groups)},
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


class MatcherRecords:
    """Of one set."""

    def __init__(self, definitions: Definitions, found: QuerySet) -> None:
        self.definitions, self.found = definitions, found
        self._own = f"{found.stream}/{found.id}"
        scope, stream = definitions.scope, found.stream
        kind: RecordKind[StandingQuery] = RecordKind(
            "the standing query",
            f"{scope}/{stream}",
            lambda key: f"remove it: `nadi search standing remove {scope} {stream} {key.partition('/')[0]}`",
            lambda name: errors.NotFoundError(f"{scope}/{stream} has no standing query {name!r}"),
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
        """How far a group is that is led through the past; there is none if it isn't, or no more."""
        return self._progress(f"standing-past/{self._own}/", group)

    def _progress(self, prefix: str, name: str) -> CatalogRecord[MatcherProgress]:
        scope, stream = self.definitions.scope, self.found.stream
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
        """All that are kept, in order of their names; also such as aren't added yet, or won't be, or are removed.
        ProtocolError if one can't be read, for nobody matches without it."""
        found, unreadable = await self.sorted_out()
        if unreadable:
            raise errors.ProtocolError(unreadable[0].problem)
        return found

    async def sorted_out(self) -> tuple[list[StandingQuery], list[Unreadable]]:
        """As `queries`, and those that can't be read."""
        found, unreadable = await self._catalog.all()
        return [*found.values()], unreadable

    async def put(self, queries: Sequence[StandingQuery]) -> None:
        """Store some, `SEARCH_RECORDS_AT_ONCE` at most."""
        await self._catalog.put_all({one.key: one for one in queries})

    async def forget(self, keys: Iterable[str]) -> None:
        await self._catalog.delete_all(keys)

    async def drop(self) -> None:
        """Remove all but the set itself."""
        await self.progress().delete()
        for kind in ("standing-query", "standing-past"):
            await self.definitions.forget_all(f"{kind}/{self._own}/")

    def outputs(self, part: str) -> OutputWriter:
        """For hits. part: "live" for the live stream, or a group that catches up: each counts its own."""
        scope, stream = self.definitions.scope, self.found.stream
        return OutputWriter(self.definitions.manager, scope, stream, self.found.hits, f"{self.found.id}/{part}")

    async def write(self, outputs: OutputWriter, matched: Sequence[Matched]) -> None:
        """Store hits; NotFoundError if there is no stream for them."""
        try:
            await outputs.write({one.segment_id: one.hits for one in matched})
        except errors.StreamNotFoundError as error:
            raise errors.NotFoundError(
                f"the stream for hits, {self.found.hits}, is gone: make it again, and start the matcher again"
            ) from error

    async def check_stream(self, progress: MatcherProgress) -> None:
        """StreamRemadeError if the stream was deleted, and made anew under its name, since the set was made."""
        with suppress(errors.StreamNotFoundError):
            await check_same(
                self.definitions.stores, self.definitions.scope, self.found.stream, progress.segments, REMADE
            )


REMADE = (
    "its standing queries are the old one's. Delete them (`nadi search standing delete`; their hits stay), and make a "
    "set for the new one"
)


def sets_of(definitions: Definitions) -> Catalog[QuerySet]:
    """The sets of a scope, by their streams."""
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


async def drop_unreadable(definitions: Definitions, stream: str) -> None:
    """Remove a set that can't be read, with all that belongs to the stream's sets."""
    for kind in ("standing-progress", "standing-query", "standing-past", "matcher"):
        await definitions.forget_all(f"{kind}/{stream}/")
    await sets_of(definitions).delete(stream)


_ABANDONED_S = 600.0  # after which queries that aren't added won't be; who adds them then has to begin again


async def add_group(
    records: MatcherRecords,
    changes: CatalogRecord[MatcherProgress],
    queries: Sequence[StandingQuery],
    past: MatcherProgress | None,
) -> None:
    """Add queries as a group; past: from where it is led through the past. AlreadyExistsError if a name is taken."""
    group = queries[0].group
    await _check(records, await changes.get(), queries, are_stored=False)
    try:
        for first in range(0, len(queries), SEARCH_RECORDS_AT_ONCE):
            await records.put(queries[first : first + SEARCH_RECORDS_AT_ONCE])
        if past is not None:
            await records.past(group).create(past)
        tries = Tries(f"the standing queries of {records.found.stream}")
        while True:
            known = await changes.get()
            await _check(records, known, queries, are_stored=True)
            try:
                await changes.change(partial(_added, known, group, past))
                return
            except PositionConflictError:
                await tries.lost()
    except errors.NadiError:
        with suppress(errors.NadiError):  # then others do it
            await _abandon(records, changes, group)
        raise


async def _check(
    records: MatcherRecords, progress: MatcherProgress, queries: Sequence[StandingQuery], *, are_stored: bool
) -> None:
    """AlreadyExistsError if a name is taken; ConflictError if another has removed what was stored."""
    kept = await records.queries()
    names = {one.name for one in queries}
    others = [one for one in kept if progress.has(one.group) and one.id not in progress.removed]
    if len(others) + len(queries) > SEARCH_STANDING_QUERIES:
        raise errors.InvalidArgumentError(f"a stream has at most {SEARCH_STANDING_QUERIES:,} standing queries")
    if taken := next((one.name for one in others if one.name in names), None):
        raise errors.AlreadyExistsError("a standing query", taken)
    is_removed = queries[0].group in progress.removed or not {one.id for one in queries} <= {one.id for one in kept}
    if are_stored and is_removed:
        raise errors.ConflictError("adding these queries took so long that another took it for ended: add them again")


def _added(
    known: MatcherProgress, group: str, past: MatcherProgress | None, newest: MatcherProgress
) -> MatcherProgress | None:
    if newest.has(group):
        return None
    if (newest.version, newest.led) != (known.version, known.led):
        raise PositionConflictError("another has added or removed queries")
    if len(newest.groups) + len(newest.led) >= SEARCH_STANDING_GROUPS:
        raise errors.InvalidArgumentError(
            f"standing queries were added at {SEARCH_STANDING_GROUPS:,} times, which is the most: add many at once"
        )
    return newest.added(group, is_led=past is not None)


async def _abandon(records: MatcherRecords, changes: CatalogRecord[MatcherProgress], group: str) -> None:
    """Remove what is stored of a group that wasn't added, so that it can't be."""
    made = await changes.change(
        lambda newest: None if newest.has(group) or group in newest.removed else newest.without([group])
    )
    if group in made.removed:
        await records.past(group).delete()
        await sweep(records, changes)


async def abandon_old(records: MatcherRecords, changes: CatalogRecord[MatcherProgress]) -> None:
    """Remove what whoever was killed has stored of groups long ago, and didn't add."""
    before_ms = (time.time() - _ABANDONED_S) * 1000
    kept, _ = await records.sorted_out()
    progress = await changes.get()
    for group in {one.group for one in kept if one.created_ms < before_ms and not progress.has(one.group)}:
        await _abandon(records, changes, group)


async def sweep(records: MatcherRecords, changes: CatalogRecord[MatcherProgress]) -> None:
    """Delete the records of queries that were removed, once no batch needs them."""
    progress = changes.newest
    needed = min((batch.version for batch in progress.begun.values()), default=progress.version)
    gone = {one for one, version in progress.removed.items() if version <= needed}
    if not gone:
        return
    kept, unreadable = await records.sorted_out()
    left = {one.group for one in kept if one.id not in gone}
    await records.forget(one.key for one in kept if one.id in gone or one.group in gone)
    left |= progress.groups.keys() if unreadable else set()  # any may have one that can't be read
    empty = [group for group in progress.groups if group not in left and group not in progress.held]
    await changes.change(lambda newest: newest.forgotten(gone, empty))
