"""The manifest of an index: its shards and its progress, one value that is changed by compare-and-set, and the only
record.

Each segment of the stream is followed independently: an index doesn't need an order. `segments` has the position up to
which each segment's events are in shards, and a shard is added together with the step that it makes there. So a shard
that repeats or omits events can't be added, after any crash and with any number of indexers.

During a backfill, `past` lists the spans that remain of the stream's history. A process adds a shard for each.

Dead letters are numbered by their events' offsets, and the numbers of one writer ascend. A segment's letters are
written by one writer from where following began, its *origin*; before they are written, the manifest records up to
where. So a backfill knows which spans may have letters already, and writes theirs as the same writer.

A segment that is read to its end stays until no earlier segment can lead to it and no shard has its events.

>>> manifest = ShardManifest.started([SegmentProgress(0, 0.0, 1.0)])
>>> step = IndexedRange(0, 0, 80, 5)
>>> manifest = manifest.advanced([step], Shard("a", 1, 900, [(0, 0, 80)]), indexed=1)
>>> manifest.segments[0].reached, manifest.shards[0].id
(80, 'a')
>>> manifest.advanced([step], Shard("b", 1, 900, [(0, 0, 80)]), indexed=1)
Traceback (most recent call last):
nadi.process.segment_follower.PositionConflictError: another worker has changed segment 0: it is at 80, not at 0

The names of indexes and shards become paths, and writers of a scope may write anything into its table. So names that
are read from the table must match the exact patterns here.
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
FILE = re.compile(r"\A[0-9a-f]{32}(\.[a-z0-9]{1,20}){1,3}\Z")  # tantivy's files in a shard
IndexId = Annotated[str, msgspec.Meta(pattern=INDEX.pattern)]
ShardId = Annotated[str, msgspec.Meta(pattern=SHARD.pattern)]


def new_index() -> str:
    return uuid.uuid4().hex


def new_name() -> str:
    """Return a new shard's name, which begins with the time."""
    return f"{time.time_ns() // 1_000_000:013d}-{uuid.uuid4().hex}"


def created_ms(shard: str) -> int | None:
    """Return when a shard's name was made, in ms since 1970; None for other names."""
    return int(shard[:13]) if SHARD.match(shard) else None


def folder_of_index(*of: str) -> str:
    """Return the folder of an index's shards in its store or a cache, from its scope, stream and id, so that an id
    copied to another index leads elsewhere."""
    assert INDEX.match(of[-1]), of
    return hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()


_APART_BYTES = 4096  # in a history, events at this distance get different orders, whatever their arrival times
Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Span = tuple[int, int, int]  # segment, start, end


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """docs: number of events; size_bytes: of the object; spans: the positions of the events, in order."""

    id: ShardId
    docs: int
    size_bytes: int
    spans: list[Span]


