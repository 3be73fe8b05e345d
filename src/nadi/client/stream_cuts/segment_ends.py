"""Cache the ends and the successors of a stream's sealed segments.

A sealed segment's length and successors never change. So a caller that repeatedly plans over many epochs, as a
streaming query does, requests only what may have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from nadi.client.segments.info import SegmentInfo, resolve_missing, segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.errors import SegmentNotFoundError
from nadi.limits import SEGMENT_ENDS_CACHED
from nadi.model.frontier import Frontier
from nadi.model.segments import SegmentRange
from nadi.naming import segment_name


class SegmentEnds:
    """Cache of one stream's segment states and successors."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self.scope, self.stream = scope, stream
        self._stores = stores
        self._sealed: dict[int, SegmentInfo] = {}
        self._successors: dict[int, list[SegmentRange]] = {}

    async def infos(self, offsets: Mapping[int, int]) -> dict[int, SegmentInfo]:
        """Return the current state of each segment; for a sealed one that was read to its end the cached state, whose
        `start_offset` may be outdated.

        offsets: the read offset per segment. Raises SegmentTruncatedError if a segment was truncated away, and
        StreamRecreatedError if it belonged to an earlier stream of this name.
        """
        cached = {s: i for s, at in offsets.items() if (i := self._sealed.get(s)) is not None and at >= i.write_offset}
        requested = [segment for segment in offsets if segment not in cached]
        names = [segment_name(self.scope, self.stream, segment) for segment in requested]
        try:
            infos = await asyncio.gather(*(segment_info(self._stores, name) for name in names))
        except SegmentNotFoundError as error:
            raise await resolve_missing(self._stores, error.segment) from error
        fresh = dict(zip(requested, infos, strict=True))
        self._evict(len(fresh))
        self._sealed |= {segment: info for segment, info in fresh.items() if info.is_sealed}
        return cached | fresh

    async def successors(self, segments: Iterable[int]) -> dict[int, list[SegmentRange]]:
        """Return the successors of each of these sealed segments; empty if the stream is sealed there."""
        ids = list(segments)
        requested = [segment for segment in ids if segment not in self._successors]
        request = self._stores.controller.successors
        replies = await asyncio.gather(*(request(self.scope, self.stream, segment) for segment in requested))
        fresh = {s: [successor.segment for successor in reply] for s, reply in zip(requested, replies, strict=True)}
        cached = {s: self._successors[s] for s in ids if s in self._successors}
        self._successors |= {segment: following for segment, following in fresh.items() if following}
        return cached | fresh

    def _evict(self, count: int) -> None:
        """Evict the oldest entries so that `count` more fit."""
        for cache in (self._sealed, self._successors):
            for segment in list(cache)[: max(0, len(cache) + count - SEGMENT_ENDS_CACHED)]:
                del cache[segment]


async def pass_finished(ends: SegmentEnds, frontier: Frontier, offsets: dict[int, int]) -> dict[int, SegmentInfo]:
    """Advance a frontier past segments that are sealed and read to their ends; return the states of its active
    segments. offsets: the active segments' offsets, which this updates."""
    infos: dict[int, SegmentInfo] = {}
    unchecked = list(frontier.active)
    while unchecked:
        infos |= await ends.infos({segment: offsets[segment] for segment in unchecked})
        finished = [
            segment
            for segment in unchecked
            if infos[segment].is_sealed and offsets[segment] >= infos[segment].write_offset
        ]
        unchecked = []
        for segment, following in (await ends.successors(finished)).items():
            if not following:
                continue  # the stream was sealed: its last segments stay in the cut
            del offsets[segment]
            for piece in frontier.complete(segment, following):
                offsets[piece.segment_id] = 0
                unchecked.append(piece.segment_id)
    return {segment: infos[segment] for segment in frontier.active}
