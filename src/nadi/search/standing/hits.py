"""What a hit is, and that it is written once: its number is where its event is.

A hit's key is its query's name. Those of one event that go to one segment are stored in one append, for a number counts
for all events that have it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.numbered.places import StreamShape
from nadi.client.numbered.writer import NumberedEvent, NumberedWriter
from nadi.errors import NotFoundError, StreamNotFoundError
from nadi.limits import SEARCH_HIT_BYTES
from nadi.model.event import EventBlock
from nadi.model.keyspace import key_position
from nadi.naming import segment_name
from nadi.search.fields import Format, UnfitError
from nadi.search.standing.matching import Matcher
from nadi.search.standing.progress import Counts

_APPEND_BYTES = 1 << 20  # of hits, unless those of one event are more
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


class HitWriters:
    """Write hits of a set's queries. part: which of them, as each counts its own: those of the live stream, or a group
    that catches up."""

    def __init__(self, manager: StreamManager, scope: str, stream: str, set_id: str, hits: str, part: str) -> None:
        self._scope, self._stream, self._id, self._part = scope, stream, set_id, part
        self._hits = hits
        self._shape = StreamShape(stores_of(manager), *hits.split("/"))
        self._writers: dict[int, NumberedWriter] = {}

    async def write(self, matched: Sequence[Matched]) -> None:
        """Return once all are stored, those included that were before. NotFoundError if there is no stream for them."""
        try:
            await asyncio.gather(*(self._write(one) for one in matched if one.hits))
        except StreamNotFoundError as error:
            raise NotFoundError(
                f"the stream for hits, {self._hits}, is gone: make it again, and start the matcher again"
            ) from error

    async def _write(self, matched: Matched) -> None:
        writer = self._writer(matched.segment_id)
        batch: list[NumberedEvent] = []
        size = 0
        for hits in matched.hits:
            length = sum(len(hit.data) for hit in hits)
            if batch and size + length > _APPEND_BYTES:
                await writer.write(batch)
                batch, size = [], 0
            batch += hits
            size += length
        await writer.write(batch)

    def _writer(self, segment_id: int) -> NumberedWriter:
        if segment_id not in self._writers:
            name = segment_name(self._scope, self._stream, segment_id)
            writer_id = hashlib.blake2b(f"{self._id}/{self._part}/{name}".encode(), digest_size=16).digest()
            self._writers[segment_id] = NumberedWriter(self._shape, writer_id)
        return self._writers[segment_id]

    def leave(self, segments: Mapping[int, object]) -> None:
        """Let go of the writers of all but these segments."""
        for segment_id in self._writers.keys() - segments.keys():
            self._writers.pop(segment_id).close()

    def close(self) -> None:
        self.leave({})
