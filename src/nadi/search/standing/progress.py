"""How far a stream is matched, and with which queries: one value, changed by compare-and-set.

A batch of a segment's events is matched in three steps. First it is *begun*: the record says up to where, and with
which *version* of the queries. Then its hits are written, each with a number that is its event's place. Then it is
*done*, in one change with the beginning of the next. Whoever finds a batch begun by one who was killed matches it
again, with the same version: the same hits, of which the stream of hits leaves out those it has. So a query counts from
exactly those places on where batches were begun with it.

A segment is followed once what is older under its keys is done, so each key's hits come in order.

New queries join as a group. It is *added* by whoever was asked to, who first says so here: until then its queries count
for nothing, and only what is said here decides whether they will. Those that begin in the past are *led* through what
came before until the live stream is near; then they are *held*: they are in the version, nothing is begun until the
last bit of their past is done, and then all go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from nadi.errors import ConflictError
from nadi.model.frontier import may_begin
from nadi.model.segments import SegmentRange
from nadi.process.following import OvertakenError, Reach, cut_of
from nadi.search.shards.manifest import sums


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A segment, the keys it takes, and how far it is matched; up to `end` a batch is begun, with that version."""

    segment_id: int
    low: float
    high: float
    reached: int = 0
    end: int = 0
    version: int = 0
    is_done: bool = False

    @property
    def range(self) -> SegmentRange:
        return SegmentRange(self.segment_id, self.low, self.high)

    @property
    def is_begun(self) -> bool:
        return self.end > self.reached


GIVEN_UP = -1  # the beat of a group that won't join


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


