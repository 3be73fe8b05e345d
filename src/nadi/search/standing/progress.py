"""How far a stream is matched, and with which queries: one value, changed by compare-and-set.

A batch of a segment's events is matched in three steps. First it is *begun*: the record says up to where, and with
which *version* of the queries. Then its hits are written, each with a number that is its event's place. Then it is
*done*, in one change with the beginning of the next. Whoever finds a batch begun by one who was killed matches it
again, with the same version: the same hits, of which the stream of hits leaves out those it has. So a query counts from
exactly those places on where batches were begun with it.

A segment is followed once what is older under its keys is done, so each key's hits come in order.

New queries join as a group, which is added in one change, once all of them are stored: before that they count for
nothing. Those that begin in the past are *led* through what came before until the live stream is near; then they are
*held*: they are in the version, nothing is begun until the last bit of their past is done, and then all go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import field
from msgspec.structs import replace

from nadi.process.following import OvertakenError, Reach, SegmentPositions, cut_of
from nadi.search.shards.manifest import sums


class Begun(NamedTuple):
    """A batch that is begun up to where its segment's reach is: from where, and with which version."""

    start: int
    version: int


class Batch(NamedTuple):
    """Events of a segment."""

    segment_id: int
    start: int
    end: int


class Counts(NamedTuple):
    """Of a batch, as `Progress` has them."""

    events: int = 0
    hits: int = 0
    unfit: int = 0
    having: Sequence[int] = ()

    def plus(self, other: Counts) -> Counts:
        events, hits, unfit = self.events + other.events, self.hits + other.hits, self.unfit + other.unfit
        return Counts(events, hits, unfit, sums(self.having, other.having))


NO_COUNTS = Counts()


class HeldError(Exception):
    """Nothing is begun until the past of some queries is done."""


class Progress(SegmentPositions, frozen=True):
    """segments: up to where batches are begun. begun: those that aren't done, by segment. version: of the queries, it
    grows. led: groups of queries that are in the past. groups: those that joined, and the first version with them.
    held: those of them whose past isn't done. removed: queries, and groups that won't be added, and the first version
    without them. events, hits, unfit: so far, the last those that didn't parse; having: how many events have each
    field."""

    begun: dict[int, Begun] = field(default_factory=dict)
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
        """Whether a group was added."""
        return group in self.groups or group in self.led

    @property
    def catching_up(self) -> list[str]:
        """The groups whose past isn't done; first those that all wait for."""
        return [*self.held, *self.led]

    @property
    def least_version(self) -> int:
        """Of the batches that are begun; the newest, if none is."""
        return min((batch.version for batch in self.begun.values()), default=self.version)

    def stepped(
        self, done: Iterable[Batch], begun: Iterable[Batch], counts: Counts = NO_COUNTS, *, gaps: int = 0
    ) -> Progress:
        """With some batches done and others begun. OvertakenError if others did that; HeldError."""
        segments, left = dict(self.segments), dict(self.begun)
        for one in done:
            batch = left.pop(one.segment_id, None)
            if batch is None or (batch.start, segments[one.segment_id].reached) != (one.start, one.end):
                raise OvertakenError(f"another has matched segment {one.segment_id} at {one.start}")
        for one in begun:
            if one.segment_id in left:
                raise OvertakenError(f"another has begun segment {one.segment_id}")
            segments[one.segment_id] = replace(SegmentPositions.at(self, one.segment_id, one.start), reached=one.end)
            if self.held:
                raise HeldError
            left[one.segment_id] = Begun(one.start, self.version)
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

    def at(self, segment_id: int, offset: int) -> Reach:
        if segment_id in self.begun:
            raise OvertakenError(f"another has begun segment {segment_id}")
        return super().at(segment_id, offset)

    def passed(self, segment_id: int, start: int, to: int) -> Progress:
        """With a gap passed. OvertakenError; HeldError."""
        made = super().passed(segment_id, start, to)
        if self.held:
            raise HeldError
        return made

    def added(self, group: str, *, is_led: bool) -> Progress:
        """With a group of queries, all of which are stored: led through the past, or joined."""
        return replace(self, led=[*self.led, group]) if is_led else self.joined(group, is_held=False)

    def joined(self, group: str, *, is_held: bool) -> Progress:
        """With a group of queries, for all that isn't begun yet."""
        version = self.version + 1
        held = [*self.held, group] if is_held else self.held
        led = [one for one in self.led if one != group]
        return replace(self, version=version, groups=self.groups | {group: version}, held=held, led=led)

    def joined_from_past(self, group: str) -> Progress | None:
        """With a group that is led held; None where it isn't, any more."""
        return self.joined(group, is_held=True) if group in self.led else None

    def released(self, group: str, gaps: int = 0) -> Progress | None:
        """With a group's past done, which had some gaps; None where it was."""
        if group not in self.held:
            return None
        return replace(self, held=[one for one in self.held if one != group], gaps=self.gaps + gaps)

    def without(self, queries: Iterable[str]) -> Progress:
        """Without some queries, or a group that isn't added, for all that isn't begun yet."""
        version = self.version + 1
        return replace(self, version=version, removed=self.removed | dict.fromkeys(queries, version))

    def forgotten(self, queries: Iterable[str], groups: Iterable[str]) -> Progress:
        """With the records of queries gone, and groups that are empty by that."""
        return replace(
            self,
            removed={one: at for one, at in self.removed.items() if one not in set(queries)},
            groups={one: at for one, at in self.groups.items() if one not in set(groups)},
        )
