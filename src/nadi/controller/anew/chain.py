"""A history for segments of which only the names are left, without I/O.

A segment's name includes the epoch that created it, and its successors were always created in a later epoch. Nothing
says which followed which, or what keys they took. So each epoch is read completely before the next, which preserves
the order of every key, whatever the keys were. Ranges are made up. If an epoch with several segments follows another
such epoch, no ranges could make each new segment wait for all old ones, so a *barrier* stands in between
(`EpochChange`): an empty segment, which may have to be created.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from nadi.controller.state.history import Cut, History
from nadi.controller.state.records import EpochChange, EpochSegment
from nadi.model.frontier import WAITING
from nadi.model.keyspace import equal_ranges
from nadi.model.segments import ids_under, oldest_by_key
from nadi.naming import segment_epoch, segment_number


def chain(
    before: Sequence[EpochChange],
    segments: Iterable[int],
    *,
    created_ms: Mapping[int, int],
    empty: Collection[int] = (),
) -> list[EpochChange]:
    """The history that continues after `before` with these segments, each epoch replacing the whole previous one.

    created_ms: when segments were created, where known. empty: segments that hold nothing, one of which may serve as
    a barrier unchanged.

    >>> made = chain([], [0, 1, (1 << 32) | 2, (1 << 32) | 3], created_ms={})
    >>> [(change.removed, [segment.id & 255 for segment in change.added], change.barrier & 255) for change in made]
    [((), [0, 1], 255), ((0, 1), [2, 3], 1)]
    """
    changes = list(before)
    live = newest_segments(changes)
    epochs: dict[int, list[int]] = {}
    for segment in sorted(segments):
        epochs.setdefault(segment_epoch(segment), []).append(segment)
    for epoch, ids in sorted(epochs.items()):
        while following(changes) < epoch:  # an epoch of which nothing is left: it was truncated away
            changes.append(_nothing_of(following(changes), changes))
            live = live or [0]
        barrier, added = -1, ids
        if len(live) > 1 and len(ids) > 1:
            first = ids[0]
            barrier = first if first in empty or segment_number(first) == 0 else first - 1
            added = [segment for segment in ids if segment != barrier]
        known = [created_ms[segment] for segment in ids if created_ms.get(segment, 0) > 0]
        at_ms = max(min(known, default=0), _after(changes))
        ranges = [EpochSegment(segment, *keys) for segment, keys in zip(added, equal_ranges(len(added)), strict=True)]
        changes.append(EpochChange(epoch, epoch, at_ms, tuple(live), tuple(ranges), barrier))
        live = added
    return changes


def following(changes: Sequence[EpochChange]) -> int:
    """The number of the epoch that continues after these."""
    return changes[-1].epoch + 1 if changes else 0


def newest_segments(changes: Sequence[EpochChange]) -> list[int]:
    """The segments of the newest epoch; none if there is no epoch."""
    history = History(changes)
    return [segment.id for segment in history.epoch(history.newest)] if changes else []


def _nothing_of(epoch: int, changes: Sequence[EpochChange]) -> EpochChange:
    """The first epoch gets a segment all the same, since it once had one: it lies before the head."""
    added = () if changes else (EpochSegment(0, 0.0, 1.0),)
    return EpochChange(epoch, epoch, _after(changes), (), added)


def _after(changes: Sequence[EpochChange]) -> int:
    return changes[-1].created_ms + 1 if changes else 0


def head_of(history: History, starts: Mapping[int, int]) -> Cut:
    """The cut before the first remaining byte; empty if that is the first ever.

    starts: where the bytes of each existing segment start.
    """
    if history.first == 0 and all(starts.get(segment.id) == 0 for segment in history.epoch(0)):
        return {}
    place = oldest_by_key(history.segments[segment] for segment in starts if segment in history.segments)
    cut = {}
    for segment in {piece.segment_id for piece in place}:
        is_begun = all(other == segment for other in ids_under(place, history.segments[segment]))
        cut[segment] = starts[segment] if is_begun else WAITING
    return cut
