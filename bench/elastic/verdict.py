"""Judge the events read: lost, duplicated, or out of the order of their key.

Sequences of a key's events count from 0. `written` has the number of events of each key; the events read are two
arrays, of keys and of sequences, in the order of reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result. unknown: events that weren't written. disordered: events first read after a later one of their
    key."""

    written: int
    read: int
    lost: int
    doubled: int
    disordered: int
    unknown: int

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.disordered or self.unknown)


def judge(written: Array, keys: Array, sequences: Array) -> Verdict:
    """Judge the events read.

    >>> judge(np.array([2, 1]), np.array([0, 1, 0, 0]), np.array([1, 0, 0, 0]))
    Verdict(written=3, read=4, lost=0, doubled=1, disordered=1, unknown=0)
    >>> judge(np.array([3, 2]), np.array([1, 0, 0, 1, 0, 0]), np.array([0, 0, 1, 1, 9, 2]))
    Verdict(written=5, read=6, lost=0, doubled=0, disordered=0, unknown=1)
    """
    starts = np.concatenate([[0], np.cumsum(written)]).astype(np.int64)
    known = keys < len(written)
    known &= sequences < np.where(known, written[np.where(known, keys, 0)], 0)
    numbers = starts[keys[known]] + sequences[known]  # each event's own, in the order of its key
    seen, first = np.unique(numbers, return_index=True)
    return Verdict(
        written=int(starts[-1]),
        read=len(keys),
        lost=int(starts[-1]) - len(seen),
        doubled=len(numbers) - len(seen),
        disordered=_late(seen, first, starts),
        unknown=int(len(keys) - known.sum()),
    )


def _late(seen: Array, first: Array, starts: Array) -> int:
    """Return how many events, sorted by key and sequence, were first read after a later one of their key."""
    if not len(seen):
        return 0
    key = np.searchsorted(starts, seen, side="right") - 1
    # places rise from key to key, so the least place from here on is one of the same key
    places = first + key * (int(first.max()) + 1)
    following = np.minimum.accumulate(places[::-1])[::-1]
    return int((places[:-1] > following[1:])[key[:-1] == key[1:]].sum())