class HistoryOrders(msgspec.Struct, frozen=True, array_like=True):
    """The range of the orders of a segment's history, from `start` to `end`. before: the order of the previous event,
    in microseconds. arrival_ms: by when all of it had arrived, -1 if unknown."""

    start: int
    before: int
    end: int
    arrival_ms: int

    @property
    def last(self) -> int:
        """The highest order of the history; later events get higher ones."""
        return max(self.arrival_ms * 1000, self.before + 1 + (self.end - self.start) // _APART_BYTES)


class IndexedRange(NamedTuple):
    segment_id: int
    start: int
    end: int
    order: int


class DeadLetterRange(msgspec.Struct, frozen=True, array_like=True):
    """A segment that is followed since `origin`: dead letters may be written up to `end`, but aren't recorded as
    indexed."""

    segment_id: int
    origin: int
    end: int


class ShardManifest(SegmentPositions, frozen=True):
    """The value of the manifest. generation: grows with each change. retired: replaced shards, and when, in ms since
    1970. orders: of the history, by segment. indexed, invalid: numbers of indexed and invalid events; field_counts:
    number of indexed events with each field. Its segments stay while a shard or the history has events of them."""

    generation: int = 0
    shards: list[Shard] = field(default_factory=list)
    past: list[Span] = field(default_factory=list)
    retired: dict[ShardId, int] = field(default_factory=dict)
    orders: dict[int, HistoryOrders] = field(default_factory=dict)
    indexed: int = 0
    invalid: int = 0
    lettering: list[DeadLetterRange] = field(default_factory=list)
    field_counts: list[int] = field(default_factory=list)

    @property
    def followed(self) -> list[SegmentProgress]:
        return [reach for reach in self.segments.values() if not reach.is_done]

    @property
    def known(self) -> list[SegmentProgress]:
        """All segments; those with a part of the history to be indexed are positioned at its start."""
        segments = dict(self.segments)
        for segment_id, start, _ in sorted(self.past, reverse=True):
            segments[segment_id] = replace(segments[segment_id], reached=start, is_done=False)
        return list(segments.values())

    @classmethod
    def decode(cls, value: bytes) -> ShardManifest:
        """Decode a manifest; ValueError or MsgspecError for other values."""
        try:
            unpacked = zlib.decompressobj().decompress(value, SEARCH_MANIFEST_BYTES)
        except zlib.error as error:
            raise ValueError(str(error)) from None
        manifest = msgspec.msgpack.decode(unpacked, type=ShardManifest)
        past = {span[0] for span in manifest.past}
        if not manifest.needed() <= manifest.segments.keys() or not past <= manifest.orders.keys():
            raise ValueError("it refers to segments that it doesn't list")
        return manifest

    def encode(self) -> bytes:
        """Encode and compress: spans of many segments in many shards are similar numbers."""
        value = zlib.compress(msgspec.msgpack.encode(self), 1)
        if len(value) > TABLE_VALUE_MAX_BYTES:
            raise InvalidArgumentError(
                f"the manifest of the index is too large ({len(value):,} bytes), because the stream has very many "
                "segments: shorten its retention to index it"
            )
        return value

    def needed(self) -> set[int]:
        return {span[0] for shard in self.shards for span in shard.spans} | {span[0] for span in self.past}

    def positions(self) -> dict[int, int]:
        """Return the stream cut before which all events are indexed; some later ones may be, too."""
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
        invalid: int = 0,
        field_counts: Sequence[int] = (),
    ) -> ShardManifest:
        """Return a copy with these steps done and their shard added, unless it would be empty.
        PositionConflictError."""
        segments = dict(self.segments)
        ends: dict[tuple[int, int], int] = {}
        for step in steps:
            reach = self.at(step.segment_id, step.start)
            segments[step.segment_id] = replace(reach, reached=step.end, order=step.order)
            ends[step.segment_id, reach.origin] = step.end
        lettering = [item for item in self.lettering if item.end > ends.get((item.segment_id, item.origin), 0)]
        return self._with(shard, indexed, invalid, field_counts, segments=segments, lettering=lettering)

    def _with(
        self, shard: Shard | None, indexed: int, invalid: int, field_counts: Sequence[int], **changes: Any
    ) -> ShardManifest:
        return self._next(
            shards=self.shards if shard is None else [*self.shards, shard],
            indexed=self.indexed + indexed,
            invalid=self.invalid + invalid,
            field_counts=sums(self.field_counts, field_counts),
            **changes,
        )

    def _next(self, **changes: Any) -> ShardManifest:
        return replace(self, generation=self.generation + 1, **changes)

    def lettered(self, steps: Iterable[IndexedRange]) -> ShardManifest:
        """Return a copy that says that dead letters of these steps may be written. PositionConflictError."""
        ends = {(item.segment_id, item.origin): item.end for item in self.lettering}
        for step in steps:
            key = (step.segment_id, self.at(step.segment_id, step.start).origin)
            ends[key] = max(ends.get(key, 0), step.end)
        lettering = [DeadLetterRange(segment, origin, end) for (segment, origin), end in ends.items()]
        return self._next(lettering=lettering)

    def letters_of(self, span: Span) -> int | None:
        """Return the origin whose writer writes the letters of a part of the history; None if it can't have letters
        yet."""
        segment, start, end = span
        covering = (
            item for item in self.lettering if item.segment_id == segment and item.origin <= start and end <= item.end
        )
        return next((item.origin for item in covering), None)

    def divided(
        self, past: Sequence[Span], tail: Iterable[SegmentProgress], orders: Mapping[int, HistoryOrders] | None = None
    ) -> ShardManifest:
        """Return a copy with the history up to the stream's tail listed for backfill. tail: the tail's segments,
        followed from there, and unknown segments of the history. orders: of the history's segments."""
        segments = {segment_id: replace(reach, is_done=True) for segment_id, reach in self.segments.items()}
        for reach in tail:
            segments[reach.segment_id] = replace(reach, origin=reach.reached)
        manifest = replace(self, past=[*self.past, *past], orders={**self.orders, **(orders or {})})
        return manifest.with_segments(segments)

    def filled(
        self, span: Span, shard: Shard | None, *, indexed: int, invalid: int, field_counts: Sequence[int] = ()
    ) -> ShardManifest:
        """Return a copy with a part of the history indexed. PositionConflictError if it was already."""
        if span not in self.past:
            raise PositionConflictError(f"another worker has indexed that part of segment {span[0]}")
        origin = self.letters_of(span)
        lettering = [item for item in self.lettering if (item.segment_id, item.origin) != (span[0], origin)]
        past = [item for item in self.past if item != span]
        manifest = self._with(shard, indexed, invalid, field_counts, past=past, lettering=lettering)
        return manifest.with_segments(self.segments)

    def merged(self, replaced: Sequence[str], merged: Shard, now_ms: int) -> ShardManifest:
        """Return a copy with one shard in place of others. PositionConflictError if they aren't listed any more."""
        replaced_ids = set(replaced)
        if not replaced_ids <= {shard.id for shard in self.shards}:
            raise PositionConflictError("another worker has merged these shards, or retention has deleted them")
        remaining = [shard for shard in self.shards if shard.id not in replaced_ids]
        return self._next(shards=[*remaining, merged], retired=self.retired | dict.fromkeys(replaced, now_ms))

    def truncated(self, limits: Mapping[int, int | None], now_ms: int) -> ShardManifest | None:
        """Return a copy without the shards whose events are all truncated; None if nothing changes. limits: by segment,
        the offset before which events are truncated; None for all."""

        def is_gone(span: Span) -> bool:
            limit = limits.get(span[0], 0)
            return limit is None or span[2] <= limit

        emptied = [shard.id for shard in self.shards if all(map(is_gone, shard.spans))]
        shards = [shard for shard in self.shards if shard.id not in set(emptied)]
        retired = self.retired | dict.fromkeys(emptied, now_ms)
        changed = replace(self, shards=shards, retired=retired).with_segments(self.segments)
        return changed if emptied or changed.segments != self.segments else None

    def without_retired(self, shards: Iterable[str]) -> ShardManifest:
        deleted = set(shards)
        return self._next(retired={shard: at for shard, at in self.retired.items() if shard not in deleted})

    def with_segments(self, segments: Mapping[int, SegmentProgress], gaps: int = 0) -> ShardManifest:
        changed = super().with_segments(segments, gaps)
        past = {span[0] for span in self.past}
        return changed._next(
            orders={segment: item for segment, item in self.orders.items() if segment in past},
            lettering=[item for item in self.lettering if item.segment_id in changed.segments],
        )


