"""Which objects of a cluster's store nobody needs, and never will. All of it is pure.

What is decided here holds whatever servers do meanwhile, for it follows from a record, which was read *after* the
objects were listed, and from names: records only move on, and no name is used twice. Age is asked for as well, to be
sure of it twice over. What isn't understood stays.

- A frame of a log, if no state refers to it. The record's start says from which sequence on frames may still hold the
  only copy of bytes (`held_from`), and which epochs these are in (`begun`). A walk begins at the start's place. So a
  frame goes if its epoch is before the start's and has ended before its number (garbage of a deposed owner, behind a
  seal), or if its sequence is before `held_from`. Seals never go: an object that is no longer than a header may be one.
- An object of a snapshot, if the record doesn't name it and its own name says an earlier frame than the snapshot that
  counts: later snapshots consist of what counts now, and of new objects of that frame or later ones.
- A chunk, if it was planned by a frame that the snapshot's state reflects, and that state neither refers to it nor
  knows that it is planned, or garbage. Its own description says which frame planned it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from nadi.cluster.records import ContainerRecord
from nadi.segmentstore.chain.layout import HEADER_BYTES, Place, name_of, place_of
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.tier2.chunks import Listed

_OF_SNAPSHOT = re.compile(r"(?:base-([0-9a-f]{16})-[0-9a-f]{32}-\d+|delta-([0-9a-f]{16})-[0-9a-f]{32})")


def frames(container: int, record: ContainerRecord, listed: Iterable[Listed]) -> list[str]:
    """The names, among objects of a container's log, of frames that nobody needs."""
    found = []
    for one in listed:
        place = place_of(one.name)
        if place is None or name_of(container, place) != one.name or one.size_bytes <= HEADER_BYTES:
            continue
        if _is_past(record, place):
            found.append(one.name)
    return found


def _is_past(record: ContainerRecord, place: Place) -> bool:
    start = record.start
    begun = dict(start.begun)
    if place.epoch > start.epoch or start.epoch not in begun:
        return False
    if place.epoch == start.epoch:
        return place.number < start.number and begun[place.epoch] + place.number - 1 < start.held_from
    if place.epoch not in begun:  # it ended before `held_from`, or nothing of it was ever in the chain
        return True
    sequence = begun[place.epoch] + place.number - 1
    end = min(first for epoch, first in start.begun if epoch > place.epoch)
    return sequence >= end or sequence < start.held_from


def snapshot_objects(container: int, record: ContainerRecord, listed: Iterable[Listed]) -> list[str]:
    """The names, among objects of a container's snapshots, of those that no snapshot will have any more."""
    if record.snapshot is None:
        return []
    named = {part.name for part in record.snapshot.parts}
    folder = snapshots.folder_of(container) + "/"
    found = []
    for one in listed:
        match = _OF_SNAPSHOT.fullmatch(one.name.removeprefix(folder)) if one.name.startswith(folder) else None
        if match is None or one.name in named:
            continue
        if int(match[1] or match[2], 16) < record.snapshot.sequence:
            found.append(one.name)
    return found


def is_lost_chunk(record: ContainerRecord, known: Collection[str], name: str, planned_by: int) -> bool:
    """Whether nobody will ever refer to a chunk. known: all that the state of the record's snapshot knows. planned_by:
    the sequence of the frame that planned it, 0 if that isn't known."""
    return record.snapshot is not None and name not in known and 0 < planned_by <= record.snapshot.sequence


def old(listed: Iterable[Listed], before_ms: int) -> list[Listed]:
    """Those that were stored before that time, by the store's clock."""
    return [one for one in listed if one.modified_ms < before_ms]
