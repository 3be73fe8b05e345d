"""How a stream followed its load: its scalings, out of its segments' history and the recorder's samples.

A scaling's reaction is the time from when the load asked for it to when its new segments took events: the load asks for
a split once a segment's rate over two seconds is over its target, for a merge once it is under half of it, and
still is when the scaling comes. It is looked at once a second. The rates are the server's own, so a change takes up to
two seconds to be seen in full.
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
    """What passed into each segment at a time; hot: how many of them have a hot key."""

    at_ms: int
    rates: dict[int, float]
    hot: int

    @property
    def highest(self) -> float:
        return max(self.rates.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class Scaling:
    """before, after: segments of the stream. reaction_s is None if the samples don't show a reason."""

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
    """All scalings, oldest first."""
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
    """The segments of earlier epochs that the new ones took the keys of, at that time."""
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
    """Of several segments the one that waited the longest."""
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
    """From a time on, until no segment was over the limit three samples in a row; None if that never was."""
    later = [sample for sample in samples if sample.at_ms > since_ms]
    started = False
    run: list[Sample] = []
    for sample in later:
        started = started or sample.highest > limit
        run = [*run, sample] if started and sample.rates and sample.highest <= limit else []
        if len(run) == 3:
            return (run[0].at_ms - since_ms) / 1000
    return None
