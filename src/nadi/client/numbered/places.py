"""What a writer's id has stored in a stream: its numbers by ranges of keys, across splits and merges.

A segment knows the last number of each writer. A key's last number is the highest of the segments that have taken it: a
segment that follows others takes of a writer only what those have not, once they are sealed and can't change any more.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

from cachetools import LRUCache

from nadi.backoff import Backoff
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.errors import SegmentNotFoundError, StreamSealedError
from nadi.model.segments import SegmentRange, share_keys
from nadi.naming import segment_epoch, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION

_EPOCHS_KEPT = 100
_SEALED_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class StoredNumber:
    """The last number stored of the keys low ≤ position < high; NO_VERSION if there is none."""

    low: float
    high: float
    number: int


class StreamShape:
    """A stream's segments as writers need them, shared by all that write to it by one client."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self.stores, self.scope, self.stream = stores, scope, stream
        self._current: list[SegmentRange] | None = None
        self._epochs: LRUCache[int, list[SegmentRange]] = LRUCache(_EPOCHS_KEPT)
        self._sealed: LRUCache[int, None] = LRUCache(_SEALED_KEPT)

    def name_of(self, segment_id: int) -> str:
        return segment_name(self.scope, self.stream, segment_id)

    async def current(self) -> list[SegmentRange]:
        """The segments that take events, as far as is known; StreamSealedError if there are none."""
        if self._current is None:
            self._current = await self.stores.controller.current_segments(self.scope, self.stream) or None
        if self._current is None:
            raise StreamSealedError(f"stream {self.scope}/{self.stream}")
        return self._current

    @property
    def is_known(self) -> bool:
        """Whether nothing speaks against the segments that `current` has said."""
        return self._current is not None

    def outdated(self) -> None:
        """One of them takes no more: ask again next time."""
        self._current = None

    async def newest_epoch(self) -> int:
        return max(segment_epoch(segment.segment_id) for segment in await self.current())

    async def older_numbers(
        self, segment: SegmentRange, writer_id: bytes, since_epoch: int, known: dict[int, int]
    ) -> list[StoredNumber]:
        """The writer's numbers in the segments that this one follows, at however many removes.

        since_epoch: what was replaced by that epoch isn't looked at; nor is what is gone. known: numbers that were
        asked for, by segment, which this adds to.
        """
        found: list[StoredNumber] = []
        seen, following = set[int](), deque([segment])
        while following:
            newer = following.popleft()
            epoch = segment_epoch(newer.segment_id)
            if epoch <= since_epoch:
                continue
            for older in await self._epoch(epoch - 1):
                if share_keys(older, newer) and older.segment_id not in seen:
                    seen.add(older.segment_id)
                    following.append(older)
                    if older.segment_id not in known:
                        known[older.segment_id] = await self._sealed_number(older.segment_id, writer_id)
                    if known[older.segment_id] != NO_VERSION:
                        found.append(StoredNumber(older.low, older.high, known[older.segment_id]))
        return found

    async def _epoch(self, epoch: int) -> list[SegmentRange]:
        """Its segments, those of them that are still known."""
        if epoch not in self._epochs:
            self._epochs[epoch] = await self.stores.controller.epoch_segments(self.scope, self.stream, epoch)
        return self._epochs[epoch]

    async def _sealed_number(self, segment_id: int, writer_id: bytes) -> int:
        """A writer's last number in a segment that others follow, once it is sealed: it is about to be."""
        name, backoff = self.name_of(segment_id), Backoff()
        try:
            while not segment_id not in self._sealed:
                if (await segment_info(self.stores, name)).is_sealed:
                    self._sealed[segment_id] = None
                else:
                    await backoff.pause()
            asked = wire.GetSegmentAttribute(0, name, id_in(writer_id, segment_id), "")
            return (await self.stores.ask(asked, wire.SegmentAttribute)).value
        except SegmentNotFoundError:
            return NO_VERSION


def id_in(writer_id: bytes, segment_id: int) -> bytes:
    """What a writer's id is in a segment: a connection knows writers by their ids alone, each in one segment."""
    return hashlib.blake2b(segment_id.to_bytes(8, "big"), digest_size=16, key=writer_id).digest()


async def epoch_at(shape: StreamShape, at_ms: int) -> int:
    """The oldest epoch that still had segments at that time."""
    cut = await shape.stores.controller.cut_at(shape.scope, shape.stream, at_ms)
    return min(map(segment_epoch, cut.positions), default=0)
