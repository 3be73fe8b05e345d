"""Finds the queries that an event matches without evaluating all of them.

A query that requires a word, a keyword or a number can only match events with it: its *anchor*. Of several required
values, the anchor is the rarest in the events seen so far; each alternative has an anchor. An event's
values are looked up among the anchors, and only the queries found are evaluated. Queries without anchors, such as
ranges or prefixes alone, are evaluated for each event.
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
from nadi.search.fields import Field, Format, InvalidEventError, Value, Values, reader_of, words_in
from nadi.search.query.bound import Between, Bound, Close, Follow, Has, Starts
from nadi.search.query.parser import And, Not, Or
from nadi.search.shards.manifest import sums

_position = lru_cache(100_000)(key_position)


class StandingHit(msgspec.Struct, frozen=True):
    """A hit of a standing query. query: its name; segment, offset: the event's position; event: JSON or text, as in its
    stream, or None if it is large: read it there."""

    query: str
    segment: str
    offset: int
    event: msgspec.Raw | str | None


class MatchCounts(NamedTuple):
    """Counts of a batch. hits, invalid: see `MatcherProgress`."""

    events: int = 0
    hits: int = 0
    invalid: int = 0
    field_counts: Sequence[int] = ()

    def plus(self, other: MatchCounts) -> MatchCounts:
        events, hits, invalid = self.events + other.events, self.hits + other.hits, self.invalid + other.invalid
        return MatchCounts(events, hits, invalid, sums(self.field_counts, other.field_counts))


NO_COUNTS = MatchCounts()


@dataclass(frozen=True, slots=True)
class SegmentHits:
    """The hits of a segment's events, by event, in order."""

    segment_id: int
    hits: list[list[NumberedEvent]]
    counts: MatchCounts


Anchor: TypeAlias = tuple[int, Value]  # a field and its value
_OFTEN_ASKED = 0.25  # cost of a query of the anchor, in events with its value


class Subject:
    """An event's values by field; of texts the words, also in order."""

    __slots__ = ("texts", "values")

    def __init__(self, values: Values, fields: tuple[Field, ...]) -> None:
        self.values: dict[int, set[Value]] = {}
        self.texts: dict[int, list[list[str]]] = {}
        for number, value in values:
            kind = fields[number].kind
            if kind == "text":
                words = words_in(str(value))
                self.texts.setdefault(number, []).append(words)
                self.values.setdefault(number, set()).update(words)
            elif kind == "facet":
                path = str(value)
                ends = [at for at, char in enumerate(path) if char == "/" and at]
                self.values.setdefault(number, set()).update(path[:end] for end in (*ends, len(path)))
            else:
                self.values.setdefault(number, set()).add(value)


Fits: TypeAlias = Callable[[Subject], bool]
_NOTHING: frozenset[Value] = frozenset()


class Query:
    """A query bound to fields: `fits` evaluates it for an event."""

    __slots__ = ("bound", "fits")

    def __init__(self, bound: Bound) -> None:
        self.bound, self.fits = bound, _compiled(bound)


