"""Validate cuts against a stream's history and find the segments to read at a cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nadi.client.control.arguments import check_is_cut
from nadi.client.segments.stores import SegmentStores
from nadi.errors import EpochExpiredError, InvalidArgumentError, InvalidStreamCutError, NotFoundError
from nadi.model.frontier import Frontier
from nadi.model.segments import SegmentRange, gaps
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch

_FORGOTTEN = "was truncated so long ago that its segments are no longer known: start at the stream's head"


async def frontier_at(stores: SegmentStores, cut: StreamCut, keys: Sequence[float] | None = None) -> Frontier:
    """Return the frontier at a cut, for all keys or for these positions in the key space; raise InvalidStreamCutError
    if the cut's segments show that it is not a boundary."""
    ranges = await segment_ranges(stores, cut.scope, cut.stream, cut)
    return Frontier(ranges, [segment_id for segment_id, offset in cut.positions.items() if offset < 0], keys)


async def check_boundary(stores: SegmentStores, cut: StreamCut) -> None:
    """Raise InvalidStreamCutError unless the cut is possible for a reader of the whole stream, given its history."""
    if await stores.controller.is_stream_cut_valid(cut):
        return
    await frontier_at(stores, cut)  # raises a more precise error if the cut's segments show the reason
    raise InvalidStreamCutError(f"{cut} is not a boundary of its stream: use one from a reader or a checkpoint")


def check_cut(cut: StreamCut | None, scope: str, stream: str) -> None:
    """Raise InvalidStreamCutError unless the cut belongs to this stream."""
    if cut is None:
        return
    check_is_cut(cut)
    if (cut.scope, cut.stream) != (scope, stream):
        raise InvalidStreamCutError(f"the cut belongs to stream {cut.scope}/{cut.stream}, not to {scope}/{stream}")


def check_order(start: StreamCut, end: StreamCut) -> None:
    """Raise InvalidStreamCutError if the end is before the start within a common segment."""
    for segment_id, offset in start.positions.items():
        if offset > end.positions.get(segment_id, offset):
            raise InvalidStreamCutError(f"the end cut is before the start cut in segment {segment_id}")


async def segments_between(stores: SegmentStores, start: StreamCut, end: StreamCut) -> list[int]:
    """Return the ids of the segments between two cuts; raise InvalidStreamCutError if the cuts don't bound a slice."""
    check_order(start, end)
    try:
        return await stores.controller.segments_between(start.scope, start.stream, start, end)
    except InvalidStreamCutError:
        raise
    except InvalidArgumentError as error:
        raise InvalidStreamCutError(f"these cuts don't bound a slice: {error}") from error


async def segment_ranges(stores: SegmentStores, scope: str, stream: str, cut: StreamCut) -> list[SegmentRange]:
    """Return the key ranges of a cut's segments; raise InvalidStreamCutError if one doesn't belong to the stream, and
    EpochExpiredError if the server has forgotten that."""
    ranges, forgotten = await _look_up(stores, scope, stream, cut)
    unknown = [segment_id for segment_id in cut.positions if segment_id not in ranges]
    for segment_id in unknown:
        if segment_epoch(segment_id) in forgotten:
            raise forgotten[segment_epoch(segment_id)]
    if unknown:
        raise InvalidStreamCutError(
            f"{scope}/{stream} never had a segment {unknown[0]}: the cut belongs to another stream, or was made before "
            "the stream was deleted and recreated"
        )
    return [ranges[segment_id] for segment_id in cut.positions]


async def known_ranges(stores: SegmentStores, cut: StreamCut) -> list[SegmentRange]:
    """Return the key ranges of those of a cut's segments that are still known."""
    ranges, _ = await _look_up(stores, cut.scope, cut.stream, cut)
    return [ranges[segment_id] for segment_id in cut.positions if segment_id in ranges]


async def _look_up(
    stores: SegmentStores, scope: str, stream: str, cut: StreamCut
) -> tuple[dict[int, SegmentRange], dict[int, EpochExpiredError]]:
    """Return the segments, by id, of the epochs that created a cut's segments; and the errors of forgotten epochs."""
    forgotten: dict[int, EpochExpiredError] = {}

    async def epoch_segments(epoch: int) -> list[SegmentRange]:
        try:
            segments = await stores.controller.epoch_segments(scope, stream, epoch)
        except EpochExpiredError as error:
            forgotten[epoch] = error
            return []
        except NotFoundError:
            if not await stores.controller.stream_exists(scope, stream):
                raise
            return []
        if gaps(segments):  # only the segments that outlived the epoch are known
            forgotten[epoch] = EpochExpiredError(f"epoch {epoch} of {scope}/{stream} {_FORGOTTEN}")
        return segments

    epochs = sorted({segment_epoch(segment_id) for segment_id in cut.positions})
    by_epoch = await asyncio.gather(*map(epoch_segments, epochs))
    return {piece.segment_id: piece for pieces in by_epoch for piece in pieces}, forgotten
