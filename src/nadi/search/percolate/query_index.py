"""Which of many queries an event fits, without asking each.

A query that needs a word, a keyword, a number to be there can only fit events that have it: its *anchor*. Of several
that it needs, the anchor is the one that is rarest in the events seen so far; of alternatives each has one. An event's
values are looked up among the anchors, and only the queries found are asked. Those without any, as of ranges or
prefixes alone, are asked about each event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import msgspec

from nadi.client.idempotent.writer import NumberedEvent
from nadi.limits import SEARCH_HIT_BYTES
from nadi.model.event import EventBlock
from nadi.model.keyspace import key_position
from nadi.search.fields import Field, Format, UnfitError, Value, Values, reader_of, words_in
from nadi.search.query.bound import Between, Bound, Close, Follow, Has, Starts
from nadi.search.query.parser import And, Not, Or
from nadi.search.shards.manifest import sums

_position = lru_cache(100_000)(key_position)


class StandingHit(msgspec.Struct, frozen=True):
    """An event that a standing query fits. query: its name; segment, offset: where the event is; event: as it is in its
    stream, JSON within the JSON, or a text; None where it is large: then it has to be read there."""

    query: str
    segment: str
    offset: int
    event: msgspec.Raw | str | None


class MatchCounts(NamedTuple):
    """Of a batch. hits, unfit: see `Progress`."""

    events: int = 0
    hits: int = 0
    unfit: int = 0
    having: Sequence[int] = ()

    def plus(self, other: MatchCounts) -> MatchCounts:
        events, hits, unfit = self.events + other.events, self.hits + other.hits, self.unfit + other.unfit
        return MatchCounts(events, hits, unfit, sums(self.having, other.having))


NO_COUNTS = MatchCounts()


@dataclass(frozen=True, slots=True)
class Matched:
    """Hits of a segment's events, by event, in order."""

    segment_id: int
    hits: list[list[NumberedEvent]]
    counts: MatchCounts


Anchor: TypeAlias = tuple[int, Value]  # a field, and what is in it
_OFTEN_ASKED = 0.25  # of an event, that a query's anchor makes as rare as if it were in none


class Subject:
    """An event as queries see it: by field, what is in it; of texts their words, and also in order."""

    __slots__ = ("found", "texts")

    def __init__(self, values: Values, fields: tuple[Field, ...]) -> None:
        self.found: dict[int, set[Value]] = {}
        self.texts: dict[int, list[list[str]]] = {}
        for number, value in values:
            kind = fields[number].kind
            if kind == "text":
                words = words_in(str(value))
                self.texts.setdefault(number, []).append(words)
                self.found.setdefault(number, set()).update(words)
            elif kind == "facet":
                path = str(value)
                ends = [at for at, char in enumerate(path) if char == "/" and at]
                self.found.setdefault(number, set()).update(path[:end] for end in (*ends, len(path)))
            else:
                self.found.setdefault(number, set()).add(value)


Fits: TypeAlias = Callable[[Subject], bool]
_NOTHING: frozenset[Value] = frozenset()


class Query:
    """A query that is bound to fields: whether an event fits, and what an event needs to have for that."""

    __slots__ = ("bound", "fits")

    def __init__(self, bound: Bound) -> None:
        self.bound, self.fits = bound, _compiled(bound)


class Matcher:
    """Queries by their ids. seen: how often what is in events was seen, as far as is known; few suffice."""

    def __init__(
        self,
        queries: Mapping[str, Query],
        form: Format,
        fields: tuple[Field, ...],
        seen: Mapping[Anchor, int] | None = None,
    ) -> None:
        self._read, self._form, self._fields = reader_of(form, fields), form, fields
        self._by_anchor: dict[int, dict[Value, list[tuple[str, Fits]]]] = {}
        self._always: list[tuple[str, Fits]] = []
        known, asked = seen or {}, Counter[Anchor]()

        def cost(anchor: Anchor) -> float:
            """How often it would have its queries asked. Long words are rare, where nothing else is known, and what few
            queries ask for is cheap."""
            length = len(anchor[1]) if isinstance(anchor[1], str) else 8
            return known.get(anchor, 0) + _OFTEN_ASKED * asked[anchor] + 1 / (1 + length)

        for name, query in queries.items():
            anchors = _cover(query.bound, cost)
            if anchors is None:
                self._always.append((name, query.fits))
                continue
            for anchor in anchors:
                field, value = anchor
                self._by_anchor.setdefault(field, {}).setdefault(value, []).append((name, query.fits))
                asked[anchor] += 1

    @property
    def unanchored(self) -> int:
        return len(self._always)

    def subject(self, data: bytes) -> Subject:
        """UnfitError for an event that doesn't parse."""
        return Subject(self._read(data), self._fields)

    def matched(self, subject: Subject) -> list[str]:
        found: list[str] = []
        several = False
        for field, anchors in self._by_anchor.items():
            values = subject.found.get(field)
            if values is None:
                continue
            for value in values:
                if value in anchors:
                    found += [name for name, fits in anchors[value] if fits(subject)]
                    several = True
        if self._always:
            found += [name for name, fits in self._always if fits(subject)]
        return sorted(set(found)) if several else sorted(found)

    def match(self, name: str, segment_id: int, blocks: Sequence[EventBlock]) -> Matched:
        """The hits of events of the segment with that name. Blocks; call it in a thread."""
        hits: list[list[NumberedEvent]] = []
        events = unfit = 0
        having = [0] * len(self._fields)
        for block in blocks:
            for data, offset in zip(block.events(), block.offsets().tolist(), strict=True):
                events += 1
                try:
                    subject = self.subject(data)
                except UnfitError:
                    unfit += 1
                    continue
                for field in subject.found:
                    having[field] += 1
                if queries := self.matched(subject):
                    hits.append(_hits(queries, self._form, name, offset, data))
        return Matched(segment_id, hits, MatchCounts(events, sum(map(len, hits)), unfit, having))