class Matcher:
    """Queries by id, indexed by anchor. seen: the number of sampled events with each value; a small sample suffices."""

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
        known, query_counts = seen or {}, Counter[Anchor]()

        def cost(anchor: Anchor) -> float:
            """Estimate how often its queries are evaluated. Without samples, long words count as rare; anchors with few
            queries are cheap."""
            length = len(anchor[1]) if isinstance(anchor[1], str) else 8
            return known.get(anchor, 0) + _OFTEN_ASKED * query_counts[anchor] + 1 / (1 + length)

        for name, query in queries.items():
            anchors = _cover(query.bound, cost)
            if anchors is None:
                self._always.append((name, query.fits))
                continue
            for anchor in anchors:
                field, value = anchor
                self._by_anchor.setdefault(field, {}).setdefault(value, []).append((name, query.fits))
                query_counts[anchor] += 1

    @property
    def unanchored(self) -> int:
        return len(self._always)

    def subject(self, data: bytes) -> Subject:
        """Return an event's values; InvalidEventError if it doesn't parse."""
        return Subject(self._read(data), self._fields)

    def matched(self, subject: Subject) -> list[str]:
        matched: list[str] = []
        several = False
        for field, anchors in self._by_anchor.items():
            values = subject.values.get(field)
            if values is None:
                continue
            for value in values:
                if value in anchors:
                    matched += [name for name, fits in anchors[value] if fits(subject)]
                    several = True
        if self._always:
            matched += [name for name, fits in self._always if fits(subject)]
        return sorted(set(matched)) if several else sorted(matched)

    def match(self, name: str, segment_id: int, blocks: Sequence[EventBlock]) -> SegmentHits:
        """Return the hits of a segment's events. Blocks; call it in a thread."""
        hits: list[list[NumberedEvent]] = []
        events = invalid = 0
        field_counts = [0] * len(self._fields)
        for block in blocks:
            for data, offset in zip(block.events(), block.offsets().tolist(), strict=True):
                events += 1
                try:
                    subject = self.subject(data)
                except InvalidEventError:
                    invalid += 1
                    continue
                for field in subject.values:
                    field_counts[field] += 1
                if queries := self.matched(subject):
                    hits.append(_hits(queries, self._form, name, offset, data))
        return SegmentHits(segment_id, hits, MatchCounts(events, sum(map(len, hits)), invalid, field_counts))


def _hits(queries: Sequence[str], form: Format, name: str, offset: int, data: bytes) -> list[NumberedEvent]:
    event: msgspec.Raw | str | None = None
    if len(data) * len(queries) <= SEARCH_HIT_BYTES:
        event = msgspec.Raw(data) if form == "json" else data.decode()
    encode = msgspec.json.encode
    return [
        NumberedEvent(offset, _position(query), encode(StandingHit(query, name, offset, event))) for query in queries
    ]


def _cover(bound: Bound, cost: Callable[[Anchor], float]) -> set[Anchor] | None:
    """Return a set of values such that each matching event has one of them; None if there is none."""
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
            return lambda subject: value in subject.values.get(field, _NOTHING)
        case Follow(field, words):
            return lambda subject: _follow(subject, field, words)
        case Close(field, words, apart):
            return lambda subject: _close(subject, field, words, apart)
        case Starts(field, prefix):
            return lambda subject: any(str(value).startswith(prefix) for value in subject.values.get(field, _NOTHING))
        case Between():
            return _between(bound)
        case And(parts):
            every = tuple(map(_compiled, parts))
            return lambda subject: all(fits(subject) for fits in every)
        case Or(parts):
            some = tuple(map(_compiled, parts))
            return lambda subject: any(fits(subject) for fits in some)
        case Not(part):
            excluded = _compiled(part)
            return lambda subject: not excluded(subject)


def _follow(subject: Subject, field: int, words: tuple[str, ...]) -> bool:
    present = subject.values.get(field, _NOTHING)
    if not all(word in present for word in words):
        return False
    phrase, count = list(words), len(words)
    return any(text[at : at + count] == phrase for text in subject.texts[field] for at in range(len(text) - count + 1))


def _close(subject: Subject, field: int, words: tuple[str, str], apart: int) -> bool:
    present = subject.values.get(field, _NOTHING)
    if not all(word in present for word in words):
        return False
    at = 0
    last: dict[str, int] = {}  # last position of each word
    first, second = words
    for text in subject.texts[field]:
        for word in text:
            if word in words:
                other = last.get(second if word == first else first)
                if other is not None and at - other <= apart:
                    return True
                last[word] = at
            at += 1
        at += 1  # a gap of one between the values of a list, as in the index
    return False


def _between(bound: Between) -> Fits:
    low, high = bound.low, bound.high

    def is_within(value: Value) -> bool:
        assert not isinstance(value, str)
        if low is not None and (value < low if bound.with_low else value <= low):  # type: ignore[operator]
            return False
        return high is None or bool(value <= high if bound.with_high else value < high)  # type: ignore[operator]

    return lambda subject: any(map(is_within, subject.values.get(bound.field, _NOTHING)))


def counted(subjects: Iterable[Subject]) -> Counter[Anchor]:
    return Counter(
        (field, value) for subject in subjects for field, values in subject.values.items() for value in values
    )
