"""Streams scaled at random on a real server: few keys at a time, so that some segments stay empty."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import nadi
from nadi.model.keyspace import equal_ranges

KEYS = 20


class ScaledStream:
    """A stream of `<key>:<number>` under each key; `written` counts all, `counts` those of each key."""

    def __init__(self, manager: nadi.StreamManager, stream: str, seed: int) -> None:
        self.manager, self.stream, self.chance = manager, stream, random.Random(seed)
        self.written = 0
        manager.create_stream("home", stream, 2)

    def live(self, epochs: int, events: int = 60) -> None:
        """Go through some epochs, with events in each."""
        for _ in range(epochs):
            self.write(events, self.chance.choice([1, 2, 3, KEYS]))
            self.scale()
        self.write(events, KEYS)

    def write(self, events: int, keys: int = KEYS) -> None:
        some = self.chance.sample(range(KEYS), keys)
        with self.manager.create_writer("home", self.stream) as writer:
            for _ in range(events):
                key = self.chance.choice(some)
                writer.write_event(b"k%d:%d" % (key, self.written), f"k{key}")
                self.written += 1

    def scale(self) -> None:
        scale_somehow(self.manager, self.stream, self.chance)


def scale_somehow(manager: nadi.StreamManager, stream: str, chance: random.Random, scope: str = "home") -> None:
    """Replace all segments or some neighbours, at even or random bounds."""
    active = manager.current_segments(scope, stream)
    first = chance.randrange(len(active)) if chance.random() < 0.4 else 0
    some = active[first : first + 3] if first else active
    low, high = some[0].low, some[-1].high
    count = 2 if len(active) > 2 else 5
    ranges = equal_ranges(count, low, high)
    if chance.random() < 0.4:
        places = sorted(chance.uniform(low, high) for _ in range(count - 1))
        ranges = list(pairwise([low, *places, high]))
    manager.scale_stream(scope, stream, [piece.segment_id for piece in some], ranges)


def scaled_as_it_went_wrong(manager: nadi.StreamManager, stream: str, seed: int) -> int:
    """Return streams of two and five segments alternately; seeds 4 and 19 once produced cuts that no reader can be at.
    Return the number of events too."""
    chance = random.Random(seed)
    manager.create_stream("home", stream, 2)
    written, segments = 0, 2
    with manager.create_writer("home", stream) as writer:
        for epoch in range(4 + seed % 4):
            is_last = epoch == 3 + seed % 4
            keys = range(KEYS) if is_last else chance.sample(range(KEYS), chance.choice([1, 2, 3, KEYS]))
            for _ in range(60):
                key = chance.choice(keys)
                writer.write_event(b"k%d:%d" % (key, written), f"k{key}")
                written += 1
            writer.flush()
            if not is_last:
                ids = [piece.segment_id for piece in manager.current_segments("home", stream)]
                segments = 2 if segments > 2 else 5
                manager.scale_stream("home", stream, ids, equal_ranges(segments))
    return written


def check_once_in_order(events: Iterable[bytes], written: int) -> None:
    """Check that each of these events occurs once, and those of each key in rising order."""
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for event in events:
        key, _, number = event.partition(b":")
        by_key[key].append(int(number))
    assert sorted(number for numbers in by_key.values() for number in numbers) == list(range(written))
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"{key!r} is out of order"
