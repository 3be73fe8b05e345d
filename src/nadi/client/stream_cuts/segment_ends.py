"""Where the segments of one stream end and what follows them, asked for once where it is final.

A sealed segment's length and successors never change, so they are kept: whoever plans over many epochs again and
again, as a streaming query does, asks only for what can have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from nadi.client.segments.info import SegmentInfo, segment_info, what_became_of
from nadi.client.segments.stores import SegmentStores
from nadi.errors import SegmentNotFoundError
from nadi.limits import SEGMENT_ENDS_KEPT
from nadi.model.frontier import Frontier
from nadi.model.segments import SegmentRange
from nadi.naming import segment_name


class SegmentEnds:
    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self.scope, self.stream = scope, stream
        self._stores = stores
        self._sealed: dict[int, SegmentInfo] = {}
        self._successors: dict[int, list[SegmentRange]] = {}

    async def infos(self, offsets: Mapping[int, int]) -> dict[int, SegmentInfo]:
        """Of each segment what its store says now; of one that is sealed and read to its end (offsets: how far) what
        it said once, `start_offset` included. SegmentGoneError if one was truncated away, StreamRemadeError
        if it went with an earlier stream of this name."""
        kept = {s: i for s, at in offsets.items() if (i := self._sealed.get(s)) is not None and at >= i.write_offset}
        asked = [segment for segment in offsets if segment not in kept]
        names = [segment_name(self.scope, self.stream, segment) for segment in asked]
        try:
            infos = await asyncio.gather(*(segment_info(self._stores, name) for name in names))
        except SegmentNotFoundError as error:
            raise await what_became_of(self._stores, error.segment) from error
        found = dict(zip(asked, infos, strict=True))
        self._make_room(len(found))
        self._sealed |= {segment: info for segment, info in found.items() if info.is_sealed}
        return kept | found

    async def successors(self, segments: Iterable[int]) -> dict[int, list[SegmentRange]]:
        """What follows each of these sealed segments; nothing if the stream is sealed there."""
        wanted = list(segments)
        asked = [segment for segment in wanted if segment not in self._successors]
        ask = self._stores.controller.successors
        replies = await asyncio.gather(*(ask(self.scope, self.stream, segment) for segment in asked))
        found = {s: [one.segment for one in reply] for s, reply in zip(asked, replies, strict=True)}
        known = {s: self._successors[s] for s in wanted if s in self._successors} | found
        self._successors |= {segment: following for segment, following in found.items() if following}
        return known

    def _make_room(self, count: int) -> None:
        """The oldest go: they are asked for again if they are needed."""
        for kept in (self._sealed, self._successors):
            for segment in list(kept)[: max(0, len(kept) + count - SEGMENT_ENDS_KEPT)]:
                del kept[segment]


async def pass_finished(ends: SegmentEnds, frontier: Frontier, offsets: dict[int, int]) -> dict[int, SegmentInfo]:
    """Lead a frontier over the segments that are sealed and read to their ends, as far as it goes; what its active
    segments are now. `offsets` are theirs, before and after."""
    infos: dict[int, SegmentInfo] = {}
    look = list(frontier.active)
    while look:
        infos |= await ends.infos({segment: offsets[segment] for segment in look})
        finished = [
            segment for segment in look if infos[segment].is_sealed and offsets[segment] >= infos[segment].write_offset
        ]
        look = []
        for segment, following in (await ends.successors(finished)).items():
            if not following:
                continue  # the stream was sealed: its last segments stay in the cut
            del offsets[segment]
            for piece in frontier.complete(segment, following):
                offsets[piece.segment_id] = 0
                look.append(piece.segment_id)
    return {segment: infos[segment] for segment in frontier.active}