def _hits(queries: Sequence[str], form: Format, name: str, offset: int, data: bytes) -> list[NumberedEvent]:
    event: msgspec.Raw | str | None = None
    if len(data) * len(queries) <= SEARCH_HIT_BYTES:
        event = msgspec.Raw(data) if form == "json" else data.decode()
    encode = msgspec.json.encode
    return [
        NumberedEvent(offset, _position(query), encode(StandingHit(query, name, offset, event))) for query in queries
    ]


def _cover(bound: Bound, cost: Callable[[Anchor], float]) -> set[Anchor] | None:
    """What an event must have one of, to fit; None where that can't be said."""
    match bound:
        case Has(field, value):
            return {(field, value)}
        case Follow(field, words) | Close(field, words):
            return {min(((field, word) for word in words), key=cost)}
        case And(parts):
            covers = [cover for part in parts if (cover := _cover(part, cost)) is not None]
            return min(covers, key=lambda cover: sum(map(cost, cover)), default=None)
        case Or(parts):
            some = [_cover(part, cost) for part in parts]
            if any(cover is None for cover in some):
                return None
            return {anchor for cover in some if cover is not None for anchor in cover}
        case _:
            return None


def _compiled(bound: Bound) -> Fits:
    match bound:
        case Has(field, value):
            return lambda one: value in one.found.get(field, _NOTHING)
        case Follow(field, words):
            return lambda one: _follow(one, field, words)
        case Close(field, words, apart):
            return lambda one: _close(one, field, words, apart)
        case Starts(field, prefix):
            return lambda one: any(str(value).startswith(prefix) for value in one.found.get(field, _NOTHING))
        case Between():
            return _between(bound)
        case And(parts):
            every = tuple(map(_compiled, parts))
            return lambda one: all(fits(one) for fits in every)
        case Or(parts):
            some = tuple(map(_compiled, parts))
            return lambda one: any(fits(one) for fits in some)
        case Not(part):
            excluded = _compiled(part)
            return lambda one: not excluded(one)


def _follow(subject: Subject, field: int, words: tuple[str, ...]) -> bool:
    found = subject.found.get(field, _NOTHING)
    if not all(word in found for word in words):
        return False
    wanted, count = list(words), len(words)
    return any(text[at : at + count] == wanted for text in subject.texts[field] for at in range(len(text) - count + 1))


def _close(subject: Subject, field: int, words: tuple[str, str], apart: int) -> bool:
    found = subject.found.get(field, _NOTHING)
    if not all(word in found for word in words):
        return False
    at = 0
    last: dict[str, int] = {}  # where each of the two was last
    first, second = words
    for text in subject.texts[field]:
        for word in text:
            if word in words:
                other = last.get(second if word == first else first)
                if other is not None and at - other <= apart:
                    return True
                last[word] = at
            at += 1
        at += 1  # between the values of a list lies one word more, as in the index
    return False


def _between(bound: Between) -> Fits:
    low, high = bound.low, bound.high

    def is_within(value: Value) -> bool:
        assert not isinstance(value, str)
        if low is not None and (value < low if bound.with_low else value <= low):  # type: ignore[operator]
            return False
        return high is None or bool(value <= high if bound.with_high else value < high)  # type: ignore[operator]

    return lambda one: any(map(is_within, one.found.get(bound.field, _NOTHING)))


def counted(subjects: Iterable[Subject]) -> Counter[Anchor]:
    return Counter((field, value) for one in subjects for field, values in one.found.items() for value in values)
