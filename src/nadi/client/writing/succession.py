"""What happens to a sealed segment's keys and to its events that are not stored: they go to its successors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from nadi.client.writing.batch import Batch
from nadi.client.writing.blocks import Piece
from nadi.client.writing.routes import Routes
from nadi.client.writing.segment_output import SegmentOutput
from nadi.model.segments import SegmentRange, common_keys

Entry = tuple[float, float, SegmentOutput]


def routed_on(
    table: Iterable[Entry],
    sealed: SegmentOutput,
    successors: Sequence[SegmentRange],
    output_of: Callable[[int], SegmentOutput],
) -> Iterator[Entry]:
    """The writer's table with the successors replacing the sealed segment. Each gets only the keys that this one had:
    other predecessors of a merge keep theirs until they are found sealed themselves."""
    for low, high, output in table:
        if output is not sealed:
            yield low, high, output
            continue
        own = SegmentRange(sealed.segment_id, low, high)
        for piece in successors:
            if keys := common_keys(own, piece):
                yield *keys, output_of(piece.segment_id)


def divided(
    batch: Batch, routes: Routes[SegmentOutput], spare: SegmentOutput, route: Callable[[str], SegmentOutput]
) -> dict[SegmentOutput, Batch]:
    """The batch's events, in order, grouped by the output that takes their key; those without a key go to `spare`."""
    groups: defaultdict[SegmentOutput, Batch] = defaultdict(partial(Batch, batch.ack))
    for header, payload, key in batch.parts():
        if isinstance(key, Piece):
            for code, part in key.divide(routes, routes.code_of[spare]):
                groups[routes.segments[code]].add_piece(part)
        else:
            groups[spare if key is None else route(key)].add(header, payload, key)
    return groups
