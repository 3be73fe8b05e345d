"""What a hit is. Its key is its query's name, and its number is where its event is (`process.outputs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from nadi.client.numbered.writer import NumberedEvent
from nadi.limits import SEARCH_HIT_BYTES
from nadi.model.event import EventBlock
from nadi.model.keyspace import key_position
from nadi.search.fields import Format, UnfitError
from nadi.search.standing.matching import Matcher
from nadi.search.standing.progress import Counts

_position = lru_cache(100_000)(key_position)


class StandingHit(msgspec.Struct, frozen=True):
    """An event that a standing query fits. query: its name; segment, offset: where the event is; event: as it is in its
    stream, JSON within the JSON, or a text; None where it is large: then it has to be read there."""

    query: str
    segment: str
    offset: int
    event: msgspec.Raw | str | None


@dataclass(frozen=True, slots=True)
class Matched:
    """Hits of a segment's events, by event, in order."""

    segment_id: int
    hits: list[list[NumberedEvent]]
    counts: Counts


def match(matcher: Matcher, form: Format, name: str, segment_id: int, blocks: Sequence[EventBlock]) -> Matched:
    """The hits of events of the segment with that name. Blocks; call it in a thread."""
    found: list[list[NumberedEvent]] = []
    events = unfit = 0
    having = [0] * matcher.fields
    for block in blocks:
        for data, offset in zip(block.events(), block.offsets().tolist(), strict=True):
            events += 1
            try:
                subject = matcher.subject(data)
            except UnfitError:
                unfit += 1
                continue
            for field in subject.found:
                having[field] += 1
            if queries := matcher.matched(subject):
                found.append(_hits(queries, form, name, offset, data))
    return Matched(segment_id, found, Counts(events, sum(map(len, found)), unfit, having))


def _hits(queries: Sequence[str], form: Format, name: str, offset: int, data: bytes) -> list[NumberedEvent]:
    event: msgspec.Raw | str | None = None
    if len(data) * len(queries) <= SEARCH_HIT_BYTES:
        event = msgspec.Raw(data) if form == "json" else data.decode()
    encode = msgspec.json.encode
    return [
        NumberedEvent(offset, _position(query), encode(StandingHit(query, name, offset, event))) for query in queries
    ]
