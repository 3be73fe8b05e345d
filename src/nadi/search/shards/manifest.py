"""What an index consists of, and how far it has come: one value, changed by compare-and-set, and the only record of it.

Each segment of the stream is followed by itself: an index has no order to keep. `segments` says of each that is known
how far its events are in shards, and a shard is added together with the step that it makes there. So a shard of events
that are in another, or one that leaves some out, can't be added, whoever was killed when, and however many indexers
there are.

What lay in the stream when many were told to index its past is `past`: spans, each of which whoever is done adds a
shard for.

Dead letters are numbered by where their events are, and numbers of one writer ascend. Who follows a segment writes as
one writer from where the following of it began, its *origin*: and says here first how far it is about to write. So a
span of the past of which letters may be there already is known, and its letters are written as that writer's.

A segment that is read to its end stays until no earlier one may still lead to it, and no shard has events of it.

>>> one = Manifest.started([Reach(0, 0.0, 1.0)])
>>> one = one.advanced([Step(0, 0, 80, 5)], Shard("a", 1, 900, [(0, 0, 80)]), indexed=1)
>>> one.segments[0].reached, one.shards[0].id
(80, 'a')
>>> one.advanced([Step(0, 0, 80, 5)], Shard("b", 1, 900, [(0, 0, 80)]), indexed=1)
Traceback (most recent call last):
nadi.process.segment_follower.PositionConflictError: another worker was faster in segment 0: it is at 80, not at 0

The names of indexes and shards. They become paths, and whoever may write in a scope may write any into its table; so
what is read from there has the exact form that is made here, or is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import field
from msgspec.structs import replace

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_MANIFEST_BYTES, TABLE_VALUE_MAX_BYTES
from nadi.process.segment_follower import PositionConflictError, SegmentPositions, SegmentProgress, cut_of

INDEX = re.compile(r"\A[0-9a-f]{32}\Z")
SHARD = re.compile(r"\A[0-9]{13}-[0-9a-f]{32}\Z")
FILE = re.compile(r"\A[0-9a-f]{32}(\.[a-z0-9]{1,20}){1,3}\Z")  # of tantivy's, in a shard
IndexId = Annotated[str, msgspec.Meta(pattern=INDEX.pattern)]
ShardId = Annotated[str, msgspec.Meta(pattern=SHARD.pattern)]


def new_index() -> str:
    return uuid.uuid4().hex


def new_name() -> str:
    """A new shard's. It begins with when it was made."""
    return f"{time.time_ns() // 1_000_000:013d}-{uuid.uuid4().hex}"


def made_ms(shard: str) -> int | None:
    """When a shard's name was made, in ms since 1970; None for a name that isn't a shard's."""
    return int(shard[:13]) if SHARD.match(shard) else None


def folder_of_index(*of: str) -> str:
    """The folder of an index's shards, in its store and in caches: of its scope, stream and id, so that an id of
    another's index leads to nothing of it."""
    assert INDEX.match(of[-1]), of
    return hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()


_APART_BYTES = 4096  # of a past: events so far apart have different orders, whatever is known of when they came
Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Span = tuple[int, int, int]  # of a segment, the events from an offset up to before another


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """docs: events in it; size_bytes: of the object; spans: where the events are, in order."""

    id: ShardId
    docs: int
    size_bytes: int
    spans: list[Span]


