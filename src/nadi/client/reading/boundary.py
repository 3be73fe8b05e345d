"""Whether a reader can stand at a cut, and what it may read there, according to the stream's history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nadi.client.control.arguments import check_is_cut
from nadi.client.segments.stores import SegmentStores
from nadi.errors import EpochGoneError, InvalidArgumentError, InvalidStreamCutError, NotFoundError
from nadi.model.frontier import Frontier
from nadi.model.segments import SegmentRange, gaps
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch

_FORGOTTEN = "was truncated away so long ago that it is forgotten: start at the stream's head"


async def frontier_at(stores: SegmentStores, cut: StreamCut, keys: Sequence[float] | None = None) -> Frontier:
    """What may be read at a cut, under all keys or under these places of the key space; InvalidStreamCutError if it
    is not a boundary, as far as its own segments show."""
    ranges = await segment_ranges(stores, cut.scope, cut.stream, cut)
    return Frontier(ranges, [segment_id for segment_id, offset in cut.positions.items() if offset < 0], keys)


async def check_boundary(stores: SegmentStores, cut: StreamCut) -> None:
    """InvalidStreamCutError unless a reader of the whole stream could stand there, as far as its history shows."""
    if await stores.controller.is_stream_cut_valid(cut):
        return
    await frontier_at(stores, cut)  # says more about what is wrong, if the cut's own segments show it
    raise InvalidStreamCutError(f"{cut} is not a boundary of its stream: take one from a reader or a checkpoint")


def check_cut(cut: StreamCut | None, scope: str, stream: str) -> None:
    """InvalidStreamCutError unless the cut is one of this stream."""
    if cut is None:
        return
    check_is_cut(cut)
    if (cut.scope, cut.stream) != (scope, stream):
        raise InvalidStreamCutError(f"the cut belongs to stream {cut.scope}/{cut.stream}, not to {scope}/{stream}")


def check_order(start: StreamCut, end: StreamCut) -> None:
    """InvalidStreamCutError if the end lies before the start within one of their segments."""
    for segment_id, offset in start.positions.items():
        if offset > end.positions.get(segment_id, offset):
            raise InvalidStreamCutError(f"the end cut lies before the start cut in segment {segment_id}")


async def segments_between(stores: SegmentStores, start: StreamCut, end: StreamCut) -> list[int]:
    """The ids of the segments between two cuts; InvalidStreamCutError if no slice lies between them."""
    check_order(start, end)
    try:
        return await stores.controller.segments_between(start.scope, start.stream, start, end)
    except InvalidStreamCutError:
        raise
    except InvalidArgumentError as error:
        raise InvalidStreamCutError(f"no slice lies between these cuts: {error}") from error


async def segment_ranges(stores: SegmentStores, scope: str, stream: str, cut: StreamCut) -> list[SegmentRange]:
    """The key ranges of a cut's segments; InvalidStreamCutError if one isn't of the stream, EpochGoneError if that is
    forgotten."""
    ranges, gone = await _look_up(stores, scope, stream, cut)
    unknown = [segment_id for segment_id in cut.positions if segment_id not in ranges]
    for segment_id in unknown:
        if segment_epoch(segment_id) in gone:
            raise gone[segment_epoch(segment_id)]
    if unknown:
        raise InvalidStreamCutError(
            f"{scope}/{stream} never had a segment {unknown[0]}: the cut is not its own, or was made before the stream "
            "was deleted and recreated"
        )
    return [ranges[segment_id] for segment_id in cut.positions]


async def known_ranges(stores: SegmentStores, cut: StreamCut) -> list[SegmentRange]:
    """The key ranges of a cut's segments, as far as they aren't forgotten."""
    ranges, _ = await _look_up(stores, cut.scope, cut.stream, cut)
    return [ranges[segment_id] for segment_id in cut.positions if segment_id in ranges]


async def _look_up(
    stores: SegmentStores, scope: str, stream: str, cut: StreamCut
) -> tuple[dict[int, SegmentRange], dict[int, EpochGoneError]]:
    """The segments of the epochs that created a cut's segments; and which of the epochs are forgotten."""
    gone: dict[int, EpochGoneError] = {}

    async def of_epoch(epoch: int) -> list[SegmentRange]:
        try:
            found = await stores.controller.epoch_segments(scope, stream, epoch)
        except EpochGoneError as error:
            gone[epoch] = error
            return []
        except NotFoundError:
            if not await stores.controller.stream_exists(scope, stream):
                raise
            return []
        if gaps(found):  # only those that outlived it are known
            gone[epoch] = EpochGoneError(f"epoch {epoch} of {scope}/{stream} {_FORGOTTEN}")
        return found

    epochs = sorted({segment_epoch(segment_id) for segment_id in cut.positions})
    found = await asyncio.gather(*map(of_epoch, epochs))
    return {piece.segment_id: piece for pieces in found for piece in pieces}, gone
