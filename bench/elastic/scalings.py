"""How a stream followed its load: its scalings, from its segments' history and the recorder's samples.

A scaling's reaction is the time from when the load required it to the first events in its new segments: the load
requires a split once a segment's rate over two seconds exceeds its target, a merge once it is below half of it, if that
still holds when the scaling happens. Sampled once a second. The rates are the server's own, so a change takes up to two
seconds to show completely.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nadi.model.reports import SegmentReport

OVER, UNDER = 1.2, 0.5  # times the target: what the fast profile splits and merges at


@dataclass(frozen=True, slots=True)
class Sample:
    """The traffic of each segment at a time; hot: the number of segments with a hot key."""

    at_ms: int
    rates: dict[int, float]
    hot: int

    @property
    def highest(self) -> float:
        return max(self.rates.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class Scaling:
    """A scaling. before, after: segments of the stream. reaction_s is None if the samples show no reason."""

    at_ms: int
    epoch: int
    replaced: int
    made: int
    before: int
    after: int
    reaction_s: float | None

    @property
    def kind(self) -> str:
        return "split" if self.made > self.replaced else "merge" if self.made < self.replaced else "exchange"


def samples_of(file: Path) -> list[Sample]:
    found = []
    for line in file.read_text().splitlines():
        note = json.loads(line)
        rates = {int(segment): rate for segment, rate in note["rates"].items()}
        found.append(Sample(note["at_ms"], rates, len(note["hot"])))
    return found


def scalings_of(history: Sequence[SegmentReport], samples: Sequence[Sample], target: int) -> list[Scaling]:
    """Return all scalings, oldest first."""
    by_epoch: dict[int, list[SegmentReport]] = {}
    for segment in history:
        by_epoch.setdefault(segment.segment_id >> 32, []).append(segment)
    count = len(by_epoch.pop(0, []))
    found = []
    for epoch, made in sorted(by_epoch.items()):
        at_ms = made[0].created_ms
        replaced = _replaced(history, made, epoch)
        after = count - len(replaced) + len(made)
        reaction = _reaction(replaced, at_ms, samples, target, is_split=len(made) > len(replaced))
        found.append(Scaling(at_ms, epoch, len(replaced), len(made), count, after, reaction))
        count = after
    return found


def _replaced(history: Sequence[SegmentReport], made: Sequence[SegmentReport], epoch: int) -> list[SegmentReport]:
    """Return the segments of earlier epochs whose keys the new ones took over, at that time."""
    low, high = min(one.low for one in made), max(one.high for one in made)
    at_ms = made[0].created_ms
    return [
        one
        for one in history
        if one.segment_id >> 32 < epoch and one.replaced_ms == at_ms and one.low < high and one.high > low
    ]


def _reaction(
    replaced: Sequence[SegmentReport], at_ms: int, samples: Sequence[Sample], target: int, *, is_split: bool
) -> float | None:
    """Return the reaction of the segment that waited longest."""
    waits = []
    for segment in replaced:
        since = None
        for sample in reversed(samples):
            if sample.at_ms > at_ms:
                continue
            rate = sample.rates.get(segment.segment_id)
            if rate is None or not (rate > target if is_split else rate < UNDER * target):
                break
            since = sample.at_ms
        if since is not None:
            waits.append((at_ms - since) / 1000)
    return max(waits, default=None)


def seconds_until_all_under(samples: Sequence[Sample], since_ms: int, limit: float) -> float | None:
    """Return the seconds from a time until no segment exceeded the limit in three consecutive samples; None if
    never."""
    later = [sample for sample in samples if sample.at_ms > since_ms]
    started = False
    run: list[Sample] = []
    for sample in later:
        started = started or sample.highest > limit
        run = [*run, sample] if started and sample.rates and sample.highest <= limit else []
        if len(run) == 3:
            return (run[0].at_ms - since_ms) / 1000
    return None