class PastOrders(msgspec.Struct, frozen=True, array_like=True):
    """Between which orders those of a segment's past lie, from `start` up to `end`. before: that of the event before
    it, in microseconds. came_ms: by when all of it had come, -1 where that is unknown."""

    start: int
    before: int
    end: int
    came_ms: int

    @property
    def last(self) -> int:
        """None is higher, and those of what follows are."""
        return max(self.came_ms * 1000, self.before + 1 + (self.end - self.start) // _APART_BYTES)


class IndexedRange(NamedTuple):
    segment_id: int
    start: int
    end: int
    order: int


class Lettering(msgspec.Struct, frozen=True, array_like=True):
    """Of a segment that is followed since `origin`, dead letters may be written up to `end`, and aren't told as
    indexed."""

    segment_id: int
    origin: int
    end: int


class ShardManifest(SegmentPositions, frozen=True):
    """generation: of the manifest, it grows with each change. retired: shards that were replaced, and when, in ms since
    1970. orders: of the past, by segment. indexed, unfit: events so far, the latter those that didn't parse; having: of
    the former, how many have each field. Its segments stay while a shard or the past has events of them."""

    generation: int = 0
    shards: list[Shard] = field(default_factory=list)
    past: list[Span] = field(default_factory=list)
    retired: dict[ShardId, int] = field(default_factory=dict)
    orders: dict[int, PastOrders] = field(default_factory=dict)
    indexed: int = 0
    unfit: int = 0
    lettering: list[Lettering] = field(default_factory=list)
    having: list[int] = field(default_factory=list)

    @property
    def followed(self) -> list[SegmentProgress]:
        return [reach for reach in self.segments.values() if not reach.is_done]

    @property
    def known(self) -> list[SegmentProgress]:
        """All segments, those with a part of the past to be indexed as if they had come no further than there."""
        found = dict(self.segments)
        for segment_id, start, _ in sorted(self.past, reverse=True):
            found[segment_id] = replace(found[segment_id], reached=start, is_done=False)
        return list(found.values())

    @classmethod
    def decode(cls, value: bytes) -> ShardManifest:
        """ValueError or MsgspecError for anything but a whole manifest."""
        try:
            unpacked = zlib.decompressobj().decompress(value, SEARCH_MANIFEST_BYTES)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        made = msgspec.msgpack.decode(unpacked, type=ShardManifest)
        past = {span[0] for span in made.past}
        if not made.needed() <= made.segments.keys() or not past <= made.orders.keys():
            raise ValueError("it names segments that it doesn't know: who wrote that?")
        return made

    def encode(self) -> bytes:
        """Compressed: spans of many segments in many shards are numbers that are much alike."""
        value = zlib.compress(msgspec.msgpack.encode(self), 1)
        if len(value) > TABLE_VALUE_MAX_BYTES:
            raise InvalidArgumentError(
                f"the manifest of the index has {len(value):,} bytes, which is too much: a stream of so many "
                "segments can be indexed only if it keeps fewer"
            )
        return value

    def needed(self) -> set[int]:
        return {span[0] for shard in self.shards for span in shard.spans} | {span[0] for span in self.past}

    def positions(self) -> dict[int, int]:
        """The stream cut before which all events are indexed; some behind it may be, too."""
        return cut_of(self.known)

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    def advanced(
        self,
        steps: Iterable[IndexedRange],
        shard: Shard | None,
        *,
        indexed: int = 0,
        unfit: int = 0,
        having: Sequence[int] = (),
    ) -> ShardManifest:
        """With these steps done, and the shard of their events, if there is any to be found. PositionConflictError."""
        segments = dict(self.segments)
        ends: dict[tuple[int, int], int] = {}
        for step in steps:
            reach = self.at(step.segment_id, step.start)
            segments[step.segment_id] = replace(reach, reached=step.end, order=step.order)
            ends[step.segment_id, reach.origin] = step.end
        lettering = [one for one in self.lettering if one.end > ends.get((one.segment_id, one.origin), 0)]
        return self._with(shard, indexed, unfit, having, segments=segments, lettering=lettering)

    def _with(
        self, shard: Shard | None, indexed: int, unfit: int, having: Sequence[int], **changes: Any
    ) -> ShardManifest:
        return self._next(
            shards=self.shards if shard is None else [*self.shards, shard],
            indexed=self.indexed + indexed,
            unfit=self.unfit + unfit,
            having=sums(self.having, having),
            **changes,
        )

    def _next(self, **changes: Any) -> ShardManifest:
        return replace(self, generation=self.generation + 1, **changes)

    def lettered(self, steps: Iterable[IndexedRange]) -> ShardManifest:
        """With it said that dead letters of these steps are about to be written. PositionConflictError."""
        ends = {(one.segment_id, one.origin): one.end for one in self.lettering}
        for step in steps:
            place = (step.segment_id, self.at(step.segment_id, step.start).origin)
            ends[place] = max(ends.get(place, 0), step.end)
        made = [Lettering(segment, origin, end) for (segment, origin), end in ends.items()]
        return self._next(lettering=made)

    def letters_of(self, span: Span) -> int | None:
        """The origin as whose a part of the past has its letters written; None if nobody may have written any."""
        segment, start, end = span
        found = (one for one in self.lettering if one.segment_id == segment and one.origin <= start and end <= one.end)
        return next((one.origin for one in found), None)

    def divided(
        self, past: Sequence[Span], tail: Iterable[SegmentProgress], orders: Mapping[int, PastOrders] | None = None
    ) -> ShardManifest:
        """With what lies up to the stream's tail as the past, to be indexed by many. tail: its segments, which are
        followed from there, after those of the past that aren't known yet. orders: of the past's segments."""
        segments = {segment_id: replace(reach, is_done=True) for segment_id, reach in self.segments.items()}
        for reach in tail:
            segments[reach.segment_id] = replace(reach, origin=reach.reached)
        made = replace(self, past=[*self.past, *past], orders={**self.orders, **(orders or {})})
        return made.with_segments(segments)

    def filled(
        self, span: Span, shard: Shard | None, *, indexed: int, unfit: int, having: Sequence[int] = ()
    ) -> ShardManifest:
        """With a part of the past indexed. PositionConflictError if it is already."""
        if span not in self.past:
            raise PositionConflictError(f"another has indexed that part of segment {span[0]}")
        origin = self.letters_of(span)
        lettering = [one for one in self.lettering if (one.segment_id, one.origin) != (span[0], origin)]
        past = [one for one in self.past if one != span]
        made = self._with(shard, indexed, unfit, having, past=past, lettering=lettering)
        return made.with_segments(self.segments)

    def merged(self, replaced: Sequence[str], made: Shard, now_ms: int) -> ShardManifest:
        """With one shard in place of others. OvertakenError if they aren't there any more."""
        gone = set(replaced)
        if not gone <= {shard.id for shard in self.shards}:
            raise PositionConflictError("another has merged these shards, or retention has deleted them")
        kept = [shard for shard in self.shards if shard.id not in gone]
        return self._next(shards=[*kept, made], retired=self.retired | dict.fromkeys(replaced, now_ms))

    def truncated(self, limits: Mapping[int, int | None], now_ms: int) -> ShardManifest | None:
        """Without the shards whose events are all gone; None if there are none. limits: by segment, the offset before
        which events are gone; None where all are."""

        def is_gone(span: Span) -> bool:
            limit = limits.get(span[0], 0)
            return limit is None or span[2] <= limit

        gone = [shard.id for shard in self.shards if all(map(is_gone, shard.spans))]
        shards = [shard for shard in self.shards if shard.id not in set(gone)]
        retired = self.retired | dict.fromkeys(gone, now_ms)
        made = replace(self, shards=shards, retired=retired).with_segments(self.segments)
        return made if gone or made.segments != self.segments else None

    def without_retired(self, shards: Iterable[str]) -> ShardManifest:
        gone = set(shards)
        return self._next(retired={shard: at for shard, at in self.retired.items() if shard not in gone})

    def with_segments(self, segments: Mapping[int, SegmentProgress], gaps: int = 0) -> ShardManifest:
        made = super().with_segments(segments, gaps)
        past = {span[0] for span in self.past}
        return made._next(
            orders={segment: one for segment, one in self.orders.items() if segment in past},
            lettering=[one for one in self.lettering if one.segment_id in made.segments],
        )


def past_micros(orders: PastOrders, offsets: Numbers, came_ms: Numbers, ends: Numbers) -> Numbers:
    """The microseconds of the orders of events of a past: whoever indexes which part of it when, they lie as the events
    do. Within the bytes that came by one moment, as the time index has it, they go back from there. ends: see
    `came_within`.

    >>> one = PastOrders(0, 0, 3 << 20, 70)
    >>> offsets, came, ends = np.array([0, 8, 1 << 20, 2 << 20]), np.array([50, 50, 50, 90]), np.array([2 << 20] * 4)
    >>> past_micros(one, offsets, came, ends).tolist()
    [49488, 49489, 49744, 69744]
    """
    is_last = came_ms >= max(orders.came_ms, 0)  # the index may have said more since the past was divided
    times = np.where(is_last, max(orders.came_ms, 0), came_ms) * 1000
    micros = times - (np.where(is_last, orders.end, ends) - offsets) // _APART_BYTES
    least = orders.before + 1 + (offsets - orders.start) // _APART_BYTES
    found: Numbers = np.maximum.accumulate(np.maximum(micros, least))
    return found


def sums(ones: Sequence[int], others: Sequence[int]) -> list[int]:
    """Of each place; the shorter has zeros at its end."""
    return [one + other for one, other in zip_longest(ones, others, fillvalue=0)]


def joined(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, with those that touch made one.

    >>> joined([(1, 0, 5), (0, 8, 9), (1, 5, 7)])
    [(0, 8, 9), (1, 0, 7)]
    """
    found: list[Span] = []
    for segment, start, end in sorted(spans):
        if found and found[-1][0] == segment and found[-1][2] == start:
            start = found.pop()[1]
        found.append((segment, start, end))
    return found


_SMALL = 10_000  # events, up to which all shards are of one size to tantivy
_SAME_SIZE = 2**0.75  # and by which others may differ


def to_merge(shards: Sequence[Shard], least: int, most: int, largest: int) -> list[list[Shard]]:
    """Groups of shards that are better one: at least `least`, all small, or of about the same size, which is how
    tantivy decides what it merges. most: in a group. largest: of what is merged at all, in events."""
    sizes = sorted((shard for shard in shards if shard.docs <= largest), key=lambda shard: -shard.docs)
    groups: list[list[Shard]] = []
    top = 0.0
    for shard in sizes:
        size = max(shard.docs, _SMALL)
        if not groups or size < top / _SAME_SIZE:
            groups.append([])
            top = size
        groups[-1].append(shard)
    return [group[-most:] for group in groups if len(group) >= least]


def has_all(manifest: ShardManifest, limits: Mapping[int, int | None]) -> bool:
    """Whether all events before a cut are indexed. limits: by segment, the offset before which they are the cut's; None
    where all are. Segments that nobody knows yet follow one that isn't finished."""

    def is_short(reach: SegmentProgress) -> bool:
        limit = limits.get(reach.segment_id, 0)
        return not reach.is_done and (limit is None or reach.reached < limit)

    return not any(map(is_short, manifest.known))