def past_micros(orders: HistoryOrders, offsets: Numbers, arrival_ms: Numbers, ends: Numbers) -> Numbers:
    """Return the microseconds of the orders of events in a history. They ascend with the offsets, whichever process
    indexes which part when. Events that arrived by one moment, according to the time index, are spread backwards from
    it by their bytes. ends: see `arrival_ranges`.

    >>> orders = HistoryOrders(0, 0, 3 << 20, 70)
    >>> offsets, arrivals = np.array([0, 8, 1 << 20, 2 << 20]), np.array([50, 50, 50, 90])
    >>> ends = np.array([2 << 20] * 4)
    >>> past_micros(orders, offsets, arrivals, ends).tolist()
    [49488, 49489, 49744, 69744]
    """
    is_last = arrival_ms >= max(orders.arrival_ms, 0)  # the time index may have grown since the history was divided
    times = np.where(is_last, max(orders.arrival_ms, 0), arrival_ms) * 1000
    micros = times - (np.where(is_last, orders.end, ends) - offsets) // _APART_BYTES
    least = orders.before + 1 + (offsets - orders.start) // _APART_BYTES
    ascending: Numbers = np.maximum.accumulate(np.maximum(micros, least))
    return ascending


def sums(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Add two lists by position; the shorter is padded with zeros."""
    return [first + second for first, second in zip_longest(left, right, fillvalue=0)]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, with adjacent ones merged.

    >>> joined([(1, 0, 5), (0, 8, 9), (1, 5, 7)])
    [(0, 8, 9), (1, 0, 7)]
    """
    merged: list[Span] = []
    for segment, start, end in sorted(spans):
        if merged and merged[-1][0] == segment and merged[-1][2] == start:
            start = merged.pop()[1]
        merged.append((segment, start, end))
    return merged


_SMALL = 10_000  # events: tantivy treats smaller segments as equal
_SAME_SIZE = 2**0.75  # largest ratio within a group


def to_merge(shards: Sequence[Shard], least: int, most: int, largest: int) -> list[list[Shard]]:
    """Group shards that should be merged, by tantivy's rule: at least `least` that are small or of about the same size.
    most: size of a group. largest: events of a shard, above which it isn't merged."""
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
    """Return whether all events before a cut are indexed. limits: by segment, the offset of the cut; None if all of it
    is before the cut. Unknown segments follow an unfinished one."""

    def is_short(reach: SegmentProgress) -> bool:
        limit = limits.get(reach.segment_id, 0)
        return not reach.is_done and (limit is None or reach.reached < limit)

    return not any(map(is_short, manifest.known))