class Progress(msgspec.Struct, frozen=True):
    """version: of the queries, it grows. adding: groups that are being added, and a beat that grows meanwhile. led:
    those that are in the past. groups: those that joined, and the first version with them. held: those of them whose
    past isn't done. removed: queries, and the first version without them. events, hits, unfit: so far, the
    last those that didn't parse; gaps: places where data was gone or damaged; having: how many events have each
    field."""

    version: int = 0
    places: dict[int, Place] = {}
    adding: dict[str, int] = {}
    led: list[str] = []
    groups: dict[str, int] = {}
    held: list[str] = []
    removed: dict[str, int] = {}
    events: int = 0
    hits: int = 0
    unfit: int = 0
    gaps: int = 0
    having: list[int] = []

    @property
    def free(self) -> list[Place]:
        """The segments that may be matched now."""
        waiting = [place.segment_id for place in self.places.values() if not place.is_done]
        free = set(may_begin([self.places[one].range for one in waiting], waiting))
        return [place for place in self.places.values() if place.segment_id in free]

    @property
    def followed(self) -> list[Reach]:
        """As `free`, up to where batches are begun."""
        return [Reach(one.segment_id, one.low, one.high, one.end) for one in self.free]

    def positions(self) -> dict[int, int]:
        """The stream cut before which all is matched, or begun."""
        return cut_of(Reach(one.segment_id, one.low, one.high, one.end, 0, one.is_done) for one in self.places.values())

    def done_positions(self) -> dict[int, int]:
        """The stream cut before which all is matched, and its hits are written."""
        return cut_of(
            Reach(one.segment_id, one.low, one.high, one.reached, 0, one.is_done) for one in self.places.values()
        )

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
        return min((place.version for place in self.places.values() if place.is_begun), default=self.version)

    def stepped(
        self, done: Iterable[Batch], begun: Iterable[Batch], counts: Counts = NO_COUNTS, *, gaps: int = 0
    ) -> Progress:
        """With some batches done and others begun. OvertakenError if others did that; HeldError."""
        places = dict(self.places)
        for one in done:
            place = places.get(one.segment_id)
            if place is None or (place.reached, place.end) != (one.start, one.end):
                raise OvertakenError(f"another has matched segment {one.segment_id} at {one.start}")
            places[one.segment_id] = replace(place, reached=one.end)
        for one in begun:
            place = places.get(one.segment_id)
            if place is None or place.is_done or place.is_begun or place.reached != one.start:
                raise OvertakenError(f"another has begun segment {one.segment_id} at {one.start}")
            if self.held:
                raise HeldError
            places[one.segment_id] = replace(place, end=one.end, version=self.version)
        return replace(
            self,
            places=places,
            events=self.events + counts.events,
            hits=self.hits + counts.hits,
            unfit=self.unfit + counts.unfit,
            gaps=self.gaps + gaps,
            having=sums(self.having, counts.having),
        )

    def passed(self, segment_id: int, start: int, to: int) -> Progress:
        """With a gap passed. OvertakenError; HeldError."""
        one = self.stepped([], [Batch(segment_id, start, to)]).stepped([Batch(segment_id, start, to)], [])
        return replace(one, gaps=self.gaps + 1)

    def completed(self, segment_id: int, at: int, successors: Iterable[SegmentRange], *, gaps: int = 0) -> Progress:
        """With a segment done that was matched up to its end. OvertakenError."""
        place = self.places.get(segment_id)
        if place is None or place.is_done or place.is_begun or place.reached != at:
            raise OvertakenError(f"another has completed segment {segment_id}")
        return self._with([Reach(one.segment_id, one.low, one.high) for one in successors], [segment_id], gaps)

    def with_found(self, found: Iterable[Reach], gone: Iterable[int]) -> Progress:
        """With segments that a stream's head has, where those on the way there are forgotten; `gone` are done."""
        return self._with(found, gone, 1)

    def _with(self, found: Iterable[Reach], done: Iterable[int], gaps: int) -> Progress:
        places = self.places | {one: replace(self.places[one], is_done=True) for one in done}
        for one in found:
            places.setdefault(one.segment_id, Place(one.segment_id, one.low, one.high, one.reached, one.reached))
        first_open = min((one.segment_id for one in places.values() if not one.is_done), default=None)
        kept = {
            number: place
            for number, place in places.items()
            if not place.is_done or first_open is None or first_open < number
        }
        return replace(self, places=kept, gaps=self.gaps + gaps)

    def announced(self, group: str) -> Progress:
        """With a group that is being added."""
        return replace(self, adding=self.adding | {group: 0})

    def beaten(self, group: str) -> Progress:
        """With a further sign that a group is being added. ConflictError if it was given up."""
        self._check_adding(group)
        return replace(self, adding=self.adding | {group: self.adding[group] + 1})

    def added(self, group: str, *, is_led: bool) -> Progress:
        """With a group of queries, all of which are stored: led through the past, or joined. ConflictError if it was
        given up."""
        self._check_adding(group)
        adding = {one: beat for one, beat in self.adding.items() if one != group}
        if is_led:
            return replace(self, adding=adding, led=[*self.led, group])
        return replace(self, adding=adding).joined(group, is_held=False)

    def _check_adding(self, group: str) -> None:
        if self.adding.get(group, GIVEN_UP) == GIVEN_UP:
            raise ConflictError("adding these queries took so long that another took it for ended: add them again")

    def given_up(self, group: str) -> Progress | None:
        """With a group that is being added and won't be; None where that is said, or it was added."""
        if self.adding.get(group, GIVEN_UP) == GIVEN_UP:
            return None
        return replace(self, adding=self.adding | {group: GIVEN_UP})

    def cleared(self, group: str) -> Progress | None:
        """Without a group that was given up, and of which nothing is left; None where that is so."""
        if self.adding.get(group) != GIVEN_UP:
            return None
        return replace(self, adding={one: beat for one, beat in self.adding.items() if one != group})

    def joined(self, group: str, *, is_held: bool) -> Progress:
        """With a group of queries, for all that isn't begun yet."""
        version = self.version + 1
        held = [*self.held, group] if is_held else self.held
        led = [one for one in self.led if one != group]
        return replace(self, version=version, groups=self.groups | {group: version}, held=held, led=led)

    def released(self, group: str) -> Progress:
        """With a group's past done."""
        return replace(self, held=[one for one in self.held if one != group])

    def without(self, queries: Sequence[str]) -> Progress:
        """Without some queries, for all that isn't begun yet."""
        version = self.version + 1
        return replace(self, version=version, removed=self.removed | dict.fromkeys(queries, version))

    def forgotten(self, queries: Iterable[str], groups: Iterable[str]) -> Progress:
        """With the records of queries gone, and groups that are empty by that."""
        return replace(
            self,
            removed={one: at for one, at in self.removed.items() if one not in set(queries)},
            groups={one: at for one, at in self.groups.items() if one not in set(groups)},
        )
